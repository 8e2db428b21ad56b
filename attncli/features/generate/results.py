"""The results of `attn generate`: the new tokens, and where each head looked when a token was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attncli.core.names import WRITER_STATISTICS
from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.surveys import SignedHead
from attncli.records.values import NamedTensor, Tensors


class WriterHead(Record, numbers=WRITER_STATISTICS):
    """A head, with the mean of each statistic over the new tokens, or None if no token has the statistic."""

    layer: int
    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    stack: str = column(is_needed=False)
    head: int


class WrittenToken(Record):
    """A new token, and the strongest keys of the query that chose it.

    The keys come from the mean row over all heads or, with a needle, from the row of `head`. `keys` is padded
    with None if there are fewer other keys.
    """

    token: str = column(about="The new token")
    position: int = column(about="Position of the query that chose the token", is_needed=False)
    head: str = column(
        about="With a needle: the head with the best retrieval score, to which the keys belong",
        is_needed=False,
    )
    first_key: float | None = column(
        about="Weight on the first key, which is often an attention sink", is_needed=False
    )
    keys_beside_first: list[int | None] = column(
        "keys", about="Positions of the other keys with the largest weights"
    )
    weights: list[float | None] = column(about="Weights on these keys")
    prompt_mass: float | None = column(is_needed=False)
    written_mass: float | None = column(is_needed=False)
    needle_mass: float | None = column(is_needed=False)


class WritingCounts(Record):
    """The numbers of prompt tokens and new tokens."""

    prompt_tokens: int = column(about="Number of tokens in the prompt")
    new_tokens: int = column(about="Number of tokens that the model wrote or read as an answer")
    log_probability: float | None = column(
        unit="nats", about="Log-probability of an answer that was read", is_needed=False
    )


class NeedleCounts(Record):
    """The tokens of the needle."""

    tokens: int = column(about="Number of tokens in the needle", is_needed=False)
    copied: int = column(about="Number of new tokens that occur in the needle", is_needed=False)
    share_written: float | None = column(
        "found",
        label="written",
        about="Share of the needle's distinct tokens that the model wrote",
        is_needed=False,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class WrittenText(Result):
    """The text that a model wrote, or read as an answer, and where each head looked for each token.

    `heads` are in the order of the model, and `tokens` and their `ids` in the order of the text. `rows`
    contains every statistic of every row, with the axes layer, head and query; a chosen layer or head has no
    axis. Values are NaN where a layer has fewer heads. `weights` contains whole rows, either for each head or
    as the mean over the heads, or is None.

    `linear` has one row per head without a softmax, and `linear_weights` contains the signed rows of these
    heads, or is None. For a chosen layer without a softmax, `tokens` contains shares of |w|. `unshown` is a
    sentence that names the layers left out. `first_query` is the position of the query that chose the first
    token.
    """

    heads: Records[WriterHead] = group(label="Heads", may_be_empty=True)
    tokens: Records[WrittenToken] = group("written", label="New tokens", is_kept=False)
    counts: WritingCounts = group("writing", label="Tokens")
    needle: NeedleCounts | None = group(label="Needle", is_needed=False)
    linear: Records[SignedHead] = group(label="Heads without a softmax", is_kept=False, may_be_empty=True)
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

    def query_words(self) -> list[str]:
        return [row.token for row in self.tokens]

    def sort_statistic(self, statistic: str) -> str:
        """Return the statistic to sort by: `needle_mass` in place of `retrieval` if nothing was copied."""
        is_empty = statistic == "retrieval" and np.isnan(self.heads.column(statistic)).all()
        return "needle_mass" if is_empty else statistic

    def ranked(self, statistic: str, *, ascending: bool = False) -> Records[WriterHead]:
        """Return the heads sorted by a statistic, largest or smallest first; NaN values come last."""
        numbers = self.heads.column(self.sort_statistic(statistic))
        return self.heads.taken(np.argsort(numbers if ascending else -numbers, kind="stable").tolist())
