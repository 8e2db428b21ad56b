"""How well tokens are predicted, and how far another prediction is from it."""

from jaxtyping import Float, Int
from torch import Tensor


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
