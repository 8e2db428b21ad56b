"""The variants that a spec asks for, as what they do to query and key, to scores and to the weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.score_rules import ScoreRules
from attncli.experiments.attention_report import named
from attncli.mechanisms.alibi import alibi_bias, alibi_slopes
from attncli.mechanisms.differential import differential_lambda, in_halves, joined_halves
from attncli.mechanisms.normalisation import rms_norm
from attncli.mechanisms.relative_bias import relative_bias
from attncli.mechanisms.rotary import rotate
from attncli.report import NamedTensor
from attncli.spec.attention import AttentionSpec
from attncli.spec.variants import PositionSpec

LAMBDA_DEVIATION = 0.1
Vectors = Mapping[str, Float[Tensor, "..."]]


@dataclass(frozen=True)
class VariantParameters:
    """What the variants would learn, as drawn: the table of the relative bias, the vectors behind lambda."""

    bias_table: Float[Tensor, "head bucket"] | None = None
    lambda_vectors: Float[Tensor, "4 half"] | None = None


NOTHING_DRAWN = VariantParameters()


def parameter_sizes(spec: AttentionSpec) -> tuple[tuple[int, int] | None, int | None]:
    """Heads and buckets of the table, and the size of the vectors behind lambda; None where not asked for."""
    table = None
    if isinstance(spec, PositionSpec) and spec.relative_bias:
        table = spec.query_heads(), spec.num_buckets
    return table, spec.head_dim // 2 if spec.differential else None


def draw_parameters(
    table: tuple[int, int] | None, half: int | None, generator: torch.Generator
) -> VariantParameters:
    """N(0, 1) for the table, then N(0, 0.1^2) for the vectors q1, k1, q2, k2, of these sizes.

    Drawn after the projections of query, key and value, before that of the output.
    """
    return VariantParameters(
        None if table is None else torch.randn(table, generator=generator),
        None if half is None else LAMBDA_DEVIATION * torch.randn(4, half, generator=generator),
    )


def window_of(spec: AttentionSpec) -> int | None:
    """The width of the sliding window, where there is one."""
    return spec.window if isinstance(spec, PositionSpec) else None


def meeting(spec: AttentionSpec, vectors: Vectors) -> dict[str, Float[Tensor, "..."]]:
    """Query and key as the scores multiply them: normalised, then turned by their positions; value untouched.

    In differential attention each half is normalised and turned by itself.
    """
    met = dict(vectors)
    for name in ("query", "key"):
        heads = in_halves(met[name]) if spec.differential else met[name]
        if spec.qk_norm:
            heads = rms_norm(heads, eps=spec.qk_norm_eps)
        if isinstance(spec, PositionSpec) and spec.rope:
            heads = rotate(heads, base=spec.rope_base)
        met[name] = joined_halves(heads) if spec.differential else heads
    return met


def score_rules(spec: AttentionSpec, drawn: VariantParameters, query: Float[Tensor, "..."]) -> ScoreRules:
    """What happens to the scores of this query's texts."""
    bias = None
    if isinstance(spec, PositionSpec):
        num_tokens = query.shape[-2]
        if spec.alibi:
            bias = alibi_bias(spec.query_heads(), num_tokens)
        if drawn.bias_table is not None:
            distance = spec.max_distance
            bias = relative_bias(drawn.bias_table, num_tokens, max_distance=distance, causal=spec.causal)
    if bias is not None:
        bias = bias.to(query).unsqueeze(0)
    sink = None if spec.sink is None else torch.tensor([[spec.sink]], dtype=torch.float64)
    return ScoreRules(softcap=spec.softcap, bias=bias, temperature=spec.temperature, sink=sink)


def factor_of_second(spec: AttentionSpec, drawn: VariantParameters) -> float:
    """lambda of differential attention."""
    assert drawn.lambda_vectors is not None
    return differential_lambda(drawn.lambda_vectors, spec.lambda_init)


def explained_variants(
    spec: AttentionSpec, vectors: Vectors, drawn: VariantParameters, rules: ScoreRules, axes: tuple[str, ...]
) -> dict[str, NamedTensor]:
    """What the variants are made of, and query and key before them, where asked to explain.

    query and key themselves are then those that meet in the scores.
    """
    if not spec.explain:
        return {}
    tensors = {}
    if {"qk_norm", "rope"} & set(spec.variants_on()):
        met = meeting(spec, vectors)
        for name, axis in (("query", "query"), ("key", "key")):
            tensors[f"projected_{name}"] = named(vectors[name], *axes, axis, "dim")
            tensors[name] = named(met[name], *axes, axis, "dim")
    if drawn.bias_table is not None:
        table = drawn.bias_table if axes else drawn.bias_table[0]
        tensors["bias_table"] = named(table, *axes, "bucket")
    if rules.bias is not None:
        bias = rules.bias[0] if axes else rules.bias[0, 0]
        tensors["bias"] = NamedTensor((*axes, "query", "key"), bias.numpy(force=True))
    if drawn.lambda_vectors is not None:
        tensors["lambda_vectors"] = NamedTensor(("vector", "dim"), drawn.lambda_vectors.numpy(force=True))
    return tensors


def variant_notes(spec: AttentionSpec) -> Iterator[str]:
    """A line on each variant that is on: what it does to the numbers above."""
    on = spec.variants_on()
    if isinstance(spec, PositionSpec):
        yield from _position_notes(spec, spec.query_heads())
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
