"""95 % intervals: of a mean over texts by Student's t, of a share of words by Wilson's score."""

from functools import lru_cache
from math import atan2, exp, lgamma, log, log1p, pi, sqrt
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

LEVEL = 0.95
CLOSE = 1e-13
"""Newton's steps end where they change a quantile by less than this share of it."""


def _central_mass(quantile: float, degrees: int) -> float:
    """P(|T| < t) for whole degrees of freedom, a finite sum. Abramowitz & Stegun 26.7.3 and 26.7.4."""
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
    """The t with P(|T| < t) = level, for whole degrees of freedom from 1.

    By Newton's method from the normal quantile: the mass is concave in t, so that it comes from below.
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
    """mean -+ t s / sqrt(n), s^2 = squares / (n - 1): the 95 % interval of a mean over n texts.

    Student 1908. `squares` is the sum of squared deviations from the mean. NaN below two texts.
    """
    numbers = torch.unique(count)
    quantiles = [t_quantile(n - 1) if n > 1 else torch.nan for n in numbers.tolist()]
    quantile = torch.tensor(quantiles, dtype=torch.float64)[torch.searchsorted(numbers, count)]
    half = quantile * (squares.double() / ((count - 1) * count)).sqrt()
    return mean - half, mean + half


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` words, NaN of none: Wilson 1927, score interval."""
    if not count:
        return float("nan"), float("nan")
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share, scale = hits / count, 1 + z**2 / count
    center = (share + z**2 / (2 * count)) / scale
    half = z / scale * sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return max(0.0, center - half), min(1.0, center + half)
