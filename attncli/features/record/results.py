"""The results of record: the heads of a program, and the modules in which attention was detected."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, column, group
from attncli.records.surveys import HeadSurvey


class RecordedModule(Record):
    """A module in which attention was detected."""

    stack: str
    layer: int = column(about="Number of the module within its stack")
    module: str
    kind: str
    function: str = column(about="Function that computed the attention")
    texts: int = column(about="Number of texts of the measured calls")
    heads: int = column(about="Number of heads")
    num_queries: int = column("queries", about="Number of queries of the last call")
    num_keys: int = column("keys", about="Number of keys of the last call")
    head_dim: int | None = column(about="Dimension of queries and keys; none if only the weights are known")
    mask: str = column(about="Keys that a query sees")
    window: int | None = column(about="Width of the window of keys that a query sees")
    scale: float | None = column(about="Factor on query · key; none if only the weights are known")
    calls: int = column(about="Number of calls")
    measured: int = column(about="Number of measured calls")
    num_rows: int | None = column("rows", about="Number of queries of all texts", is_needed=False)
    padding: int | None = column(
        about="Number of queries left out because a mask hides their positions from every query",
        is_needed=False,
    )
    nan_texts: int = column(
        label="texts with NaN",
        about="Number of texts in which a head has weights that are not finite, which means leave out",
        is_needed=False,
    )
    nan_padding: int | None = column(
        label="padding with NaN",
        about="Number of padding rows with weights that are not finite",
        is_needed=False,
    )

    @property
    def tokens_of_text(self) -> int:
        """The number of tokens in a single text, without padding."""
        return self.num_queries - (self.padding or 0 if self.num_rows == self.num_queries else 0)


class TrainingSteps(Record):
    """The training steps of a program."""

    before_first: int = column(about="Number of training steps before the first measured call")
    before_last: int = column(about="Number of training steps before the last measured call")
    steps: int = column(about="Number of training steps")


@dataclass(frozen=True, kw_only=True, repr=False)
class RecordedHeads(HeadSurvey):
    """A `HeadSurvey` of a program's heads; `modules` has one row per module with attention.

    Layer numbers follow the order in which the modules of a stack (self or cross) are first called.
    `training` is set only for a program that trains.
    """

    title: ClassVar[str] = "The heads of a program"

    modules: Records[RecordedModule] = group(label="Modules", is_kept=False, may_be_empty=True)
    training: TrainingSteps | None = group(label="Training steps", is_kept=False, is_needed=False)
