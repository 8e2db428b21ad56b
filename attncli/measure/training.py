"""What heads do over the steps of a training run: which patterns form, when, and in which heads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from attncli.core.names import HEAD_PATTERNS, UNNAMED
from attncli.measure.patterns import HeadRow
from attncli.records.surveys import NOT_FIRST, Stack

PATTERN_NAMES = (*HEAD_PATTERNS, UNNAMED)


@dataclass(frozen=True)
class HeadsOverSteps:
    """The statistics of the heads of a stack by name, at each step; NaN where there is no head or number."""

    stack: Stack
    steps: tuple[int, ...]
    statistics: Mapping[str, Float[np.ndarray, "step layer head"]]

    @property
    def is_head(self) -> Bool[np.ndarray, "layer head"]:
        """Where there is a head: layers may have different numbers of them."""
        found = np.zeros(next(iter(self.statistics.values())).shape[1:], dtype=bool)
        for values in self.statistics.values():
            found |= np.isfinite(values).any(axis=0)
        return found

    def value(self, statistic: str) -> Float[np.ndarray, "step layer head"]:
        """What a pattern is named by: special tokens without the first, which has a pattern of its own."""
        values: np.ndarray = self.statistics[statistic]
        if self.stack.name_of(statistic) == NOT_FIRST:
            values = values - self.statistics["sink_mass"]
        return values

    def rows(self, place: int) -> list[HeadRow]:
        """One row per head with its pattern and statistics at one of the steps."""
        patterns = named_patterns(self)[place]
        kind = "cross" if self.stack.name == "cross" else "self"
        return [
            {
                **{"layer": layer, "kind": kind, "stack": self.stack.name, "head": head},
                "pattern": PATTERN_NAMES[patterns[layer, head]],
                **{name: float(values[place, layer, head]) for name, values in self.statistics.items()},
            }
            for layer, head in np.argwhere(self.is_head).tolist()
        ]


def shown_patterns(over: HeadsOverSteps) -> dict[str, Bool[np.ndarray, "step layer head"]]:
    """Which heads are above the threshold of each pattern that has enough rows."""
    return {
        name: over.value(pattern.statistic) > pattern.threshold
        for name, pattern in over.stack.patterns().items()
        if over.stack.has_enough_rows(pattern.statistic)
    }


def named_patterns(over: HeadsOverSteps) -> Int[np.ndarray, "step layer head"]:
    """The pattern of each head at each step, as `pattern_of` has it, by its place in PATTERN_NAMES."""
    shape = (len(over.steps), *over.is_head.shape)
    best, named = np.full(shape, -np.inf), np.full(shape, PATTERN_NAMES.index(UNNAMED))
    precedence = np.full(shape, -1)
    for name, is_shown in shown_patterns(over).items():
        pattern = HEAD_PATTERNS[name]
        value = over.value(pattern.statistic)
        better = (pattern.precedence > precedence) | ((pattern.precedence == precedence) & (value > best))
        takes = is_shown & better
        named[takes] = PATTERN_NAMES.index(name)
        precedence[takes], best[takes] = pattern.precedence, value[takes]
    return named


def forming(over: HeadsOverSteps) -> list[dict[str, Any]]:
    """One row per pattern: the first step at which a head shows it, that head, and how many do at each step.

    Of several heads at that step the strongest; None where no head ever does. `heads` is how many do now.
    """
    rows: list[dict[str, Any]] = []
    for name, is_shown in shown_patterns(over).items():
        counts = is_shown.sum(axis=(1, 2))
        first: tuple[int | None, ...] = (None, None, None)
        if counts.any():
            place = int(np.flatnonzero(counts)[0])
            values = np.where(is_shown, over.value(HEAD_PATTERNS[name].statistic), -np.inf)[place]
            layer, head = divmod(int(values.argmax()), values.shape[1])
            first = over.steps[place], layer, head
        rows.append(
            {
                "pattern": name,
                "stack": over.stack.name,
                "threshold": HEAD_PATTERNS[name].threshold,
                **dict(zip(("first_step", "layer", "head"), first, strict=True)),
                "heads": int(counts[-1]),
                "step": list(over.steps),
                "count": counts.tolist(),
            }
        )
    return rows


def changes(over: HeadsOverSteps) -> list[dict[str, Any]]:
    """One row per head whose pattern differs from that of the step before, in the order of the steps."""
    named = named_patterns(over)
    places = np.argwhere((named[1:] != named[:-1]) & over.is_head)
    return [
        {
            **{"step": over.steps[place + 1], "stack": over.stack.name, "layer": layer, "head": head},
            "before": PATTERN_NAMES[named[place, layer, head]],
            "after": PATTERN_NAMES[named[place + 1, layer, head]],
        }
        for place, layer, head in places.tolist()
    ]


SUMMARIES: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "largest_max_score": ("max_score", np.nanmax),
    "least_entropy": ("entropy", np.nanmin),
    "largest_previous_token": ("previous_token", np.nanmax),
    "largest_induction": ("induction", np.nanmax),
    "mean_entropy": ("entropy", np.nanmean),
    "mean_sink_mass": ("sink_mass", np.nanmean),
}
"""What a step is told by: a statistic, and which number of all heads is taken."""


def count_name(pattern: str) -> str:
    """What the number of heads of a pattern is called in the row of a step: `previous_token_heads`."""
    return f"{pattern.replace(' ', '_')}_heads"


def step_rows(
    stacks: Sequence[HeadsOverSteps], losses: Sequence[float | None] | None
) -> list[dict[str, float | int | None]]:
    """One row per step: the loss, where it is known of any, the SUMMARIES over all heads, None for no number,
    and how many heads show each pattern.
    """
    counts: dict[str, np.ndarray] = {}
    for over in stacks:
        for name, is_shown in shown_patterns(over).items():
            counts[name] = counts.get(name, np.zeros(len(over.steps), dtype=int)) + is_shown.sum(axis=(1, 2))
    rows = []
    for place, step in enumerate(stacks[0].steps):
        row: dict[str, float | int | None] = {"step": step}
        if losses is not None:
            row["loss"] = losses[place]
        for summary, (name, of_heads) in SUMMARIES.items():
            parts = [over.statistics[name][place].ravel() for over in stacks if name in over.statistics]
            values = np.concatenate([np.empty(0), *parts])
            row[summary] = float(of_heads(values)) if np.isfinite(values).any() else None
        row |= {count_name(name): int(numbers[place]) for name, numbers in counts.items()}
        rows.append(row)
    return rows
