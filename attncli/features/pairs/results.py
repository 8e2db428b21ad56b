"""Results of `attn heads --pairs`: heads that look from one position of known pairs to the other."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group, number, tensor
from attncli.records.meanings import Meaning
from attncli.records.values import NamedTensor

MEASURES = {
    "hit": Meaning("Share of the positions with a pair at which the largest weight is on a partner"),
    "precision": Meaning(
        "Share of pairs among the L largest weights of a text of L positions, mean over texts"
    ),
    "precision_half": Meaning("Share of pairs among the L / 2 largest weights", label="precision, L / 2"),
    "precision_fifth": Meaning("Share of pairs among the L / 5 largest weights", label="precision, L / 5"),
    "mass": Meaning("Mean weight on pairs"),
}


class BestNumbers(Record, shared=MEASURES):
    """The best head's share on the held-out texts, for each measure, or None if there is only one text."""

    hit: float | None
    precision: float | None
    precision_half: float | None
    precision_fifth: float | None
    mass: float | None


class HeadOnPairs(Record, others=float, others_about="A measure of the head in one direction over all texts"):
    """A head, followed by its measures in each direction over all texts, as in hit.forward."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)


class PairScore(Record):
    """A share on the choosing texts, and on the held-out texts with a 95 % interval."""

    measure: str = column(about="Measure of the share: hit, precision or mass")
    choosing: float | None = column(about="Share on the choosing texts")
    held_out: float | None = column(about="Share on the held-out texts")
    lower: float | None
    upper: float | None
    offset: int | None = column(about="Best fixed offset, in positions", is_kept=False)
    offset_share: float | None = column(
        about="Share of the best fixed offset on the held-out texts, chosen in the same way"
    )
    chance: float | None = column(about="Share expected for random pairs")


class BestOnPairs(PairScore):
    """The head with the largest share on the choosing texts, in most of the folds."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    direction: str = column(
        about="forward: the first of a pair looks at the second; backward; or symmetric, the sum"
    )
    agreeing: int = column(about="Number of folds that chose this head")
    folds: int = column(about="Number of folds")


class HeadOnMeasure(Record):
    """One measure of a head in one direction over all texts, with its 95 % interval."""

    stack: str
    layer: int
    head: int
    statistic: str = column(about="Measure and direction, as in hit.forward")
    direction: str = column(about="forward, backward or symmetric")
    measure: str = column(about="Measure of the share: hit, precision or mass")
    mean: float | None = column(about="Share over all texts")
    lower: float | None
    upper: float | None
    chance: float | None = column(about="Share expected for random pairs")
    choosing: float | None = column(about="With a single split, the share on the choosing texts")
    held_out: float | None = column(about="With a single split, the share on the held-out texts")


class CombinedHeads(PairScore):
    """Several heads together: the mean of the best, or a regression over as many heads."""

    num_heads: int = column(label="heads", about="Number of heads that are combined")


class HeadCoefficient(Record):
    """A head's nonzero weight in a logistic regression."""

    stack: str
    layer: int
    head: int
    direction: str = column(about="forward, backward or symmetric")
    coefficient: float = column(about="Weight of the head in the regression")


class FittedRegression(Record):
    """A logistic regression over the heads."""

    intercept: float = column(about="Intercept of the regression")
    c: float = column(about="Inverse strength of the L1 penalty")


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
    """A position of the example that has a pair: its partners, and the best head's strongest key."""

    query: int = column(about="Row of the position in the map")
    position: int = column(about="Position in the text, counted as in the file")
    token: str = column(about="The token or word there")
    partners: str = column(about="The positions that it is paired with")
    key: int | None = column(about="Column of the key with the largest weight in the map")
    looked_at: int | None = column(about="Position of that key, counted as in the file")
    looked_at_token: str = column(about="The token or word there")
    weight: float | None = column(about="Weight on that key")
    is_hit: int = column(label="hit", about="1 if that key is a partner, else 0")


class LeftOutPairs(Record):
    """Pairs that are ignored or merged."""

    pairs: int = column(about="Number of pairs that are ignored or merged")
    why: str = column(about="The reason")
    first: str = column(about="The first such pair, as written in the file")


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
    best: BestNumbers = group(label="Best head of each measure")
    num_texts: int = number("texts", label="texts", about="Number of texts")
    num_positions: int = number("texts", label="positions", about="Number of positions that have a pair")
    num_pairs: int = number("texts", label="pairs", about="Number of pairs")
    num_groups: int = number("texts", label="groups", about="Number of groups of texts")
    measures: Records[BestOnPairs] = group(label="Measures", is_kept=False)
    strongest: Records[HeadOnMeasure] = group(label="Strongest heads", is_kept=False)
    combined: Records[CombinedHeads] = group(label="Several heads together", may_be_empty=True, is_kept=False)
    coefficients: Records[HeadCoefficient] = group(
        label="Coefficients of the regression", may_be_empty=True, is_kept=False
    )
    regression: FittedRegression | None = group(label="Regression", is_needed=False)
    left_out: Records[LeftOutPairs] = group(label="Pairs left out", may_be_empty=True, is_kept=False)
    example: Records[ExampleOfPair] = group(label="Pairs of the example", may_be_empty=True, is_kept=False)
    heads: Records[HeadOnPairs] = group(label="Heads")
    intervals: Records[HeadOnMeasure] = group(label="Measures with intervals", is_kept=False)
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
