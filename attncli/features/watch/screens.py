"""The first screens of `watch`: what heads do while a model trains, or one of them."""

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
from attncli.views.first_screen import (
    Element,
    FirstScreen,
    Notes,
    ReadLine,
    Sentences,
    Special,
    TitleLine,
    rows_of,
)
from attncli.views.head_screens import HeadLetters, pattern_letter
from attncli.views.matrices import head_name
from attncli.views.sections import GAP, Column, Drawing, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import fixed, wrap_cells

LEVELS = "▁▂▃▄▅▆▇█"
MOST_CELLS, LEAST_CELLS = 60, 8
MOST_CHANGES, USUAL_CHANGES = 4, 3
LEAST_LINES, USUAL_LINES = 2, 10
PURPOSELESS = (UNNAMED, NOT_MEASURED, "uniform")
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


def _last_changes(report: Report, display: Display) -> ScreenParts:
    """What heads became at the last steps."""
    result = report.result_of(HeadsInTraining)
    if lines := [*_change_lines(result.changes or (), display)]:
        yield Elastic(partial(_last, lines), USUAL_CHANGES, 0, len(lines), rank=2)


Steps = Records[TrainingStep] | Records[StepOfHead]


def _why_no_loss(report: Report, display: Display) -> Iterator[str]:
    """Why the last step has no loss, where others have one."""
    match report.result:
        case HeadsInTraining(steps=steps) | HeadInTraining(head=steps):
            last: TrainingStep | StepOfHead = steps[-1]
            if "loss" in last and last.loss is None:
                yield f"No loss at step {last.step}: none was logged there (of the Trainer: logging_steps)."


def _grid(lines: Sequence[_Line], display: Display) -> Grid:
    """A row for each line, drawn in what the other columns leave of the width."""
    label = Column(("",), [line.name for line in lines], left=True)
    ends = [
        Column(("first",), [line.first for line in lines]),
        Column(("last",), [line.last for line in lines]),
    ]
    said = Column(("",), [line.said for line in lines], left=True)
    used = label.width + sum(GAP + column.width for column in (*ends, said)) + GAP
    cells = max(LEAST_CELLS, min(MOST_CELLS, display.columns - used))
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
    width = display.columns
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


@dataclass(frozen=True)
class LinesOverSteps(Element):
    """A line for each of some numbers of the `steps`, a field of the result, and for each of `patterns`.

    As many as there is room for, in their order, those that tell most first: the first numbers, then the
    patterns of a circuit that forms at once. `usual` ones, or all.
    """

    steps: str
    names: Callable[[Report], Sequence[str]]
    patterns: str = ""
    usual: int | None = None

    def sections(self, report: Report, display: Display) -> ScreenParts:
        steps = rows_of(report, self.steps)
        patterns = rows_of(report, self.patterns) if self.patterns else ()
        numbers = [_line_of_numbers(name, steps, display) for name in self.names(report)]
        is_alone = len({pattern.stack for pattern in patterns}) == 1
        counts = [_line_of_pattern(pattern, is_alone) for pattern in patterns]
        is_first = [pattern.pattern in FORMING for pattern in patterns]
        of_circuit = [line for line, forms in zip(counts, is_first, strict=True) if forms]
        of_others = [line for line, forms in zip(counts, is_first, strict=True) if not forms]
        lines, by_worth = [*numbers, *counts], [*numbers[:2], *of_circuit, *of_others, *numbers[2:]]

        def of(count: int) -> Iterator[Section]:
            kept = set(map(id, by_worth[:count]))
            yield _grid([line for line in lines if id(line) in kept], display)
            if left_out := len(lines) - len(kept):
                yield Paragraph(f"Not shown: {counted(left_out, 'more line')}: --show all.", "note")

        every = len(lines)
        yield Elastic(of, self.usual or every, LEAST_LINES, every, rank=1)


def _statistics_and_loss(report: Report) -> list[str]:
    """The numbers of steps but for the counts of patterns, which have lines with the strongest head.

    Without those that no step has, as induction where nobody knows which tokens are equal.
    """
    steps = report.result_of(HeadsInTraining).steps
    names = [name for name in steps.cells if name != "step" and not name.endswith(COUNT)]
    return [name for name in names if np.isfinite(steps.column(name)).any()]


def _statistics_of_head(report: Report) -> list[str]:
    names = report.result_of(HeadInTraining).number_names()
    return [name for name in names if not name.endswith(ALIKE)]


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
        LinesOverSteps("steps", _statistics_and_loss, "patterns", USUAL_LINES),
        Sentences(_why_no_loss, "note"),
        HeadLetters("heads"),
        Special(_last_changes, "a line is a step at which several heads changed"),
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
        LinesOverSteps("head", _statistics_of_head),
        Sentences(_why_no_loss, "note"),
        Notes(),
    ),
    next_steps=_next_steps,
)
"""Every statistic of a head over the steps, and when its pattern changed."""
