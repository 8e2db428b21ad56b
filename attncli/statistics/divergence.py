"""How far apart two rows of weights, two predictions or two outputs are."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def jensen_shannon(
    p: Float[Tensor, "*batch query key"], q: Float[Tensor, "*batch query key"]
) -> Float[Tensor, "*batch query"]:
    """sqrt((D(p | m) + D(q | m)) / 2) with m = (p + q) / 2 and D(p | m) = sum p ln(p / m): a distance.

    Between 0 and sqrt(ln 2) = 0.8326, natural logarithms. Each row is divided by its sum first; NaN where
    one adds up to nothing, has a negative weight or no number. Endres and Schindelin 2003,
    10.1109/TIT.2003.813506.
    """
    p, q = _distribution(p), _distribution(q)
    mean = (p + q) / 2
    divergence = (_divergence(p, mean) + _divergence(q, mean)) / 2
    # Rounding may leave a little less than nothing between equal rows.
    return divergence.clamp(min=0).sqrt()


def _distribution(weights: Tensor) -> Tensor:
    total = weights.sum(dim=-1, keepdim=True)
    is_one = (total > 0) & total.isfinite() & (weights >= 0).all(dim=-1, keepdim=True)
    return torch.where(is_one, weights / total, torch.nan)


def _divergence(p: Tensor, mean: Tensor) -> Tensor:
    terms: Tensor = torch.xlogy(p, p / torch.where(mean == 0, 1, mean))
    return terms.sum(dim=-1)


def mean_loss(
    log_probabilities: Float[Tensor, "place token"], targets: Int[Tensor, " place"]
) -> Float[Tensor, ""]:
    """-ln p(target), in nats, mean over the places: the cross-entropy of one text."""
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean()


def mean_divergence(
    expected: Float[Tensor, "place token"], log_probabilities: Float[Tensor, "place token"]
) -> Float[Tensor, ""]:
    """sum p ln(p / q), in nats, mean over the places; from ln p (expected) and ln q.

    Kullback & Leibler 1951, 10.1214/aoms/1177729694.
    """
    return (expected.exp() * (expected - log_probabilities)).sum(dim=-1).mean().clamp(min=0)


def relative_change(
    expected: Float[Tensor, "token dim"], output: Float[Tensor, "token dim"]
) -> Float[Tensor, ""]:
    """||y' - y|| / ||y||, mean over the tokens."""
    changes: Tensor = (output - expected).norm(dim=-1) / expected.norm(dim=-1)
    return changes.mean()
