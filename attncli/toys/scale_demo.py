"""Why scores are scaled: their variance grows with head_dim, and a softmax of large scores saturates."""

from math import isinf

import torch
from torch import Tensor

from attncli.core.formulas import softmax_gradient_norm
from attncli.core.layer import scale_factors
from attncli.core.summaries import moments
from attncli.errors import RunError
from attncli.report import NamedTensor, Numbers, Report, Statistic, Table
from attncli.report_parts import build_report, named
from attncli.settings.lessons import ScaleDemoSpec
from attncli.settings.text import Texts
from attncli.toys.explained_lessons import tensor_name
from attncli.toys.sources import Draws, choose_device

LAST = {"query": "dim", "key": "dim", "raw_scores": "key", "scaled_scores": "key"}


def _sampled(spec: ScaleDemoSpec, head_dim: int, draws: Draws) -> dict[str, Tensor]:
    """Standard normal query and key, and their scores before and after scaling."""
    shape, device = (spec.batch_size, spec.num_tokens, head_dim), choose_device(spec)
    query, key = (torch.randn(shape, generator=draws.generator).to(device) for _ in range(2))
    each, product = scale_factors(spec.scale, head_dim)
    scores = {"raw_scores": query @ key.mT, "scaled_scores": (query * each) @ (key * each).mT * product}
    return {"query": query, "key": key, **scores}


def run(spec: ScaleDemoSpec, texts: Texts, draws: Draws) -> Report:
    """The variances for each head_dim, the sharpened softmax for each factor, and the softmax curve."""
    variance: list[Numbers] = []
    kept: dict[str, NamedTensor] = {}
    for number, head_dim in enumerate(spec.head_dim):
        sampled = _sampled(spec, head_dim, draws)
        variances = {name: moments(tensor)["variance"] for name, tensor in sampled.items()}
        if any(map(isinf, variances.values())):
            raise RunError(f"scale-demo: the scores overflow float32: use a smaller scale (got {spec.scale})")
        variance.append(Numbers({"head_dim": head_dim, **variances}))
        for name, tensor in sampled.items() if spec.explain else ():
            axes = "key" if name == "key" else "query", LAST[name]
            kept[tensor_name(name, number, spec)] = named(tensor, *axes)
    logits = torch.tensor(spec.logits, dtype=torch.float64)
    sharpness = Table()
    for factor in spec.factors:
        weights = (logits * factor).softmax(dim=-1)
        if not weights.isfinite().all():
            raise RunError(f"scale-demo: logits times a factor of {factor:g} overflow: use smaller ones")
        sharpness.append(
            {
                "factor": factor,
                "softmax": weights.tolist(),
                "max_weight": weights.max().item(),
                "entropy": torch.special.entr(weights).sum().item(),
                "gradient_norm": softmax_gradient_norm(weights).item(),
            }
        )
    start, stop, step = spec.curve
    curve_logits = torch.arange(start, stop, step, dtype=torch.float64)
    tensors = {
        **kept,
        "logits": named(logits, "key"),
        "curve_logits": named(curve_logits, "point"),
        "curve_weights": named(curve_logits.softmax(dim=-1), "point"),
    }
    statistics: dict[str, Statistic] = {
        "variance": Table(variance) if len(variance) > 1 else variance[0],
        "sharpness": sharpness,
    }
    notes = [
        "Scaling keeps the scores at unit variance, whatever head_dim is, so that softmax stays diffuse.",
        "gradient_norm is the Frobenius norm of the softmax Jacobian: it vanishes as the row saturates.",
    ]
    return build_report(spec, texts, tensors, statistics, notes)
