"""What a model writes after a prompt, and where each head looked as it chose each token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attncli.core.names import WRITER_STATISTICS
from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.surveys import SignedHead
from attncli.records.values import NamedTensor, Tensors


class WriterHead(Record, numbers=WRITER_STATISTICS):
    """A head, and the mean of each of its statistics over the new tokens; None where no token has one."""

    layer: int
    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    stack: str = column(is_needed=False)
    head: int


class WrittenToken(Record):
    """A new token, the position of the query that chose it, and the keys that this looked at most.

    By the mean row of all heads, or where a needle is looked for by that of the `head` that retrieves most,
    as 17:3. The first key, where sinks are, has a column of its own; `keys` are None where there are fewer
    beside it.
    """

    token: str
    position: int = column(is_needed=False)
    head: str = column(is_needed=False)
    first_key: float | None = column(is_needed=False)
    keys_beside_first: list[int | None] = column("keys")
    weights: list[float | None]
    prompt_mass: float | None = column(is_needed=False)
    written_mass: float | None = column(is_needed=False)
    needle_mass: float | None = column(is_needed=False)


class WritingCounts(Record):
    """The tokens of the prompt and the new ones; of an answer that was read its log-probability."""

    prompt_tokens: int
    new_tokens: int
    log_probability: float | None = column(unit="nats", is_needed=False)


class NeedleCounts(Record):
    """The tokens of the needle, how many new ones were copied from it, and the share of its different tokens
    that was written.
    """

    tokens: int = column(is_needed=False)
    copied: int = column(is_needed=False)
    share_written: float | None = column("found", is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class WrittenText(Result):
    """What a model wrote, or read as an answer, and where each head looked as it chose each token.

    `heads` are in the order of the model, `tokens` in that of the text, whose numbers `ids` are. `rows` has
    every statistic of every row, with the axes layer, head and query, without those of which one was chosen;
    NaN where a layer has fewer heads. `weights` are whole rows, where asked for, of each head or their mean.
    `linear` has one row per head of a layer without a softmax, `linear_weights` their signed rows, where
    asked for; of a chosen one `tokens` have its shares of |w|. `unshown` says which layers are not measured.
    `first_query` is the position of the query that chose the first token.
    """

    heads: Records[WriterHead] = group(may_be_empty=True)
    tokens: Records[WrittenToken] = group("written", is_kept=False)
    counts: WritingCounts = group("writing")
    needle: NeedleCounts | None = group(is_needed=False)
    linear: Records[SignedHead] = group(is_kept=False, may_be_empty=True)
    rows: Tensors = group()
    text: str = ""
    ids: Sequence[int] = ()
    weights: NamedTensor | None = None
    weights_are_mean: bool = False
    linear_weights: NamedTensor | None = None
    unshown: str = ""
    first_query: int = 0
    is_unfinished: bool = False
    notes: tuple[str, ...] = ()

    def words_of_queries(self) -> list[str]:
        return [row.token for row in self.tokens]

    def telling(self, statistic: str) -> str:
        """The statistic; where nothing was copied no head retrieves, and the weight on the needle tells."""
        is_empty = statistic == "retrieval" and np.isnan(self.heads.column(statistic)).all()
        return "needle_mass" if is_empty else statistic

    def ranked(self, statistic: str, *, ascending: bool = False) -> Records[WriterHead]:
        """The heads, the largest of a statistic first, or the smallest; those without a number last."""
        numbers = self.heads.column(self.telling(statistic))
        return self.heads.taken(np.argsort(numbers if ascending else -numbers, kind="stable").tolist())
