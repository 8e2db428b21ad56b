"""First screens of models: what their heads do, what they contribute, and what removing them changes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attncli.core.names import EFFECTS, LOOKED_AT, Effect
from attncli.records.columns import Records
from attncli.records.report import PLACES, NamedTensor
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.matrices import tensor_unit
from attncli.views.sections import GAP, LEAST_LINES, Column, Drawing, Elastic, Section
from attncli.views.texts import (
    DIM,
    NO_NUMBER,
    ScreenLine,
    beside,
    fixed,
    joined,
    plain_line,
    shortened,
    styled,
    wrap_cells,
)

MOST_LAYERS = 12
"""The largest number of layers that have a line each."""
MOST_PARTS = 4


HeadCells = Mapping[tuple[int, int], str]
"""One character per head, by layer and head."""
NOT_ALL = "See --show all or -o page.html."


class HeadGrid(NamedTuple):
    """A layout of one character per head, with the axes `down` and `across`; the latter may be in parts."""

    down: Sequence[int]
    across: Sequence[int]
    is_wide: bool
    cell: int
    num_parts: int

    @property
    def num_rows(self) -> int:
        """The rows of each part, including all but one of its header lines."""
        return -(-len(self.down) // self.num_parts) + len(_column_numbers(self.across, self.cell)) - 1

    def fits(self, width: int, most_lines: int | None) -> bool:
        """Return True if the grid fits into that many columns and lines of a terminal."""
        columns = self.num_parts * (len(self.name(0)) + len(self.across) * self.cell + GAP) - GAP
        return columns <= width and (most_lines is None or self.num_rows < most_lines)

    def name(self, place: int) -> str:
        """Return `layer 3`, or `L 3` if parts are side by side, padded to the same width."""
        axis = "head " if self.is_wide else "layer "
        return f"{axis if self.num_parts == 1 else axis[0].upper()}{place:>{len(str(self.down[-1]))}} "

    def lines(self, cells: HeadCells, dim: Collection[tuple[int, int]]) -> list[ScreenLine]:
        """Return the characters under the numbers of their columns, with some of them dim."""
        corner = f"{'layer' if self.is_wide and self.num_parts == 1 else '':<{len(self.name(0))}}"
        blank = " " * len(corner)
        *above, last = _column_numbers(self.across, self.cell)
        header = [plain_line(f"{blank}{line}") for line in above] + [plain_line(f"{corner}{last}")]
        rows = [joined([plain_line(self.name(row)), *self._row(row, cells, dim)]) for row in self.down]
        in_part = -(-len(self.down) // self.num_parts)
        return beside(
            [[*header, *rows[start : start + in_part]] for start in range(0, len(rows), in_part)], GAP
        )

    def _row(self, row: int, cells: HeadCells, dim: Collection[tuple[int, int]]) -> Iterator[ScreenLine]:
        for column in self.across:
            place = (column, row) if self.is_wide else (row, column)
            yield styled(f"{cells.get(place, ''):>{self.cell}}", DIM, place in dim)


def head_grid(
    cells: HeadCells, display: Display, most_lines: int | None = None, dim: Collection[tuple[int, int]] = ()
) -> list[ScreenLine]:
    """Return one character per head, in the widest cells that fit; if there are many layers, they go across.

    If no cell fits, the axes are swapped or the grid is split into parts side by side. If the model has too
    many heads, only the first layers are shown, and a line says so.
    """
    layers, heads = (sorted(set(places)) for places in zip(*cells, strict=True))
    width = display.columns
    for count in range(len(layers), 0, -1):
        more = _not_shown(counted(len(layers) - count, "layer"), width) if count < len(layers) else []
        room = most_lines - len(more) if most_lines is not None else None
        if way := next((way for way in _ways(layers[:count], heads) if way.fits(width, room)), None):
            return [*way.lines(cells, dim), *more]
    return _not_shown(counted(len(cells), "head"), width)


def _not_shown(what: str, width: int) -> list[ScreenLine]:
    return [plain_line(line) for line in wrap_cells(f"Not shown: {what}. {NOT_ALL}", width)]


def _ways(layers: Sequence[int], heads: Sequence[int]) -> Iterator[HeadGrid]:
    """Yield possible layouts of a grid, the most readable first."""
    is_wide = len(layers) > max(len(heads), MOST_LAYERS)
    for num_parts in range(1, MOST_PARTS + 1):
        for side in (is_wide, not is_wide):
            down, across = (heads, layers) if side else (layers, heads)
            for cell in (3, 2, 1):
                yield HeadGrid(down, across, side, cell, num_parts)


def _column_numbers(columns: Sequence[int], cell: int) -> list[str]:
    """Return the number of each column above its end, with one line per digit if the numbers would touch."""
    longest = len(str(columns[-1]))
    if longest < cell or longest == cell == 1:
        return ["".join(f"{column:>{cell}}" for column in columns)]
    numbers = [f"{column:>{longest}}" for column in columns]
    return ["".join(f"{number[place]:>{cell}}" for number in numbers) for place in range(longest)]


def some_of(count: int, total: int, name: str) -> str:
    """Return a count like `16 of 270 heads` or `1 head`."""
    return f"{count} of {counted(total, name)}" if count < total else counted(total, name)


LITTLE, NATS = ".", "nats"


def effect_named(name: object) -> Effect:
    """Return the known properties of an effect; a saved report may be sorted by an unknown effect."""
    return EFFECTS.get(str(name), Effect())


def nats(name: str) -> str:
    """Return the unit of an effect in nats."""
    return NATS if tensor_unit(name, PLACES) == NATS else ""


def patterns_on_average(rows: Records[Any]) -> Column:
    """Return a column with each head's pattern over the whole text, beside its look from one token."""
    return Column(("pattern,", "on average"), [plain_text(row.pattern) for row in rows], left=True)


def looked_at_columns(
    rows: Records[Any], display: Display, does: str = "looks at", key_header: str = "strongest"
) -> list[Column]:
    """Return columns with the key to which each head gives the most weight from one token, and that weight.

    If the token differs between heads (for each, the token where it matters most), a column for the token
    comes first.
    """
    if not {*LOOKED_AT} <= rows.cells.keys() or all(row.key is None for row in rows):
        return []
    queries = [_placed_token(row.query, row.query_token) for row in rows]
    keys = [_placed_token(row.key, row.key_token) for row in rows]
    weights = [fixed(row.key_weight, display.precision) for row in rows]
    looks_at = [key if key == NO_NUMBER else f"{key} {of}" for key, of in zip(keys, weights, strict=True)]
    if len({*queries}) == 1:
        return [Column((f"from {queries[0]}", does), looks_at, left=True)]
    return [
        Column(("worst", "token"), queries, left=True),
        Column((key_header, "key"), looks_at, left=True),
    ]


MOST_TOKEN = 14


def token_cell(token: object) -> str:
    """Return a token as a table cell."""
    return shortened(plain_text(str(token)), MOST_TOKEN)


def _placed_token(position: int | None, token: str | None) -> str:
    """Return a position and its token, like `13 ·to`."""
    return NO_NUMBER if position is None else f"{position} {token_cell(token)}"


def tenths(name: str, tensor: NamedTensor, sort: str, display: Display) -> Elastic:
    """Return a digit for each head: its effect in tenths of the largest effect."""
    values = -tensor.values if effect_named(sort).negative_is_better else tensor.values
    largest = np.nanmax(values, initial=0.0)
    cells = {
        place: _tenth(float(value), float(largest))
        for place, value in np.ndenumerate(values)
        if np.isfinite(value)
    }
    marks = {
        "-": "- the other way" if sort == "restored" else "- better without the head",
        LITTLE: f"{LITTLE} is almost nothing",
    }
    said = [text for mark, text in marks.items() if mark in cells.values()]
    size = f"{fixed(largest, 2)} {nats(name.partition(' ')[0])}".rstrip()
    title = plain_text("; ".join([f"{name}: 9 is the largest, {size}", *said]))
    num_lines = len(head_grid(cells, display)) if cells else 0

    def of(lines: int) -> Iterator[Section]:
        if lines >= min(LEAST_LINES, num_lines) > 0:
            yield Drawing(title, [line.text.rstrip() for line in head_grid(cells, display, lines)])

    return Elastic(of, num_lines, most=num_lines)


def _tenth(value: float, largest: float) -> str:
    share = 10 * value / largest if largest else 0.0
    return "-" if share <= -0.5 else LITTLE if share < 0.5 else str(min(9, round(share)))
