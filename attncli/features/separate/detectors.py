"""Detectors of a label: selected heads, regressions on head statistics, and baselines without attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.errors import UserError
from attncli.features.separate.auroc import best_threshold, feature_aurocs
from attncli.measure.folds import dealt, held_out_splits

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]  # an extra

NEEDS = 'separate: needs scikit-learn: pip install "attncli[probe]"'
STRENGTHS = (0.5, 2.0, 8.0)
"""Strengths of the L1 penalty, C = strength / sqrt(number of texts); nested folds choose one."""
NUM_INNER = 3
MOST_CHOOSING = 500
"""The number of random texts used to choose the strength of a penalty."""
KKT_TOLERANCE = 1e-3
"""The amount by which a gradient may exceed the penalty, as a share of the penalty."""
LIBLINEAR_NUMBERS = 2**20
"""Smaller tables use liblinear, which is ten times slower than matrix products on larger tables."""
NUM_TAKEN_IN, MOST_STEPS = 64, 200
"""A regression adds at most this many columns per step, or as many as it already has if that is more."""
RIDGE, MOST_PROXIMAL_STEPS, STEPS_A_TRY = 1e-5, 1000, 50
MOST_RANKED, NUM_LISTED = 2000, 50
MOST_DEVIATIONS = 5
"""A chosen head's difference exceeds this many standard deviations, or fewer if no head's does."""


@dataclass(frozen=True)
class LinearDetector:
    """score = sum_f w_f (x_f - m_f) / s_f + b over some features; a score above the threshold means positive.

    `places` has the columns of the features in their table. `penalty` is the C of a regression, or 0 for
    other detectors.
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
        """The detector with a threshold, by default the best threshold on the training texts."""
        if not isnan(self.threshold):
            return self
        return replace(self, threshold=best_threshold(self.scores(numbers), is_positive))

    def in_places(self, places: Sequence[int]) -> "LinearDetector":
        """The same detector for a wider table, in which the old table's columns are the columns `places`."""
        return replace(self, places=[places[place] for place in self.places])


@dataclass(frozen=True)
class TextsToFit:
    """The features, labels and parts of a detector's training texts; nested folds use the parts."""

    numbers: Float[Tensor, "text feature"]
    is_positive: Bool[Tensor, " text"]
    parts: Int[Tensor, " text"]
    generator: torch.Generator

    def subset(self, texts: Bool[Tensor, " text"]) -> "TextsToFit":
        """A subset of the texts."""
        return replace(
            self, numbers=self.numbers[texts], is_positive=self.is_positive[texts], parts=self.parts[texts]
        )


Fit = Callable[[TextsToFit], LinearDetector]


def signed_feature(place: int, sign: float) -> LinearDetector:
    """A detector whose score is one feature, or the negative of that feature."""
    ones = torch.ones(1, dtype=torch.float64)
    return LinearDetector([place], sign * ones, 0 * ones, ones)


def best_feature(texts: TextsToFit) -> LinearDetector:
    """A detector with the one feature whose AUROC is farthest from one half, or with its negative.

    If there are many texts, the 50 best features on 2,000 random texts are compared on all texts.
    """
    places = torch.arange(texts.numbers.shape[1])
    if len(texts.is_positive) > MOST_RANKED and len(places) > NUM_LISTED:
        some = _some(texts, MOST_RANKED)
        places = (feature_aurocs(some.numbers, some.is_positive) - 0.5).abs().topk(NUM_LISTED).indices
    deviations = feature_aurocs(texts.numbers[:, places], texts.is_positive) - 0.5
    best = int(deviations.abs().argmax())
    return signed_feature(int(places[best]), 1.0 if deviations[best] >= 0 else -1.0)


def distracted_heads(texts: TextsToFit) -> LinearDetector:
    """A detector of a low mean weight on the instruction, over the heads that an attack distracts.

    A head is selected if mean(plain) - mean(attack) > k (std(plain) + std(attack)), for the largest k of 5,
    4, ... 0 that any head reaches; if none does, the head with the largest difference is selected. Hung et
    al. 2024 (2411.00348), equation 3; the standard deviations are those of a population, as in the authors'
    program.
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
    """A logistic regression on the raw features, with scikit-learn's L2 penalty of C = 1.

    On lookback ratios, this is Lookback Lens (Chuang et al. 2024, 2407.07071).
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
    """An L1 logistic regression on all standardised features; C is chosen by nested folds.

    Of the penalties that separate the inner held-out texts equally well, the penalty with the fewest features
    is chosen. The threshold is midway between the mean held-out scores of both labels, in standard deviations
    of the training scores, because training scores separate the labels too well and each regression has its
    own scale.
    """
    aurocs = torch.zeros(len(STRENGTHS), dtype=torch.float64)
    some = _some(texts, MOST_CHOOSING)
    parts = _inner_parts(some)
    held_out_scores, labels = list[Tensor](), list[Tensor]()
    for split in held_out_splits(parts, range(int(parts.max()) + 1)):
        choosing, held_out = some.subset(split.choosing), some.subset(split.held_out)
        if not (_has_both(choosing.is_positive) and _has_both(held_out.is_positive)):
            continue
        scores = torch.stack(
            [_standardised(_sparse(choosing, strength), choosing, held_out) for strength in STRENGTHS], dim=1
        )
        aurocs += feature_aurocs(scores, held_out.is_positive)
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
    """Scores in standard deviations of the training scores, or 0 if these are constant."""
    fitted = detector.scores(choosing.numbers)
    deviation = float(fitted.std(correction=0))
    return (detector.scores(held_out.numbers) - fitted.mean()) / (deviation or 1.0)


def _has_both(is_positive: Bool[Tensor, " text"]) -> bool:
    return bool(is_positive.any()) and not bool(is_positive.all())


def _some(texts: TextsToFit, most: int) -> TextsToFit:
    """At most `most` of the texts, chosen at random."""
    count = len(texts.is_positive)
    if count <= most:
        return texts
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.randperm(count, generator=texts.generator)[:most]] = True
    return texts.subset(chosen)


def _inner_parts(texts: TextsToFit) -> Int[Tensor, " text"]:
    """Divide the texts into three parts, made of whole outer parts if there are enough outer parts."""
    numbers: Tensor = torch.unique(texts.parts, return_inverse=True)[1]
    if int(numbers.max()) + 1 < NUM_INNER:
        return dealt(texts.is_positive, NUM_INNER, texts.generator)
    return numbers % NUM_INNER


def _sparse(texts: TextsToFit, strength: float) -> LinearDetector:
    penalty = strength / sqrt(len(texts.numbers))
    standard = StandardFeatures.standardise(texts.numbers)
    if texts.numbers.numel() < LIBLINEAR_NUMBERS:
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
    """Standardised features, and a final column of ones for the intercept."""

    numbers: Float[Tensor, "text feature"]
    means: Float[Tensor, " feature"]
    scales: Float[Tensor, " feature"]
    rounded: Float[Tensor, "text column"]
    """The columns in float32."""

    @classmethod
    def standardise(cls, numbers: Float[Tensor, "text feature"]) -> "StandardFeatures":
        """Standardise features; a constant feature becomes 0."""
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
        """Some of the columns, in float64."""
        columns = torch.ones(len(self.numbers), len(places), dtype=torch.float64)
        is_feature = places < len(self.means)
        features = places[is_feature]
        numbers = self.numbers[:, features].double()
        columns[:, is_feature] = (numbers - self.means[features]) / self.scales[features]
        return columns


def lasso_logistic(
    standard: StandardFeatures, is_positive: Bool[Tensor, " text"], penalty: float
) -> Float[Tensor, " column"]:
    """argmin_w |w|_1 + C sum_i log(1 + exp(-y_i x_i w)), y = -+1, as liblinear in scikit-learn, C = penalty.

    Each Newton step minimises a quadratic plus |w|_1 over the columns that have a weight or whose gradient
    exceeds the penalty (Yuan, Ho & Lin 2012, newGLMNET, but with matrix products instead of coordinates, for
    a few hundred columns of thousands of texts). The steps end when every column meets the Karush-Kuhn-Tucker
    conditions.
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
        columns, active_weights = standard.columns(places), weights[places]
        slopes = residuals @ columns
        if not len(beyond) and bool(((slopes + active_weights.sign()).abs() <= KKT_TOLERANCE).all()):
            break
        scaled = columns.float() * (penalty * chances * (1 - chances)).sqrt().float().unsqueeze(1)
        step = _quadratic_minimum((scaled.T @ scaled).double(), slopes, active_weights) - active_weights
        length = _step_length(step, active_weights, slopes, columns @ step, signs, scores, penalty)
        if not length:
            break
        weights[places] = active_weights + length * step
        scores = columns @ weights[places]
    return weights


def _quadratic_minimum(
    curvature: Float[Tensor, "chosen chosen"],
    slopes: Float[Tensor, " chosen"],
    start: Float[Tensor, " chosen"],
) -> Float[Tensor, " chosen"]:
    """Approximate argmin_z slopes (z - start) + (z - start) H (z - start) / 2 + |z|_1.

    Proximal gradients (FISTA, Beck & Teboulle 2009, restarted when a step goes backwards) determine the zeros
    and the signs of the other weights. Given these, the minimum solves a linear system; the solution is used
    if its signs are the same, and is final if the zeros are right.
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


def _step_length(
    step: Float[Tensor, " chosen"],
    start: Float[Tensor, " chosen"],
    slopes: Float[Tensor, " chosen"],
    along: Float[Tensor, " text"],
    signs: Float[Tensor, " text"],
    scores: Float[Tensor, " text"],
    penalty: float,
) -> float:
    """The largest of 1, 1/2, 1/4, ... that lowers the objective by Armijo's rule, or 0 if none does."""

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
    """Score all texts by a logistic regression on the words of the `choosing` texts.

    scikit-learn's CountVectorizer counts lower-case words and single punctuation marks; C = 1.
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
