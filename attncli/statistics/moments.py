"""Mean, unbiased variance and range of a set of numbers."""

from jaxtyping import Float
from torch import Tensor


def moments(numbers: Float[Tensor, "..."]) -> dict[str, float]:
    """Mean, unbiased variance, minimum and maximum of all entries; the variance of one number is NaN."""
    flat = numbers.double().flatten()
    variance = flat.var().item() if len(flat) > 1 else float("nan")
    return {
        "mean": flat.mean().item(),
        "variance": variance,
        "min": flat.min().item(),
        "max": flat.max().item(),
    }
