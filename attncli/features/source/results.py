"""The results of `attn source`: the sources of an answer, and the heads that find them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group

NATS = "nats"


class RankedSource(Record):
    """A source: its number, text and tokens, and its measurements with their ranks."""

    source: int = column(about="Number of the source")
    name: str = column(about="Name of the source")
    title: str | None = column(about="Title of the source")
    tokens: int = column(about="Number of tokens in the source", is_needed=False)
    first_token: int | None = column(about="Position of its first token", is_needed=False)
    all_heads: float | None = column(about="Mean weight of all heads on the source, from the answer's tokens")
    all_heads_rank: int | None = column(about="Rank by the weight of all heads", is_needed=False)
    retrieving_heads: float | None = column(
        about="Mean weight of the chosen heads on the source, from the answer's tokens"
    )
    retrieving_heads_rank: int | None = column(
        about="Rank by the weight of the chosen heads", is_needed=False
    )
    effect: float | None = column(
        about="Effect of the source on ln p - ln(1 - p) of the answer, fitted to random sets of sources",
        is_needed=False,
    )
    effect_rank: int | None = column(about="Rank by the effect", is_needed=False)
    lost: float | None = column(unit=NATS, about="Fall of the answer's log-probability without the source")
    lost_rank: int | None = column(about="Rank by the loss without the source", is_needed=False)
    text: str | None = column(about="Text of the source")
    ranked_by: str | None = column(about="Measurement that decides the rank")


class AnswerToken(Record):
    """A token of the answer, with its source."""

    token: str | None = column(about="The token", is_needed=False)
    text: str = column(about="Its text")
    position: int = column(about="Position of the token", is_needed=False)
    source: int | None = column(about="Source with more than half of the token's weight on all sources")
    weight: float | None = column(about="Weight of the token on that source", is_needed=False)
    log_probability: float | None = column(unit=NATS, about="Log-probability of the token", is_needed=False)
    measured_source: int | None = column(
        about="Source with more than half of the token's losses over all sources"
    )
    measured: float | None = column(unit=NATS, about="Loss without that source, or its effect in a fit")


class SourceRanking(Record):
    """The agreement of a weight with the loss or the effect, over the `removed` sources."""

    ranking: str = column(about="Weight that ranks the sources: all_heads or retrieving_heads")
    predicts: str = column(about="Measurement that it predicts: lost or effect")
    removed: int = column(about="Number of removed sources")
    spearman: float | None = column(about="Spearman's correlation of the two")
    first_right: int | None = column(about="1 if both rank the same source first, else 0")


class AnswerCounts(Record):
    """The numbers of sources and tokens."""

    first: int = column(about="Number of the first source", is_needed=False)
    sources: int = column(about="Number of sources", is_needed=False)
    prompt_tokens: int = column(about="Number of tokens in the prompt", is_needed=False)
    answer_tokens: int = column(about="Number of tokens in the answer", is_needed=False)
    log_probability: float | None = column(
        unit=NATS, about="Log-probability of the whole answer", is_needed=False
    )


class HeadOnSources(Record):
    """A head, and its strongest source."""

    stack: str
    layer: int
    head: int
    weight: float | None = column(about="Weight of the head on all sources, from the answer's tokens")
    source: int = column(about="Source with the largest weight")
    source_weight: float | None = column(about="Weight of the head on that source")


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerSources(Result):
    """An answer and its sources.

    `sources` is ranked: removed sources come first, ordered by the loss without them, followed by the other
    sources, ordered by the weight of the chosen heads or of all heads; a fit ranks all sources by effect.
    `weights` (token, source) has the weight of each token on each source, for the chosen heads or for all
    heads.
    """

    sources: Records[RankedSource] = group(label="Sources")
    tokens: Records[AnswerToken] = group("answer", label="Answer")
    rankings: Records[SourceRanking] = group(label="Agreement of the rankings")
    counts: AnswerCounts = group("source", label="Numbers of tokens")
    heads: Records[HeadOnSources] | None = group(label="Heads", is_needed=False)
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
    """A head on synthetic contexts, in which one sentence is the right one."""

    stack: str = column(is_needed=False)
    layer: int
    head: int
    share_found: float | None = column(
        "found",
        label="share found",
        about="Share of the contexts in which the head weights the right sentence most",
        is_needed=False,
    )
    weight: float | None = column(about="Mean weight of the head on the right sentence", is_needed=False)

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class ChosenHead(Record):
    """The name of a retrieving head, such as 18:6."""

    chosen_head: str = column(about="Name of a retrieving head, such as 18:6")


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrievingHeads(Result):
    """A model's heads on synthetic contexts, strongest first, and the chosen heads."""

    rows: Records[RetrievingHead] = group("heads", label="Heads")
    chosen: Records[ChosenHead] = group(label="Chosen heads")
    num_contexts: int = 0
    seed: int = 0

    @property
    def heads(self) -> list[str]:
        """The names of the chosen heads."""
        return [row.chosen_head for row in self.chosen]
