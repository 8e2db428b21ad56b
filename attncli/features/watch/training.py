"""Head patterns over the steps of a training run: the step at which each pattern forms, and its heads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from attncli.core.names import HEAD_PATTERNS, NOT_MEASURED, UNNAMED
from attncli.features.watch.results import (
    HeadAtStep,
    HeadInTraining,
    HeadsInTraining,
    PatternChange,
    PatternOverSteps,
    StepOfHead,
    TrainingStep,
    count_name,
)
from attncli.records.columns import Cells, Records
from attncli.records.surveys import NOT_FIRST, Stack

PATTERN_NAMES = (*HEAD_PATTERNS, UNNAMED, NOT_MEASURED)


@dataclass(frozen=True)
class HeadsOverSteps:
    """The head statistics of a stack by name, at each step, with NaN for missing heads and numbers."""

    stack: Stack
    steps: tuple[int, ...]
    statistics: Mapping[str, Float[npt.NDArray[np.float64], "step layer head"]]

    @property
    def is_head(self) -> Bool[npt.NDArray[np.bool_], "layer head"]:
        """A mask of the heads that exist; layers may have different numbers of heads."""
        is_head = np.zeros(next(iter(self.statistics.values())).shape[1:], dtype=bool)
        for values in self.statistics.values():
            is_head |= np.isfinite(values).any(axis=0)
        return is_head

    def has_head(self, layer: int, head: int) -> bool:
        """Return True if the stack has this layer and head."""
        num_layers, num_heads = self.is_head.shape
        return layer < num_layers and head < num_heads and bool(self.is_head[layer, head])

    def value(self, statistic: str) -> Float[npt.NDArray[np.float64], "step layer head"]:
        """Return the numbers that decide a pattern.

        For the special-token pattern they exclude the first token, which has its own pattern.
        """
        values = self.statistics[statistic]
        if self.stack.pattern_statistic(statistic) == NOT_FIRST:
            values = values - self.statistics["sink_mass"]
        return values

    def heads(self, place: int) -> Records[HeadAtStep]:
        """Return one row per head with its pattern and statistics at one of the steps."""
        layer, head = np.nonzero(self.is_head)
        patterns = head_patterns(self)[place, layer, head]
        return HeadAtStep.table(
            layer=layer,
            kind=["cross" if self.stack.name == "cross" else "self"] * len(layer),
            stack=[self.stack.name] * len(layer),
            head=head,
            pattern=[PATTERN_NAMES[pattern] for pattern in patterns],
            **{name: values[place, layer, head] for name, values in self.statistics.items()},
        )


def pattern_masks(over: HeadsOverSteps) -> dict[str, Bool[npt.NDArray[np.bool_], "step layer head"]]:
    """Return masks of the heads above the threshold of each pattern that has enough rows."""
    return {
        name: over.value(pattern.statistic) > pattern.threshold
        for name, pattern in over.stack.patterns().items()
        if over.stack.has_enough_rows(pattern.statistic)
    }


def head_patterns(over: HeadsOverSteps) -> Int[npt.NDArray[np.int64], "step layer head"]:
    """Return the pattern of each head at each step, as an index into PATTERN_NAMES; see `pattern_names`."""
    shape = (len(over.steps), *over.is_head.shape)
    best, indices = np.full(shape, -np.inf), np.full(shape, PATTERN_NAMES.index(over.stack.unnamed()))
    precedence = np.full(shape, -1)
    for name, is_shown in pattern_masks(over).items():
        pattern = HEAD_PATTERNS[name]
        value = over.value(pattern.statistic)
        better = (pattern.precedence > precedence) | ((pattern.precedence == precedence) & (value > best))
        takes = is_shown & better
        indices[takes] = PATTERN_NAMES.index(name)
        precedence[takes], best[takes] = pattern.precedence, value[takes]
    return indices


def forming(over: HeadsOverSteps) -> Records[PatternOverSteps]:
    """Return the patterns that any head shows: first step, strongest head there, and heads at each step."""
    rows: list[PatternOverSteps] = []
    for name, is_shown in pattern_masks(over).items():
        counts = is_shown.sum(axis=(1, 2))
        if not counts.any():
            continue
        pattern, place = HEAD_PATTERNS[name], int(np.flatnonzero(counts)[0])
        values = np.where(is_shown, over.value(pattern.statistic), -np.inf)[place]
        layer, head = divmod(int(values.argmax()), values.shape[1])
        rows.append(
            PatternOverSteps.single(
                pattern=name,
                stack=over.stack.name,
                threshold=pattern.threshold,
                first_step=over.steps[place],
                layer=layer,
                head=head,
                heads=int(counts[-1]),
                step=list(over.steps),
                count=counts.tolist(),
            )
        )
    return PatternOverSteps.rows(rows)


def never_forming(over: HeadsOverSteps) -> Iterator[str]:
    """Yield the patterns that have enough rows but that no head shows at any step."""
    return (name for name, is_shown in pattern_masks(over).items() if not is_shown.any())


def changes(over: HeadsOverSteps) -> Records[PatternChange]:
    """Return one row per change of a head's pattern between two steps, in the order of the steps."""
    patterns = head_patterns(over)
    place, layer, head = np.nonzero((patterns[1:] != patterns[:-1]) & over.is_head)
    before, after = patterns[place, layer, head], patterns[place + 1, layer, head]
    return PatternChange.table(
        step=np.array(over.steps)[place + 1],
        stack=[over.stack.name] * len(place),
        layer=layer,
        head=head,
        before=[PATTERN_NAMES[pattern] for pattern in before],
        after=[PATTERN_NAMES[pattern] for pattern in after],
    )


SUMMARIES: dict[str, tuple[str, Callable[[npt.NDArray[np.float64]], np.float64]]] = {
    "largest_max_score": ("max_score", np.nanmax),
    "least_entropy": ("entropy", np.nanmin),
    "largest_previous_token": ("previous_token", np.nanmax),
    "largest_induction": ("induction", np.nanmax),
    "mean_entropy": ("entropy", np.nanmean),
    "mean_sink_mass": ("sink_mass", np.nanmean),
}
"""Summaries of a step: the name of a statistic, and its reduction over all heads."""


def step_rows(
    stacks: Sequence[HeadsOverSteps], losses: Sequence[float | None] | None
) -> Records[TrainingStep]:
    """Return one row per step.

    A row has the loss, if any step has one, the SUMMARIES over all heads (None if there are no numbers), and
    the number of heads with each pattern.
    """
    steps = stacks[0].steps
    counts: dict[str, npt.NDArray[np.int64]] = {}
    for over in stacks:
        for name, is_shown in pattern_masks(over).items():
            counts[name] = counts.get(name, np.zeros(len(steps), dtype=int)) + is_shown.sum(axis=(1, 2))
    summaries: dict[str, list[float | None]] = {summary: [] for summary in SUMMARIES}
    for summary, (name, reduce) in SUMMARIES.items():
        for place in range(len(steps)):
            parts = [over.statistics[name][place].ravel() for over in stacks if name in over.statistics]
            values = np.concatenate([np.empty(0), *parts])
            summaries[summary].append(float(reduce(values)) if np.isfinite(values).any() else None)
    return TrainingStep.table(
        step=list(steps),
        **({} if losses is None else {"loss": losses}),
        **summaries,
        **{count_name(name): numbers.tolist() for name, numbers in counts.items()},
    )


def heads_in_training(
    stacks: Sequence[HeadsOverSteps], losses: Sequence[float | None] | None
) -> HeadsInTraining:
    """Return the result for all heads over the steps."""
    return HeadsInTraining(
        steps=step_rows(stacks, losses),
        patterns=PatternOverSteps.joined(map(forming, stacks)),
        changes=PatternChange.joined(map(changes, stacks)),
        heads=HeadAtStep.joined(over.heads(-1) for over in stacks),
        never=tuple(dict.fromkeys(name for over in stacks for name in never_forming(over))),
    )


def head_in_training(
    stacks: Sequence[HeadsOverSteps], losses: Sequence[float | None] | None, layer: int, head: int
) -> HeadInTraining:
    """Return the result for one head: its statistics and patterns over the steps, in each stack with it."""
    cells: dict[str, Cells] = {"step": list(stacks[0].steps)}
    if losses is not None:
        cells["loss"] = losses
    for over in stacks:
        after = f" {over.stack.name}" if len(stacks) > 1 else ""
        cells[f"pattern{after}"] = [PATTERN_NAMES[name] for name in head_patterns(over)[:, layer, head]]
        cells |= {
            f"{name}{after}": values[:, layer, head]
            for name, values in over.statistics.items()
            if np.isfinite(values[:, layer, head]).any()
        }
    return HeadInTraining(head=StepOfHead.table(**cells))
