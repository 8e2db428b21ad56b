"""Batch, layer and RMS normalisation of random data, before and after."""

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.mechanisms import batch_norm, layer_norm, rms_norm
from attncli.report import Numbers, Report
from attncli.report_parts import build_report, named
from attncli.settings.lessons import NormSpec
from attncli.settings.text import Texts
from attncli.toys.sources import Draws, choose_device


def _first_feature_and_example(data: Float[Tensor, "batch feature"]) -> Numbers:
    """Mean and unbiased standard deviation of feature 0 over the batch and of example 0 over its features."""
    feature, example = data[:, 0], data[0]
    return Numbers(
        feature0_mean=feature.mean().item(),
        feature0_std=feature.std().item() if len(feature) > 1 else None,
        example0_mean=example.mean().item(),
        example0_std=example.std().item() if len(example) > 1 else None,
    )


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()


def run(spec: NormSpec, texts: Texts, draws: Draws) -> Report:
    """The normalised data, its first feature and example, and the differences from torch's own modules."""
    data = torch.randn(spec.batch_size, spec.num_features, generator=draws.generator).to(choose_device(spec))
    unbiased = spec.variance == "unbiased"
    outputs, running = {"input": data}, {}
    agreement, notes = Numbers(), []
    if spec.kind != "rms":
        notes.append(
            "Divided by the unbiased standard deviation (n - 1); torch's own layers take the biased one."
            if unbiased
            else "Divided by the biased standard deviation (n), as torch's own layers do."
        )
    if spec.kind in ("batch", "all"):
        batch = batch_norm(data, eps=spec.eps, momentum=spec.momentum, unbiased=unbiased)
        outputs |= {"batch_norm": batch.output, "batch_norm_eval": batch.eval_output}
        running = {"running_mean": batch.running_mean, "running_variance": batch.running_variance}
        module = torch.nn.BatchNorm1d(spec.num_features, eps=spec.eps, momentum=spec.momentum).to(data.device)
        with torch.no_grad():
            trained, evaluated = module(data), module.eval()(data)
        agreement["batch_norm"] = None if unbiased else _difference(batch.output, trained)
        agreement["batch_norm_eval"] = _difference(batch.eval_output, evaluated)
        notes.append(
            "Running statistics: mean and unbiased variance after one step from 0 and 1; eval mode uses them."
        )
    if spec.kind in ("layer", "all"):
        outputs["layer_norm"] = layer_norm(data, eps=spec.eps, unbiased=unbiased)
        theirs = torch.nn.functional.layer_norm(data, data.shape[1:], eps=spec.eps)
        agreement["layer_norm"] = None if unbiased else _difference(outputs["layer_norm"], theirs)
    if spec.kind in ("rms", "all"):
        outputs["rms_norm"] = rms_norm(data, eps=spec.eps)
        theirs = torch.nn.functional.rms_norm(data, data.shape[1:], eps=spec.eps)
        agreement["rms_norm"] = _difference(outputs["rms_norm"], theirs)
    tensors = {name: named(output, "batch", "dim") for name, output in outputs.items()}
    tensors |= {name: named(statistic, "dim") for name, statistic in running.items()}
    statistics = {name: _first_feature_and_example(output) for name, output in outputs.items()}
    return build_report(spec, texts, tensors, {**statistics, "agreement_with_torch": agreement}, notes)
