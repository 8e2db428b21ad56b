"""Detectors of a label: chosen heads and regressions on their statistics, beside what needs no attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.errors import UserError
from attncli.features.separate.auroc import aurocs_of, best_threshold
from attncli.measure.folds import dealt, splits_of

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # an extra

NEEDS = 'separate: needs: pip install "attncli[probe]"'
STRENGTHS = (0.5, 2.0, 8.0)
"""Of the L1 penalty: C = strength / sqrt(number of texts), of which nested folds choose one."""
NUM_INNER = 3
MOST_CHOOSING = 500
"""Texts, at random, on which the strength of a penalty is chosen."""
KKT_TOLERANCE = 1e-3
"""By how much a gradient may pass the penalty, of which it is a share."""
NUMBERS_OF_LIBLINEAR = 2**20
"""Tables of fewer numbers are for liblinear, which takes ten times as long as products for a large one."""
NUM_TAKEN_IN, MOST_STEPS = 64, 200
"""Columns that a regression takes in at a step, or as many as it has."""
RIDGE, MOST_PROXIMAL_STEPS, STEPS_A_TRY = 1e-5, 1000, 50
MOST_RANKED, NUM_LISTED = 2000, 50
MOST_DEVIATIONS = 5
"""Heads are chosen by a difference above so many standard deviations, or fewer where none has that many."""


@dataclass(frozen=True)
class LinearDetector:
    """score = sum_f w_f (x_f - m_f) / s_f + b over some features; a text above the threshold is positive.

    `places` are those of the features in their table. `penalty` is the C of a regression, 0 for none.
    """

    places: Sequence[int]
    weights: Float[Tensor, " chosen"]
    means: Float[Tensor, " chosen"]
    scales: Float[Tensor, " chosen"]
    intercept: float = 0.0
    threshold: float = nan
    penalty: float = 0.0

    def scores(self, numbers: Float[Tensor, "text feature"]) -> Float[Tensor, " text"]:
        """The score of each text."""
        chosen = numbers[:, [*self.places]].double()
        return (chosen - self.means) / self.scales @ self.weights + self.intercept

    def with_threshold(
        self, numbers: Float[Tensor, "text feature"], is_positive: Bool[Tensor, " text"]
    ) -> "LinearDetector":
        """The detector with a threshold, if it has none: the best on the texts that it was fitted to."""
        if not isnan(self.threshold):
            return self
        return replace(self, threshold=best_threshold(self.scores(numbers), is_positive))

    def in_places(self, places: Sequence[int]) -> "LinearDetector":
        """The same of a wider table, in which its features are at these places."""
        return replace(self, places=[places[place] for place in self.places])


@dataclass(frozen=True)
class TextsToFit:
    """Features and labels of the texts that a detector is fitted to, and the part of each, to nest folds."""

    numbers: Float[Tensor, "text feature"]
    is_positive: Bool[Tensor, " text"]
    parts: Int[Tensor, " text"]
    generator: torch.Generator

    def of(self, texts: Bool[Tensor, " text"]) -> "TextsToFit":
        """Some of the texts."""
        return replace(
            self, numbers=self.numbers[texts], is_positive=self.is_positive[texts], parts=self.parts[texts]
        )


Fit = Callable[[TextsToFit], LinearDetector]


def signed_feature(place: int, sign: float) -> LinearDetector:
    """One feature, or its negative."""
    ones = torch.ones(1, dtype=torch.float64)
    return LinearDetector([place], sign * ones, 0 * ones, ones)


def best_feature(texts: TextsToFit) -> LinearDetector:
    """The feature whose AUROC is the farthest from a half, in its direction.

    Of many texts the first 50 on 2,000 at random are looked at on all.
    """
    places = torch.arange(texts.numbers.shape[1])
    if len(texts.is_positive) > MOST_RANKED and len(places) > NUM_LISTED:
        some = _some(texts, MOST_RANKED)
        places = (aurocs_of(some.numbers, some.is_positive) - 0.5).abs().topk(NUM_LISTED).indices
    deviations = aurocs_of(texts.numbers[:, places], texts.is_positive) - 0.5
    best = int(deviations.abs().argmax())
    return signed_feature(int(places[best]), 1.0 if deviations[best] >= 0 else -1.0)


def distracted_heads(texts: TextsToFit) -> LinearDetector:
    """Less weight on the instruction, mean over the heads that an attack distracts.

    A head is chosen where mean(plain) - mean(attack) > k (std(plain) + std(attack)), for the largest k of 5,
    4, ... 0 that any head reaches; without one the head with the largest difference. Hung et al. 2024
    (2411.00348), equation 3; deviations are those of a population, as in their program.
    """
    plain, attack = (
        part.double() for part in (texts.numbers[~texts.is_positive], texts.numbers[texts.is_positive])
    )
    difference = plain.mean(dim=0) - attack.mean(dim=0)
    deviation = plain.std(dim=0, correction=0) + attack.std(dim=0, correction=0)
    chosen = [int(difference.argmax())]
    for count in range(MOST_DEVIATIONS, -1, -1):
        if places := (difference - count * deviation > 0).nonzero().flatten().tolist():
            chosen = places
            break
    ones = torch.ones(len(chosen), dtype=torch.float64)
    return LinearDetector(chosen, -ones / len(chosen), 0 * ones, ones)


def _regression(**settings: object) -> "LogisticRegression":
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise UserError(NEEDS) from None
    return LogisticRegression(max_iter=1000, **settings)


def logistic_regression(texts: TextsToFit) -> LinearDetector:
    """A logistic regression on the features as they are, with scikit-learn's L2 penalty of C = 1.

    On lookback ratios it is that of Lookback Lens (Chuang et al. 2024, 2407.07071).
    """
    model = _regression()
    model.fit(texts.numbers.double().numpy(), texts.is_positive.numpy())
    weights = torch.from_numpy(model.coef_[0])
    return LinearDetector(
        range(len(weights)),
        weights,
        torch.zeros_like(weights),
        torch.ones_like(weights),
        float(model.intercept_[0]),
        penalty=1.0,
    )


def sparse_regression(texts: TextsToFit) -> LinearDetector:
    """A logistic regression with an L1 penalty on all features, standardised; nested folds choose its C.

    Of the strengths that part the texts held out within these equally well the one with the fewest features.
    The threshold is midway between the mean scores of both labels held out there, in deviations of the scores
    that each regression was fitted to: what it fits it parts too well, and each has a scale of its own.
    """
    aurocs = torch.zeros(len(STRENGTHS), dtype=torch.float64)
    some = _some(texts, MOST_CHOOSING)
    parts = _inner_parts(some)
    held_out_scores, labels = list[Tensor](), list[Tensor]()
    for split in splits_of(parts, range(int(parts.max()) + 1)):
        choosing, held_out = some.of(split.choosing), some.of(split.held_out)
        if not (_has_both(choosing.is_positive) and _has_both(held_out.is_positive)):
            continue
        scores = torch.stack(
            [_standardised(_sparse(choosing, strength), choosing, held_out) for strength in STRENGTHS], dim=1
        )
        aurocs += aurocs_of(scores, held_out.is_positive)
        held_out_scores.append(scores)
        labels.append(held_out.is_positive)
    best = int(aurocs.argmax()) if labels else 0
    detector = _sparse(texts, STRENGTHS[best])
    if not labels:
        return detector
    standard, is_positive = torch.cat(held_out_scores)[:, best], torch.cat(labels)
    middle = float(standard[is_positive].mean() + standard[~is_positive].mean()) / 2
    fitted = detector.scores(texts.numbers)
    return replace(detector, threshold=float(fitted.mean() + middle * fitted.std(correction=0)))


def _standardised(
    detector: LinearDetector, choosing: TextsToFit, held_out: TextsToFit
) -> Float[Tensor, " text"]:
    """Scores in deviations of those of the texts that it was fitted to; 0 where these are all alike."""
    fitted = detector.scores(choosing.numbers)
    deviation = float(fitted.std(correction=0))
    return (detector.scores(held_out.numbers) - fitted.mean()) / (deviation or 1.0)


def _has_both(is_positive: Bool[Tensor, " text"]) -> bool:
    return bool(is_positive.any()) and not bool(is_positive.all())


def _some(texts: TextsToFit, most: int) -> TextsToFit:
    """At most so many of the texts, at random."""
    count = len(texts.is_positive)
    if count <= most:
        return texts
    kept = torch.zeros(count, dtype=torch.bool)
    kept[torch.randperm(count, generator=texts.generator)[:most]] = True
    return texts.of(kept)


def _inner_parts(texts: TextsToFit) -> Int[Tensor, " text"]:
    """Three parts of the texts, of whole parts where there are as many."""
    numbers: Tensor = torch.unique(texts.parts, return_inverse=True)[1]
    if int(numbers.max()) + 1 < NUM_INNER:
        return dealt(texts.is_positive, NUM_INNER, texts.generator)
    return numbers % NUM_INNER


def _sparse(texts: TextsToFit, strength: float) -> LinearDetector:
    penalty = strength / sqrt(len(texts.numbers))
    standard = StandardFeatures.of(texts.numbers)
    if texts.numbers.numel() < NUMBERS_OF_LIBLINEAR:
        seed = int(torch.randint(2**31, (), generator=texts.generator))
        model = _regression(l1_ratio=1, C=penalty, solver="liblinear", random_state=seed)
        columns = standard.columns(torch.arange(len(standard.means)))
        model.fit(columns.numpy(), texts.is_positive.numpy())
        weights = torch.from_numpy(np.append(model.coef_[0], model.intercept_))
    else:
        weights = lasso_logistic(standard, texts.is_positive, penalty)
    places = weights[:-1].nonzero().flatten()
    return LinearDetector(
        places.tolist(),
        weights[places],
        standard.means[places],
        standard.scales[places],
        float(weights[-1]),
        penalty=penalty,
    )


@dataclass(frozen=True)
class StandardFeatures:
    """Features less their means, in their deviations, and a column of ones behind them, for the intercept."""

    numbers: Float[Tensor, "text feature"]
    means: Float[Tensor, " feature"]
    scales: Float[Tensor, " feature"]
    rounded: Float[Tensor, "text column"]
    """The columns in float32."""

    @classmethod
    def of(cls, numbers: Float[Tensor, "text feature"]) -> "StandardFeatures":
        """A feature that does not vary is 0."""
        means = numbers.mean(dim=0, dtype=torch.float64)
        centred = numbers - means.to(numbers)
        scales = (
            centred.square().mean(dim=0, dtype=torch.float64) - centred.double().mean(0).square()
        ).sqrt()
        scales = torch.where(scales > 0, scales, 1.0)
        rounded = torch.ones(len(numbers), numbers.shape[1] + 1)
        rounded[:, :-1] = centred / scales.to(numbers)
        return cls(numbers, means, scales, rounded)

    def columns(self, places: Int[Tensor, " chosen"]) -> Float[Tensor, "text chosen"]:
        """Some of them in float64."""
        columns = torch.ones(len(self.numbers), len(places), dtype=torch.float64)
        is_feature = places < len(self.means)
        features = places[is_feature]
        numbers = self.numbers[:, features].double()
        columns[:, is_feature] = (numbers - self.means[features]) / self.scales[features]
        return columns


def lasso_logistic(
    standard: StandardFeatures, is_positive: Bool[Tensor, " text"], penalty: float
) -> Float[Tensor, " column"]:
    """argmin_w |w|_1 + C sum_i log(1 + exp(-y_i x_i w)), y = -+1: scikit-learn's with liblinear, C = penalty.

    Newton's steps, each the minimum of a quadratic with |w|_1 over the columns with a weight and those whose
    gradient is beyond the penalty (Yuan, Ho & Lin 2012, newGLMNET, whose coordinates are those of products
    here: some hundred columns of thousands of texts). It ends where the conditions of Karush, Kuhn and Tucker
    hold for every column.
    """
    signs = torch.where(is_positive, 1.0, -1.0).double()
    weights = torch.zeros(standard.rounded.shape[1], dtype=torch.float64)
    scores = torch.zeros_like(signs)
    for _ in range(MOST_STEPS):
        chances = torch.sigmoid(signs * scores)
        residuals = -penalty * signs * (1 - chances)
        gradients = (residuals.float() @ standard.rounded).abs()
        is_active = weights != 0
        beyond = ((gradients > 1 + KKT_TOLERANCE) & ~is_active).nonzero().flatten()
        most = min(len(beyond), max(NUM_TAKEN_IN, int(is_active.sum())))
        is_active[beyond[gradients[beyond].topk(most).indices]] = True
        places = is_active.nonzero().flatten()
        columns, kept = standard.columns(places), weights[places]
        slopes = residuals @ columns
        if not len(beyond) and bool(((slopes + kept.sign()).abs() <= KKT_TOLERANCE).all()):
            break
        scaled = columns.float() * (penalty * chances * (1 - chances)).sqrt().float().unsqueeze(1)
        step = _quadratic_minimum((scaled.T @ scaled).double(), slopes, kept) - kept
        length = _length_of_step(step, kept, slopes, columns @ step, signs, scores, penalty)
        if not length:
            break
        weights[places] = kept + length * step
        scores = columns @ weights[places]
    return weights


def _quadratic_minimum(
    curvature: Float[Tensor, "chosen chosen"],
    slopes: Float[Tensor, " chosen"],
    start: Float[Tensor, " chosen"],
) -> Float[Tensor, " chosen"]:
    """argmin_z slopes (z - start) + (z - start) H (z - start) / 2 + |z|_1, or near it.

    Proximal gradients (FISTA, Beck & Teboulle 2009, begun anew where a step goes back) say which are 0 and
    the signs of the others. For these it is a system of equations, whose solution is taken if it has the same
    signs, and ends this if 0 is right for the others.
    """
    curvature = curvature + RIDGE * curvature.diagonal().mean() * torch.eye(
        len(curvature), dtype=torch.float64
    )
    targets = curvature @ start - slopes
    rate = 1 / float(torch.linalg.eigvalsh(curvature)[-1])
    best, ahead, momentum = start, start, 1.0
    for number in range(1, MOST_PROXIMAL_STEPS + 1):
        moved = ahead - rate * (curvature @ ahead - targets)
        moved = moved.sign() * (moved.abs() - rate).clamp(min=0.0)
        if (ahead - moved) @ (moved - best) > 0:
            momentum = 1.0
        following = (1 + sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - best)
        best, momentum = moved, following
        is_on = best != 0
        if number % STEPS_A_TRY == 0 and is_on.any():
            signs = best[is_on].sign()
            solved = torch.linalg.solve(curvature[is_on][:, is_on], targets[is_on] - signs)
            if not bool((solved.sign() == signs).all()):
                continue
            best = torch.zeros_like(best).masked_scatter(is_on, solved)
            ahead, momentum = best, 1.0
            if bool(((curvature @ best - targets)[~is_on].abs() <= 1 + KKT_TOLERANCE).all()):
                break
    return best


def _length_of_step(
    step: Float[Tensor, " chosen"],
    start: Float[Tensor, " chosen"],
    slopes: Float[Tensor, " chosen"],
    along: Float[Tensor, " text"],
    signs: Float[Tensor, " text"],
    scores: Float[Tensor, " text"],
    penalty: float,
) -> float:
    """The largest of 1, 1/2, 1/4 ... that lessens what is minimised by Armijo's rule; 0 where none does."""

    def minimised(length: float) -> Tensor:
        losses = torch.nn.functional.softplus(-signs * (scores + length * along))
        return penalty * losses.sum() + (start + length * step).abs().sum()

    before = minimised(0.0)
    decrease = slopes @ step + (start + step).abs().sum() - start.abs().sum()
    lengths = (0.5**halvings for halvings in range(30))
    return next((length for length in lengths if minimised(length) - before <= 0.01 * length * decrease), 0.0)


def bag_of_words_scores(
    words: Sequence[str], is_positive: Bool[Tensor, " text"], choosing: Bool[Tensor, " text"]
) -> Float[Tensor, " text"]:
    """The scores of all texts by a logistic regression on the words of those that it is fitted to.

    scikit-learn's CountVectorizer, words in lower case and single signs, and C = 1.
    """
    from sklearn.feature_extraction.text import CountVectorizer  # type: ignore[import-untyped]

    model = _regression()
    vectorizer = CountVectorizer(token_pattern=r"\w+|[^\w\s]")
    chosen = [text for text, is_chosen in zip(words, choosing.tolist(), strict=True) if is_chosen]
    try:
        counts = vectorizer.fit_transform(chosen)
    except ValueError:  # no text has a word
        return torch.zeros(len(words), dtype=torch.float64)
    model.fit(counts, is_positive[choosing].numpy())
    scores: Tensor = torch.from_numpy(model.decision_function(vectorizer.transform(words)))
    return scores
