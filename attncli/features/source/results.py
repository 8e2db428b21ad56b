"""Where an answer came from, and which heads of a model tell it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group

NATS = "nats"


class RankedSource(Record):
    """A source by its number, its text and tokens, and what was measured of it, of each number the rank.

    `all_heads` is the mean weight of all heads on it, `retrieving_heads` that of the named ones; `lost` is by
    how many nats the answer's log-probability falls without its text, `effect` that of a fit to random sets
    of sources. `ranked_by` is the number that says where it stands.
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
    """A token of the answer, what it adds to the text, and its position.

    `source` has more than half of its weight on all sources; without `measured_source` it loses more than
    half of what it loses without each of them (`measured`, in nats; of a fit the effect).
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
    """How well a weight `predicts` what is lost, or the effect, among the sources that were `removed`.

    Spearman's correlation, and whether the first is the same, 1 or 0.
    """

    ranking: str
    predicts: str
    removed: int
    spearman: float | None
    first_right: int | None


class AnswerCounts(Record):
    """The source that ranks first, how many there are, and the tokens of the prompt and of the answer."""

    first: int = column(is_needed=False)
    sources: int = column(is_needed=False)
    prompt_tokens: int = column(is_needed=False)
    answer_tokens: int = column(is_needed=False)
    log_probability: float | None = column(unit=NATS, is_needed=False)


class HeadOnSources(Record):
    """A head's weight on all sources, and the source that it looks at most, with its weight."""

    stack: str
    layer: int
    head: int
    weight: float | None
    source: int
    source_weight: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerSources(Result):
    """An answer and its sources.

    `sources` are in their order, the first first: those that were removed by what is lost without them, or
    all by the fit; behind them the others by the weight of the named heads, or of all. `weights` (token,
    source) are those of each token on each source, by the named heads or by all.
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
        """The number of the source that ranks first."""
        return self.sources[0].source

    @property
    def log_probability(self) -> float | None:
        """That of the whole answer, in nats."""
        return self.counts.log_probability


class RetrievingHead(Record):
    """In which share of the contexts a head looks at the right sentence most, and its mean weight on it."""

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
    """A head that tells where an answer came from, as 18:6."""

    chosen_head: str


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrievingHeads(Result):
    """The heads of a model on synthetic contexts, the strongest first, and those that are chosen."""

    rows: Records[RetrievingHead] = group("heads")
    chosen: Records[ChosenHead] = group()
    num_contexts: int = 0
    seed: int = 0

    @property
    def heads(self) -> list[str]:
        """The names of the chosen heads."""
        return [row.chosen_head for row in self.chosen]
