"""Batch, layer and RMS normalisation of random data, before and after."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.mechanisms import batch_norm, layer_norm, rms_norm
from attncli.report import Numbers, Report
from attncli.report_parts import build_report, named
from attncli.settings.lessons import NormSpec
from attncli.settings.text import Texts
from attncli.toys.sources import Draws, choose_device

Data = Float[Tensor, "batch feature"]


@dataclass(frozen=True)
class Normalised:
    """The data by each norm, the running statistics of batch norm, and |ours - torch's|, the largest.

    None stands for the difference where ours divides by n - 1 and torch's own layer by n.
    """

    outputs: dict[str, Data]
    running: dict[str, Float[Tensor, " feature"]]
    differences: dict[str, float | None]


def normalised(
    data: Data, *, kind: str = "all", eps: float = 1e-5, momentum: float = 0.1, unbiased: bool = True
) -> Normalised:
    """The data by batch, layer or RMS norm, or by all of them, each beside torch's own module."""
    outputs: dict[str, Tensor] = {}
    running: dict[str, Tensor] = {}
    theirs: dict[str, Tensor | None] = {}
    if kind in ("batch", "all"):
        batch = batch_norm(data, eps=eps, momentum=momentum, unbiased=unbiased)
        outputs |= {"batch_norm": batch.output, "batch_norm_eval": batch.eval_output}
        running = {"running_mean": batch.running_mean, "running_variance": batch.running_variance}
        module = torch.nn.BatchNorm1d(data.shape[1], eps=eps, momentum=momentum).to(data.device)
        with torch.no_grad():
            trained, evaluated = module(data), module.eval()(data)
        theirs |= {"batch_norm": None if unbiased else trained, "batch_norm_eval": evaluated}
    if kind in ("layer", "all"):
        outputs["layer_norm"] = layer_norm(data, eps=eps, unbiased=unbiased)
        biased = torch.nn.functional.layer_norm(data, data.shape[1:], eps=eps)
        theirs["layer_norm"] = None if unbiased else biased
    if kind in ("rms", "all"):
        outputs["rms_norm"] = rms_norm(data, eps=eps)
        theirs["rms_norm"] = torch.nn.functional.rms_norm(data, data.shape[1:], eps=eps)
    differences = {
        name: None if other is None else (outputs[name] - other).abs().max().item()
        for name, other in theirs.items()
    }
    return Normalised(outputs, running, differences)


def _first_feature_and_example(data: Data) -> Numbers:
    """Mean and unbiased standard deviation of feature 0 over the batch and of example 0 over its features."""
    feature, example = data[:, 0], data[0]
    return Numbers(
        feature0_mean=feature.mean().item(),
        feature0_std=feature.std().item() if len(feature) > 1 else None,
        example0_mean=example.mean().item(),
        example0_std=example.std().item() if len(example) > 1 else None,
    )


def run(spec: NormSpec, texts: Texts, draws: Draws) -> Report:
    """The normalised data, its first feature and example, and the differences from torch's own modules."""
    data = torch.randn(spec.batch_size, spec.num_features, generator=draws.generator).to(choose_device(spec))
    unbiased = spec.variance == "unbiased"
    found = normalised(data, kind=spec.kind, eps=spec.eps, momentum=spec.momentum, unbiased=unbiased)
    notes = []
    if spec.kind != "rms":
        notes.append(
            "Divided by the unbiased standard deviation (n - 1); torch's own layers take the biased one."
            if unbiased
            else "Divided by the biased standard deviation (n), as torch's own layers do."
        )
    if found.running:
        notes.append(
            "Running statistics: mean and unbiased variance after one step from 0 and 1; eval mode uses them."
        )
    outputs = {"input": data, **found.outputs}
    tensors = {name: named(output, "batch", "dim") for name, output in outputs.items()}
    tensors |= {name: named(statistic, "dim") for name, statistic in found.running.items()}
    statistics = {name: _first_feature_and_example(output) for name, output in outputs.items()}
    statistics["agreement_with_torch"] = Numbers(found.differences)
    return build_report(spec, texts, tensors, statistics, notes)
