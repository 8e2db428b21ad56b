"""The variants that a spec asks for: what they do to query and key, to the scores and to the weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.score_rules import ScoreRules
from attncli.experiments.attention_report import named
from attncli.experiments.draws import Draws
from attncli.mechanisms.heads import merge_heads, split_heads
from attncli.mechanisms.normalisation import rms_norm
from attncli.mechanisms.positions import alibi_bias, alibi_slopes, relative_bias, rotate
from attncli.report import NamedTensor
from attncli.spec.attention import AttentionSpec
from attncli.spec.variants import PositionSpec

LAMBDA_DEVIATION = 0.1
Vectors = Mapping[str, Float[Tensor, "..."]]


@dataclass(frozen=True)
class VariantParameters:
    """What the variants would learn, here sampled: the relative bias's table, the vectors behind lambda."""

    bias_table: Float[Tensor, "head bucket"] | None = None
    lambda_vectors: Float[Tensor, "4 half"] | None = None


def _sample(table: tuple[int, int] | None, half: int | None, generator: torch.Generator) -> VariantParameters:
    """N(0, 1) for the table, then N(0, 0.1^2) for the vectors q1, k1, q2, k2, of these sizes."""
    return VariantParameters(
        None if table is None else torch.randn(table, generator=generator),
        None if half is None else LAMBDA_DEVIATION * torch.randn(4, half, generator=generator),
    )


def head_axes(spec: AttentionSpec) -> tuple[str, ...]:
    """The axis of heads, where the report has one."""
    return ("head",) if spec.shows_all_heads else ()


def variant_parameters(spec: AttentionSpec, draws: Draws) -> VariantParameters:
    """The parameters of the variants that are on.

    Sampled after the projections of query, key and value, before that of the output.
    """
    positions, table = spec.positions(), None
    if positions and positions.relative_bias:
        table = spec.query_heads(), positions.num_buckets
    return draws.draw(_sample, table, spec.head_dim // 2 if spec.differential else None)


def apply_qk_norm_and_rope(spec: AttentionSpec, vectors: Vectors) -> dict[str, Float[Tensor, "..."]]:
    """Query and key as the scores multiply them: normalised, then rotated; the value is unchanged.

    In differential attention each half is normalised and rotated separately.
    """
    positions, applied = spec.positions(), dict(vectors)
    for name in ("query", "key"):
        heads = split_heads(vectors[name], 2) if spec.differential else vectors[name]
        if spec.qk_norm:
            heads = rms_norm(heads, eps=spec.qk_norm_eps)
        if positions and positions.rope:
            heads = rotate(heads, base=positions.rope_base)
        applied[name] = merge_heads(heads) if spec.differential else heads
    return applied


def score_rules(
    spec: AttentionSpec, parameters: VariantParameters, query: Float[Tensor, "..."]
) -> ScoreRules:
    """What happens to the scores between scale and weights."""
    positions, bias = spec.positions(), None
    if positions and positions.alibi:
        bias = alibi_bias(spec.query_heads(), query.shape[-2])
    if positions and parameters.bias_table is not None:
        distance, causal = positions.max_distance, positions.causal
        bias = relative_bias(parameters.bias_table, query.shape[-2], max_distance=distance, causal=causal)
    if bias is not None:
        bias = bias.to(query).unsqueeze(0)
    sink = None if spec.sink is None else torch.tensor([[spec.sink]], dtype=torch.float64)
    return ScoreRules(softcap=spec.softcap, bias=bias, temperature=spec.temperature, sink=sink)


def explained_variants(
    spec: AttentionSpec, before: Vectors, after: Vectors, parameters: VariantParameters, rules: ScoreRules
) -> dict[str, NamedTensor]:
    """The variants' parameters, and query and key before and after them, where asked to explain."""
    if not spec.explain:
        return {}
    axes = head_axes(spec)
    tensors = {}
    if {"qk_norm", "rope"} & set(spec.variants_on()):
        for name in ("query", "key"):
            tensors[f"projected_{name}"] = named(before[name], *axes, name, "dim")
            tensors[name] = named(after[name], *axes, name, "dim")
    if parameters.bias_table is not None:
        tensors["bias_table"] = named(
            parameters.bias_table if axes else parameters.bias_table[0], *axes, "bucket"
        )
    if rules.bias is not None:
        tensors["bias"] = named(rules.bias[0] if axes else rules.bias[0, 0], *axes, "query", "key")
    if parameters.lambda_vectors is not None:
        tensors["lambda_vectors"] = named(parameters.lambda_vectors, "vector", "dim")
    return tensors


def variant_notes(spec: AttentionSpec) -> Iterator[str]:
    """One line for each variant that is on: what it does to the numbers above."""
    on = spec.variants_on()
    if positions := spec.positions():
        yield from _position_notes(positions, spec.query_heads())
    if "qk_norm" in on:
        yield "Query and key have a root mean square of one, so scores cannot grow with their lengths."
    if "softcap" in on:
        yield f"Scaled scores are capped: they stay between -{spec.softcap:g} and {spec.softcap:g}."
    if "temperature" in on:
        how = "flatter" if spec.temperature > 1 else "sharper"
        yield f"Temperature {spec.temperature:g} divides all that the softmax takes: rows become {how}."
    if "sink" in on:
        yield "A sink outside the keys takes outside_mass of each row: rows sum to less than one."
    if "differential" in on:
        yield (
            "Differential attention: a row sums to 1 - lambda and may be negative, so it is not a "
            "distribution: entropy, distance and the like are left out."
        )


def _position_notes(spec: PositionSpec, num_heads: int) -> Iterator[str]:
    if spec.rope:
        yield "Rotary positions: the score of two vectors depends on how far apart they stand, not on where."
    if spec.alibi:
        slopes = [f"{slope:.3g}" for slope in alibi_slopes(num_heads).tolist()]
        said = f"slope {slopes[0]}" if len(slopes) == 1 else f"slopes {', '.join(slopes)}"
        yield f"ALiBi: each score loses its head's slope times the distance in tokens ({said})."
    if spec.relative_bias:
        yield "Relative bias: each score gets a number for its distance (sampled here, learned in a model)."
    if spec.window is not None:
        seen = f"the last {spec.window} keys" if spec.causal else f"keys less than {spec.window} tokens away"
        seen = "its own key alone" if spec.window == 1 else seen
        yield f"Sliding window: a query sees {seen}; what is further reaches it through more layers."
