"""The first screen of what compares: two experiments, two surveys, or two texts that one model reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import PLACES, Report, Row, Table
from attncli.views import Display
from attncli.views.matrices import matrices_of, pictured, place_names
from attncli.views.screens import LEAST_ROWS, MatrixPart, screen_parts
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    TableLabels,
    one_line,
    statistic_tables,
    title_line,
)
from attncli.views.texts import fixed, heading, shortened

NOTES, NOTES_OF_SURVEYS = 1, 3
# Of the matrix of a diff, where it says all, and where the rows or heads that changed follow.
DIFF_ROWS, FEW_DIFF_ROWS = 8, 3
MOST_CHANGED = 2
MORE = {
    "by_head": "heads",
    "changed_heads": "changed statistics",
    "changed_rows": "rows",
    "heads_difference": "heads",
    "side_by_side": "statistics",
}
# The statistics below the weights of a diff; all, as far as they fit, where there are none.
DIFF_STATISTICS = ("scores.variance", "scaled_scores.variance", "entropy.mean", "max_weight.mean")
MOST_STATISTICS, MOST_HEADS = 16, 10


def comparison_screen(report: Report, display: Display) -> ScreenParts:
    """The settings that differ; the difference of the weights, of many heads that of the most changed."""
    if report.table("heads"):
        yield from _texts(report, display)
        return
    yield Paragraph(heading(report), "title")
    count = NOTES if report.tensors else NOTES_OF_SURVEYS
    notes = [] if report.table("by_head") else map(plain_text, report.notes[:count])
    for note in (plain_text(report.about), *notes):
        yield Paragraph(shortened(note, 2 * (display.width or 0)), "line")
    yield from islice(screen_parts(report, display), 1)  # the difference
    yield Elastic(partial(_changes, report, display), usual=MOST_STATISTICS, least=1)


def _changes(report: Report, display: Display, most: int) -> Iterator[Section]:
    """The difference of the weights and what changed, in tables of at most that many rows."""
    left_out: list[str] = []
    if "difference" in report.tensors:
        if not pictured(report):
            part = _difference(report, display, most)
            yield part.grid
            left_out += part.left_out()
        yield Paragraph("Positive: B looks there more than A.", "line")
        changed = "by_head" if report.table("by_head") else "changed_rows"
        is_whole = not report.table("by_head") and not left_out
        count = MOST_CHANGED if most >= DIFF_ROWS else 0
        statistics = {} if is_whole else {changed: Table(report.table(changed)[:count])}
        rows = [row for row in report.table("side_by_side") if row["statistic"] in DIFF_STATISTICS]
        rows = rows[: max(most - LEAST_ROWS, 1)]
    else:
        heads = "changed_heads" if report.table("changed_heads") else "heads_difference"
        statistics = {heads: Table(report.table(heads)[: min(most, MOST_HEADS)])}
        rows = report.table("side_by_side")[: max(most - len(statistics[heads]), 1)]
    tables = {**statistics, "side_by_side": Table(rows)}
    shown = {name: table for name, table in tables.items() if table}
    left_out += [
        f"{count} more {MORE[name]}"
        for name, table in tables.items()
        if (count := len(report.table(name)) - len(table))
    ]
    for grid in statistic_tables(replace(report, statistics=shown), display, TableLabels(report, display)):
        first = grid.first_group(display.width)
        if count := len(grid.columns) - len(first.columns):
            left_out.append(f"{count} columns of {grid.title}")
        yield first
    if left_out:
        yield Paragraph(f"Not shown: {', '.join(left_out)}. See --show all.", "note")


def _difference(report: Report, display: Display, most: int) -> MatrixPart:
    """B - A of the weights; of the head that changed most where there are several."""
    found = list(matrices_of(report, "difference", report.tensors["difference"]))
    heads = report.table("by_head")
    place = tuple(
        (axis, int(str(head[axis]))) for head in heads[:1] for axis in head if axis in ("batch", *PLACES)
    )
    matrix = next((matrix for matrix in found if matrix.place == place), found[0])
    title = ", ".join(["weights of B minus those of A", *place_names(matrix.place)])
    if not np.nan_to_num(matrix.values).any():
        title += " (no weight changed)"
    elif heads:
        title += " (changed most)"
    rows = min(most, FEW_DIFF_ROWS if heads else DIFF_ROWS)
    return MatrixPart(report, {"": matrix}, display, title, rows)


MOST_TOKEN = 14
MOST_PREDICTIONS = 5
CHANGED_TITLE = "the heads that changed most, and what each looks at where it changed most"
NOT_ALIGNED_TITLE = "the heads whose statistics changed most, and what each looks at from the last token"


def _texts(report: Report, display: Display) -> ScreenParts:
    """Both texts; the heads that changed most, with what they look at; what comes next in each."""
    yield title_line(report, display)
    for side in ("a", "b"):
        settings = report.spec.get(side)
        text = settings.get("sentence") if isinstance(settings, Mapping) else ""
        yield one_line(f"{side.upper()}: {' '.join(str(text).split())}", display)
    yield Elastic(
        partial(_changed_heads, report, display), MOST_HEADS, LEAST_ROWS, len(report.table("heads"))
    )
    if predictions := report.table("predictions")[:MOST_PREDICTIONS]:
        yield Paragraph(_next_tokens(predictions, display), "prose")
    for note in report.notes[:NOTES]:
        yield Paragraph(shortened(plain_text(note), display.width), "note")


def _changed_heads(report: Report, display: Display, most: int) -> Iterator[Section]:
    heads = report.table("heads")[:most]
    is_aligned = heads[0]["mean_jensen_shannon"] is not None
    stacks = len({row["stack"] for row in heads}) > 1
    places = [f"{row['layer']}:{row['head']}" for row in heads]
    names = [f"{row['stack']} {place}" if stacks else place for row, place in zip(heads, places, strict=True)]
    columns = [
        *(_distances(heads, display.precision) if is_aligned else _statistics(heads, display.precision)),
        *(
            Column(
                (f"looks at in {side.upper()}",), [_looks_at(row, side, display) for row in heads], left=True
            )
            for side in ("a", "b")
        ),
    ]
    title = CHANGED_TITLE if is_aligned else NOT_ALIGNED_TITLE
    yield Grid(title, Column(("head",), names), columns).first_group(display.width)


def _distances(heads: Sequence[Row], precision: int) -> list[Column]:
    """How far the rows moved, and the token whose row moved furthest."""
    return [
        Column(("distance",), [fixed(row["mean_jensen_shannon"], precision) for row in heads]),
        Column(("from",), [_moved_query(row) for row in heads], left=True),
    ]


def _moved_query(row: Row) -> str:
    """`13 ·to`, or `9 ·John → ·Mary`; with both positions where they differ."""
    positions = dict.fromkeys(str(row[f"query_{side}"]) for side in ("a", "b"))
    tokens = dict.fromkeys(_token(row[f"query_{side}_token"]) for side in ("a", "b"))
    return f"{' → '.join(positions)} {' → '.join(tokens)}"


def _statistics(heads: Sequence[Row], precision: int) -> list[Column]:
    names = [plain_text(str(row["statistic"])).replace("_", " ") for row in heads]
    numbers = [Column((side.upper(),), [fixed(row[side], precision) for row in heads]) for side in ("a", "b")]
    return [Column(("statistic",), names, left=True), *numbers]


def _token(token: object) -> str:
    return shortened(plain_text(str(token)), MOST_TOKEN)


def _looks_at(row: Row, side: str, display: Display) -> str:
    """`1 ·Mary 0.81`: the key and its weight."""
    key, weight = row[f"key_{side}"], fixed(row[f"weight_{side}"], display.precision)
    return f"{key} {_token(row[f'key_{side}_token'])} {weight}"


def _next_tokens(predictions: Sequence[Row], display: Display) -> str:
    """`next token, in A and B: ·Mary 0.92 -> 0.00, ·John 0.00 -> 0.75`: as many as fit one line."""
    line = "next token, A -> B:"
    for row in predictions:
        of_a, of_b = (fixed(row[side], display.precision) for side in ("a", "b"))
        if of_a == of_b:
            break
        numbers = f"{of_a} -> {of_b}"
        longer = f"{line}{'' if line.endswith(':') else ','} {_token(row['token'])} {numbers}"
        if cell_len(longer) > (display.width or 0):
            break
        line = longer
    return line if not line.endswith(":") else f"{line} no probability changed by {0.1**display.precision:g}"
