"""Which heads look from one position of known pairs to the other."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group, number, tensor
from attncli.records.values import NamedTensor


class BestNumbers(Record):
    """What the best head of each measure reaches on the texts that were held out; None of one text alone."""

    hit: float | None
    precision: float | None
    precision_half: float | None
    precision_fifth: float | None
    mass: float | None


class HeadOnPairs(Record, others=float):
    """A head, and behind its place each measure in each direction over all texts, as hit.forward."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)


class PairScore(Record):
    """A number of some texts that were chosen on, and of those that were held out, with its 95 % interval.

    `measure` is what is counted. `offset_share` is what the best fixed offset, chosen likewise, reaches on
    the texts that were held out, and `chance` what pairs drawn at random would make of it.
    """

    measure: str
    choosing: float | None
    held_out: float | None
    lower: float | None
    upper: float | None
    offset: int | None = column(is_kept=False)
    offset_share: float | None
    chance: float | None


class BestOnPairs(PairScore):
    """The head with the largest number on the texts that were chosen on, in most of the `folds`.

    `direction`: forward, the first position of a pair looks at the second; backward, the second at the first;
    symmetric, the sum of both. `agreeing` folds chose this head.
    """

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    direction: str
    agreeing: int
    folds: int


class HeadOnMeasure(Record):
    """A measure of a head in one direction, as hit.forward: over all texts with its 95 % interval.

    `choosing` and `held_out` are of the two parts of the texts, where there is one split.
    """

    stack: str
    layer: int
    head: int
    statistic: str
    direction: str
    measure: str
    mean: float | None
    lower: float | None
    upper: float | None
    chance: float | None
    choosing: float | None
    held_out: float | None


class CombinedHeads(PairScore):
    """Several heads together: the mean of the best `num_heads`, or a logistic regression with so many."""

    num_heads: int


class HeadCoefficient(Record):
    """The weight of a head in a logistic regression, not 0."""

    stack: str
    layer: int
    head: int
    direction: str
    coefficient: float


class FittedRegression(Record):
    """Its intercept, and the inverse strength of its L1 penalty."""

    intercept: float
    c: float


class ScoresOfPositions(Record, others=float):
    """Two positions of a text: the weight of their pair, 0 for none, and behind it the score of each head.

    Heads are called 5:11, in the backward direction 5:11 backward. `text` is the number of its line;
    positions are those of the tokens or words of its reading.
    """

    text: int
    first: int
    second: int
    weight: float


class ExampleOfPair(Record):
    """A position of the example that has a pair: what it should find, and what the best head finds most.

    Positions are those of the file, `query` and `key` the places in the matrix. `weight` is that on what it
    finds, `is_hit` 1 where that is a partner.
    """

    query: int
    position: int
    token: str
    partners: str
    key: int | None
    looked_at: int | None
    looked_at_token: str
    weight: float | None
    is_hit: int


class LeftOutPairs(Record):
    """So many pairs that are left out, or counted once, why, and the first of them as the file has it."""

    pairs: int
    why: str
    first: str


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadsOnPairs(Result):
    """Which heads look from one position of known pairs to the other, with numbers of texts held out.

    `hit` is the share of positions with a pair whose largest weight is one, `precision` the mean over texts
    of the share of pairs among the L largest weights (L positions; `precision_half` L / 2, `precision_fifth`
    L / 5), `mass` the mean weight on pairs. `measures` has one row for each of them with the best head,
    `strongest` the first heads by hit, or by precision of symmetric pairs, `heads` one row per head,
    `intervals` one per head, direction and measure. `combined` are several heads together, with the
    `coefficients` of a logistic regression, fitted to the texts chosen on, or to all with folds. `example` is
    one text, with the `weights` of the best head in it, or the `pair_scores` by which symmetric pairs are
    ranked, the `probability` that a regression gives, and the known `pairs` (query, key).
    """

    marks_note: ClassVar[str] = (
        "Frames are known pairs, solid where the head finds them, dashed where it does not."
    )
    best: BestNumbers = group()
    num_texts: int = number("texts")
    num_positions: int = number("texts")
    num_pairs: int = number("texts")
    num_groups: int = number("texts")
    measures: Records[BestOnPairs] = group(is_kept=False)
    strongest: Records[HeadOnMeasure] = group(is_kept=False)
    combined: Records[CombinedHeads] = group(may_be_empty=True, is_kept=False)
    coefficients: Records[HeadCoefficient] = group(may_be_empty=True, is_kept=False)
    regression: FittedRegression | None = group(is_needed=False)
    left_out: Records[LeftOutPairs] = group(may_be_empty=True, is_kept=False)
    example: Records[ExampleOfPair] = group(may_be_empty=True, is_kept=False)
    heads: Records[HeadOnPairs] = group()
    intervals: Records[HeadOnMeasure] = group(is_kept=False)
    weights: NamedTensor | None = tensor(num_axes=2)
    pair_scores: NamedTensor | None = tensor(num_axes=2)
    probability: NamedTensor | None = tensor(num_axes=2)
    pairs: NamedTensor | None = tensor(num_axes=2)
    unit: str = "word"
    tokens: tuple[str, ...] = ()
    context_tokens: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_symmetric(self) -> bool:
        """Whether pairs have no direction."""
        return any(row.direction == "symmetric" for row in self.measures)

    def about_example(self) -> str:
        """Which head the maps are of, and on which text."""
        return f"head {self.best_head.layer}:{self.best_head.head} on one of {self.num_texts} texts"

    @property
    def best_head(self) -> BestOnPairs:
        """The head of the example: the best by precision where pairs are symmetric, else by hits."""
        measure = "precision" if self.is_symmetric else "hit"
        return next(row for row in self.measures if row.measure == measure)

    def marks(self, name: str) -> list[tuple[int, int, bool]]:
        """The query and the key of each pair of the example, and whether its head finds it."""
        if self.pairs is None or name == "pairs":
            return []
        hits = {(row.query, int(row.key or 0)) for row in self.example if row.is_hit}
        if self.best_head.direction == "backward":
            hits = {(looked_at, position) for position, looked_at in hits}
        places = zip(*(axis.tolist() for axis in np.nonzero(self.pairs.values)), strict=True)
        return [(query, key, (query, key) in hits) for query, key in places]

    def matrices(self) -> dict[str, NamedTensor]:
        """The matrices of the example, by their names."""
        named = {
            "weights": self.weights,
            "pair_scores": self.pair_scores,
            "probability": self.probability,
            "pairs": self.pairs,
        }
        return {name: matrix for name, matrix in named.items() if matrix is not None}
