"""The first screen of attention: where each token looks, and how far the scores spread."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import NamedTensor, Report
from attncli.views import Display
from attncli.views.heading import token_name
from attncli.views.labels import shortened
from attncli.views.matrices import matrices_of, tokens_of
from attncli.views.numbers import fixed, scalar
from attncli.views.tables.elements import Column, Drawing, Grid, Paragraph, Section
from attncli.views.tables.screens.headlines import opening
from attncli.views.tables.screens.matrix_part import MOST_ROWS, MatrixPart
from attncli.views.terminal.blocks import wrap_cells
from attncli.views.terminal.heatmap_figure import draw

MAP_LINES = 12
NOTE_LINES = 3
ROOM = 11  # Lines for the rows of the weights and the notes together.
NAME_WIDTH = 16
SUM_TOLERANCE, ALIKE = 5e-3, 1e-6
SCORES = {"scores": "scores before scaling", "scaled_scores": "scores after scaling"}
PLACE_NAMES = {"batch": "sequence"}


def attention_screen(report: Report, display: Display) -> Iterator[Section]:
    """Title, sizes, the weights of the first head, how to read a row, the scores' mean and variance."""
    yield from opening(report, display)
    yield from weights(report, display)
    if moments := [(name, numbers) for name in SCORES if (numbers := report.numbers(name))]:
        label = Column(("",), [SCORES[name] for name, _ in moments], left=True)
        columns = [
            Column((key,), [written(numbers[key], display.precision) for _, numbers in moments])
            for key, written in (("mean", fixed), ("variance", scalar))
        ]
        yield Grid("", label, columns)
    yield from notes(report.notes, display, note_lines(report))


def weights(report: Report, display: Display) -> Iterator[Section]:
    """The first matrix of weights with a sentence on a row; of a long text the map of its blocks."""
    if "weights" in report.tensors:
        tensor = report.tensors["weights"]
        matrix = next(matrices_of(report, "weights", tensor))
        name = f"where each {token_name(report)} looks: weights (query × key)"
        part = MatrixPart(report, {"": matrix}, display, ", ".join([name, *_place(tensor)]))
        yield part.grid
        yield Paragraph(how_to_read(report, part), "line")
        leading = dict(zip(tensor.axes[:-2], tensor.values.shape[:-2], strict=True))
        if left_out := ", ".join(part.left_out(leading)):
            yield Paragraph(
                f"Not shown: {left_out}. See --show weights, --format heatmap or -o page.html.", "note"
            )
    elif "pooled_mean" in report.tensors:
        tensor = report.tensors["pooled_mean"]
        first = next(matrices_of(report, "pooled_mean", tensor))
        figure = draw(report, [first], replace(display, map_lines=MAP_LINES))
        lines = [line.text.rstrip(" ") for line in figure.lines]
        yield Drawing(
            ", ".join(["where each block of tokens looks", *_place(tensor)]), lines, figure.mentioned
        )
        yield Paragraph("See --show weights for larger maps.", "note")


def _place(tensor: NamedTensor) -> Iterator[str]:
    """`head 0 of 8`: which matrix of several is shown."""
    for axis, size in zip(tensor.axes[:-2], tensor.values.shape[:-2], strict=True):
        if size > 1:
            yield f"{PLACE_NAMES.get(axis, axis)} 0 of {size}"


def how_to_read(report: Report, part: MatrixPart) -> str:
    """`Each row sums to 1: token 5, "street", takes most (0.20) from token 0, "the".`"""
    query, row = part.rows - 1, part.values[-1]
    key = int(part.largest[query])
    is_distribution = (np.abs(np.nansum(part.values, axis=1) - 1) < SUM_TOLERANCE).all()
    start = "Each row sums to 1: " if is_distribution else "In its row, "
    own = token_name(report)
    noun = f"context {own}" if report.context_tokens else own
    number = fixed(row[key], part.precision)
    names = _name(report, "query", query, own), _name(report, "key", key, noun)
    seen = row[row > 0]
    if len(seen) > 1 and np.ptp(seen) < ALIKE:
        return f"{start}{names[0]} takes {number} from each {noun} that it sees."
    return f"{start}{names[0]} takes most ({number}) from {names[1] if names[0] != names[1] else 'itself'}."


def _name(report: Report, axis: str, place: int, noun: str) -> str:
    """`token 5, "street",`."""
    tokens = tokens_of(report, axis)
    return f"{noun} {place}" + (f' "{shortened(plain_text(tokens[place]), NAME_WIDTH)}"' if tokens else "")


def note_lines(report: Report) -> int:
    """The lines that the rows of the weights leave to notes; a map of blocks leaves its own."""
    return NOTE_LINES if "weights" not in report.tensors else ROOM - min(len(report.tokens), MOST_ROWS)


def notes(texts: Sequence[str], display: Display, left: int = NOTE_LINES) -> Iterator[Paragraph]:
    """The notes of a report as far as they fit that many lines."""
    for text in map(plain_text, texts):
        left -= len(wrap_cells(text, display.width or 0))
        if left >= 0:
            yield Paragraph(text, "note")
