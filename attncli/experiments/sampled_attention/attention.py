"""One attention in a report: its matrix or, where that is too large, exact statistics and pooled maps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines import attend
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import MAP_SIZE, Computed, Moments, Wanted
from attncli.attention.score_rules import PLAIN
from attncli.attention.visibility import Visibility
from attncli.errors import RunError
from attncli.experiments.attention_report import LeadingAxes, named, row_tensors, with_summaries
from attncli.experiments.draws import Draws, Progress
from attncli.experiments.sampled_attention.differential import attend_differentially
from attncli.experiments.sampled_attention.variants import (
    VariantParameters,
    Vectors,
    apply_qk_norm_and_rope,
    explained_variants,
    head_axes,
    score_rules,
    variant_notes,
    variant_parameters,
)
from attncli.experiments.sources import Source
from attncli.inputs.vectors import Projection, sample_projections
from attncli.mechanisms.differential import differential_lambda
from attncli.mechanisms.dot_product_attention import score_factor
from attncli.mechanisms.heads import split_heads
from attncli.memory import readable_bytes
from attncli.report import NamedTensor, Numbers, Statistic, Tensors
from attncli.spec.attention import AttentionSpec
from attncli.statistics.moments import merged_moments

LARGEST_FLOAT32 = 3.4e38
LEAST_FACTOR = 1e-20
"""Scores that were multiplied by less cannot be recovered from float32."""
NO_SOFTMAX_NOTE = "Without softmax a row of weights is not a distribution: it has no row statistics."


@dataclass(frozen=True)
class SampledAttention:
    """The output, and the tensors, statistics and notes of the report."""

    output: Float[Tensor, "*batch query value_dim"]
    tensors: dict[str, NamedTensor]
    statistics: dict[str, Statistic]
    notes: tuple[str, ...] = ()


def sampled_attention(spec: AttentionSpec, sources: Sequence[Source], draws: Draws) -> SampledAttention:
    """Attention from the first source to the last; its tensors begin with its inputs."""
    vectors, projections = _projected(spec, sources, draws)
    attention = compute_attention(spec, vectors, draws)
    tensors = {}
    names = (("input", "token_ids", "token"), ("context", "context_token_ids", "key"))
    for source, (name, _, axis) in zip(sources, names, strict=False):
        tensors[name] = named(source.vectors, axis, "dim")
    if spec.explain:
        for source, (_, name, axis) in zip(sources, names, strict=False):
            if source.token_ids is not None:
                tensors[name] = named(source.token_ids, axis)
        for name, projection in projections.items():
            tensors[f"{name}_projection"] = named(projection.matrix, *projection.axes)
        for name, tensor in vectors.items():
            tensors[name] = named(tensor, *head_axes(spec), "query" if name == "query" else "key", "dim")
    return replace(attention, tensors=tensors | attention.tensors)


def _projected(
    spec: AttentionSpec, sources: Sequence[Source], draws: Draws
) -> tuple[dict[str, Float[Tensor, "..."]], dict[str, Projection]]:
    """query, key and value (per head in multi-head attention), and the projections that made them."""
    own = {"query": sources[0].vectors, "key": sources[-1].vectors, "value": sources[-1].vectors}
    if spec.projection == "none" and spec.shows_all_heads:
        return {name: split_heads(vectors, spec.query_heads()) for name, vectors in own.items()}, {}
    if spec.projection == "none":
        return own, {}
    sizes, order = spec.projection_sizes(), spec.projection_order
    projections = draws.draw(sample_projections, spec.projection, spec.embed_dim, sizes, order)
    return {name: projections[name].to(vectors.device)(vectors) for name, vectors in own.items()}, projections


def compute_attention(spec: AttentionSpec, vectors: Vectors, draws: Draws) -> SampledAttention:
    """softmax(query key^T scale) value, with the variants that the spec asks for.

    Key and value may have fewer heads than the query. RunError where scores overflow.
    """
    num_queries, num_keys = vectors["query"].shape[-2], vectors["key"].shape[-2]
    lead = LeadingAxes.of(vectors["query"], has_head=spec.shows_all_heads)
    parameters = variant_parameters(spec, draws)
    applied = apply_qk_norm_and_rope(spec, vectors)
    layer = _layer(spec, applied, lead, parameters)
    if spec.chosen_engine(num_queries, num_keys) == "streaming":
        result = _streaming(spec, layer, lead, draws.progress)
    elif parameters.lambda_vectors is not None:
        factor = differential_lambda(parameters.lambda_vectors, spec.lambda_init)
        result = SampledAttention(*attend_differentially(spec, layer, lead, factor))
    else:
        result = _dense(spec, layer, lead)
    if not result.output.abs().max().isfinite():
        raise RunError(_overflow(spec))
    return replace(
        result,
        tensors=explained_variants(spec, vectors, applied, parameters, layer.rules) | result.tensors,
        statistics=with_summaries(result.statistics, num_queries),
        notes=(*variant_notes(spec), *result.notes),
    )


def _layer(
    spec: AttentionSpec, vectors: Vectors, lead: LeadingAxes, parameters: VariantParameters
) -> AttentionLayer:
    """The layer of these vectors: fourth-root scales query and key each, any other scale their product."""
    rules = score_rules(spec, parameters, vectors["query"])
    sink = rules.softmax_sink
    if sink is not None and sink.abs() > LARGEST_FLOAT32:
        given = f"got sink {spec.sink:g}, temperature {spec.temperature:g}"
        raise RunError(
            f"{spec.experiment}: sink / temperature overflows float32: use a smaller sink ({given})"
        )
    query, key, value = (lead.layered(vectors[name]) for name in ("query", "key", "value"))
    factor = score_factor(spec.scale, query.shape[-1] // (2 if spec.differential else 1))
    positions = spec.positions()
    causal, window = (positions.causal, positions.window) if positions else (False, None)
    visibility = Visibility(query.shape[-2], key.shape[-2], causal=causal, window=window)
    return AttentionLayer(query, key, value, visibility, factor, rules)


def _overflow(spec: AttentionSpec) -> str:
    message = f"{spec.experiment}: the scores overflow float32: use a smaller scale (got {spec.scale})"
    hotter = f" or a larger temperature (got {spec.temperature:g})"
    return message if spec.temperature == 1 else message + hotter


def _wanted(spec: AttentionSpec, layer: AttentionLayer) -> Wanted:
    """The output and the statistics of scores, rows and keys."""
    return Wanted(
        rows=spec.measured_of_rows(),
        top_k=min(spec.top_k, layer.shape[3]),
        output=True,
        score_moments=True,
        received_mass=True,
    )


def _dense(spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes) -> SampledAttention:
    wanted = _wanted(spec, layer) if spec.softmax else Wanted(score_moments=True)
    found = attend(layer, replace(wanted, weights=True, scores=True))
    weights, output = found.weights, found.output
    assert found.scores is not None and found.raw_scores is not None
    statistics = _score_statistics(spec, layer, lead, found)
    if spec.softmax:
        statistics |= row_tensors(found, lead, layer.rules.softmax_sink)
    else:
        weights = found.scores.masked_fill(found.scores == -torch.inf, 0.0)
        output = weights @ layer.expanded()[1]
    shown = {"scores": found.raw_scores, "weights": weights}
    tensors = {"scaled_scores": found.scores, **shown} if spec.explain else shown
    named = {name: lead.named(tensor, "query", "key") for name, tensor in tensors.items()}
    return SampledAttention(lead.back(output), named, statistics, () if spec.softmax else (NO_SOFTMAX_NOTE,))


def _streaming(
    spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes, progress: Progress | None
) -> SampledAttention:
    found = attend(layer, replace(_wanted(spec, layer), pooled=MAP_SIZE), progress)
    maps = {"pooled_mean": found.pooled_mean, "pooled_max": found.pooled_max}
    tensors = {name: lead.named(tensor, "query_block", "key_block") for name, tensor in maps.items()}
    statistics = _score_statistics(spec, layer, lead, found)
    statistics |= row_tensors(found, lead, layer.rules.softmax_sink)
    size = readable_bytes(4 * spec.num_weights(*layer.shape[2:]))
    note = (
        f"Streamed: the weights would take {size}. The statistics are exact; the maps show blocks of weights."
    )
    return SampledAttention(lead.back(found.output), tensors, statistics, (note,))


def _score_statistics(
    spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes, found: Computed
) -> dict[str, Statistic]:
    """The moments of all heads' scores before and after scaling; per text where several run together."""
    assert found.moments is not None and found.visible is not None
    factor = layer.scale / layer.rules.temperature
    raw: Moments | None
    if layer.rules.is_plain and abs(factor) >= LEAST_FACTOR:
        raw = _divided(found.moments, factor)
    else:
        # What was capped, or too small for float32, is lost: the moments before it take a pass of their own.
        raw = attend(replace(layer, scale=1.0, rules=PLAIN), Wanted(score_moments=True)).moments
    assert raw is not None
    counts = found.visible.sum(dim=-1, keepdim=True).expand_as(raw.mean)
    by_text = lead.has_batch and spec.batch_size is None
    return {
        "scores": _of_all_heads(raw, counts, by_text=by_text),
        "scaled_scores": _of_all_heads(found.moments, counts, by_text=by_text),
    }


def _of_all_heads(moments: Moments, counts: Tensor, *, by_text: bool) -> Statistic:
    squares = moments.variance * (counts - 1)
    parts = (counts, moments.mean, squares, moments.smallest, moments.largest)
    if by_text:
        return Tensors({name: named(tensor) for name, tensor in merged_moments(*parts).items()})
    merged = merged_moments(*(part.flatten() for part in parts))
    return Numbers({name: tensor.item() for name, tensor in merged.items()})


def _divided(moments: Moments, factor: float) -> Moments:
    """The moments of numbers that were multiplied by a factor, of either sign, before it."""
    one, other = moments.smallest / factor, moments.largest / factor
    return Moments(
        moments.mean / factor,
        moments.variance / factor / factor,  # the square of a factor may overflow
        torch.minimum(one, other),
        torch.maximum(one, other),
    )
