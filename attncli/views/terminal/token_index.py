"""The tokens that a picture shows cut short or by their position alone, told in full below it."""

from collections.abc import Mapping

from rich.cells import cell_len, chop_cells

from attncli.plain_text import plain_text
from attncli.views.sides import Side
from attncli.views.terminal.axis_labels import MOST_VERTICAL
from attncli.views.terminal.heatmap_plan import Plan

Mentioned = Mapping[tuple[str, int], str]
MOST_ENTRIES = 200


def mentioned(rows: Side, columns: Side, plan: Plan, most: int | None, *, in_grid: bool) -> Mentioned:
    """`token 12` and its text, for each that is not there in full; none where cells are pooled."""
    if plan.is_pooled:
        return {}
    one = most if plan.rows_per_line == 1 or most is None else max(4, (most - rows.digits - 3) // 2)
    row_places = set(range(rows.count)) if in_grid and rows.tokens else set(rows.shortened_places(one))
    column_places = _hidden_columns(columns, plan)
    if rows.tokens == columns.tokens:
        cut = set(columns.shortened_places(_most_in_columns(plan)))
        places = row_places | (cut if plan.cell_width > 1 and not in_grid and plan.across == 1 else set())
        return _entries(rows, places)
    return {**_entries(rows, row_places), **_entries(columns, column_places)}


def _most_in_columns(plan: Plan) -> int:
    return MOST_VERTICAL if plan.cell_width == 2 else plan.cell_width - 1


def _hidden_columns(columns: Side, plan: Plan) -> set[int]:
    if not columns.tokens:
        return set()
    if plan.cell_width == 1 or plan.across > 1:
        return set(range(columns.count))
    return set(columns.shortened_places(_most_in_columns(plan)))


def _entries(side: Side, places: set[int]) -> Mentioned:
    return {(side.noun, place): plain_text(side.tokens[place]) for place in sorted(places)}


def index_lines(found: Mentioned, width: int) -> list[str]:
    """`token 12 is self-contradictory`, several a line where they fit, and long ones over several lines."""
    texts = [f"{name} {place} is {text}" for (name, place), text in found.items()]
    short = [text for text in texts if cell_len(text) + 2 <= width // 2]
    lines = _packed(short, width)
    for text in texts:
        if cell_len(text) + 2 > width // 2:
            lines += chop_cells(text, width)
    return lines


def _packed(texts: list[str], width: int) -> list[str]:
    if not texts:
        return []
    size = max(map(cell_len, texts)) + 2
    across = max(1, width // size)
    rows = [texts[i : i + across] for i in range(0, len(texts), across)]
    return ["".join(text + " " * (size - cell_len(text)) for text in row).rstrip() for row in rows]
