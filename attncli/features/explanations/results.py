"""What several ways to read a model say of the sources of an answer, and how well they predict removal."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group

Explained = Literal["answer", "class", "score", "word", "similarity"]
"""What is explained: what a decoder writes, an encoder's class, its only score, its word, or a cosine."""
TIED = 2.0**-20
"""Numbers nearer than this share of the largest are tied: eight times the rounding of float32."""
TIED_NATS = 1e-4
"""Losses nearer than this are tied: two runs in float32 differ by some 1e-5 nats per token of an answer."""
NEARLY_ALL = 20.0
"""Where the largest loss is more than so many times the next, the order of the others says little."""


def tied_ranks(numbers: Sequence[float], within: float = 0.0) -> list[int]:
    """1 for the largest; neighbours nearer than rounding, or than `within`, have the same rank."""
    near = max(within, TIED * max(map(abs, numbers), default=0.0))
    order = sorted(range(len(numbers)), key=lambda place: -numbers[place])
    ranks = [1] * len(numbers)
    for place, (before, at) in enumerate(pairwise(order), start=2):
        ranks[at] = ranks[before] if numbers[before] - numbers[at] <= near else place
    return ranks


def first_of_ranks(ranks: Sequence[int]) -> int | None:
    """The number of the only source of rank 1, from 1; None where several have it."""
    return ranks.index(1) + 1 if ranks.count(1) == 1 else None


class ExplainedOutput(Record):
    """What is explained: `answer` of a decoder, of an encoder `class`, `score`, `word` or `similarity`.

    `output` is the class or the word, `itself` of a text that is compared with itself; `value` the
    log-probability, the score, or the cosine.
    """

    kind: str
    output: str | None
    value: float | None = column(is_kept=False)


def _kind(explained: Records[ExplainedOutput] | None) -> str:
    return explained[0].kind if explained else "answer"


class ExplainedSource(Record, others=float):
    """A source, what is lost without it, and behind that what each way gives it.

    `lost` is in nats, of a score in its units, of a similarity a difference of cosines.
    """

    source: int
    name: str
    text: str | None
    tokens: int = column(is_kept=False)
    lost: float | None


class WayOfReading(Record):
    """A way to read, beside what is lost without each source.

    `spearman` is the rank correlation with that, `first` the source that the way puts first, None where
    several are; `first_agrees` is 1 where its loss is largest, None where the largest losses are tied.
    `runs` are passes through the model, a backward pass counting as two.
    """

    way: str
    spearman: float | None
    first: int | None
    first_agrees: int | None
    runs: int = column(is_kept=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanations(Result):
    """An answer, and which sources each way says that it came from.

    `tokens` (way, token) is what each way gives the tokens of the prompt, NaN for a way of sources alone.
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
        """What is explained, as `ExplainedOutput` has it."""
        return _kind(self.explained)

    def ranks(self, way: str) -> list[int | None]:
        """Of each source the rank that a way gives it, equal ones the same; None where all are equal."""
        ranks = tied_ranks(self.sources.numbers(way).tolist())
        return [None] * len(ranks) if set(ranks) == {1} else [*ranks]

    @property
    def is_of_one_source(self) -> bool:
        """Whether nearly all is lost without the first source, and next to nothing without any other."""
        first, *others = self.sources.numbers("lost").tolist()
        return bool(first > NEARLY_ALL * max([TIED_NATS, *map(abs, others)]))


class ComparedWay(Record):
    """A way to read against removal: means over prompts, with 95 % intervals.

    `gap` is `morf` - `lerf`: what is lost, per token of an answer, as its first (last) sources are removed
    first, mean over the share that is gone. `spearman` is the rank correlation with what is lost
    without each source, `first` the share of prompts in which the first is the same, `right` in which it is
    the right one, where that is known. `over_position` is the gap minus that of the best ordering by position
    or length alone, in pairs; `is_better` is 1 where its interval is above 0.
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
    """A way to read on one prompt."""

    prompt: str
    way: str
    gap: float | None
    morf: float | None
    lerf: float | None
    spearman: float | None
    first: int | None


class RefusedWay(Record):
    """A way that is not right for the model, and why."""

    refused: str
    reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparedWays(Result):
    """Ways to read against removal over prompts, the best first; orderings that read nothing beside them.

    `position` is the best of those that know position and length alone.
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
        """What is explained, as `ExplainedOutput` has it."""
        return _kind(self.explained)


class LearnedHead(Record):
    """A head, and the weight with which its attention counts; their absolute values sum to 1 (AT2)."""

    stack: str
    layer: int
    head: int
    weight: float

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class LearnedFit(Record):
    """How well scores by the learned weights, and by equal ones, follow the answers they were learned from.

    Means over the prompts of Pearson's correlation over the sets of sources.
    """

    prompts: int = column(is_needed=False)
    correlation: float
    correlation_of_mean: float


@dataclass(frozen=True, kw_only=True, repr=False)
class LearnedWeights(Result):
    """The weight of each head of a model, learned from what answers lose, the largest first."""

    rows: Records[LearnedHead] = group("heads")
    fit: LearnedFit = group("learned")
    seed: int = 0
    num_runs: int = 0
    notes: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, float]:
        """The weight of each head, by its name."""
        return {row.name: row.weight for row in self.rows}
