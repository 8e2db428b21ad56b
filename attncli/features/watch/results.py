"""The results of `attn watch`: statistics of each step, patterns that form, and heads at the last step."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group


class TrainingStep(Record):
    """A training step: its loss, and statistics over all heads (None if no head has a number).

    Each pattern adds a column with the number of heads that show the pattern, such as `induction_heads`.
    """

    step: int
    loss: float | None = column(is_needed=False)
    largest_max_score: float | None = column(is_needed=False)
    least_entropy: float | None = column(is_needed=False)
    largest_previous_token: float | None = column(is_needed=False)
    largest_induction: float | None = column(is_needed=False)
    mean_entropy: float | None = column(is_needed=False)
    mean_sink_mass: float | None = column(is_needed=False)


COUNT = "_heads"


def count_name(pattern: str) -> str:
    """Return the name of a pattern's column of head counts, such as `previous_token_heads`."""
    return f"{pattern.replace(' ', '_')}{COUNT}"


class PatternOverSteps(Record):
    """A pattern, the first step at which a head exceeds its threshold, and the strongest head at that step.

    `heads` is the number of heads with the pattern at the last step, and `count` is the number at each
    `step`.
    """

    pattern: str
    stack: str
    threshold: float = column(is_needed=False)
    first_step: int
    layer: int
    head: int
    heads: int
    step: list[int]
    count: list[int]


class PatternChange(Record):
    """A head whose pattern changed from the previous step."""

    step: int
    stack: str = column(is_needed=False)
    layer: int
    head: int
    before: str
    after: str


class HeadAtStep(Record):
    """A head at one step: its pattern, and a column for each stored statistic."""

    layer: int
    kind: str = column(is_needed=False)
    stack: str
    head: int
    pattern: str


class StepOfHead(Record):
    """One head at one of the steps: its pattern, and a column for each stored statistic.

    If several stacks have this layer and head, each stack has separate columns, such as `entropy encoder`.
    """

    step: int
    loss: float | None = column(is_needed=False)
    pattern: str = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadsInTraining(Result):
    """A model's heads over its training steps.

    `patterns` lists the patterns that any head shows at any step; `never` names the other patterns. `changes`
    is in the order of the steps; `heads` describes the last step.
    """

    title: ClassVar[str] = "Heads over the steps of training"

    steps: Records[TrainingStep] = group()
    patterns: Records[PatternOverSteps] | None = group(is_needed=False)
    changes: Records[PatternChange] | None = group(is_needed=False)
    heads: Records[HeadAtStep] = group()
    never: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadInTraining(Result):
    """One head over the steps of a training run."""

    title: ClassVar[str] = "Heads over the steps of training"

    head: Records[StepOfHead] = group()

    def pattern_names(self) -> list[str]:
        """Return the columns with the head's pattern: one, or one per stack."""
        return [name for name in self.head.cells if name.partition(" ")[0] == "pattern"]

    def number_names(self) -> list[str]:
        """Return the columns with the head's statistics and the loss."""
        patterns = self.pattern_names()
        return [name for name in self.head.cells if name not in ("step", *patterns)]
