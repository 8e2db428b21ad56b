"""Results of `attn heads --pairs`: heads that look from one position of known pairs to the other."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group, number, tensor
from attncli.records.values import NamedTensor


class BestNumbers(Record):
    """The best head's share on the held-out texts, for each measure, or None if there is only one text."""

    hit: float | None
    precision: float | None
    precision_half: float | None
    precision_fifth: float | None
    mass: float | None


class HeadOnPairs(Record, others=float):
    """A head, followed by its measures in each direction over all texts, as in hit.forward."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)


class PairScore(Record):
    """A share on the choosing texts, and on the held-out texts with a 95 % interval.

    `offset_share` is the share of the best fixed offset, chosen in the same way, on the held-out texts;
    `chance` is the share expected for random pairs.
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
    """The head with the largest share on the choosing texts, in most of the `folds`.

    `direction` is forward if the first position of a pair looks at the second, backward if the second looks
    at the first, and symmetric for the sum of both. `agreeing` is the number of folds that chose this head.
    """

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    direction: str
    agreeing: int
    folds: int


class HeadOnMeasure(Record):
    """One measure of a head in one direction, as in hit.forward, over all texts, with its 95 % interval.

    With a single split, `choosing` and `held_out` are the shares on its two parts.
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
    """Several heads together: the mean of the best `num_heads`, or a regression over as many heads."""

    num_heads: int


class HeadCoefficient(Record):
    """A head's nonzero weight in a logistic regression."""

    stack: str
    layer: int
    head: int
    direction: str
    coefficient: float


class FittedRegression(Record):
    """The intercept of a regression, and the inverse strength of its L1 penalty."""

    intercept: float
    c: float


class ScoresOfPositions(Record, others=float):
    """Two positions of a text: the weight of their pair (0 if they are not a pair), then each head's score.

    The columns of heads are named 5:11 or, for the other direction, 5:11 backward. `text` is the line number;
    positions count the tokens or words of the reading.
    """

    text: int
    first: int
    second: int
    weight: float


class ExampleOfPair(Record):
    """A position of the example that has a pair: its partners, and the best head's strongest key.

    Positions are counted as in the file; `query` and `key` are places in the matrix. `weight` is the weight
    on `key`, and `is_hit` is 1 if `key` is a partner.
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
    """The number of ignored or merged pairs, the reason, and the first such pair as written in the file."""

    pairs: int
    why: str
    first: str


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadsOnPairs(Result):
    """Heads that look from one position of known pairs to the other, tested on held-out texts.

    `hit` is the share of positions with a pair whose largest weight is on a partner, `precision` is the mean
    over texts of the share of pairs among the L largest weights (L positions; `precision_half` L / 2,
    `precision_fifth` L / 5), and `mass` is the mean weight on pairs. `measures` has one row per measure with
    its best head; `strongest` has the best heads by hit or, for symmetric pairs, by precision; `heads` has
    one row per head; and `intervals` has one row per head, direction and measure. `combined` has several
    heads together, with the `coefficients` of a logistic regression, fitted to the choosing texts or, with
    folds, to all texts. `example` is one text, with the `weights` of the best head in it, or the
    `pair_scores` that rank symmetric pairs, the `probability` of a regression, and the known `pairs` (query,
    key).
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
        """True if pairs have no direction."""
        return any(row.direction == "symmetric" for row in self.measures)

    def about_example(self) -> str:
        """The head and the text that the maps show."""
        return f"head {self.best_head.layer}:{self.best_head.head} on one of {self.num_texts} texts"

    @property
    def best_head(self) -> BestOnPairs:
        """The head of the example: the best by precision for symmetric pairs, otherwise by hits."""
        measure = "precision" if self.is_symmetric else "hit"
        return next(row for row in self.measures if row.measure == measure)

    def marks(self, name: str) -> list[tuple[int, int, bool]]:
        """The query and key of each pair in the example, and whether the head finds it."""
        if self.pairs is None or name == "pairs":
            return []
        hits = {(row.query, int(row.key or 0)) for row in self.example if row.is_hit}
        if self.best_head.direction == "backward":
            hits = {(looked_at, position) for position, looked_at in hits}
        places = zip(*(axis.tolist() for axis in np.nonzero(self.pairs.values)), strict=True)
        return [(query, key, (query, key) in hits) for query, key in places]

    def matrices(self) -> dict[str, NamedTensor]:
        """The example's matrices by name."""
        matrices = {
            "weights": self.weights,
            "pair_scores": self.pair_scores,
            "probability": self.probability,
            "pairs": self.pairs,
        }
        return {name: matrix for name, matrix in matrices.items() if matrix is not None}
