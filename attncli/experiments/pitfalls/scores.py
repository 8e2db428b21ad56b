"""Mistakes that make scores too large: no scale, and projections that are all positive."""

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.experiments.pitfalls.shown import Figures, Shown, Start, mean_max_weight
from attncli.report import Table

AXES = ("query", "key")
Scores = Float[Tensor, "query key"]


def _figures(scores: Scores) -> Figures:
    """The unbiased variance of the scores over all entries, and how one-hot their softmax is."""
    variance = scores.var().item() if scores.numel() > 1 else float("nan")
    return {"score_variance": variance, "mean_max_weight": mean_max_weight(scores.softmax(dim=-1)).item()}


def _shown(wrong: Scores, right: Scores, **statistics: Table) -> Shown:
    weights = (wrong.softmax(dim=-1), right.softmax(dim=-1))
    scores = {"scores": (AXES, wrong, right)}
    return Shown("weights", AXES, *weights, _figures(wrong), _figures(right), scores, statistics)


def no_scaling(numbers: Start) -> Shown:
    """softmax(q k) against softmax(q k / sqrt(d)), for standard normal query and key."""
    shape = numbers.vectors.shape
    query, key = (
        torch.randn(shape, generator=numbers.generator).to(numbers.vectors.device) for _ in range(2)
    )
    growth = Table()
    for dim in [*(4**n for n in range(1, 12) if 4**n < shape[1]), shape[1]]:
        raw = query[:, :dim] @ key[:, :dim].mT
        wrong, right = _figures(raw), _figures(raw / dim**0.5)
        row: dict[str, float | int] = {"head_dim": dim}
        for name in wrong:
            row |= {f"wrong_{name}": wrong[name], f"right_{name}": right[name]}
        growth.append(row)
    scores = query @ key.mT
    return _shown(scores, scores / shape[1] ** 0.5, growth=growth)


def uniform_projections(numbers: Start) -> Shown:
    """W ~ U[0, 1) against the same draws moved to U(-1/sqrt(d), 1/sqrt(d)), as torch.nn.Linear starts."""
    dim = numbers.vectors.shape[-1]
    drawn = [torch.rand(dim, dim, generator=numbers.generator).to(numbers.vectors.device) for _ in range(2)]
    centred = [(2 * matrix - 1) / dim**0.5 for matrix in drawn]
    wrong, right = (
        (numbers.vectors @ query) @ (numbers.vectors @ key).mT / dim**0.5 for query, key in (drawn, centred)
    )
    return _shown(wrong, right)
