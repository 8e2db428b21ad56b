"""Whether two lists of numbers have the same order."""

import torch
from jaxtyping import Float
from torch import Tensor


def rank_correlation(a: Float[Tensor, " place"], b: Float[Tensor, " place"]) -> Float[Tensor, ""]:
    """Pearson's correlation of the ranks, equal numbers having the mean of theirs: Spearman 1904.

    NaN where all numbers of one list are equal.
    """
    ranks = torch.stack([_ranks(a), _ranks(b)])
    return torch.corrcoef(ranks)[0, 1]


def _ranks(numbers: Float[Tensor, " place"]) -> Float[Tensor, " place"]:
    """How many numbers are below, and half of those that are equal."""
    below = numbers.unsqueeze(1) > numbers
    equal = numbers.unsqueeze(1) == numbers
    return below.sum(dim=1) + (equal.sum(dim=1).double() - 1) / 2
