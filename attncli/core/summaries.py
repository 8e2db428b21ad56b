"""Statistics of many numbers: moments, intervals, quantiles, and measures of how much two sets differ."""

from dataclasses import dataclass
from functools import lru_cache
from math import atan2, exp, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def merged_moments(
    count: Int[Tensor, "*batch group"],
    mean: Float[Tensor, "*batch group"],
    squares: Float[Tensor, "*batch group"],
    lowest: Float[Tensor, "*batch group"],
    highest: Float[Tensor, "*batch group"],
) -> dict[str, Float[Tensor, "*batch"]]:
    """Merge the moments of all groups, in float64: squared deviations within and between groups add up.

    `squares` are the sums of squared deviations from each group's mean. NaN if all groups are empty; the
    variance is NaN for fewer than two numbers. Chan, Golub and LeVeque 1979.
    """
    if mean.shape[-1] == 1:  # the common case; merging would take longer than measuring
        total, center, within, least, most = (
            numbers.squeeze(-1).double() for numbers in (count, mean, squares, lowest, highest)
        )
        is_none = total == 0
        return {
            "mean": center.masked_fill(is_none, torch.nan),
            "variance": (within / (total - 1)).masked_fill(total < 2, torch.nan),
            "min": least.masked_fill(is_none, torch.nan),
            "max": most.masked_fill(is_none, torch.nan),
        }
    number, center = count.double(), mean.double().nan_to_num()
    total = number.sum(dim=-1)
    overall = (number * center).sum(dim=-1) / total
    between = number * (center - overall.unsqueeze(-1)).square()
    variance = (squares.double().nan_to_num() + between.nan_to_num()).sum(dim=-1) / (total - 1)
    seen = number > 0
    return {
        "mean": overall,
        "variance": variance.masked_fill(total < 2, torch.nan),
        "min": lowest.double().where(seen, torch.inf).amin(dim=-1).masked_fill(total == 0, torch.nan),
        "max": highest.double().where(seen, -torch.inf).amax(dim=-1).masked_fill(total == 0, torch.nan),
    }


def moments(numbers: Float[Tensor, "..."]) -> dict[str, float]:
    """The mean, unbiased variance, minimum and maximum of all entries; the variance of one number is NaN."""
    flat = numbers.double().flatten()
    variance = flat.var().item() if len(flat) > 1 else float("nan")
    return {
        "mean": flat.mean().item(),
        "variance": variance,
        "min": flat.min().item(),
        "max": flat.max().item(),
    }


@dataclass(frozen=True)
class RunningMoments:
    """The count, mean, and sum of squared deviations from the mean of the numbers so far, for each place."""

    count: Int[Tensor, "*place"]
    mean: Float[Tensor, "*place"]
    squares: Float[Tensor, "*place"]

    @classmethod
    def of(cls, numbers: Float[Tensor, "text ..."]) -> "RunningMoments":
        """Compute the moments of some numbers, ignoring NaN; the mean of no numbers is 0."""
        numbers = numbers.double()
        count = (~numbers.isnan()).sum(dim=0)
        mean = numbers.nansum(dim=0) / count.clamp(min=1)
        return cls(count, mean, (numbers - mean).square().nansum(dim=0))

    def __add__(self, other: "RunningMoments") -> "RunningMoments":
        """Merge the moments of two sets of numbers. Chan, Golub and LeVeque 1979, eq. 2.1."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart.square() * self.count * share
        return RunningMoments(count, self.mean + apart * share, squares)


LEVEL = 0.95
CLOSE = 1e-13
"""Newton's method stops once a step changes a quantile by less than this fraction."""


def _central_mass(quantile: float, degrees: int) -> float:
    """P(|T| < t) for whole degrees of freedom, as a finite sum. Abramowitz & Stegun 26.7.3 and 26.7.4."""
    angle = atan2(quantile, sqrt(degrees))
    square = degrees / (degrees + quantile**2)
    is_odd = degrees % 2
    k = np.arange(1 + is_odd, degrees - 1, 2)
    terms = np.cumprod(square * k / (k + 1))
    cosine, sine = sqrt(square), sqrt(1 - square)
    if not is_odd:
        return sine * (1 + float(terms.sum()))
    total = sine * cosine * (1 + float(terms.sum())) if degrees > 1 else 0.0
    return 2 / pi * (angle + total)


def _density(quantile: float, degrees: int) -> float:
    """The density of Student's t. Abramowitz & Stegun 26.7.1, differentiated."""
    logs = lgamma((degrees + 1) / 2) - lgamma(degrees / 2) - log(degrees * pi) / 2
    return exp(logs - (degrees + 1) / 2 * log1p(quantile**2 / degrees))


@lru_cache(maxsize=4096)
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """The value t with P(|T| < t) = level, for a whole number of degrees of freedom, at least 1.

    Uses Newton's method from the normal quantile. The mass is concave in t, so t approaches from below.
    """
    quantile = NormalDist().inv_cdf((1 + level) / 2)
    while True:
        step = (level - _central_mass(quantile, degrees)) / (2 * _density(quantile, degrees))
        quantile += step
        if step <= CLOSE * quantile:
            return quantile


def mean_interval(
    count: Int[Tensor, "*batch"], mean: Float[Tensor, "*batch"], squares: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """mean -+ t s / sqrt(n), where s^2 = squares / (n - 1): the 95 % interval of a mean over n texts.

    Student 1908. `squares` is the sum of squared deviations from the mean. NaN for fewer than two texts.
    """
    numbers = torch.unique(count)
    quantiles = [t_quantile(n - 1) if n > 1 else torch.nan for n in numbers.tolist()]
    quantile = torch.tensor(quantiles, dtype=torch.float64)[torch.searchsorted(numbers, count)]
    half = quantile * (squares.double() / ((count - 1) * count)).sqrt()
    return mean - half, mean + half


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` words; NaN if there are no words.

    Wilson 1927, score interval.
    """
    if not count:
        return float("nan"), float("nan")
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, scale = hits / count, 1 + z**2 / count
    center = (share + z**2 / (2 * count)) / scale
    half = z / scale * sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, center - half), min(1.0, center + half)


def clustered_interval(
    sums: Float[Tensor, "text ..."],
    counts: Float[Tensor, "text ..."],
    groups: Int[Tensor, " text"],
    trials: Float[Tensor, "..."],
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """The 95 % interval of shares r = sum S_t / sum N_t, in which texts of the same group count as dependent.

    Wilson's interval (1927) of n = r (1 - r) / v trials, with the variance of a ratio over G groups, v = G /
    (G - 1) sum_g (S_g - r N_g)^2 / (sum N)^2 (Cochran 1977, eq. 11.12), and Student's t of G - 1 degrees
    instead of the normal quantile (Korn and Graubard 1998). `trials`, the largest possible S, limits n, so
    that shares of 0 and 1 have an interval, too. NaN if there is only one group or nothing is counted.
    """
    group_numbers = torch.unique(groups, return_inverse=True)[1]
    num_groups = int(group_numbers.max()) + 1 if len(group_numbers) else 0
    counts = counts.double().expand(sums.shape)
    total = counts.sum(dim=0)
    share = sums.double().sum(dim=0) / total
    if num_groups < 2:
        return torch.full_like(share, torch.nan), torch.full_like(share, torch.nan)
    deviations = torch.zeros(num_groups, *share.shape, dtype=torch.float64)
    deviations.index_add_(0, group_numbers, sums.double() - share * counts)
    variance = num_groups / (num_groups - 1) * deviations.square().sum(dim=0) / total.square()
    effective = (share * (1 - share) / variance).nan_to_num(torch.inf, torch.inf)
    effective = effective.minimum(trials.double())
    z = t_quantile(num_groups - 1)
    per_trial = z**2 / effective
    center = (share + per_trial / 2) / (1 + per_trial)
    half = z / (1 + per_trial) * (share * (1 - share) / effective + per_trial / (4 * effective)).sqrt()
    return (center - half).clamp(min=0.0), (center + half).clamp(max=1.0)


LEVELS = {"min": 0.0, "p05": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def quantiles(numbers: Float[Tensor, "..."]) -> dict[str, float]:
    """The quantiles at LEVELS, interpolated linearly (Hyndman & Fan 1996, type 7); NaN is ignored."""
    ordered = numbers[~numbers.isnan()].double().sort().values
    if not len(ordered):
        return dict.fromkeys(LEVELS, float("nan"))
    # torch.quantile refuses more than 16 million numbers.
    places = torch.tensor(list(LEVELS.values()), dtype=torch.float64) * (len(ordered) - 1)
    below, above = ordered[places.floor().long()], ordered[places.ceil().long()]
    between = torch.lerp(below, above, (places - places.floor()).to(below.device))
    return dict(zip(LEVELS, between.tolist(), strict=True))


def extreme_places(numbers: Float[Tensor, " n"], count: int) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """The positions of the `count` lowest and `count` highest numbers, most extreme first; NaN is ignored."""
    places = (~numbers.isnan()).nonzero().flatten()
    order = places[numbers[places].sort(stable=True).indices]
    return order[:count], order.flip(0)[:count]


def rank_correlation(a: Float[Tensor, " place"], b: Float[Tensor, " place"]) -> Float[Tensor, ""]:
    """Pearson's correlation of the ranks, where equal numbers share their mean rank: Spearman 1904.

    NaN if all numbers of one list are equal, or if the lists have only one number.
    """
    if len(a) < 2:
        return torch.tensor(torch.nan, dtype=torch.float64)
    return torch.corrcoef(torch.stack([_ranks(a), _ranks(b)]))[0, 1]


def _ranks(numbers: Float[Tensor, " place"]) -> Float[Tensor, " place"]:
    """For each number, the count of smaller numbers plus half the count of other equal numbers."""
    below = numbers.unsqueeze(1) > numbers
    equal = numbers.unsqueeze(1) == numbers
    return below.sum(dim=1) + (equal.sum(dim=1).double() - 1) / 2


def jensen_shannon(
    p: Float[Tensor, "*batch query key"], q: Float[Tensor, "*batch query key"]
) -> Float[Tensor, "*batch query"]:
    """sqrt((D(p | m) + D(q | m)) / 2), a distance, where m = (p + q) / 2 and D(p | m) = sum p ln(p / m).

    It lies between 0 and sqrt(ln 2) = 0.8326; logarithms are natural. Each row is first divided by its sum;
    NaN if a row sums to 0, or has a negative weight or a NaN. Endres and Schindelin 2003,
    10.1109/TIT.2003.813506.
    """
    # In float32, the square root of the rounding error would be 3e-4.
    wide = _distribution(p.double()), _distribution(q.double())
    mean = (wide[0] + wide[1]) / 2
    divergence = (_divergence(wide[0], mean) + _divergence(wide[1], mean)) / 2
    # Rounding may make the divergence of equal rows slightly negative.
    return divergence.clamp(min=0).sqrt().to(torch.promote_types(p.dtype, q.dtype))


def _distribution(weights: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    is_one = (total > 0) & total.isfinite() & (weights >= 0).all(dim=-1, keepdim=True)
    return torch.where(is_one, weights / total, torch.nan)


def _divergence(p: Tensor, mean: Tensor) -> Tensor:
    terms: Tensor = torch.xlogy(p, p / torch.where(mean == 0, 1, mean))
    return terms.sum(dim=-1)


def relative_changes(
    expected: Float[Tensor, "token dim"], output: Float[Tensor, "token dim"]
) -> Float[Tensor, " token"]:
    """||y' - y|| / ||y|| for each token."""
    changes: Tensor = (output - expected).norm(dim=-1) / expected.norm(dim=-1)
    return changes
