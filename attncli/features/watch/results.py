"""The results of `attn watch`: statistics of each step, patterns that form, and heads at the last step."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.meanings import Meaning, spaced

COUNT = "_heads"


def count_name(pattern: str) -> str:
    """Return the name of a pattern's column of head counts, such as `previous_token_heads`."""
    return f"{pattern.replace(' ', '_')}{COUNT}"


class TrainingStep(Record):
    """A training step: its loss, and statistics over all heads (None if no head has a number).

    Each pattern adds a column with the number of heads that show the pattern, such as `induction_heads`.
    """

    step: int = column(about="Number of the training step")
    loss: float | None = column(about="Training loss", is_needed=False)
    largest_max_score: float | None = column(about="Largest score in any head", is_needed=False)
    least_entropy: float | None = column(about="Smallest entropy of a head", is_needed=False)
    largest_previous_token: float | None = column(
        about="Largest weight of a head on the previous token", is_needed=False
    )
    largest_induction: float | None = column(about="Largest induction weight of a head", is_needed=False)
    mean_entropy: float | None = column(about="Mean entropy of the heads", is_needed=False)
    mean_sink_mass: float | None = column(about="Mean weight of the heads on the first key", is_needed=False)

    @classmethod
    def meaning(cls, name: str) -> Meaning:
        """Return the meaning of a column, which may count the heads of a pattern."""
        if name.endswith(COUNT):
            return Meaning(
                f"Number of heads with the pattern {spaced(name.removesuffix(COUNT))}", label=spaced(name)
            )
        return super().meaning(name)


class PatternOverSteps(Record):
    """A pattern, and the strongest head at the first step at which a head shows it."""

    pattern: str = column(about="Name of the pattern")
    stack: str
    threshold: float = column(about="Value above which a head shows the pattern", is_needed=False)
    first_step: int = column(about="First step at which a head exceeds the threshold")
    layer: int
    head: int
    heads: int = column(about="Number of heads with the pattern at the last step")
    step: list[int] = column(about="The steps")
    count: list[int] = column(about="Number of heads with the pattern at each step")


class PatternChange(Record):
    """A head whose pattern changed from the previous step."""

    step: int = column(about="Number of the training step")
    stack: str = column(is_needed=False)
    layer: int
    head: int
    before: str = column(about="Pattern at the previous step")
    after: str = column(about="Pattern at this step")


class HeadAtStep(Record):
    """A head at one step: its pattern, and a column for each stored statistic."""

    layer: int
    kind: str = column(is_needed=False)
    stack: str
    head: int
    pattern: str = column(about="Pattern of the head")


class StepOfHead(Record):
    """One head at one of the steps: its pattern, and a column for each stored statistic.

    If several stacks have this layer and head, each stack has separate columns, such as `entropy encoder`.
    """

    step: int = column(about="Number of the training step")
    loss: float | None = column(about="Training loss", is_needed=False)
    pattern: str = column(about="Pattern of the head", is_needed=False)

    @classmethod
    def meaning(cls, name: str) -> Meaning:
        """Return the meaning of a column, which may belong to one of several stacks."""
        statistic, _, stack = name.partition(" ")
        meaning = super().meaning(statistic)
        return meaning._replace(label=f"{meaning.label} {stack}".strip())


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadsInTraining(Result):
    """A model's heads over its training steps.

    `patterns` lists the patterns that any head shows at any step; `never` names the other patterns. `changes`
    is in the order of the steps; `heads` describes the last step.
    """

    title: ClassVar[str] = "Heads over the steps of training"

    steps: Records[TrainingStep] = group(label="Steps")
    patterns: Records[PatternOverSteps] | None = group(label="Patterns over the steps", is_needed=False)
    changes: Records[PatternChange] | None = group(label="Changes of pattern", is_needed=False)
    heads: Records[HeadAtStep] = group(label="Heads at the last step")
    never: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadInTraining(Result):
    """One head over the steps of a training run."""

    title: ClassVar[str] = "Heads over the steps of training"

    head: Records[StepOfHead] = group(label="The head over the steps")

    def pattern_names(self) -> list[str]:
        """Return the columns with the head's pattern: one, or one per stack."""
        return [name for name in self.head.cells if name.partition(" ")[0] == "pattern"]

    def number_names(self) -> list[str]:
        """Return the columns with the head's statistics and the loss."""
        patterns = self.pattern_names()
        return [name for name in self.head.cells if name not in ("step", *patterns)]
