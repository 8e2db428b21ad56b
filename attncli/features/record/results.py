"""What the heads of a running program do, and which of its modules were heard."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, column, group
from attncli.records.surveys import HeadSurvey


class RecordedModule(Record):
    """A module whose attention was heard: `layer` is its number among those of its stack.

    `function` says how it was heard. Of its `calls` so many were `measured`, of `texts` and `heads`; the last
    had `num_queries` and `num_keys` (`queries` and `keys` in a table). `num_rows` (`rows`) counts the queries
    of all texts, of which `padding` are left out: positions that a mask hides from every query of their text.
    In `nan_texts` of the texts a head had weights that are not numbers: means leave these texts out; so had
    `nan_padding` of the rows of padding. `mask`
    names which keys queries see, `window` how far. `head_dim` and `scale` are None where only the weights are
    known.
    """

    stack: str
    layer: int
    module: str
    kind: str
    function: str
    texts: int
    heads: int
    num_queries: int = column("queries")
    num_keys: int = column("keys")
    head_dim: int | None
    mask: str
    window: int | None
    scale: float | None
    calls: int
    measured: int
    num_rows: int | None = column("rows", is_needed=False)
    padding: int | None = column(is_needed=False)
    nan_texts: int = column(is_needed=False)
    nan_padding: int | None = column(is_needed=False)

    @property
    def tokens_of_text(self) -> int:
        """How many tokens a single text has that are there."""
        return self.num_queries - (self.padding or 0 if self.num_rows == self.num_queries else 0)


class TrainingSteps(Record):
    """How many training steps a program made, and how many before the first and the last measured call."""

    before_first: int
    before_last: int
    steps: int


@dataclass(frozen=True, kw_only=True, repr=False)
class RecordedHeads(HeadSurvey):
    """What each head of a program does, as in `HeadSurvey`; `modules` has one row per module that was heard.

    A layer is a number: that of the module in the order in which the modules of a stack, self or cross, were
    first heard. Only a program that trains has `training`.
    """

    title: ClassVar[str] = "The heads of a program"

    modules: Records[RecordedModule] = group(is_kept=False, may_be_empty=True)
    training: TrainingSteps | None = group(is_kept=False, is_needed=False)
