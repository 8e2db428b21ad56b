"""Batch, layer and RMS normalisation, compared with torch's own modules."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.mechanisms import Data, batch_norm, layer_norm, rms_norm
from attncli.features.norm.results import FirstMoments, NormDifferences, NormEffects


@dataclass(frozen=True, kw_only=True)
class NormForm:
    """Settings of a normalisation; `kind` is batch, layer, rms or all.

    `momentum` is the weight of this batch in the running statistics. If `is_unbiased`, variances are divided
    by n - 1; torch's own layers divide by n.
    """

    kind: str = "all"
    eps: float = 1e-5
    momentum: float = 0.1
    is_unbiased: bool = True


@dataclass(frozen=True)
class Normalised:
    """The output of each norm, the running statistics of batch norm, and the statistics for a report.

    The difference from torch is None if the variance here divides by n - 1 and torch's layer divides by n.
    """

    outputs: dict[str, Data]
    running: dict[str, Float[Tensor, " feature"]]
    effects: NormEffects


def _first_moments(data: Data) -> FirstMoments:
    feature, example = data[:, 0], data[0]
    return FirstMoments.single(
        feature0_mean=feature.mean().item(),
        feature0_std=feature.std().item() if len(feature) > 1 else None,
        example0_mean=example.mean().item(),
        example0_std=example.std().item() if len(example) > 1 else None,
    )


def normalised(data: Data, form: NormForm) -> Normalised:
    """Apply batch, layer or RMS norm, or all three, and compare each with torch's own module."""
    kind, eps, momentum, unbiased = form.kind, form.eps, form.momentum, form.is_unbiased
    outputs: dict[str, Tensor] = {}
    running: dict[str, Tensor] = {}
    torch_outputs: dict[str, Tensor | None] = {}
    if kind in ("batch", "all"):
        batch = batch_norm(data, eps=eps, momentum=momentum, unbiased=unbiased)
        outputs |= {"batch_norm": batch.output, "batch_norm_eval": batch.eval_output}
        running = {"running_mean": batch.running_mean, "running_variance": batch.running_variance}
        module = torch.nn.BatchNorm1d(data.shape[1], eps=eps, momentum=momentum).to(data.device)
        with torch.no_grad():
            trained, evaluated = module(data), module.eval()(data)
        torch_outputs |= {"batch_norm": None if unbiased else trained, "batch_norm_eval": evaluated}
    if kind in ("layer", "all"):
        outputs["layer_norm"] = layer_norm(data, eps=eps, unbiased=unbiased)
        biased = torch.nn.functional.layer_norm(data, data.shape[1:], eps=eps)
        torch_outputs["layer_norm"] = None if unbiased else biased
    if kind in ("rms", "all"):
        outputs["rms_norm"] = rms_norm(data, eps=eps)
        torch_outputs["rms_norm"] = torch.nn.functional.rms_norm(data, data.shape[1:], eps=eps)
    differences = {
        name: None if by_torch is None else (outputs[name] - by_torch).abs().max().item()
        for name, by_torch in torch_outputs.items()
    }
    moments = {name: _first_moments(output) for name, output in outputs.items()}
    effects = NormEffects(
        input=_first_moments(data),
        batch_norm=moments.get("batch_norm"),
        batch_norm_eval=moments.get("batch_norm_eval"),
        layer_norm=moments.get("layer_norm"),
        rms_norm=moments.get("rms_norm"),
        agreement_with_torch=NormDifferences.single(**differences),
    )
    return Normalised(outputs, running, effects)
