"""The separation of two groups by numbers: AUROC with intervals, permutation tests, effect sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan, nan
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.summaries import LEVEL, t_quantile

QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)
TIE = 1e-6
"""Rounding tolerance of a float32 AUROC: a permutation this close to the observed AUROC counts as equal."""
BYTES_AT_ONCE = 2**28
"""The memory for placements, in float64."""


class Placements(NamedTuple):
    """For each text, the share of the other group's texts on whose right side the text is; ties count half.

    V10 and V01 of DeLong et al. 1988; their means are the AUROC.
    """

    positive: Float[Tensor, "positive feature"]
    negative: Float[Tensor, "negative feature"]


@dataclass(frozen=True)
class Separation:
    """AUROC of each of many features, P(positive > negative) + P(equal) / 2, with its standard error.

    The error is from DeLong, DeLong & Clarke-Pearson 1988 (10.2307/2531595). It is NaN if a group has only
    one text, whose variance is unknown, or if the groups do not overlap, so that all placements are 1.
    `degrees` are the degrees of freedom of the error: Welch 1947, Satterthwaite 1946.
    """

    auroc: Float[Tensor, " feature"]
    error: Float[Tensor, " feature"]
    degrees: Float[Tensor, " feature"]

    def interval(self) -> tuple[Float[Tensor, " feature"], Float[Tensor, " feature"]]:
        """The 95 % intervals; see `auroc_interval`."""
        ends = [auroc_interval(*each) for each in zip(*(part.tolist() for part in self.parts), strict=True)]
        lower, upper = torch.tensor(ends, dtype=torch.float64).view(-1, 2).unbind(dim=1)
        return lower, upper

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The AUROC, its error, and the error's degrees of freedom."""
        return self.auroc, self.error, self.degrees


MOST_DEGREES = 1000
"""From this many degrees, Student's t differs from the normal quantile by less than 1.2 parts in 1,000."""


def _quantile(degrees: float) -> float:
    return t_quantile(max(1, int(degrees))) if degrees < MOST_DEGREES else QUANTILE


def auroc_interval(auroc: float, error: float, degrees: float) -> tuple[float, float]:
    """logistic(logit A -+ t error / (A (1 - A))): the 95 % interval of an AUROC, Student's t of `degrees`.

    The logit keeps the ends between 0 and 1, and its errors are closer to normal (Pepe 2003, The statistical
    evaluation of medical tests, 5.2.4). An AUROC of 0 or 1 has no logit; its interval is 1.96 errors, clipped
    to 0 and 1. NaN if the error is unknown.
    """
    if isnan(error):
        return nan, nan
    if not 0 < auroc < 1:
        half = QUANTILE * error
        return max(0.0, auroc - half), min(1.0, auroc + half)
    odds = auroc / (1 - auroc)
    # Beyond e^300, the odds are 0 or infinite in float64.
    factor = exp(min(300.0, _quantile(degrees) * error / (auroc * (1 - auroc))))
    return odds / (odds + factor), odds * factor / (1 + odds * factor)


def mean_degrees(errors: Sequence[float], degrees: Sequence[float]) -> float:
    """The degrees of freedom of a mean of independent numbers with these errors: Satterthwaite 1946
    (10.2307/3002019).
    """
    squares = [error**2 for error in errors]
    parts = sum(square**2 / freedom for square, freedom in zip(squares, degrees, strict=True))
    return sum(squares) ** 2 / parts if parts else nan


class Order(NamedTuple):
    """The sorted numbers of each feature, and the text that each number belongs to."""

    numbers: Float[Tensor, "feature text"]
    texts: Int[Tensor, "feature text"]

    @classmethod
    def sort(cls, numbers: Float[Tensor, "text feature"]) -> "Order":
        """Sort with numpy, because its argsort is vectorised; the order of equal numbers is arbitrary."""
        by_feature = np.ascontiguousarray(numbers.T.numpy(force=True))
        order = np.argsort(by_feature, axis=1)
        return cls(torch.from_numpy(np.take_along_axis(by_feature, order, axis=1)), torch.from_numpy(order))

    def in_middle(self, amounts: Float[Tensor, "feature text"]) -> Float[Tensor, "feature text"]:
        """At each place, the sum of the amounts before its run of equal numbers, plus half the run's sum."""
        sums = amounts.cumsum(dim=1)
        middle = sums - amounts / 2
        is_tied = (self.numbers[:, 1:] == self.numbers[:, :-1]).any(dim=1)
        if is_tied.any():
            begins, ends = _runs(self.numbers[is_tied])
            tied_sums = torch.nn.functional.pad(sums[is_tied], (1, 0))
            middle[is_tied] = (tied_sums.gather(1, begins) + tied_sums.gather(1, ends)) / 2
        return middle

    def placed(self, is_positive: Bool[Tensor, " text"]) -> Placements:
        """The placements of the texts; see `placements`."""
        labels = is_positive[self.texts]
        num_positive, num_negative = int(is_positive.sum()), int((~is_positive).sum())
        below_positive = self.in_middle(labels.double())
        below_negative = self.places() - below_positive
        share = torch.where(labels, below_negative / num_negative, 1 - below_positive / num_positive)
        by_text = self.by_text(share)
        return Placements(by_text[:, is_positive].T, by_text[:, ~is_positive].T)

    def places(self) -> Float[Tensor, "feature text"]:
        """The midrank of each place, minus one half."""
        return self.in_middle(torch.ones_like(self.numbers, dtype=torch.float64))

    def by_text(self, amounts: Float[Tensor, "feature text"]) -> Float[Tensor, "feature text"]:
        """Rearrange amounts from this order to the order of the texts."""
        return torch.empty_like(amounts).scatter_(1, self.texts, amounts)


def placements(numbers: Float[Tensor, "text feature"], is_positive: Bool[Tensor, " text"]) -> Placements:
    """Compute the placements of all texts from a single sort of each feature.

    A placement is the difference between a text's midrank among all texts and its midrank within its group,
    as in Sun & Xu 2014 (10.1109/LSP.2014.2337313); both midranks follow from the starts and ends of runs of
    equal numbers.
    """
    return Order.sort(numbers).placed(is_positive)


def _runs(ordered: Float[Tensor, "feature text"]) -> tuple[Tensor, Tensor]:
    """For each place, the start of its run of equal numbers and the start of the next run."""
    count = ordered.shape[1]
    places = torch.arange(count).expand_as(ordered)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    begins = places.masked_fill(~starts, 0).cummax(dim=1).values
    last = torch.ones_like(starts)
    last[:, :-1] = starts[:, 1:]
    ends = (places + 1).masked_fill(~last, count).flip(1).cummin(dim=1).values.flip(1)
    return begins, ends


def _error(placed: Placements) -> tuple[Float[Tensor, " feature"], Float[Tensor, " feature"]]:
    """The error of a mean of placements, and its degrees of freedom; NaN if the placements do not vary."""
    variance, parts = torch.zeros(2, placed.positive.shape[1], dtype=torch.float64)
    for part in placed:
        variance_part = part.var(dim=0) / len(part) if len(part) > 1 else torch.full_like(variance, torch.nan)
        variance = variance + variance_part
        parts = parts + variance_part.square() / (len(part) - 1 or torch.nan)
    error = variance.sqrt().masked_fill(variance == 0, torch.nan)
    return error, variance.square() / parts


def error_without_variance(num_positive: int, num_negative: int) -> float:
    """The error for constant placements, as when two groups do not overlap; NaN if a group has one text.

    Take m pairs that have no text in common and all agree, where m is the size of the smaller group. By
    Clopper & Pearson 1934, the share of disagreeing pairs is below 1 - 0.025^(1/m); this bound is 1.96
    errors.
    """
    smaller = min(num_positive, num_negative)
    return (1 - ((1 - LEVEL) / 2) ** (1 / smaller)) / QUANTILE if smaller > 1 else nan


class RankedFeatures(NamedTuple):
    """The separation of the groups by each feature, and the centred ranks of the texts."""

    separation: Separation
    ranks: Float[Tensor, "feature text"]


def separation(numbers: Float[Tensor, "text feature"], is_positive: Bool[Tensor, " text"]) -> Separation:
    """The separation by each feature; both groups must have a text, and no number may be NaN."""
    return ranked_features(numbers, is_positive).separation


def ranked_features(
    numbers: Float[Tensor, "text feature"], is_positive: Bool[Tensor, " text"]
) -> RankedFeatures:
    """The separation by each feature and, from the same sort, the ranks that permutation tests need."""
    step = max(1, BYTES_AT_ONCE // (64 * len(numbers)))
    aurocs, errors, degrees, ranks = [], [], [], []
    for part in torch.split(numbers, step, dim=1):
        order = Order.sort(part)
        placed = order.placed(is_positive)
        aurocs.append(placed.positive.mean(dim=0))
        error, part_degrees = _error(placed)
        errors.append(error)
        degrees.append(part_degrees)
        # Centred, so that float32 can represent the differences.
        ranks.append(order.by_text((order.places() - len(numbers) / 2).float()))
    every = Separation(torch.cat(aurocs), torch.cat(errors), torch.cat(degrees))
    return RankedFeatures(every, torch.cat(ranks))


def feature_aurocs(
    numbers: Float[Tensor, "text feature"], is_positive: Bool[Tensor, " text"]
) -> Float[Tensor, " feature"]:
    """The AUROC of each feature without its error, by sorting and merging both groups."""
    positive, negative = (
        torch.from_numpy(np.sort(np.ascontiguousarray(part.T.numpy(force=True)), axis=1))
        for part in (numbers[is_positive], numbers[~is_positive])
    )
    below = torch.searchsorted(negative, positive).sum(dim=1)
    upto = torch.searchsorted(negative, positive, right=True).sum(dim=1)
    return (below + upto).double() / (2 * positive.shape[1] * negative.shape[1])


class PairedDifference(NamedTuple):
    """The difference between two features' AUROCs on the same texts, with its standard error (DeLong 1988)
    and its degrees of freedom.
    """

    difference: float
    error: float
    degrees: float

    def interval(self) -> tuple[float, float]:
        """The 95 % interval; see `difference_interval`."""
        return difference_interval(*self)


def difference_interval(difference: float, error: float, degrees: float) -> tuple[float, float]:
    """d -+ t error, clipped to -1 and 1: the 95 % interval of a difference between AUROCs, with Student's t
    of `degrees`.
    """
    if isnan(error):
        return nan, nan
    half = _quantile(degrees) * error
    return max(-1.0, difference - half), min(1.0, difference + half)


def paired_difference(
    first: Float[Tensor, " text"], second: Float[Tensor, " text"], is_positive: Bool[Tensor, " text"]
) -> PairedDifference:
    """The difference between two AUROCs on the same texts; the error includes the AUROCs' covariance."""
    placed = placements(torch.stack([first, second], dim=1), is_positive)
    differences = Placements(*(part[:, :1] - part[:, 1:] for part in placed))
    error, degrees = _error(differences)
    return PairedDifference(float(differences.positive.mean()), float(error), float(degrees))


PERMUTATIONS_AT_ONCE = 256


def largest_by_chance(
    ranks: Float[Tensor, "feature text"],
    is_positive: Bool[Tensor, " text"],
    groups: Int[Tensor, " text"],
    *,
    count: int,
    generator: torch.Generator,
) -> Float[Tensor, " permutation"]:
    """The largest |AUROC - 1/2| of any feature for each of `count` permutations of labels within groups.

    Groups that have only one label exchange labels as a whole. Since only the labels move, the centred
    `ranks` are computed once and summed by a matrix product (Westfall & Young 1993, maximum statistic).
    """
    num_texts = ranks.shape[1]
    largest = []
    for start in range(0, count, PERMUTATIONS_AT_ONCE):
        num_labels = min(PERMUTATIONS_AT_ONCE, count - start)
        labels = _permuted(is_positive, groups, num_labels, generator)
        num_positive = labels.sum(dim=1, keepdim=True)
        deviations = (labels @ ranks.T) / (num_positive * (num_texts - num_positive))
        largest.append(deviations.abs().amax(dim=1))
    return torch.cat(largest).double()


def _permuted(
    is_positive: Bool[Tensor, " text"], groups: Int[Tensor, " text"], count: int, generator: torch.Generator
) -> Float[Tensor, "permutation text"]:
    """Labels (1 for positive) permuted within groups, or between groups that have a single label."""
    by_group = groups.argsort(stable=True)
    keys = torch.rand(count, len(groups), generator=generator, dtype=torch.float64)
    # Sorting by group, and then by a random number, permutes within each group.
    order = (keys[:, by_group] + groups[by_group]).argsort(dim=1)
    labels = torch.empty(count, len(groups))
    labels[:, by_group] = is_positive[by_group].float()[order]
    numbers: Tensor = torch.unique(groups, return_inverse=True)[1]
    sizes = torch.bincount(numbers)
    num_positive = torch.bincount(numbers, weights=is_positive.double())
    alike = ((num_positive == 0) | (num_positive == sizes)).nonzero().flatten()
    if len(alike) > 1:
        group_labels = torch.zeros(count, len(sizes))
        order = torch.rand(count, len(alike), generator=generator, dtype=torch.float64).argsort(dim=1)
        group_labels[:, alike] = (num_positive[alike] > 0).float()[order]
        in_alike = torch.isin(numbers, alike)
        labels[:, in_alike] = group_labels[:, numbers[in_alike]]
    return labels


def corrected_p(
    aurocs: Float[Tensor, " feature"], largest: Float[Tensor, " permutation"]
) -> Float[Tensor, " feature"]:
    """(1 + permutations that reach the observed value) / (1 + permutations): Phipson & Smyth 2010."""
    ordered = largest.sort().values
    below = torch.searchsorted(ordered, (aurocs - 0.5).abs().double() - TIE)
    return (1 + len(ordered) - below).double() / (1 + len(ordered))


def hedges_g(
    numbers: Float[Tensor, "text feature"], is_positive: Bool[Tensor, " text"]
) -> Float[Tensor, " feature"]:
    """(mean of the positive texts - mean of the negative texts) / pooled deviation, times 1 - 3 / (4 n - 9).

    Cohen's d without its small-sample bias: Hedges 1981 (10.3102/10769986006002107). NaN if nothing varies
    within the groups.
    """
    parts = numbers[is_positive].double(), numbers[~is_positive].double()
    degrees = len(numbers) - 2
    squares = sum((part - part.mean(dim=0)).square().sum(dim=0) for part in parts)
    assert isinstance(squares, Tensor)
    pooled = (squares / degrees).sqrt() if degrees > 0 else torch.full_like(squares, torch.nan)
    difference = parts[0].mean(dim=0) - parts[1].mean(dim=0)
    return (difference / pooled * (1 - 3 / (4 * len(numbers) - 9))).masked_fill(pooled == 0, torch.nan)


class RocCurve(NamedTuple):
    """The corners of an ROC curve, from (0, 0) to (1, 1): the share of each group that is called positive."""

    false_positive_rate: Float[Tensor, " corner"]
    true_positive_rate: Float[Tensor, " corner"]


def roc_curve(scores: Float[Tensor, " text"], is_positive: Bool[Tensor, " text"]) -> RocCurve:
    """The rates at each threshold on the scores, highest threshold first; equal scores form one step."""
    ordered, order = scores.double().sort(descending=True)
    labels = is_positive[order].double()
    is_last = torch.ones_like(ordered, dtype=torch.bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    true, false = labels.cumsum(dim=0)[is_last], (1 - labels).cumsum(dim=0)[is_last]
    zero = torch.zeros(1, dtype=torch.float64)
    return RocCurve(torch.cat([zero, false / false[-1]]), torch.cat([zero, true / true[-1]]))


class Rates(NamedTuple):
    """The shares of positive texts and of negative texts that are called positive."""

    hits: float
    false_alarms: float


def call_rates(is_called: Bool[Tensor, " text"], is_positive: Bool[Tensor, " text"]) -> Rates:
    """The rates of given predictions, regardless of the threshold."""
    return Rates(*(float(is_called[texts].double().mean()) for texts in (is_positive, ~is_positive)))


def best_threshold(scores: Float[Tensor, " text"], is_positive: Bool[Tensor, " text"]) -> float:
    """The threshold with the largest sensitivity + specificity (Youden 1950), midway between two scores."""
    ordered = torch.unique(scores.double())
    if len(ordered) < 2:
        return float(ordered[0])
    middles = (ordered[1:] + ordered[:-1]) / 2
    negatives = scores[~is_positive].double().sort().values
    positives = scores[is_positive].double().sort().values
    below = [torch.searchsorted(part, middles).double() / len(part) for part in (negatives, positives)]
    return float(middles[int((below[0] - below[1]).argmax())])
