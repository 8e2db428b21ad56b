"""Attention with sampled weights and its variants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import (
    MAP_SIZE,
    PLAIN,
    AttentionLayer,
    Computed,
    Moments,
    ScoreRules,
    Visibility,
    Wanted,
    merge_heads,
    score_factor,
    split_heads,
)
from attncli.core.mechanisms import (
    alibi_bias,
    attend_by_loop,
    attend_differentially,
    differential_lambda,
    relative_bias,
    rms_norm,
    rotate,
)
from attncli.errors import RunError
from attncli.toys.sampling import (
    Draws,
    Projection,
    Source,
    sample_linear,
    sample_linear_bias,
    sample_projections,
)

LAMBDA_DEVIATION = 0.1
LARGEST_FLOAT32 = 3.4e38
LEAST_FACTOR = 1e-20
"""Scores that were multiplied by a smaller factor cannot be recovered from float32."""
MAX_LOOP_CELLS = 2**16
NamedVectors = Mapping[str, Float[Tensor, "..."]]


@dataclass(frozen=True, kw_only=True)
class AttentionForm:
    """softmax(query key^T scale) value and its variants; None switches a variant off."""

    scale: str | float = "sqrt"
    softmax: bool = True
    causal: bool = False
    window: int | None = None
    rope_base: float | None = None
    alibi: bool = False
    num_buckets: int | None = None
    """Number of distance buckets for the relative bias; distances from `max_distance` on share the last."""
    max_distance: int = 128
    qk_norm_eps: float | None = None
    softcap: float | None = None
    temperature: float = 1.0
    sink: float | None = None
    lambda_init: float | None = None
    """The initial lambda of differential attention."""

    @property
    def is_differential(self) -> bool:
        """True if query and key have two halves, each with its own softmax."""
        return self.lambda_init is not None


@dataclass(frozen=True)
class VariantParameters:
    """The sampled parameters of variants: the relative bias's table, and the vectors behind lambda."""

    bias_table: Float[Tensor, "head bucket"] | None = None
    lambda_vectors: Float[Tensor, "4 half"] | None = None


@dataclass(frozen=True)
class SampledAttention:
    """The layer, with query and key as they are multiplied into scores, and the results.

    `raw_moments` are the moments of the scores before the scale is applied. Differential attention has two
    `halves` with scores, and its lambda as `factor`, but no moments.
    """

    layer: AttentionLayer
    parameters: VariantParameters
    computed: Computed
    output: Float[Tensor, "text head query dim"]
    raw_moments: Moments | None = None
    halves: tuple[Computed, ...] = ()
    factor: float | None = None


def project(
    sources: Sequence[Source],
    draws: Draws,
    *,
    projection: str,
    order: Sequence[str],
    sizes: Mapping[str, tuple[int, ...]],
) -> tuple[dict[str, Float[Tensor, "..."]], dict[str, Projection]]:
    """Return the query of the first source, the key and value of the last source, and the projections used.

    `projection` is linear, uniform or none. Sizes are (dim,), or (heads, dim) for an axis of heads; without a
    projection, each head gets its own slice.
    """
    projected = {"query": sources[0].vectors, "key": sources[-1].vectors, "value": sources[-1].vectors}
    if projection == "none":
        heads = sizes["query"][:-1]
        return {
            name: split_heads(vectors, *heads) if heads else vectors for name, vectors in projected.items()
        }, {}
    embed_dim = sources[0].vectors.shape[-1]
    projections = draws.draw(sample_projections, projection, embed_dim, sizes, order)
    return {
        name: projections[name].to(vectors.device)(vectors) for name, vectors in projected.items()
    }, projections


def _sample(table: tuple[int, int] | None, half: int | None, generator: torch.Generator) -> VariantParameters:
    """Sample the table from N(0, 1), then vectors q1, k1, q2, k2 from N(0, 0.1^2), of these sizes."""
    return VariantParameters(
        None if table is None else torch.randn(table, generator=generator),
        None if half is None else LAMBDA_DEVIATION * torch.randn(4, half, generator=generator),
    )


def _apply_qk_norm_and_rope(form: AttentionForm, vectors: NamedVectors) -> dict[str, Float[Tensor, "..."]]:
    """Normalise, then rotate query and key; in differential attention, do so for each half separately."""
    applied = dict(vectors)
    for name in ("query", "key"):
        heads = split_heads(vectors[name], 2) if form.is_differential else vectors[name]
        if form.qk_norm_eps is not None:
            heads = rms_norm(heads, eps=form.qk_norm_eps)
        if form.rope_base is not None:
            heads = rotate(heads, base=form.rope_base)
        applied[name] = merge_heads(heads) if form.is_differential else heads
    return applied


def _score_rules(
    form: AttentionForm, parameters: VariantParameters, query: Float[Tensor, "text head query dim"]
) -> ScoreRules:
    """Return the operations between the scale and the weights."""
    bias, num_heads, num_queries = None, query.shape[1], query.shape[2]
    if form.alibi:
        bias = alibi_bias(num_heads, num_queries)
    if parameters.bias_table is not None:
        distance, causal = form.max_distance, form.causal
        bias = relative_bias(parameters.bias_table, num_queries, max_distance=distance, causal=causal)
    if bias is not None:
        bias = bias.to(query).unsqueeze(0)
    sink = None if form.sink is None else torch.tensor([[form.sink]], dtype=torch.float64)
    rules = ScoreRules(softcap=form.softcap, bias=bias, temperature=form.temperature, sink=sink)
    if rules.softmax_sink is not None and rules.softmax_sink.abs() > LARGEST_FLOAT32:
        values = f"got sink {form.sink:g}, temperature {form.temperature:g}"
        raise RunError(f"sink / temperature overflows float32: use a smaller sink ({values})")
    return rules


def sampled_attention(
    vectors: NamedVectors,
    form: AttentionForm,
    draws: Draws,
    *,
    rows: tuple[str, ...],
    top_k: int,
    is_streamed: bool = False,
) -> SampledAttention:
    """Compute softmax(query key^T scale) value for vectors (text, head, token, dim), with row statistics.

    Key and value may have fewer heads than the query. The parameters of variants are sampled here. With
    `is_streamed`, the result has pooled maps instead of weights. Raises RunError if scores overflow.
    """
    num_heads, dim = vectors["query"].shape[1], vectors["query"].shape[-1]
    table = None if form.num_buckets is None else (num_heads, form.num_buckets)
    parameters = draws.draw(_sample, table, dim // 2 if form.is_differential else None)
    layer = _layer(form, _apply_qk_norm_and_rope(form, vectors), parameters)
    wanted = Wanted(rows=rows, top_k=min(top_k, layer.shape[3]), received_mass=True)
    if is_streamed:
        wanted = replace(wanted, output=True, score_moments=True, pooled=MAP_SIZE)
        result = _attended(layer, parameters, wanted, draws.progress)
    elif parameters.lambda_vectors is not None:
        assert form.lambda_init is not None
        factor = differential_lambda(parameters.lambda_vectors, form.lambda_init)
        *halves, computed = attend_differentially(layer, factor, wanted)
        assert computed.output is not None
        result = SampledAttention(
            layer, parameters, computed, computed.output, halves=tuple(halves), factor=factor
        )
    else:
        wanted = replace(wanted, output=True) if form.softmax else Wanted()
        wanted = replace(wanted, weights=True, scores=True, score_moments=True)
        result = _attended(layer, parameters, wanted)
    if not result.output.abs().max().isfinite():
        raise RunError(_overflow(form))
    return result


def _layer(form: AttentionForm, vectors: NamedVectors, parameters: VariantParameters) -> AttentionLayer:
    """Return the layer of these vectors; `fourth-root` scales query and key, other scales their product."""
    query, key, value = (vectors[name] for name in ("query", "key", "value"))
    factor = score_factor(form.scale, query.shape[-1] // (2 if form.is_differential else 1))
    visibility = Visibility(query.shape[-2], key.shape[-2], causal=form.causal, window=form.window)
    return AttentionLayer(query, key, value, visibility, factor, _score_rules(form, parameters, query))


def _attended(
    layer: AttentionLayer,
    parameters: VariantParameters,
    wanted: Wanted,
    progress: Callable[[float], None] | None = None,
) -> SampledAttention:
    computed = attend(layer, wanted, progress)
    raw, output = _raw_moments(layer, computed), computed.output
    if output is None:  # without a softmax, the weights are the scores
        assert computed.scores is not None
        weights = computed.scores.masked_fill(computed.scores == -torch.inf, 0.0)
        computed, output = replace(computed, weights=weights), weights @ layer.expanded()[1]
    return SampledAttention(layer, parameters, computed, output, raw)


def _overflow(form: AttentionForm) -> str:
    message = f"the scores overflow float32: use a smaller scale (got {form.scale})"
    alternative = f" or a larger temperature (got {form.temperature:g})"
    return message if form.temperature == 1 else message + alternative


def _raw_moments(layer: AttentionLayer, computed: Computed) -> Moments:
    """Return the moments of the scores before the scale and all later operations."""
    assert computed.moments is not None
    factor = layer.scale / layer.rules.temperature
    if layer.rules.is_plain and abs(factor) >= LEAST_FACTOR:
        return _divided(computed.moments, factor)
    # A cap, or a factor too small for float32, loses information, so these moments take a separate pass.
    raw = attend(replace(layer, scale=1.0, rules=PLAIN), Wanted(score_moments=True)).moments
    assert raw is not None
    return raw


def _divided(moments: Moments, factor: float) -> Moments:
    """Undo, in moments, the effect of a factor of either sign."""
    ends = moments.smallest / factor, moments.largest / factor
    return Moments(
        moments.mean / factor,
        moments.variance / factor / factor,  # the square of a factor may overflow
        torch.minimum(*ends),
        torch.maximum(*ends),
    )


def loop_difference(
    form: AttentionForm, vectors: Float[Tensor, "*batch token dim"], output: Float[Tensor, "*batch token dim"]
) -> float | None:
    """Return the largest difference between loop and matrix form, or None if a loop would take too long."""
    *batch, num_tokens, _ = vectors.shape
    if num_tokens**2 * (batch[0] if batch else 1) > MAX_LOOP_CELLS:
        return None
    visibility = Visibility(num_tokens, num_tokens, causal=form.causal, window=form.window)
    (visible,) = visibility.whole(vectors.device)
    looped = attend_by_loop(vectors, visible, scale=form.scale, softmax=form.softmax)
    return (looped - output).abs().max().item()


@dataclass(frozen=True)
class Unified:
    """The heads after one more linear layer, with the layer's sampled matrix and bias."""

    output: Float[Tensor, "*batch token embed"]
    matrix: Float[Tensor, "... embed merged"]
    bias: Float[Tensor, "... embed"]


def unify(merged: Float[Tensor, "*batch token merged"], embed_dim: int, draws: Draws) -> Unified:
    """Compute merged W_O^T + b, with embed_dim columns."""
    matrix = draws.draw(sample_linear, embed_dim, merged.shape[-1])
    bias = draws.draw(sample_linear_bias, embed_dim, merged.shape[-1])
    output = merged @ matrix.to(merged.device).mT + bias.to(merged.device).unsqueeze(-2)
    return Unified(output, matrix, bias)
