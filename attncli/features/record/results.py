"""The results of record: the heads of a program, and the modules in which attention was detected."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, column, group
from attncli.records.surveys import HeadSurvey


class RecordedModule(Record):
    """A module in which attention was detected; `layer` is its number within its stack.

    `function` is the function that computed the attention. Of its `calls`, `measured` were measured, with
    this number of `texts` and `heads`; the last call had `num_queries` and `num_keys` (`queries` and `keys`
    in a table). `num_rows` (`rows`) counts the queries of all texts, and `padding` counts the queries that
    are left out because a mask hides their positions from every query of their text. `nan_texts` counts the
    texts in which a head has weights that are not finite; means leave these texts out. `nan_padding` counts
    the padding rows with such weights. `mask` and `window` describe the keys that queries see. `head_dim` and
    `scale` are None if only the weights are known.
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
        """The number of tokens in a single text, without padding."""
        return self.num_queries - (self.padding or 0 if self.num_rows == self.num_queries else 0)


class TrainingSteps(Record):
    """The number of a program's training steps, and the numbers before its first and last measured calls."""

    before_first: int
    before_last: int
    steps: int


@dataclass(frozen=True, kw_only=True, repr=False)
class RecordedHeads(HeadSurvey):
    """A `HeadSurvey` of a program's heads; `modules` has one row per module with attention.

    Layer numbers follow the order in which the modules of a stack (self or cross) are first called.
    `training` is set only for a program that trains.
    """

    title: ClassVar[str] = "The heads of a program"

    modules: Records[RecordedModule] = group(is_kept=False, may_be_empty=True)
    training: TrainingSteps | None = group(is_kept=False, is_needed=False)
