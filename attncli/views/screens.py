"""First screens of attention, pictures, lessons and stores, with their first lines and notes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from rich.cells import cell_len

from attncli.records.attention import LayerStatistics
from attncli.records.report import NamedTensor, Report
from attncli.settings import SPECS, spec_class_of
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.first_screen import Element
from attncli.views.matrices import Matrix, axis_tokens, pictured, tensor_matrices
from attncli.views.report_sections import TableLabels, largest_keys, number_columns
from attncli.views.sections import GAP, Column, Drawing, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import (
    ARROW,
    NO_NUMBER,
    fixed,
    heading,
    is_in_heading,
    place_text,
    setting,
    shortened,
    text_of,
    token_counts,
    token_name,
    untrained,
)

NOTE_LINES = 3
# Settings that usually have the same value as another setting.
FOLLOWS = {"value_dim": "head_dim", "num_kv_heads": "num_heads"}
USUAL = {"embedding": ("random", "gaussian")}
SIZES = ("embed_dim", "num_heads", "head_dim")
# Settings that appear elsewhere in the first lines.
SHOWN_ELSEWHERE = ("file", "seed")


def _settings(report: Report) -> Iterator[str]:
    """Yield the sizes in the heading, and the settings in the heading that have unusual values."""
    spec = report.spec
    for key in spec_class_of(report.experiment, report.spec).heading_keys:
        if (
            key not in SHOWN_ELSEWHERE
            and is_in_heading(spec, key)
            and (key in SIZES or not _is_usual(report, key))
        ):
            named = place_text(spec) if key == "layer" else f"{key} {setting(spec[key])}"
            yield key if spec[key] is True else named


def _is_usual(report: Report, key: str) -> bool:
    """Return True if a setting has its default value or follows from another setting."""
    value = report.spec[key]
    default = spec_class_of(report.experiment, report.spec).model_fields[key].default
    return value in (default, *USUAL.get(key, ())) or value == report.spec.get(FOLLOWS.get(key, ""))


LEAST_ROWS = 3
MOST_ROWS, FIRST_ROWS = 10, 8  # The most rows of a whole matrix, and the rows of a longer one.
COLUMN_WIDTHS = (9, 8, 7, 6, 5)  # Terminal cells for a token above a column, tried until all columns fit.
CUT_WIDTH, CUT_LABEL = 7, 12  # Terminal cells for tokens if not all columns fit.
LEAST_WIDTH = 6  # The minimum width of a column, including the gap before it.
MANY_KEYS = 50  # With this many keys, weights are small enough to need one more decimal.
MOST_AT = ("most", "at")
PLACE_NAMES = {"batch": "sequence"}
PLURALS = {"query": "queries"}


class MatrixPart:
    """The rows and columns of a matrix that fit the display, which matrices of equal size share."""

    def __init__(
        self,
        report: Report,
        matrices: Mapping[str, Matrix],
        display: Display,
        title: str,
        rows: int,
    ) -> None:
        self.names, self.title = list(matrices), title
        first = next(iter(matrices.values()))
        self.axes = first.axes
        self.width = display.columns
        self.labels = TableLabels(report, display)
        self.num_queries, self.num_keys = first.values.shape
        self.precision = display.precision + (self.num_keys > MANY_KEYS)
        self.rows = min(rows, self.num_queries)
        # On a terminal, show the last queries of a causal matrix, which see the most keys.
        self.first = self.num_queries - self.rows if display.height is not None and first.is_causal else 0
        self.values = np.concatenate([matrix.drawn[self.shown] for matrix in matrices.values()])
        self.largest = largest_keys(self.values)
        self.grid = self._whole() or self._cut()

    @property
    def shown(self) -> slice:
        """The queries that are shown."""
        return slice(self.first, self.first + self.rows)

    def _whole(self) -> Grid | None:
        """Return every key with as much of its token as fits, or None if the keys do not fit."""
        if self.num_keys * LEAST_WIDTH > self.width:
            return None
        for width in COLUMN_WIDTHS:
            self.labels.column_width = width
            grid = Grid(self.title, self._label(), self._columns())
            if grid.fits(self.width):
                return grid
        return None

    def _cut(self) -> Grid:
        """Return the first keys that fit and, beside them, the key with the most weight for each query."""
        self.labels.column_width = CUT_WIDTH
        self.labels.row_width = min(CUT_LABEL, self.labels.row_width or 0)
        label = self._label()
        most = [
            self.labels.place(self.axes[1], int(key)) if np.isfinite(row[key]) else NO_NUMBER
            for key, row in zip(self.largest, self.values, strict=True)
        ]
        last = Column(MOST_AT, most, left=True)
        first = Grid(self.title, label, self._columns()).first_group(self.width - last.width - GAP)
        return replace(first, columns=[*first.columns, last])

    def _label(self) -> Column:
        label = self.labels.rows(self.axes[0], self.num_queries)
        cells = [f"{name} {cell}".strip() for name in self.names for cell in label.cells[self.shown]]
        return replace(label, cells=cells)

    def _columns(self) -> list[Column]:
        headers = self.labels.columns(self.axes[1], self.num_keys)[: self.width // LEAST_WIDTH]
        return number_columns(headers, self.values, self.precision)

    def left_out(self, sizes: Mapping[str, int] | None = None) -> Iterator[str]:
        """Yield what is not shown, such as `queries 10-199`; `sizes` are the sizes of the leading axes."""
        num_columns = len(self.grid.columns) - (self.grid.columns[-1].header == MOST_AT)
        left_out = {name: (1, size) for name, size in (sizes or {}).items()}
        rows = (0, self.first) if self.first else (self.rows, self.num_queries)
        left_out |= {self.axes[0]: rows, self.axes[1]: (num_columns, self.num_keys)}
        for axis, (first, end) in left_out.items():
            noun = PLACE_NAMES.get(axis, axis)
            if first + 1 == end:
                yield f"{noun} {first}"
            elif first < end:
                yield f"{PLURALS.get(noun, f'{noun}s')} {first}-{end - 1}"


def matrix_rows(of: Callable[[int], Iterable[Section]], count: int, most: int = MOST_ROWS) -> Elastic:
    """Return part of a matrix: all of few rows, else the first rows or as many as fit on a terminal."""
    usual = count if count <= most else min(most, FIRST_ROWS)
    return Elastic(of, usual, LEAST_ROWS, count)


MAP_LINES, PICTURE_LINES, TILE_LINES = 12, 19, 12
EVEN = 1.2  # Blocks of random tokens differ by less than this, so their map has only one colour.
ROOM = 11  # The number of lines shared by the rows of the weights and the notes.
NAME_WIDTH = 16
SUM_TOLERANCE, ALIKE = 5e-3, 1e-6


@dataclass(frozen=True, kw_only=True)
class Opening(Element):
    """The text and the sizes or, for a report without an experiment, its heading."""

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if report.experiment not in SPECS:
            yield Paragraph(heading(report), "title")
            return
        width = display.columns
        room = width - cell_len(f"{report.experiment}: ")
        texts = [text_of(report, "sentence", most=None), text_of(report, "context", most=None)]
        if texts[1]:
            room = (room - len(ARROW)) // 2
        texts = [shortened(text, max(room, 1)) for text in texts if text]
        yield Paragraph(": ".join(filter(None, (report.experiment, ARROW.join(texts)))), "title")
        # On two lines if a single line is too short.
        lines = [", ".join([*token_counts(report), *_settings(report)]), untrained(report)]
        whole = "   ".join(filter(None, lines))
        for line in [whole] if cell_len(whole) <= width else filter(None, lines):
            yield Paragraph(line, "line")


@dataclass(frozen=True, kw_only=True)
class LooksAtPictures(Element):
    """The places that the model looks at in up to `most` pictures, usually with `lines` lines each."""

    lines: int = TILE_LINES
    most: int | None = None

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if pictured(report):
            from attncli.views.picture_screens import looks_at_pictures

            yield from islice(looks_at_pictures(report, display, self.lines), self.most)


@dataclass(frozen=True, kw_only=True)
class PictureRows(Element):
    """The first pictures of a survey, overlaid with maps."""

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if report.picture_maps is not None:
            from attncli.views.picture_screens import picture_rows

            yield from picture_rows(report.picture_maps, display)


@dataclass(frozen=True)
class WholeMatrix(Element):
    """A tensor that is a single matrix of weights, in a report without pictures."""

    tensor: str
    title: str

    def sections(self, report: Report, display: Display) -> ScreenParts:
        weights = report.tensors.get(self.tensor)
        if weights and len(weights.axes) > 1 and not report.pictures:
            (matrix,) = tensor_matrices(report, self.tensor, weights)
            yield weights_part(report, matrix, self.title, display)


@dataclass(frozen=True, kw_only=True)
class FirstWeights(Element):
    """The weights of the first head and how to read a row; for a long text, the map of its blocks.

    With `has_pictures`, it also shows the looks at each picture, if there are any.
    """

    has_pictures: bool = False

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if self.has_pictures and pictured(report):
            yield from LooksAtPictures(lines=PICTURE_LINES).sections(report, display)
        else:
            yield from _weights(report, *_weights_and_pooled(report), display)


def _weights_and_pooled(report: Report) -> tuple[NamedTensor | None, NamedTensor | None]:
    result = report.result
    return report.tensors.get("weights"), result.pooled_mean if isinstance(result, LayerStatistics) else None


def lines_for_notes(report: Report) -> int:
    """Return the number of lines that the rows of the weights leave for notes."""
    weights, _ = _weights_and_pooled(report)
    return NOTE_LINES if weights is None or pictured(report) else ROOM - min(len(report.tokens), MOST_ROWS)


def _weights(
    report: Report, weights: NamedTensor | None, pooled: NamedTensor | None, display: Display
) -> Iterator[Elastic]:
    """Return the first matrix of weights and a sentence about a row; for a long text, the map of blocks."""
    if weights is not None:
        matrix = next(tensor_matrices(report, "weights", weights))
        name = f"where each {token_name(report)} looks: weights (query × key)"
        title = ", ".join([name, *_place(weights)])
        leading = dict(zip(weights.axes[:-2], weights.values.shape[:-2], strict=True))
        yield weights_part(report, matrix, title, display, leading)
    elif pooled is not None:
        first = next(tensor_matrices(report, "pooled_mean", pooled))
        title = ", ".join(["where each block of tokens looks", *_place(pooled)])

        def map_of(lines: int) -> Iterator[Section]:
            from attncli.views.heatmap import draw

            figure = draw(report, [first], replace(display, map_lines=lines))
            yield Drawing(title, [line.text.rstrip(" ") for line in figure.lines], figure.mentioned)
            low, high = np.nanmin(first.values), np.nanmax(first.values)
            if high <= EVEN * low:
                yield Paragraph(f"No block stands out: the means range from {low:.1e} to {high:.1e}.", "line")
            yield Paragraph("See --show weights for larger maps.", "note")

        yield Elastic(map_of, MAP_LINES, LEAST_ROWS, display.map_lines)


def weights_part(
    report: Report, matrix: Matrix, title: str, display: Display, leading: Mapping[str, int] | None = None
) -> Elastic:
    """Return a matrix of weights, a sentence about a row, and what is left out, including `leading` axes."""

    def of(rows: int) -> Iterator[Section]:
        part = MatrixPart(report, {"": matrix}, display, title, rows)
        yield part.grid
        yield Paragraph(_how_to_read(report, part), "line")
        if left_out := ", ".join(part.left_out(leading)):
            more = "See --show weights, --format heatmap or -o page.html."
            yield Paragraph(f"Not shown: {left_out}. {more}", "note")

    return matrix_rows(of, len(matrix.values))


def _place(tensor: NamedTensor) -> Iterator[str]:
    """Return which of several matrices is shown, like `head 0 of 8`."""
    for axis, size in zip(tensor.axes[:-2], tensor.values.shape[:-2], strict=True):
        if size > 1:
            yield f"{PLACE_NAMES.get(axis, axis)} 0 of {size}"


def _how_to_read(report: Report, part: MatrixPart) -> str:
    """Return `Each row sums to 1: token 5, "street", takes the most (0.20) from token 0, "the".`"""
    query, row = part.shown.stop - 1, part.values[-1]
    key = int(part.largest[-1])
    is_distribution = (np.abs(np.nansum(part.values, axis=1) - 1) < SUM_TOLERANCE).all()
    start = "Each row sums to 1: " if is_distribution else "In its row, "
    token = token_name(report)
    noun = f"context {token}" if report.context_tokens else token
    number = fixed(row[key], part.precision)
    names = _name(report, "query", query, token), _name(report, "key", key, noun)
    seen = row[row > 0]
    if len(seen) > 1 and np.ptp(seen) < ALIKE:
        return f"{start}{names[0]} takes {number} from each {noun} that it sees."
    return (
        f"{start}{names[0]} takes the most ({number}) from {names[1] if names[0] != names[1] else 'itself'}."
    )


def _name(report: Report, axis: str, place: int, noun: str) -> str:
    """Return a token with its position, like `token 5, "street",`."""
    tokens = axis_tokens(report, axis)
    return f"{noun} {place}" + (f' "{shortened(plain_text(tokens[place]), NAME_WIDTH)}"' if tokens else "")


def heading_lines(report: Report, display: Display) -> Iterator[str]:
    yield heading(report)
