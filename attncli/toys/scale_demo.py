"""Why scores are scaled: their variance grows with head_dim, and a softmax of large scores saturates."""

from collections.abc import Sequence
from math import isinf

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.formulas import softmax_gradient_norm
from attncli.core.layer import scale_factors
from attncli.core.summaries import moments
from attncli.errors import RunError
from attncli.report import NamedTensor, Numbers, Report, Row, Statistic, Table
from attncli.report_parts import build_report, named
from attncli.settings.lessons import ScaleDemoSpec
from attncli.settings.text import Texts
from attncli.toys.explained_lessons import tensor_name
from attncli.toys.sources import Draws, choose_device

AXES = {
    "query": ("query", "dim"),
    "key": ("key", "dim"),
    "raw_scores": ("query", "key"),
    "scaled_scores": ("query", "key"),
}


def scored(
    query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key dim"], scale: str | float
) -> dict[str, Tensor]:
    """Query and key, and their scores before and after scaling."""
    each, product = scale_factors(scale, query.shape[-1])
    scores = {"raw_scores": query @ key.mT, "scaled_scores": (query * each) @ (key * each).mT * product}
    return {"query": query, "key": key, **scores}


def sharpened(logits: Sequence[float], factor: float) -> Row:
    """softmax(factor logits) in float64, how peaked it is, and the norm of its Jacobian."""
    weights = (torch.tensor(logits, dtype=torch.float64) * factor).softmax(dim=-1)
    if not weights.isfinite().all():
        raise RunError(f"scale-demo: logits times a factor of {factor:g} overflow: use smaller ones")
    return {
        "factor": factor,
        "softmax": weights.tolist(),
        "max_weight": weights.max().item(),
        "entropy": torch.special.entr(weights).sum().item(),
        "gradient_norm": softmax_gradient_norm(weights).item(),
    }


def run(spec: ScaleDemoSpec, texts: Texts, draws: Draws) -> Report:
    """The variances for each head_dim, the sharpened softmax for each factor, and the softmax curve."""
    device = choose_device(spec)
    variance: list[Numbers] = []
    kept: dict[str, NamedTensor] = {}
    for number, head_dim in enumerate(spec.head_dim):
        shape = (spec.batch_size, spec.num_tokens, head_dim)
        query, key = (torch.randn(shape, generator=draws.generator).to(device) for _ in range(2))
        found = scored(query, key, spec.scale)
        variances = {name: moments(tensor)["variance"] for name, tensor in found.items()}
        if any(map(isinf, variances.values())):
            raise RunError(f"scale-demo: the scores overflow float32: use a smaller scale (got {spec.scale})")
        variance.append(Numbers({"head_dim": head_dim, **variances}))
        if spec.explain:
            kept |= {tensor_name(name, number, spec): named(found[name], *AXES[name]) for name in found}
    curve_logits = torch.arange(*spec.curve, dtype=torch.float64)
    tensors = {
        **kept,
        "logits": named(torch.tensor(spec.logits, dtype=torch.float64), "key"),
        "curve_logits": named(curve_logits, "point"),
        "curve_weights": named(curve_logits.softmax(dim=-1), "point"),
    }
    statistics: dict[str, Statistic] = {
        "variance": Table(variance) if len(variance) > 1 else variance[0],
        "sharpness": Table(sharpened(spec.logits, factor) for factor in spec.factors),
    }
    notes = [
        "Scaling keeps the scores at unit variance, whatever head_dim is, so that softmax stays diffuse.",
        "gradient_norm is the Frobenius norm of the softmax Jacobian: it vanishes as the row saturates.",
    ]
    return build_report(spec, texts, tensors, statistics, notes)
