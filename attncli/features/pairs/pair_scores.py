"""The scores of all heads for each pair of positions, and the regression fitted to these scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.errors import UserError, refuse_bytes
from attncli.features.pairs.held_out import PairTotals, StackedHead
from attncli.features.pairs.pair_counts import BatchOfPairs
from attncli.features.pairs.pair_files import PairedText
from attncli.features.pairs.pair_runs import BatchTaker, PairReader, PairRun
from attncli.features.pairs.results import FittedRegression, ScoresOfPositions
from attncli.models.text_files import ManyTexts
from attncli.records.columns import Records


class CountingTaker(BatchTaker):
    """Counts the pairs that heads find, and the scores of all cells if a regression needs these."""

    def __init__(
        self,
        texts: Sequence[PairedText],
        pairs: BatchOfPairs,
        totals: PairTotals,
        features: "PairFeatures | None",
    ) -> None:
        self.texts, self.pairs, self.totals, self.features = texts, pairs, totals, features
        self._places: list[StackedHead] = []
        self._numbers: list[Tensor] = []
        self._scores: list[Tensor] = []

    def take(self, places: Sequence[StackedHead], weights: Float[Tensor, "text head query key"]) -> None:
        self._places += places
        self._numbers.append(self.pairs.numbers(weights))
        if self.features is not None:
            self._scores.append(torch.stack(self.pairs.scores(weights), dim=1))

    def end(self) -> None:
        order = sorted(range(len(self._places)), key=self._places.__getitem__)
        places = [self._places[number] for number in order]
        self.totals.add(self.pairs, self.texts, places, torch.cat(self._numbers, dim=2)[:, :, order])
        if self.features is not None:
            self.features.add(self.texts, self.pairs, torch.cat(self._scores, dim=2)[:, :, order])


class PairFeatures:
    """Every head's scores for each pair of positions that counts, text by text, for fitting a regression."""

    def __init__(self) -> None:
        self._texts: list[tuple[int, BatchOfPairs, Float[Tensor, "cell map"]]] = []
        self._bytes = 0

    def add(
        self,
        texts: Sequence[PairedText],
        pairs: BatchOfPairs,
        head_scores: Float[Tensor, "text direction head query key"],
    ) -> None:
        """Add the texts of a batch. Raises UserError if their scores do not fit in memory."""
        scores = head_scores.flatten(1, 2)
        self._bytes += int(pairs.cells.sum()) * scores.shape[1] * BYTES_PER_SCORE
        refuse_bytes("pairs", self._bytes, "fewer or shorter texts")
        for number, text in enumerate(texts):
            text_scores = scores[number][:, pairs.cells[number]].T.contiguous()
            self._texts.append((text.line.line, pairs.single_text(number), text_scores))

    def in_order(self) -> "list[tuple[BatchOfPairs, Float[Tensor, 'cell map']]]":
        """The texts in file order, each with the scores of its cells, row by row."""
        return [(pairs, scores) for _, pairs, scores in sorted(self._texts, key=lambda each: each[0])]

    def table(self, totals: PairTotals) -> Records[ScoresOfPositions]:
        """One row per pair of positions, with one column per head and direction."""
        parts = sorted(self._texts, key=lambda each: each[0])
        places = [pairs.cells[0].nonzero().numpy() for _, pairs, _ in parts]
        firsts, seconds = (
            np.concatenate(
                [
                    np.array(pairs.positions[0][side])[text_places[:, side]]
                    for (_, pairs, _), text_places in zip(parts, places, strict=True)
                ]
            )
            for side in (0, 1)
        )
        scores = torch.cat([scores for _, _, scores in parts]).double().numpy()
        columns = [
            f"{place.layer}:{place.head}" + " backward" * (direction == "backward")
            for direction in totals.directions
            for place in totals.heads
        ]
        return ScoresOfPositions.table(
            text=np.repeat([line for line, *_ in parts], [len(each) for each in places]),
            first=firsts,
            second=seconds,
            weight=torch.cat([pairs.pair_weights[pairs.cells] for _, pairs, _ in parts]).double().numpy(),
            **{name: scores[:, number] for number, name in enumerate(columns)},
        )

    def fit(self, texts: Bool[Tensor, " text"], seed: int) -> "PairRegression":
        """Fit the regression to some of the texts."""
        parts = [part for part, is_chosen in zip(self.in_order(), texts.tolist(), strict=True) if is_chosen]
        is_pair = [(pairs.pair_weights > 0)[pairs.cells] for pairs, _ in parts]
        return fitted_regression(torch.cat([scores for _, scores in parts]), torch.cat(is_pair), seed=seed)

    def probabilities(self, regression: "PairRegression", line: int) -> Float[Tensor, "query key"]:
        """The probability that any two positions of a text are a pair."""
        pairs, scores = next((pairs, scores) for number, pairs, scores in self._texts if number == line)
        return pairs.as_map(regression.probabilities(scores))[0, 0]

    def shares(self, regression: "PairRegression") -> Float[Tensor, "text measure"]:
        """The measures of a regression's probabilities, text by text."""
        shares = []
        for pairs, scores in self.in_order():
            shares.append(pairs.shares(pairs.as_map(regression.probabilities(scores)))[0, 0])
        return torch.stack(shares)


def position_scores(
    reader: PairReader, many: ManyTexts[PairedText], *, ablate: Sequence[str] = ()
) -> Records[ScoresOfPositions]:
    """Every head's scores for each pair of positions that counts, as input for a regression."""
    totals, features = PairTotals(), PairFeatures()
    run = PairRun(reader, many, ablate=ablate)
    run.go(lambda texts, pairs: CountingTaker(texts, pairs, totals, features))
    return features.table(totals)


BYTES_PER_SCORE = 24
"""The bytes per score, in float32, in a concatenated copy, and in the float64 of scikit-learn."""
PENALTY = 0.15
"""The inverse strength of the L1 penalty, C: Rao et al. 2021 (10.1101/2020.12.15.422761)."""


@dataclass(frozen=True)
class PairRegression:
    """P(pair) = 1 / (1 + exp(-(sum_h w_h s_h + b))), where s are all heads' scores for two positions."""

    coefficients: Float[Tensor, " map"]
    intercept: float

    def record(self) -> FittedRegression:
        """A record with the regression's intercept and penalty."""
        return FittedRegression.single(intercept=self.intercept, c=PENALTY)

    def probabilities(self, scores: Float[Tensor, "*cell map"]) -> Float[Tensor, "*cell"]:
        """The probability that two positions are a pair, computed from all heads' scores."""
        return (scores.double() @ self.coefficients + self.intercept).sigmoid()


def fitted_regression(
    scores: Float[Tensor, "cell map"], is_pair: Bool[Tensor, " cell"], *, seed: int = 0
) -> PairRegression:
    """Fit the L1 logistic regression that Rao et al. (2021) fit to contacts: liblinear, C = 0.15.

    Raises UserError without scikit-learn, or if all cells or no cells are pairs.
    """
    try:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # an extra
    except ImportError:
        raise UserError('method: logistic needs scikit-learn: pip install "attncli[probe]"') from None
    if bool(is_pair.all()) or not bool(is_pair.any()):
        raise UserError("method: logistic needs texts in which some positions form pairs and others do not")
    model = LogisticRegression(l1_ratio=1, C=PENALTY, solver="liblinear", random_state=seed)
    model.fit(scores.numpy(), is_pair.numpy())
    return PairRegression(torch.from_numpy(model.coef_[0]), float(model.intercept_[0]))
