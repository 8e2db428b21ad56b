"""The variance of scores before and after scaling, and the saturation of a softmax."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.formulas import softmax_gradient_norm
from attncli.core.layer import scale_factors
from attncli.core.summaries import moments
from attncli.errors import RunError
from attncli.features.scale_demo.results import ScoreVariances, SharpenedSoftmax


def score_variances(tensors: Mapping[str, Tensor], head_dim: int) -> ScoreVariances:
    """The unbiased variances of the `score_tensors`."""
    return ScoreVariances.single(
        head_dim=head_dim, **{name: moments(tensor)["variance"] for name, tensor in tensors.items()}
    )


def score_tensors(
    query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key dim"], scale: str | float
) -> dict[str, Tensor]:
    """The query and key, and their scores before and after scaling."""
    each, product = scale_factors(scale, query.shape[-1])
    scores = {"raw_scores": query @ key.mT, "scaled_scores": (query * each) @ (key * each).mT * product}
    return {"query": query, "key": key, **scores}


def sharpened(logits: Sequence[float], factor: float) -> SharpenedSoftmax:
    """softmax(factor · logits) in float64, its sharpness, and the norm of its Jacobian."""
    weights = (torch.tensor(logits, dtype=torch.float64) * factor).softmax(dim=-1)
    if not weights.isfinite().all():
        raise RunError(f"scale-demo: the logits times factor {factor:g} overflow: use smaller values")
    return SharpenedSoftmax.single(
        factor=factor,
        softmax=weights.tolist(),
        max_weight=weights.max().item(),
        entropy=torch.special.entr(weights).sum().item(),
        gradient_norm=softmax_gradient_norm(weights).item(),
    )
