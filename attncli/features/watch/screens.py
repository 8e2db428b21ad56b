"""The first screens of `watch`: all heads, or a single head, over the steps of training."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from attncli.core.names import NOT_MEASURED, PATTERNS, UNNAMED
from attncli.features.watch.results import (
    COUNT,
    HeadInTraining,
    HeadsInTraining,
    PatternChange,
    PatternOverSteps,
    StepOfHead,
    TrainingStep,
)
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.settings.fields import ONE_HEAD
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import named_head, number
from attncli.views.first_screen import (
    Element,
    FirstScreen,
    Notes,
    PageTable,
    ReadLine,
    Sentences,
    Special,
    TitleLine,
    field_rows,
)
from attncli.views.head_screens import HeadLetters, pattern_letter
from attncli.views.matrices import head_name
from attncli.views.sections import GAP, Column, Drawing, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import fixed, wrap_cells

LEVELS = "▁▂▃▄▅▆▇█"
MOST_CELLS, LEAST_CELLS = 60, 8
MOST_CHANGES, USUAL_CHANGES = 4, 3
LEAST_LINES, USUAL_LINES = 2, 10
NO_PATTERN = "no pattern"
PURPOSELESS = (UNNAMED, NOT_MEASURED, "uniform")
FORMING = ("induction", "previous token")
"""The patterns of the induction circuit, which form together (Olsson et al. 2022)."""
KEEPS_LEAST = "least"
"""Prefix of the names of numbers whose smallest value matters."""
ALIKE = ("_mul", "_stripe")
"""Suffixes of the names of redundant statistics."""
SHARES = (*PATTERNS, "sink_mass", "local_mass", "max_weight", "normalized_entropy", "one_key_mass")
"""Suffixes of the names of statistics that are shares of 1."""


GAP_CELL = " "


def sparkline(
    values: Sequence[float], cells: int, *, keeps_least: bool = False, is_share: bool = False
) -> str:
    """Return a character per number, or per group's maximum (or minimum); groups without numbers are gaps.

    The lowest block stands for 0 or the smallest negative number, and the highest for the largest number (1
    for shares), so that small changes look small.
    """
    numbers = np.array(values, dtype=np.float64)
    parts = np.array_split(numbers, min(cells, len(numbers)))
    finite = [part[np.isfinite(part)] for part in parts]
    ends = [(part.min() if keeps_least else part.max()) if part.size else np.nan for part in finite]
    numbers_shown = [end for end in ends if np.isfinite(end)]
    if not numbers_shown:
        return GAP_CELL * len(ends)
    low = min(0.0, *numbers_shown)
    span = max(float(is_share), *numbers_shown) - low
    places = [0 if span == 0 else (end - low) / span for end in ends]
    return "".join(
        GAP_CELL if np.isnan(place) else LEVELS[min(int(place * len(LEVELS)), len(LEVELS) - 1)]
        for place in places
    )


class _Line(NamedTuple):
    """A row with a number at each step: its name, its first and last numbers as text, and a remark."""

    name: str
    numbers: Sequence[float]
    first: str
    last: str
    remark: str
    is_share: bool = False


def _last_changes(report: Report, display: Display) -> ScreenParts:
    """Return the changes of patterns at the last steps."""
    result = report.result_of(HeadsInTraining)
    if lines := [*_change_lines(result.changes or (), display)]:
        yield Elastic(partial(_last, lines), USUAL_CHANGES, 0, len(lines), rank=2)


Steps = Records[TrainingStep] | Records[StepOfHead]


def _why_no_loss(report: Report, display: Display) -> Iterator[str]:
    """Explain why the last step has no loss, if other steps have one."""
    match report.result:
        case HeadsInTraining(steps=steps) | HeadInTraining(head=steps):
            last: TrainingStep | StepOfHead = steps[-1]
            if "loss" in last and last.loss is None:
                yield f"Step {last.step} has no loss: none was logged (see logging_steps of the Trainer)."


def _grid(lines: Sequence[_Line], display: Display) -> Grid:
    """Return one row per line, with a sparkline in the remaining width."""
    label = Column(("",), [line.name for line in lines], left=True)
    ends = [
        Column(("first",), [line.first for line in lines]),
        Column(("last",), [line.last for line in lines]),
    ]
    remarks = Column(("",), [line.remark for line in lines], left=True)
    used = label.width + sum(GAP + column.width for column in (*ends, remarks)) + GAP
    cells = max(LEAST_CELLS, min(MOST_CELLS, display.columns - used))
    drawn = [
        sparkline(line.numbers, cells, keeps_least=line.name.startswith(KEEPS_LEAST), is_share=line.is_share)
        for line in lines
    ]
    return Grid("", label, [*ends, Column(("over the steps",), drawn, left=True), remarks])


def _pattern_line(pattern: PatternOverSteps, is_alone: bool) -> _Line:
    """Return the line with a pattern's head counts over the steps, its first step and its strongest head."""
    lettered = f"{pattern_letter(pattern.pattern)} {pattern.pattern} heads"
    name = plain_text(lettered if is_alone else f"{pattern.stack}: {lettered}")
    first, last = (f"{pattern.count[place]:.0f}" for place in (0, -1))
    return _Line(name, pattern.count, first, last, f"from step {pattern.first_step}, {head_name(pattern)}")


def _number_line(name: str, steps: Steps, display: Display) -> _Line:
    """Return the line with a statistic or the loss over the steps, with its smallest and largest numbers."""
    numbers = steps.column(name)
    finite = numbers[np.isfinite(numbers)]
    extremes = ""
    if finite.size:
        extremes = " to ".join(fixed(end, display.precision) for end in (finite.min(), finite.max()))
    first, last = (fixed(steps[place][name], display.precision) for place in (0, -1))
    is_share = name.partition(" ")[0].endswith(SHARES)
    return _Line(plain_text(name.replace("_", " ")), numbers.tolist(), first, last, extremes, is_share)


def _change_lines(changes: Sequence[PatternChange], display: Display) -> Iterator[str]:
    """List the changes, one line per step: `step 300: 0:1 previous token, 1:0 1:1 induction`.

    Changes between uniform and unnamed are left out because they mean nothing.
    """
    width = display.columns
    notable = [change for change in changes if not {change.before, change.after} <= {*PURPOSELESS}]
    for step, step_changes in groupby(notable, key=lambda change: change.step):
        by_pattern: dict[str, list[str]] = {}
        for change in step_changes:
            is_lost = change.after in PURPOSELESS
            pattern = f"no longer {change.before}" if is_lost else change.after
            by_pattern.setdefault(pattern, []).append(head_name(change))
        texts = [f"{' '.join(heads)} {pattern}" for pattern, heads in by_pattern.items()]
        first, *further = wrap_cells(plain_text(f"step {step}: {', '.join(texts)}"), width - 1)
        yield first + ("…" if further else "")


def _last(lines: Sequence[str], count: int) -> list[Section]:
    """Return the last lines, with the total number of steps if some lines are left out."""
    what = "changes of patterns"
    if not count:
        return [Paragraph(f"Not shown: {what} at {len(lines)} steps. See --show changes.", "note")]
    last = f"{what} at the last {count} of {len(lines)} steps (see --show changes)"
    title = what if count == len(lines) else last
    return [Drawing(title, lines[-count:])]


def _pattern_history(report: Report, display: Display) -> Iterator[str]:
    """Yield the steps at which the head's pattern changed."""
    result = report.result_of(HeadInTraining)
    for name in result.pattern_names():
        spans = [
            f"{plain_text(str(pattern))} from step {next(iter(steps)).step}"
            for pattern, steps in groupby(result.head, key=lambda step: step[name])
        ]
        last = spans if len(spans) <= MOST_CHANGES else ["…", *spans[-MOST_CHANGES:]]
        yield f"{name}: {', '.join(last)}"


@dataclass(frozen=True)
class LinesOverSteps(Element):
    """One line per number in `names` of the result's field `steps`, and per row of its field `patterns`.

    If space is short, the first numbers and the patterns of the induction circuit are kept. `usual` is the
    normal number of lines, or None for all lines.
    """

    steps: str
    names: Callable[[Report], Sequence[str]]
    patterns: str = ""
    usual: int | None = None

    def sections(self, report: Report, display: Display) -> ScreenParts:
        steps = field_rows(report, self.steps)
        patterns = field_rows(report, self.patterns) if self.patterns else ()
        numbers = [_number_line(name, steps, display) for name in self.names(report)]
        is_alone = len({pattern.stack for pattern in patterns}) == 1
        counts = [_pattern_line(pattern, is_alone) for pattern in patterns]
        is_first = [pattern.pattern in FORMING for pattern in patterns]
        circuit = [line for line, forms in zip(counts, is_first, strict=True) if forms]
        further = [line for line, forms in zip(counts, is_first, strict=True) if not forms]
        lines, by_worth = [*numbers, *counts], [*numbers[:2], *circuit, *further, *numbers[2:]]

        def sections(count: int) -> Iterator[Section]:
            fitting = set(map(id, by_worth[:count]))
            yield _grid([line for line in lines if id(line) in fitting], display)
            if left_out := len(lines) - len(fitting):
                yield Paragraph(f"Not shown: {counted(left_out, 'more line')}. See --show all.", "note")

        every = len(lines)
        yield Elastic(sections, self.usual or every, LEAST_LINES, every, rank=1)


def _statistics_and_loss(report: Report) -> list[str]:
    """Return the numbers of steps except the pattern counts, which have separate lines.

    Numbers that no step has are left out, such as induction when it is unknown which tokens are equal.
    """
    steps = report.result_of(HeadsInTraining).steps
    names = [name for name in steps.cells if name != "step" and not name.endswith(COUNT)]
    return [name for name in names if np.isfinite(steps.column(name)).any()]


MOST_PAGE_CURVES = 4
"""The most statistics of a head whose curves the page shows before it is scrolled."""


def _head_statistics(report: Report) -> list[str]:
    names = report.result_of(HeadInTraining).number_names()
    return [name for name in names if not name.endswith(ALIKE)]


STORE_NEXT_STEPS = {
    HeadsInTraining: (ONE_HEAD, "-o page.html", "-o steps.csv"),
    HeadInTraining: ("--show all", "-o page.html", "-o steps.csv"),
}
CHECKPOINT_NEXT_STEPS = {
    HeadsInTraining: ("--follow", ONE_HEAD, "-o checkpoints.db"),
    HeadInTraining: ("--show all", ONE_HEAD, "-o checkpoints.db"),
}


def _next_steps(report: Report, steps: tuple[str, ...]) -> tuple[str, ...]:
    """Suggest other views of a store; for checkpoints, also --follow and a store."""
    if report.spec.get("store", True):
        return STORE_NEXT_STEPS[type(report.result)]
    offered = CHECKPOINT_NEXT_STEPS[type(report.result)]
    return tuple(step for step in offered if step != "--follow" or not report.spec.get("follow"))


def _watch_finding(report: Report) -> Iterator[str]:
    """Yield the pattern that forms, with its first head and step, and the loss at both ends."""
    result = report.result_of(HeadsInTraining)
    steps, patterns = result.steps, [row for row in result.patterns or () if row.pattern not in PURPOSELESS]
    if patterns:
        row = max(patterns, key=lambda row: (row.pattern == FORMING[0], row.pattern in FORMING, row.heads))
        first = f"{named_head(row)} at step {row.first_step:,}"
        last = (
            f"at step {steps[-1].step:,}, {counted(row.heads, 'head')} {'has' if row.heads == 1 else 'have'}"
        )
        yield f"The first head with the pattern {plain_text(row.pattern)} is {first}; {last} it."
    else:
        yield f"No head shows a pattern from step {steps[0].step:,} to {steps[-1].step:,}."
    yield from _loss_change(steps)


def _loss_change(steps: Steps) -> Iterator[str]:
    """Yield the first and the last loss, if there are two."""
    measured: list[TrainingStep | StepOfHead] = [step for step in steps if step.get("loss") is not None]
    if len(measured) > 1:
        first, last = (f"{number(step.loss)} at step {step.step:,}" for step in (measured[0], measured[-1]))
        yield f"The loss goes from {first} to {last}."


WATCH_SCREEN = FirstScreen(
    HeadsInTraining,
    (
        TitleLine(),
        ReadLine(),
        LinesOverSteps("steps", _statistics_and_loss, "patterns", USUAL_LINES),
        Sentences(_why_no_loss, "note"),
        HeadLetters("heads"),
        Special(_last_changes, "one line per step with changes of several heads"),
        Notes(usual=0, apart=True),
    ),
    next_steps=_next_steps,
    if_empty={"changes": "No head changed its pattern."},
    page_table=lambda _: PageTable("patterns", ("pattern", "first_step", "heads")),
    finding=_watch_finding,
    main=("patterns", "loss"),
)
"""Numbers and counts of patterns over the steps, the heads at the last step, and changes."""


def _head_finding(report: Report) -> Iterator[str]:
    """Yield the last pattern with the step from which the head has it, and the loss at both ends."""
    result, head = report.result_of(HeadInTraining), report.spec.get("head")
    for name in result.pattern_names():
        spans = [
            (_pattern_words(pattern), next(iter(steps)).step)
            for pattern, steps in groupby(result.head, key=lambda step: step[name])
        ]
        pattern, step = spans[-1]
        change = f"{pattern} at {'any' if pattern == NO_PATTERN else 'every'} step"
        if len(spans) > 1:
            earlier = dict.fromkeys(before for before, _ in spans[:-1])
            change = f"{' or '.join(earlier)} before step {step:,} and {pattern} from then on"
        subject = " ".join(filter(None, ["Head" if head else "The head", name.partition(" ")[2], head]))
        yield plain_text(f"{subject} has {change}.")
    yield from _loss_change(result.head)


def _pattern_words(pattern: object) -> str:
    return NO_PATTERN if pattern in (UNNAMED, NOT_MEASURED) else f"the pattern {pattern}"


WATCH_HEAD_SCREEN = FirstScreen(
    HeadInTraining,
    (
        TitleLine(),
        ReadLine(),
        Sentences(_pattern_history, "line"),
        LinesOverSteps("head", _head_statistics),
        Sentences(_why_no_loss, "note"),
        Notes(),
    ),
    next_steps=_next_steps,
    page_table=lambda _: PageTable("head", ("step", "loss", "pattern")),
    finding=_head_finding,
    main=lambda report: tuple(_head_statistics(report)[:MOST_PAGE_CURVES]),
)
"""Every statistic of a head over the steps, and the changes of its pattern."""
