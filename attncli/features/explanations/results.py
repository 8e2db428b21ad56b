"""The results of `attn source --compare`: scores of an answer's sources in several ways, and a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group

Explained = Literal["answer", "class", "score", "word", "similarity"]
"""Kinds of explained output: a decoder's answer, or an encoder's class, single score, masked word or
cosine.
"""
TIED = 2.0**-20
"""Numbers that differ by less than this share of the largest are tied: eight rounding errors of float32."""
TIED_NATS = 1e-4
"""Losses closer than this are tied: two runs in float32 differ by about 1e-5 nats per answer token."""
NEARLY_ALL = 20.0
"""If the largest loss exceeds the next by this factor, the order of the other sources is of little use."""


def tied_ranks(numbers: Sequence[float], within: float = 0.0) -> list[int]:
    """Return ranks, where 1 is the largest. Numbers closer than rounding error or `within` share a rank."""
    near = max(within, TIED * max(map(abs, numbers), default=0.0))
    order = sorted(range(len(numbers)), key=lambda place: -numbers[place])
    ranks = [1] * len(numbers)
    for place, (before, at) in enumerate(pairwise(order), start=2):
        ranks[at] = ranks[before] if numbers[before] - numbers[at] <= near else place
    return ranks


def first_ranked(ranks: Sequence[int]) -> int | None:
    """Return the number, counted from 1, of the only source with rank 1, or None if several share rank 1."""
    return ranks.index(1) + 1 if ranks.count(1) == 1 else None


class ExplainedOutput(Record):
    """The explained output.

    `kind` is `answer` for a decoder, and `class`, `score`, `word` or `similarity` for an encoder. `output` is
    the class or the word, or `itself` for a text that is compared with itself; `value` is the
    log-probability, the score, or the cosine.
    """

    kind: str
    output: str | None
    value: float | None = column(is_kept=False)


def _kind(explained: Records[ExplainedOutput] | None) -> str:
    return explained[0].kind if explained else "answer"


class ExplainedSource(Record, others=float):
    """A source with the loss without it, followed by its score in each way.

    `lost` is in nats, or in the units of a score; for a similarity, it is a difference of cosines.
    """

    source: int
    name: str
    text: str | None
    tokens: int = column(is_kept=False)
    lost: float | None


class WayOfReading(Record):
    """A way to read, compared with the losses without each source.

    `spearman` is the rank correlation with the losses. `first` is the source that the way ranks first, or
    None if several are tied. `first_agrees` is 1 if that source has the largest loss, 0 if another source has
    it, and None if the largest losses are tied. `runs` is the number of passes through the model, where a
    backward pass counts as two.
    """

    way: str
    spearman: float | None
    first: int | None
    first_agrees: int | None
    runs: int = column(is_kept=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanations(Result):
    """An answer, with the scores of its sources in each way.

    `tokens` (way, token) has the scores of the prompt's tokens, with NaN for ways that only score sources.
    """

    sources: Records[ExplainedSource] = group()
    ways: Records[WayOfReading] = group()
    explained: Records[ExplainedOutput] | None = group(is_needed=False, is_kept=False)
    answer: str = ""
    ids: Sequence[int] = ()
    tokens: npt.NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of the explained output; see `ExplainedOutput`."""
        return _kind(self.explained)

    def ranks(self, way: str) -> list[int | None]:
        """Return the rank of each source in a way, with ties, or None for every source if all are tied."""
        ranks = tied_ranks(self.sources.numbers(way).tolist())
        return [None] * len(ranks) if set(ranks) == {1} else [*ranks]

    @property
    def has_single_source(self) -> bool:
        """True if nearly everything is lost without the first source, and almost nothing without others."""
        first, *other_losses = self.sources.numbers("lost").tolist()
        return bool(first > NEARLY_ALL * max([TIED_NATS, *map(abs, other_losses)]))


class ComparedWay(Record):
    """A way to read, compared with removal: means over prompts, with 95 % intervals.

    `gap` is `morf` - `lerf`: the answer's loss per token if the first (morf) or the last (lerf) sources of a
    way are removed first, averaged over the removed share. `spearman` is the rank correlation with the losses
    without each source. `first` is the share of prompts in which the way and the losses have the same first
    source; `right` is the share in which the way ranks the right source first, if that source is known.
    `over_position` is the gap minus that of the best order by position or length, paired by prompt;
    `is_better` is 1 if the interval of this difference is above 0.
    """

    way: str
    kind: str
    prompts: int = column(is_kept=False)
    gap: float | None = column(has_interval=True)
    morf: float | None = column(has_interval=True)
    lerf: float | None = column(has_interval=True)
    spearman: float | None = column(has_interval=True)
    first: float | None
    right: float | None
    over_position: float | None = column(has_interval=True)
    is_better: int | None
    runs: float


class PromptWay(Record):
    """A way to read, measured on one prompt."""

    prompt: str
    way: str
    gap: float | None
    morf: float | None
    lerf: float | None
    spearman: float | None
    first: int | None


class RefusedWay(Record):
    """A way that does not apply to the model, and the reason why."""

    refused: str
    reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparedWays(Result):
    """Ways to read, compared with removal over prompts, best first, and orders that ignore the model.

    `position` is the name of the best order by position or length.
    """

    ways: Records[ComparedWay] = group("compared")
    prompts: Records[PromptWay] = group(is_kept=False)
    refused: Records[RefusedWay] | None = group(is_needed=False)
    explained: Records[ExplainedOutput] | None = group(is_needed=False, is_kept=False)
    position: str = ""
    num_prompts: int = 0
    mean_sources: float = 0.0
    mean_tokens: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of the explained output; see `ExplainedOutput`."""
        return _kind(self.explained)


class LearnedHead(Record):
    """A head, with its weight in the scores of sources; the absolute weights sum to 1 (AT2)."""

    stack: str
    layer: int
    head: int
    weight: float

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class LearnedFit(Record):
    """The correlations of scores, with learned and with equal weights, on the answers used for learning.

    A correlation is the mean over the prompts of Pearson's correlation over the sets of sources.
    """

    prompts: int = column(is_needed=False)
    correlation: float
    correlation_of_mean: float


@dataclass(frozen=True, kw_only=True, repr=False)
class LearnedWeights(Result):
    """The learned weight of each head of a model, largest first."""

    rows: Records[LearnedHead] = group("heads")
    fit: LearnedFit = group("learned")
    seed: int = 0
    num_runs: int = 0
    notes: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, float]:
        """The weight of each head, by name."""
        return {row.name: row.weight for row in self.rows}
