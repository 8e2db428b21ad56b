"""Averaging, normalising and scaling: what the lessons around attention compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.formulas import softmax_gradient_norm
from attncli.core.layer import AttentionLayer, Computed, ScoreRules, Visibility, Wanted, scale_factors
from attncli.core.mechanisms import (
    Data,
    TokenVectors,
    TokenWeights,
    average_by_loop,
    averaging_weights,
    batch_norm,
    causal_mask,
    full_mask,
    layer_norm,
    rms_norm,
    softmax_averaging_weights,
)
from attncli.core.names import OF_WEIGHTS
from attncli.core.summaries import moments
from attncli.errors import RunError
from attncli.records.attention import LoopDifferences
from attncli.records.columns import Records
from attncli.records.demonstrations import (
    FirstMoments,
    NormDifferences,
    NormEffects,
    ScoreVariances,
    SharpenedSoftmax,
)


@dataclass(frozen=True, kw_only=True)
class AverageForm:
    """Each token's mean or sum over its past or over all: by a loop, matmul, softmax, or all three.

    `softmax_twice` is the mistake of applying softmax to the finished weights.
    """

    method: str = "matmul"
    over: str = "past"
    aggregate: str = "mean"
    softmax_twice: bool = False


class Average(NamedTuple):
    """The weights of an average, and each token's mean or sum over what it sees."""

    weights: TokenWeights
    output: TokenVectors


def average(vectors: TokenVectors, form: AverageForm) -> Average:
    """By a loop, a softmax of masked zeros, or else a matrix product."""
    num_tokens, mean = vectors.shape[-2], form.aggregate == "mean"
    visible = (causal_mask if form.over == "past" else full_mask)(num_tokens, num_tokens)
    if form.method == "softmax":
        weights = softmax_averaging_weights(visible)
        weights = weights.softmax(dim=-1) if form.softmax_twice else weights
    else:
        weights = averaging_weights(visible, mean=mean)
    if form.method == "loop":
        return Average(weights, average_by_loop(vectors, visible.to(vectors.device), mean=mean))
    return Average(weights, weights.to(vectors.device) @ vectors)


def averaging_statistics(
    vectors: Float[Tensor, "text 1 token dim"], form: AverageForm, *, top_k: int
) -> Computed:
    """The row statistics of attention whose scores are zero; after a first softmax, its weights."""
    zeros, rules = torch.zeros_like(vectors[..., :1]), ScoreRules()
    if form.softmax_twice:
        once = average(vectors, replace(form, softmax_twice=False)).weights
        rules = ScoreRules(bias=once[None, None].to(vectors))
    num_tokens, causal = vectors.shape[-2], form.over == "past" and not form.softmax_twice
    visibility = Visibility(num_tokens, num_tokens, causal=causal)
    layer = AttentionLayer(zeros, zeros, vectors, visibility, scale=1.0, rules=rules)
    wanted = Wanted(rows=OF_WEIGHTS, top_k=min(top_k, num_tokens), received_mass=True)
    return attend(layer, wanted)


def differences_from_loop(
    vectors: TokenVectors, by_matrix: TokenVectors, form: AverageForm, *, by_text: bool = False
) -> LoopDifferences | Records[LoopDifferences]:
    """The largest |loop - matmul| and |loop - softmax|, or a row of them per text.

    None for sums, which a softmax cannot give.
    """
    looped, by_softmax = (
        average(vectors, replace(form, method=way, softmax_twice=False)).output for way in ("loop", "softmax")
    )
    difference = (looped - by_softmax).abs() if form.aggregate == "mean" else torch.full_like(looped, nan)
    differences = {"loop_vs_matmul": (looped - by_matrix).abs(), "loop_vs_softmax": difference}
    if by_text:
        of_texts = {name: each.flatten(1).amax(dim=1) for name, each in differences.items()}
        return LoopDifferences.table(**{name: most.numpy(force=True) for name, most in of_texts.items()})
    return LoopDifferences.single(**{name: each.max().item() for name, each in differences.items()})


@dataclass(frozen=True, kw_only=True)
class NormForm:
    """Which normalisation: batch, layer, rms or all; `momentum` is this batch's share in running statistics.

    `is_unbiased`: variances are divided by n - 1, and not by n as in torch's own layers.
    """

    kind: str = "all"
    eps: float = 1e-5
    momentum: float = 0.1
    is_unbiased: bool = True


@dataclass(frozen=True)
class Normalised:
    """The data by each norm, the running statistics of batch norm, and what is measured of both.

    Of |ours - torch's| the largest: None where ours divides by n - 1 and torch's own layer by n.
    """

    outputs: dict[str, Data]
    running: dict[str, Float[Tensor, " feature"]]
    effects: NormEffects


def _first_feature_and_example(data: Data) -> FirstMoments:
    feature, example = data[:, 0], data[0]
    return FirstMoments.single(
        feature0_mean=feature.mean().item(),
        feature0_std=feature.std().item() if len(feature) > 1 else None,
        example0_mean=example.mean().item(),
        example0_std=example.std().item() if len(example) > 1 else None,
    )


def normalised(data: Data, form: NormForm) -> Normalised:
    """The data by batch, layer or RMS norm, or by all of them, each beside torch's own module."""
    kind, eps, momentum, unbiased = form.kind, form.eps, form.momentum, form.is_unbiased
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
    moments = {name: _first_feature_and_example(output) for name, output in outputs.items()}
    effects = NormEffects(
        input=_first_feature_and_example(data),
        batch_norm=moments.get("batch_norm"),
        batch_norm_eval=moments.get("batch_norm_eval"),
        layer_norm=moments.get("layer_norm"),
        rms_norm=moments.get("rms_norm"),
        agreement_with_torch=NormDifferences.single(**differences),
    )
    return Normalised(outputs, running, effects)


def score_variances(tensors: Mapping[str, Tensor], head_dim: int) -> ScoreVariances:
    """The unbiased variances of queries, keys and scores, as `scored` gives them."""
    return ScoreVariances.single(
        head_dim=head_dim, **{name: moments(tensor)["variance"] for name, tensor in tensors.items()}
    )


def scored(
    query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key dim"], scale: str | float
) -> dict[str, Tensor]:
    """Query and key, and their scores before and after scaling."""
    each, product = scale_factors(scale, query.shape[-1])
    scores = {"raw_scores": query @ key.mT, "scaled_scores": (query * each) @ (key * each).mT * product}
    return {"query": query, "key": key, **scores}


def sharpened(logits: Sequence[float], factor: float) -> SharpenedSoftmax:
    """softmax(factor logits) in float64, how peaked it is, and the norm of its Jacobian."""
    weights = (torch.tensor(logits, dtype=torch.float64) * factor).softmax(dim=-1)
    if not weights.isfinite().all():
        raise RunError(f"scale-demo: logits times a factor of {factor:g} overflow: use smaller ones")
    return SharpenedSoftmax.single(
        factor=factor,
        softmax=weights.tolist(),
        max_weight=weights.max().item(),
        entropy=torch.special.entr(weights).sum().item(),
        gradient_norm=softmax_gradient_norm(weights).item(),
    )
