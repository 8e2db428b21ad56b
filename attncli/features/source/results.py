"""The results of `attn source`: the sources of an answer, and the heads that find them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group

NATS = "nats"


class RankedSource(Record):
    """A source: its number, text and tokens, and its measurements with their ranks.

    `all_heads` is the mean weight of all heads on the source, and `retrieving_heads` is that of the chosen
    heads. `lost` is how far the answer's log-probability falls without the text of the source, in nats;
    `effect` comes from a fit to random sets of sources. `ranked_by` is the measurement that decides the rank
    of the source.
    """

    source: int
    name: str
    title: str | None
    tokens: int = column(is_needed=False)
    first_token: int | None = column(is_needed=False)
    all_heads: float | None
    all_heads_rank: int | None = column(is_needed=False)
    retrieving_heads: float | None
    retrieving_heads_rank: int | None = column(is_needed=False)
    effect: float | None = column(is_needed=False)
    effect_rank: int | None = column(is_needed=False)
    lost: float | None = column(unit=NATS)
    lost_rank: int | None = column(is_needed=False)
    text: str | None
    ranked_by: str | None


class AnswerToken(Record):
    """A token of the answer, with its text and position.

    `source` is the source that has more than half of the token's weight on all sources. `measured_source` is
    the source that has more than half of the token's losses over all sources; `measured` is the loss, in
    nats, or the effect in a fit.
    """

    token: str | None = column(is_needed=False)
    text: str
    position: int = column(is_needed=False)
    source: int | None
    weight: float | None = column(is_needed=False)
    log_probability: float | None = column(unit=NATS, is_needed=False)
    measured_source: int | None
    measured: float | None = column(unit=NATS)


class SourceRanking(Record):
    """The agreement of a weight with the loss or the effect, over the `removed` sources.

    The columns are Spearman's correlation, and 1 if the two measurements rank the same source first, 0 if
    they do not.
    """

    ranking: str
    predicts: str
    removed: int
    spearman: float | None
    first_right: int | None


class AnswerCounts(Record):
    """The number of the first source, and how many sources, prompt tokens and answer tokens there are."""

    first: int = column(is_needed=False)
    sources: int = column(is_needed=False)
    prompt_tokens: int = column(is_needed=False)
    answer_tokens: int = column(is_needed=False)
    log_probability: float | None = column(unit=NATS, is_needed=False)


class HeadOnSources(Record):
    """A head's weight on all sources, and its strongest source with the weight on that source."""

    stack: str
    layer: int
    head: int
    weight: float | None
    source: int
    source_weight: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerSources(Result):
    """An answer and its sources.

    `sources` is ranked: removed sources come first, ordered by the loss without them, followed by the other
    sources, ordered by the weight of the chosen heads or of all heads; a fit ranks all sources by effect.
    `weights` (token, source) has the weight of each token on each source, for the chosen heads or for all
    heads.
    """

    sources: Records[RankedSource] = group()
    tokens: Records[AnswerToken] = group("answer")
    rankings: Records[SourceRanking] = group()
    counts: AnswerCounts = group("source")
    heads: Records[HeadOnSources] | None = group(is_needed=False)
    answer: str = ""
    ids: Sequence[int] = ()
    weights: npt.NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> int:
        """The number of the first source."""
        return self.sources[0].source

    @property
    def log_probability(self) -> float | None:
        """The log-probability of the whole answer, in nats."""
        return self.counts.log_probability


class RetrievingHead(Record):
    """The share of contexts in which a head weights the right sentence most, and its mean weight there."""

    stack: str = column(is_needed=False)
    layer: int
    head: int
    share_found: float | None = column("found", is_needed=False)
    weight: float | None = column(is_needed=False)

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class ChosenHead(Record):
    """The name of a retrieving head, such as 18:6."""

    chosen_head: str


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrievingHeads(Result):
    """A model's heads on synthetic contexts, strongest first, and the chosen heads."""

    rows: Records[RetrievingHead] = group("heads")
    chosen: Records[ChosenHead] = group()
    num_contexts: int = 0
    seed: int = 0

    @property
    def heads(self) -> list[str]:
        """The names of the chosen heads."""
        return [row.chosen_head for row in self.chosen]
