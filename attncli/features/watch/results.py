"""What heads do while a model trains: numbers of each step, when patterns form, heads at the last step."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group


class TrainingStep(Record):
    """A step: its loss, and statistics over all heads, None where no head has a number.

    Each pattern has one more column, the number of heads that show it: `induction_heads`.
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
    """What the number of heads of a pattern is called in the row of a step: `previous_token_heads`."""
    return f"{pattern.replace(' ', '_')}{COUNT}"


class PatternOverSteps(Record):
    """A pattern: the first step at which a head is above its threshold, the strongest head there.

    `heads` is how many heads are at the last step, `count` how many at each `step`.
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
    """A head whose pattern differs from that of the step before."""

    step: int
    stack: str = column(is_needed=False)
    layer: int
    head: int
    before: str
    after: str


class HeadAtStep(Record):
    """A head at a step: its pattern, and a column for each statistic that was kept."""

    layer: int
    kind: str = column(is_needed=False)
    stack: str
    head: int
    pattern: str


class StepOfHead(Record):
    """A head at one of the steps: its pattern, and a column for each statistic that was kept.

    Where several stacks have a head of this layer and number, each has columns of its own: `entropy encoder`.
    """

    step: int
    loss: float | None = column(is_needed=False)
    pattern: str = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadsInTraining(Result):
    """The heads of a model over the steps of its training.

    `patterns` has those that some head shows at some step, `never` the names of the others. `changes` are in
    the order of the steps, `heads` those of the last step.
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
        """The columns of its pattern: one, or one per stack."""
        return [name for name in self.head.cells if name.partition(" ")[0] == "pattern"]

    def number_names(self) -> list[str]:
        """The other columns: its statistics and the loss."""
        patterns = self.pattern_names()
        return [name for name in self.head.cells if name not in ("step", *patterns)]
