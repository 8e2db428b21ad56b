"""The first screens of what changes: between two experiments, surveys or texts, and while a model trains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len

from attncli.core.names import PATTERNS, UNNAMED
from attncli.plain_text import counted, plain_text
from attncli.records.changes import HeadChange, TextDifferences, TokenChange
from attncli.records.columns import Records
from attncli.report import PLACES, Report, Row, Table
from attncli.views import TEXT_WIDTH, Display
from attncli.views.head_screens import head_letters, pattern_letter
from attncli.views.matrices import head_name, matrices_of, pictured, place_names
from attncli.views.model_screens import token_cell
from attncli.views.screens import LEAST_ROWS, MatrixPart, screen_parts
from attncli.views.sections import (
    GAP,
    Column,
    Drawing,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    TableLabels,
    notes_in,
    one_line,
    statistic_tables,
    text_line,
    title_line,
)
from attncli.views.texts import fixed, heading, shortened, wrap_cells

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
        rows: Sequence[Row] = [
            row for row in report.table("side_by_side") if row["statistic"] in DIFF_STATISTICS
        ]
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
    if np.isnan(matrix.values).all():
        title += " (no row is in both)"
    elif not np.nan_to_num(matrix.values).any():
        title += " (no weight changed)"
    elif heads:
        title += " (changed most)"
    rows = min(most, FEW_DIFF_ROWS if heads else DIFF_ROWS)
    return MatrixPart(report, {"": matrix}, display, title, rows)


MOST_PREDICTIONS = 5
CHANGED_TITLE = "the heads that changed most, and what each looks at where it changed most"
NOT_ALIGNED_TITLE = "the heads whose statistics changed most, and what each looks at from the last token"


def two_texts_screen(report: Report, display: Display) -> ScreenParts:
    """Both texts; the heads that changed most, with what they look at; what comes next in each."""
    result = report.result_of(TextDifferences)
    yield title_line(report, display)
    for side in ("a", "b"):
        settings = report.spec.get(side)
        text = settings.get("sentence") if isinstance(settings, Mapping) else ""
        yield one_line(f"{side.upper()}: {' '.join(str(text).split())}", display)
    yield Elastic(partial(_changed_heads, result, display), MOST_HEADS, LEAST_ROWS, len(result.heads))
    if result.predictions:
        yield Paragraph(_next_tokens(result.predictions[:MOST_PREDICTIONS], display), "prose")
    for note in report.notes[:NOTES]:
        yield Paragraph(shortened(plain_text(note), display.width), "note")


def _changed_heads(result: TextDifferences, display: Display, most: int) -> Iterator[Section]:
    heads, precision = result.heads[:most], display.precision
    is_aligned = heads[0].mean_jensen_shannon is not None
    has_stacks = len({head.stack for head in heads}) > 1
    names = [f"{head.stack} {head_name(head)}" if has_stacks else head_name(head) for head in heads]
    columns = [
        *(_distances(heads, precision) if is_aligned else _statistics(heads, precision)),
        Column(
            ("looks at in A",),
            [_key(head.key_a, head.key_a_token, head.weight_a, precision) for head in heads],
            left=True,
        ),
        Column(
            ("looks at in B",),
            [_key(head.key_b, head.key_b_token, head.weight_b, precision) for head in heads],
            left=True,
        ),
    ]
    title = CHANGED_TITLE if is_aligned else NOT_ALIGNED_TITLE
    yield Grid(title, Column(("head",), names), columns).first_group(display.width)


def _distances(heads: Records[HeadChange], precision: int) -> list[Column]:
    """How far the rows moved, and the token whose row moved furthest."""
    return [
        Column(("distance",), [fixed(head.mean_jensen_shannon, precision) for head in heads]),
        Column(("from",), [_moved_query(head) for head in heads], left=True),
    ]


def _moved_query(head: HeadChange) -> str:
    """`13 ·to`, or `9 ·John → ·Mary`; with both positions where they differ."""
    positions = dict.fromkeys((str(head.query_a), str(head.query_b)))
    tokens = dict.fromkeys((token_cell(head.query_a_token), token_cell(head.query_b_token)))
    return f"{' → '.join(positions)} {' → '.join(tokens)}"


def _statistics(heads: Records[HeadChange], precision: int) -> list[Column]:
    return [
        Column(("statistic",), [plain_text(head.statistic).replace("_", " ") for head in heads], left=True),
        Column(("A",), [fixed(head.a, precision) for head in heads]),
        Column(("B",), [fixed(head.b, precision) for head in heads]),
    ]


def _key(key: int, token: str, weight: float | None, precision: int) -> str:
    """`1 ·Mary 0.81`: the key and its weight."""
    return f"{key} {token_cell(token)} {fixed(weight, precision)}"


def _next_tokens(predictions: Records[TokenChange], display: Display) -> str:
    """`next token, in A and B: ·Mary 0.92 -> 0.00, ·John 0.00 -> 0.75`: as many as fit one line."""
    line = "next token, A -> B:"
    for row in predictions:
        of_a, of_b = fixed(row.a, display.precision), fixed(row.b, display.precision)
        if of_a == of_b:
            break
        numbers = f"{of_a} -> {of_b}"
        longer = f"{line}{'' if line.endswith(':') else ','} {token_cell(row.token)} {numbers}"
        if cell_len(longer) > (display.width or 0):
            break
        line = longer
    return line if not line.endswith(":") else f"{line} no probability changed by {0.1**display.precision:g}"


LEVELS = "▁▂▃▄▅▆▇█"
MOST_CELLS, LEAST_CELLS = 60, 8
MOST_CHANGES, USUAL_CHANGES = 4, 3
LEAST_LINES, USUAL_LINES = 2, 10
PURPOSELESS = (UNNAMED, "uniform")
FORMING = ("induction", "previous token")
"""The patterns of the circuit that forms at once (Olsson et al. 2022)."""
KEEPS_LEAST = "least"
"""How the names of numbers begin whose fall matters."""
ALIKE = ("_mul", "_stripe")
"""The ends of names of statistics that say about the same as another."""
SHARES = (*PATTERNS, "sink_mass", "local_mass", "max_weight", "normalized_entropy", "one_key_mass")
"""The ends of names of statistics that are shares of one."""


GAP_CELL = " "


def sparkline(
    values: Sequence[float], cells: int, *, keeps_least: bool = False, is_share: bool = False
) -> str:
    """One character for each number, or for several the largest (the least) of them; a gap for no number.

    The lowest block is 0, or what is less, the highest the largest number, of shares 1: small changes of a
    number stay small.
    """
    numbers = np.array(values, dtype=np.float64)
    parts = np.array_split(numbers, min(cells, len(numbers)))
    finite = [part[np.isfinite(part)] for part in parts]
    ends = [(part.min() if keeps_least else part.max()) if part.size else np.nan for part in finite]
    known = [end for end in ends if np.isfinite(end)]
    if not known:
        return GAP_CELL * len(ends)
    low = min(0.0, *known)
    span = max(float(is_share), *known) - low
    places = [0 if span == 0 else (end - low) / span for end in ends]
    return "".join(
        GAP_CELL if np.isnan(place) else LEVELS[min(int(place * len(LEVELS)), len(LEVELS) - 1)]
        for place in places
    )


class _Line(NamedTuple):
    """A number at each step, as a row: what it is, how the ends are written, and what is said of it."""

    name: str
    numbers: Sequence[float]
    first: str
    last: str
    said: str
    is_share: bool = False


def watch_screen(report: Report, display: Display) -> ScreenParts:
    """Numbers and counts of patterns over the steps, what each head does at the last one, changes."""
    yield title_line(report, display)
    yield text_line(report, display)
    if report.spec.get("head"):
        yield from _of_head(report, display)
        return
    steps, patterns = report.table("steps"), report.table("patterns")
    names = [name for name in steps[0] if name != "step" and not name.endswith("_heads")]
    numbers = [_line_of_numbers(name, steps, display) for name in names]
    # What tells most of a training is kept where there is little room.
    by_worth = sorted(patterns, key=lambda row: row["pattern"] not in FORMING)
    counts = {id(row): _line_of_pattern(row, patterns) for row in patterns}
    worth = [*numbers[:2], *(counts[id(row)] for row in by_worth), *numbers[2:]]
    yield _lines_part([*numbers, *counts.values()], worth, display)
    yield from _why_no_loss(steps)
    heads = report.table("heads")
    stacks = {
        plain_text(stack): list(rows) for stack, rows in groupby(heads, key=lambda row: str(row["stack"]))
    }
    yield head_letters(stacks, display)
    if lines := [*_change_lines(report.table("changes"), display)]:
        yield Elastic(partial(_last, lines), min(USUAL_CHANGES, len(lines)), 0, len(lines), rank=2)
    yield notes_in(report.notes, display, usual=0, apart=True)


def _why_no_loss(steps: Sequence[Row]) -> Iterator[Paragraph]:
    """Why the last step has no loss, where others have one."""
    if steps[-1].get("loss", 0.0) is None:
        text = f"No loss at step {steps[-1]['step']}: none was logged there (of the Trainer: logging_steps)."
        yield Paragraph(text, "note")


def _lines_part(lines: Sequence[_Line], worth: Sequence[_Line], display: Display) -> Elastic:
    """As many rows as there is room for, in their order, those that tell most first."""

    def of(count: int) -> Iterator[Section]:
        kept = set(map(id, worth[:count]))
        yield _grid([line for line in lines if id(line) in kept], display)
        if left_out := len(lines) - len(kept):
            yield Paragraph(f"Not shown: {counted(left_out, 'more line')}: --show all.", "note")

    return Elastic(of, min(USUAL_LINES, len(lines)), min(LEAST_LINES, len(lines)), len(lines), rank=1)


def _grid(lines: Sequence[_Line], display: Display) -> Grid:
    """A row for each line, drawn in what the other columns leave of the width."""
    label = Column(("",), [line.name for line in lines], left=True)
    ends = [
        Column(("first",), [line.first for line in lines]),
        Column(("last",), [line.last for line in lines]),
    ]
    said = Column(("",), [line.said for line in lines], left=True)
    used = label.width + sum(GAP + column.width for column in (*ends, said)) + GAP
    cells = max(LEAST_CELLS, min(MOST_CELLS, (display.width or TEXT_WIDTH) - used))
    drawn = [
        sparkline(line.numbers, cells, keeps_least=line.name.startswith(KEEPS_LEAST), is_share=line.is_share)
        for line in lines
    ]
    return Grid("", label, [*ends, Column(("over the steps",), drawn, left=True), said])


def _line_of_pattern(row: Row, patterns: Sequence[Row]) -> _Line:
    """`I induction heads`, how many there are, and from which step on by which head."""
    is_alone = len({each["stack"] for each in patterns}) == 1
    lettered = f"{pattern_letter(row['pattern'])} {row['pattern']} heads"
    name = plain_text(lettered if is_alone else f"{row['stack']}: {lettered}")
    counts = _list(row, "count")
    said = f"from step {row['first_step']}, {head_name(row)}"
    return _Line(name, counts, f"{counts[0]:.0f}", f"{counts[-1]:.0f}", said)


def _list(row: Row, name: str) -> list[float]:
    cell = row[name]
    return [float(str(item)) for item in cell] if isinstance(cell, list) else []


def _line_of_numbers(name: str, steps: Sequence[Row], display: Display) -> _Line:
    """A statistic, or the loss, and its least and largest number."""
    numbers = [_number(row[name]) for row in steps]
    known = [number for number in numbers if np.isfinite(number)]
    said = ""
    if known:
        said = " to ".join(fixed(end, display.precision) for end in (min(known), max(known)))
    first, last = (fixed(steps[place][name], display.precision) for place in (0, -1))
    is_share = name.partition(" ")[0].endswith(SHARES)
    return _Line(plain_text(name.replace("_", " ")), numbers, first, last, said, is_share)


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else np.nan


def _change_lines(changes: Sequence[Row], display: Display) -> Iterator[str]:
    """`step 300: 0:1 previous token, 1:0 1:1 induction`: what heads have become, or are no longer.

    From uniform to unnamed and back is left out: heads without a purpose do that.
    """
    width = display.width or TEXT_WIDTH
    told = [row for row in changes if not {row["before"], row["after"]} <= {*PURPOSELESS}]
    for step, rows in groupby(told, key=lambda row: row["step"]):
        by_pattern: dict[str, list[str]] = {}
        for row in rows:
            is_lost = row["after"] in PURPOSELESS
            pattern = f"no longer {row['before']}" if is_lost else str(row["after"])
            by_pattern.setdefault(pattern, []).append(head_name(row))
        texts = [f"{' '.join(heads)} {pattern}" for pattern, heads in by_pattern.items()]
        first, *others = wrap_cells(plain_text(f"step {step}: {', '.join(texts)}"), width - 1)
        yield first + ("…" if others else "")


def _last(lines: Sequence[str], count: int) -> list[Section]:
    """The last of them, and how many are left out."""
    what, every = "what heads became", f"{len(lines)} steps: --show changes"
    if not count:
        return [Paragraph(f"Not shown: {what} at {every}.", "note")]
    title = what if count == len(lines) else f"{what} at the last {count} of {every}"
    return [Drawing(title, lines[-count:])]


def _of_head(report: Report, display: Display) -> ScreenParts:
    """Every statistic of a head over the steps, and when its pattern changed."""
    rows = report.table("head")
    for name in (name for name in rows[0] if name.startswith("pattern")):
        spans = [
            f"{plain_text(str(pattern))} from step {next(iter(some))['step']}"
            for pattern, some in groupby(rows, key=lambda row: row[name])
        ]
        shown = spans if len(spans) <= MOST_CHANGES else ["…", *spans[-MOST_CHANGES:]]
        yield Paragraph(f"{name}: {', '.join(shown)}", "line")
    names = [name for name in rows[0] if name != "step" and not name.startswith("pattern")]
    lines = [_line_of_numbers(name, rows, display) for name in names if not name.endswith(ALIKE)]
    yield replace(_lines_part(lines, lines, display), usual=len(lines))
    yield from _why_no_loss(rows)
    yield notes_in(report.notes, display)
