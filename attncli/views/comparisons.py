"""The first screens of what changes: between two experiments, surveys or texts, and while a model trains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from attncli.core.names import PATTERNS, UNNAMED
from attncli.plain_text import counted, plain_text
from attncli.records.changes import (
    HeadChange,
    MovedHead,
    ReportDifferences,
    StatisticPair,
    TextDifferences,
    TokenChange,
)
from attncli.records.columns import Records
from attncli.records.steps import (
    COUNT,
    HeadInTraining,
    HeadsInTraining,
    PatternChange,
    PatternOverSteps,
    StepOfHead,
    TrainingStep,
)
from attncli.report import PLACES, NamedTensor, Report
from attncli.settings.fields import ONE_HEAD
from attncli.views import TEXT_WIDTH, Display
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    Notes,
    Ranked,
    ReadLine,
    Sentences,
    Special,
    SpecialCells,
    TitleLine,
)
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
    statistic_tables,
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


def _heading(report: Report, display: Display) -> Iterator[str]:
    yield heading(report)


def _settings_and_notes(report: Report, display: Display) -> Iterator[str]:
    """The settings that differ; the first notes where no heads follow."""
    count = NOTES if report.tensors else NOTES_OF_SURVEYS
    notes = [] if report.result_of(ReportDifferences).by_head else report.notes[:count]
    for note in (report.about, *notes):
        yield shortened(plain_text(note), 2 * (display.width or 0))


def _pictured_difference(report: Report, display: Display) -> ScreenParts:
    yield from islice(screen_parts(report, display), 1)  # the difference


def _changes(report: Report, display: Display) -> ScreenParts:
    result = report.result_of(ReportDifferences)
    yield Elastic(partial(_tables_of_changes, report, result, display), usual=MOST_STATISTICS, least=1)


def _tables_of_changes(
    report: Report, result: ReportDifferences, display: Display, most: int
) -> Iterator[Section]:
    """The difference of the weights and what changed, in tables of at most that many rows."""
    left_out: list[str] = []
    pairs = result.side_by_side or StatisticPair.rows([])
    if (difference := result.difference) is not None:
        if not pictured(report):
            part = _difference(report, difference, result.by_head, display, most)
            yield part.grid
            left_out += part.left_out()
        yield Paragraph("Positive: B looks there more than A.", "line")
        is_whole = not result.by_head and not left_out
        name, moved = ("by_head", result.by_head) if result.by_head else ("changed_rows", result.changed_rows)
        tables: dict[str, Records[Any]] = {} if is_whole or moved is None else {name: moved}
        first = {name: table[: MOST_CHANGED if most >= DIFF_ROWS else 0] for name, table in tables.items()}
        of_weights = pairs.where(lambda pair: pair.statistic in DIFF_STATISTICS)
        pairs_shown = of_weights[: max(most - LEAST_ROWS, 1)]
    else:
        name, changed = (
            ("changed_heads", result.changed_heads)
            if result.changed_heads
            else ("heads_difference", result.heads_difference)
        )
        tables = {} if changed is None else {name: changed}
        first = {name: table[: min(most, MOST_HEADS)] for name, table in tables.items()}
        pairs_shown = pairs[: max(most - sum(map(len, first.values())), 1)]
    tables, first = tables | {"side_by_side": pairs}, first | {"side_by_side": pairs_shown}
    left_out += [
        f"{count} more {MORE[name]}"
        for name, table in tables.items()
        if (count := len(table) - len(first[name]))
    ]
    for grid in statistic_tables(first, display, TableLabels(report, display)):
        group = grid.first_group(display.width)
        if count := len(grid.columns) - len(group.columns):
            left_out.append(f"{count} columns of {grid.title}")
        yield group
    if left_out:
        yield Paragraph(f"Not shown: {', '.join(left_out)}. See --show all.", "note")


def _difference(
    report: Report, difference: NamedTensor, heads: Records[MovedHead] | None, display: Display, most: int
) -> MatrixPart:
    """B - A of the weights; of the head that changed most where there are several."""
    every = list(matrices_of(report, "difference", difference))
    place = tuple(
        (axis, head[axis]) for head in (heads or ())[:1] for axis in head if axis in ("batch", *PLACES)
    )
    matrix = next((matrix for matrix in every if matrix.place == place), every[0])
    title = ", ".join(["weights of B minus those of A", *place_names(matrix.place)])
    if np.isnan(matrix.values).all():
        title += " (no row is in both)"
    elif not np.nan_to_num(matrix.values).any():
        title += " (no weight changed)"
    elif heads:
        title += " (changed most)"
    rows = min(most, FEW_DIFF_ROWS if heads else DIFF_ROWS)
    return MatrixPart(report, {"": matrix}, display, title, rows)


DIFF_STEPS = ("--show weights", "--show statistics", "-o page.html")
COMPARISON_SCREEN = FirstScreen(
    ReportDifferences,
    (
        Sentences(_heading, "title", said=("about",)),
        Sentences(_settings_and_notes, "line"),
        Special(_pictured_difference),
        Special(_changes),
    ),
    next_steps=lambda *_: DIFF_STEPS,
)
"""The settings that differ; the difference of the weights, of many heads that of the most changed."""


MOST_PREDICTIONS = 5
CHANGED_TITLE = "the heads that changed most, and what each looks at where it changed most"
NOT_ALIGNED_TITLE = "the heads whose statistics changed most, and what each looks at from the last token"


def _both_texts(report: Report, display: Display) -> Iterator[str]:
    for side in ("a", "b"):
        settings = report.spec.get(side)
        text = settings.get("sentence") if isinstance(settings, Mapping) else ""
        yield shortened(plain_text(f"{side.upper()}: {' '.join(str(text).split())}"), display.width)


def _is_aligned(heads: Records[HeadChange]) -> bool:
    """Whether tokens of both texts correspond, so that the heads are in the order of the distance of rows."""
    return heads[0].mean_jensen_shannon is not None


def _changed_most(report: Report, heads: Records[HeadChange], total: int) -> str:
    return CHANGED_TITLE if _is_aligned(heads) else NOT_ALIGNED_TITLE


def _measured(report: Report, heads: Records[HeadChange], display: Display) -> list[Column]:
    """How far the rows moved, and the token whose row moved furthest; else the statistic."""
    precision = display.precision
    if not _is_aligned(heads):
        return _statistics(heads, precision)
    return [
        Column(("distance",), [fixed(head.mean_jensen_shannon, precision) for head in heads]),
        Column(("from",), [_moved_query(head) for head in heads], left=True),
    ]


def _moved_query(head: HeadChange) -> str:
    """`13 ·to`, or `9 ·John → ·Mary`; with both positions where they differ."""
    positions = dict.fromkeys((str(head.query_a), str(head.query_b)))
    tokens = dict.fromkeys((token_cell(head.query_a_token), token_cell(head.query_b_token)))
    return f"{' → '.join(positions)} {' → '.join(tokens)}"


def _keys(report: Report, heads: Records[HeadChange], display: Display) -> list[Column]:
    """What each head looks at most there in either text."""
    of_a = [_key(head.key_a, head.key_a_token, head.weight_a, display.precision) for head in heads]
    of_b = [_key(head.key_b, head.key_b_token, head.weight_b, display.precision) for head in heads]
    return [Column(("looks at in A",), of_a, left=True), Column(("looks at in B",), of_b, left=True)]


def _statistics(heads: Records[HeadChange], precision: int) -> list[Column]:
    return [
        Column(("statistic",), [plain_text(head.statistic).replace("_", " ") for head in heads], left=True),
        Column(("A",), [fixed(head.a, precision) for head in heads]),
        Column(("B",), [fixed(head.b, precision) for head in heads]),
    ]


def _key(key: int, token: str, weight: float | None, precision: int) -> str:
    """`1 ·Mary 0.81`: the key and its weight."""
    return f"{key} {token_cell(token)} {fixed(weight, precision)}"


def _predictions(report: Report, display: Display) -> Iterator[str]:
    if predictions := report.result_of(TextDifferences).predictions:
        yield _next_tokens(predictions[:MOST_PREDICTIONS], display)


def _first_notes(report: Report, display: Display) -> Iterator[str]:
    for note in report.notes[:NOTES]:
        yield shortened(plain_text(note), display.width)


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


TWO_TEXTS_SCREEN = FirstScreen(
    TextDifferences,
    (
        TitleLine(),
        Sentences(_both_texts),
        Ranked(
            "heads",
            (SpecialCells(_measured), SpecialCells(_keys)),
            title=_changed_most,
            label=HeadLabel(header=("head",)),
            usual=MOST_HEADS,
            is_cut=True,
        ),
        Sentences(_predictions, "prose"),
        Sentences(_first_notes, "note"),
    ),
    next_steps=lambda *_: DIFF_STEPS,
)
"""Both texts; the heads that changed most, with what they look at; what comes next in each."""


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


def _lines_over_steps(report: Report, display: Display) -> ScreenParts:
    """Numbers and counts of patterns over the steps."""
    result = report.result_of(HeadsInTraining)
    steps, patterns = result.steps, result.patterns or PatternOverSteps.rows([])
    names = [name for name in steps.cells if name != "step" and not name.endswith(COUNT)]
    numbers = [_line_of_numbers(name, steps, display) for name in names]
    is_alone = len({pattern.stack for pattern in patterns}) == 1
    counts = [_line_of_pattern(pattern, is_alone) for pattern in patterns]
    # What tells most of a training is kept where there is little room.
    is_circuit = [pattern.pattern in FORMING for pattern in patterns]
    of_circuit = [line for line, is_first in zip(counts, is_circuit, strict=True) if is_first]
    of_others = [line for line, is_first in zip(counts, is_circuit, strict=True) if not is_first]
    worth = [*numbers[:2], *of_circuit, *of_others, *numbers[2:]]
    yield _lines_part([*numbers, *counts], worth, display)


def _letters_of_last_step(report: Report, display: Display) -> ScreenParts:
    result = report.result_of(HeadsInTraining)
    stacks = {
        plain_text(stack): list(heads) for stack, heads in groupby(result.heads, key=lambda head: head.stack)
    }
    yield head_letters(stacks, display)


def _last_changes(report: Report, display: Display) -> ScreenParts:
    result = report.result_of(HeadsInTraining)
    if lines := [*_change_lines(result.changes or (), display)]:
        yield Elastic(partial(_last, lines), min(USUAL_CHANGES, len(lines)), 0, len(lines), rank=2)


Steps = Records[TrainingStep] | Records[StepOfHead]


def _why_no_loss(report: Report, display: Display) -> Iterator[str]:
    """Why the last step has no loss, where others have one."""
    match report.result:
        case HeadsInTraining(steps=steps) | HeadInTraining(head=steps):
            last: TrainingStep | StepOfHead = steps[-1]
            if "loss" in last and last.loss is None:
                yield f"No loss at step {last.step}: none was logged there (of the Trainer: logging_steps)."


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


def _line_of_pattern(pattern: PatternOverSteps, is_alone: bool) -> _Line:
    """`I induction heads`, how many there are, and from which step on by which head."""
    lettered = f"{pattern_letter(pattern.pattern)} {pattern.pattern} heads"
    name = plain_text(lettered if is_alone else f"{pattern.stack}: {lettered}")
    first, last = (f"{pattern.count[place]:.0f}" for place in (0, -1))
    return _Line(name, pattern.count, first, last, f"from step {pattern.first_step}, {head_name(pattern)}")


def _line_of_numbers(name: str, steps: Steps, display: Display) -> _Line:
    """A statistic, or the loss, and its least and largest number."""
    numbers = steps.column(name)
    known = numbers[np.isfinite(numbers)]
    said = ""
    if known.size:
        said = " to ".join(fixed(end, display.precision) for end in (known.min(), known.max()))
    first, last = (fixed(steps[place][name], display.precision) for place in (0, -1))
    is_share = name.partition(" ")[0].endswith(SHARES)
    return _Line(plain_text(name.replace("_", " ")), numbers.tolist(), first, last, said, is_share)


def _change_lines(changes: Sequence[PatternChange], display: Display) -> Iterator[str]:
    """`step 300: 0:1 previous token, 1:0 1:1 induction`: what heads have become, or are no longer.

    From uniform to unnamed and back is left out: heads without a purpose do that.
    """
    width = display.width or TEXT_WIDTH
    told = [change for change in changes if not {change.before, change.after} <= {*PURPOSELESS}]
    for step, of_step in groupby(told, key=lambda change: change.step):
        by_pattern: dict[str, list[str]] = {}
        for change in of_step:
            is_lost = change.after in PURPOSELESS
            pattern = f"no longer {change.before}" if is_lost else change.after
            by_pattern.setdefault(pattern, []).append(head_name(change))
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


def _patterns_of_head(report: Report, display: Display) -> Iterator[str]:
    """When its pattern changed."""
    result = report.result_of(HeadInTraining)
    for name in result.pattern_names():
        spans = [
            f"{plain_text(str(pattern))} from step {next(iter(steps)).step}"
            for pattern, steps in groupby(result.head, key=lambda step: step[name])
        ]
        last = spans if len(spans) <= MOST_CHANGES else ["…", *spans[-MOST_CHANGES:]]
        yield f"{name}: {', '.join(last)}"


def _lines_of_head(report: Report, display: Display) -> ScreenParts:
    """Every statistic of a head over the steps."""
    result = report.result_of(HeadInTraining)
    names = [name for name in result.number_names() if not name.endswith(ALIKE)]
    lines = [_line_of_numbers(name, result.head, display) for name in names]
    yield replace(_lines_part(lines, lines, display), usual=len(lines))


STEPS_OF_STORE = {
    HeadsInTraining: (ONE_HEAD, "-o page.html", "-o steps.csv"),
    HeadInTraining: ("--show all", "-o page.html", "-o steps.csv"),
}
STEPS_OF_CHECKPOINTS = {
    HeadsInTraining: ("--follow", ONE_HEAD, "-o checkpoints.db"),
    HeadInTraining: ("--show all", ONE_HEAD, "-o checkpoints.db"),
}


def _next_steps(report: Report, steps: tuple[str, ...]) -> tuple[str, ...]:
    """Other views of a store; of checkpoints also new ones, and a store for what was measured."""
    if report.spec.get("store", True):
        return STEPS_OF_STORE[type(report.result)]
    offered = STEPS_OF_CHECKPOINTS[type(report.result)]
    return tuple(step for step in offered if step != "--follow" or not report.spec.get("follow"))


WATCH_SCREEN = FirstScreen(
    HeadsInTraining,
    (
        TitleLine(),
        ReadLine(),
        Special(_lines_over_steps),
        Sentences(_why_no_loss, "note"),
        Special(_letters_of_last_step),
        Special(_last_changes),
        Notes(usual=0, apart=True),
    ),
    next_steps=_next_steps,
    if_empty={"changes": "No head's pattern differs from that of the step before."},
)
"""Numbers and counts of patterns over the steps, what each head does at the last one, changes."""
WATCH_HEAD_SCREEN = FirstScreen(
    HeadInTraining,
    (
        TitleLine(),
        ReadLine(),
        Sentences(_patterns_of_head, "line"),
        Special(_lines_of_head),
        Sentences(_why_no_loss, "note"),
        Notes(),
    ),
    next_steps=_next_steps,
)
"""Every statistic of a head over the steps, and when its pattern changed."""
