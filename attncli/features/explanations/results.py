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
    """The explained output."""

    kind: str = column(about="answer for a decoder; class, score, word or similarity for an encoder")
    output: str | None = column(about="The class or word, or itself for a text that is compared with itself")
    value: float | None = column(about="The log-probability, the score, or the cosine", is_kept=False)


def _kind(explained: Records[ExplainedOutput] | None) -> str:
    return explained[0].kind if explained else "answer"


class ExplainedSource(Record, others=float, others_about="Score of the source in this way to read"):
    """A source with the loss without it, followed by its score in each way."""

    source: int = column(about="Number of the source")
    name: str = column(about="Name of the source")
    text: str | None = column(about="Text of the source")
    tokens: int = column(about="Number of tokens in the source", is_kept=False)
    lost: float | None = column(
        about="Fall of the output without the source: in nats, as a score, or as a cosine"
    )


class WayOfReading(Record):
    """A way to read, compared with the losses without each source."""

    way: str = column(about="Way to read")
    spearman: float | None = column(
        about="Spearman's correlation of the scores with the losses without each source"
    )
    first: int | None = column(about="Source that the way ranks first; none if several are tied")
    first_agrees: int | None = column(
        about="1 if that source has the largest loss, else 0; none if the largest losses are tied"
    )
    runs: int = column(
        about="Number of passes through the model; a backward pass counts as two", is_kept=False
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanations(Result):
    """An answer, with the scores of its sources in each way.

    `tokens` (way, token) has the scores of the prompt's tokens, with NaN for ways that only score sources.
    """

    sources: Records[ExplainedSource] = group(label="Sources")
    ways: Records[WayOfReading] = group(label="Ways to read")
    explained: Records[ExplainedOutput] | None = group(
        label="Explained output", is_needed=False, is_kept=False
    )
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
    """A way to read, compared with removal: means over prompts, with 95 % intervals."""

    way: str = column(about="Way to read")
    kind: str = column(about="way, reference (removal itself), or ordering (ignores the model)")
    prompts: int = column(about="Number of prompts", is_kept=False)
    gap: float | None = column(
        about="morf - lerf: larger if the way ranks the sources well", has_interval=True
    )
    morf: float | None = column(
        label="MoRF",
        about="Loss per answer token if the first sources are removed first, mean over the removed share",
        has_interval=True,
    )
    lerf: float | None = column(
        label="LeRF",
        about="Loss per answer token if the last sources are removed first, mean over the removed share",
        has_interval=True,
    )
    spearman: float | None = column(
        about="Spearman's correlation of the scores with the losses without each source", has_interval=True
    )
    first: float | None = column(
        about="Share of the prompts in which the way and the losses have the same first source"
    )
    right: float | None = column(about="Share of the prompts in which the way ranks the right source first")
    over_position: float | None = column(
        about="Gap minus that of the best order by position or length, paired by prompt", has_interval=True
    )
    is_better: int | None = column(about="1 if the interval of this difference is above 0, else 0")
    runs: float = column(about="Mean number of passes through the model; a backward pass counts as two")


class PromptWay(Record):
    """A way to read, measured on one prompt."""

    prompt: str = column(about="Number or id of the prompt")
    way: str = column(about="Way to read")
    gap: float | None = column(about="morf - lerf: larger if the way ranks the sources well")
    morf: float | None = column(
        label="MoRF", about="Loss per answer token if the first sources are removed first"
    )
    lerf: float | None = column(
        label="LeRF", about="Loss per answer token if the last sources are removed first"
    )
    spearman: float | None = column(
        about="Spearman's correlation of the scores with the losses without each source"
    )
    first: int | None = column(about="Source that the way ranks first; none if several are tied")


class RefusedWay(Record):
    """A way that does not apply to the model."""

    refused: str = column(about="Way that does not apply to the model")
    reason: str = column(about="The reason")


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparedWays(Result):
    """Ways to read, compared with removal over prompts, best first, and orders that ignore the model.

    `position` is the name of the best order by position or length.
    """

    ways: Records[ComparedWay] = group("compared", label="Ways to read")
    prompts: Records[PromptWay] = group(label="Prompts", is_kept=False)
    refused: Records[RefusedWay] | None = group(label="Ways that do not apply", is_needed=False)
    explained: Records[ExplainedOutput] | None = group(
        label="Explained output", is_needed=False, is_kept=False
    )
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
    """A head, with its weight in the scores of sources."""

    stack: str
    layer: int
    head: int
    weight: float = column(
        about="Weight of the head in the scores of sources; the absolute weights sum to 1 (AT2)"
    )

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class LearnedFit(Record):
    """The correlations of scores on the answers used for learning.

    A correlation is Pearson's over the sets of sources.
    """

    prompts: int = column(about="Number of prompts", is_needed=False)
    correlation: float = column(
        about="Pearson's correlation of the scores with learned weights, mean over the prompts"
    )
    correlation_of_mean: float = column(
        about="Pearson's correlation of the scores with equal weights, mean over the prompts"
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class LearnedWeights(Result):
    """The learned weight of each head of a model, largest first."""

    rows: Records[LearnedHead] = group("heads", label="Heads")
    fit: LearnedFit = group("learned", label="Fit")
    seed: int = 0
    num_runs: int = 0
    notes: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, float]:
        """The weight of each head, by name."""
        return {row.name: row.weight for row in self.rows}
