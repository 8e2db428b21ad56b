"""Self-, multi-head and cross-attention with sampled weights: the matrix, or exact statistics."""

from collections.abc import Iterator, Mapping, Sequence
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
    alibi_slopes,
    attend_by_loop,
    attend_differentially,
    differential_lambda,
    relative_bias,
    rms_norm,
    rotate,
)
from attncli.core.summaries import merged_moments, moments
from attncli.errors import RunError
from attncli.memory import readable_bytes
from attncli.report import NamedTensor, Numbers, Report, Statistic, Tensors
from attncli.report_parts import LeadingAxes, build_report, named, row_tensors, with_summaries
from attncli.settings.attention import (
    POSITIONS,
    AttentionSpec,
    CrossSpec,
    MultiheadSpec,
    PositionSpec,
    SelfSpec,
)
from attncli.settings.text import Texts
from attncli.toys.sources import (
    Draws,
    Progress,
    Projection,
    Source,
    embed,
    sample_linear,
    sample_linear_bias,
    sample_projections,
)

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
        result = _differential(spec, layer, lead, factor)
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
    """The statistics of rows and keys."""
    return Wanted(rows=spec.measured_of_rows(), top_k=min(spec.top_k, layer.shape[3]), received_mass=True)


def _differential(
    spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes, factor: float
) -> SampledAttention:
    """scores and scaled_scores are of the first half, second_scores and second_scaled_scores of the other."""
    *halves, found = attend_differentially(layer, factor, _wanted(spec, layer))
    everywhere = layer.visibility.whole(layer.query.device).unsqueeze(1).expand(layer.shape)
    tensors: dict[str, Tensor | None] = {}
    statistics: dict[str, Statistic] = {}
    for prefix, half in zip(("", "second_"), halves, strict=True):
        assert half.raw_scores is not None and half.scores is not None
        scores = {f"{prefix}scores": half.raw_scores, f"{prefix}scaled_scores": half.scores}
        statistics |= {name: Numbers(moments(tensor[everywhere])) for name, tensor in scores.items()}
        if spec.explain:
            tensors |= dict(reversed(scores.items())) | {f"{prefix or 'first_'}weights": half.weights}
        else:
            tensors[f"{prefix}scores"] = half.raw_scores
    tensors["weights"] = found.weights
    statistics["differential"] = Numbers({"lambda_init": spec.lambda_init, "lambda": factor})
    statistics |= row_tensors(found, lead, None)
    return SampledAttention(lead.back(found.output), _of_pairs(tensors, lead), statistics)


def _of_pairs(tensors: Mapping[str, Tensor | None], lead: LeadingAxes) -> dict[str, NamedTensor]:
    """Matrices of a number for each query and key."""
    return {name: lead.named(tensor, "query", "key") for name, tensor in tensors.items()}


def _dense(spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes) -> SampledAttention:
    wanted = replace(_wanted(spec, layer), output=True) if spec.softmax else Wanted()
    found = attend(layer, replace(wanted, weights=True, scores=True, score_moments=True))
    weights, output = found.weights, found.output
    assert found.scores is not None and found.raw_scores is not None
    statistics = _score_statistics(spec, layer, lead, found)
    if spec.softmax:
        statistics |= row_tensors(found, lead, layer.rules.softmax_sink)
    else:
        weights = found.scores.masked_fill(found.scores == -torch.inf, 0.0)
        output = weights @ layer.expanded()[1]
    shown = {"scores": found.raw_scores, "weights": weights}
    tensors = _of_pairs({"scaled_scores": found.scores, **shown} if spec.explain else shown, lead)
    notes = () if spec.softmax else (NO_SOFTMAX_NOTE,)
    return SampledAttention(lead.back(output), tensors, statistics, notes)


def _streaming(
    spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes, progress: Progress | None
) -> SampledAttention:
    wanted = replace(_wanted(spec, layer), output=True, score_moments=True, pooled=MAP_SIZE)
    found = attend(layer, wanted, progress)
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


MAX_LOOP_CELLS = 2**16
POSITION_NOTE = "Attention has no notion of position: permuting the tokens only permutes the rows."
CAUSAL_NOTE = "The causal mask is all that attention knows of positions here; an encoder block just drops it."


def _loop_difference(
    spec: SelfSpec, source: Source, output: Float[Tensor, "*batch token dim"]
) -> float | None:
    """The largest difference between the loop form and the matrix form; None where a loop takes too long."""
    *batch, num_tokens, _ = source.vectors.shape
    if num_tokens**2 * (batch[0] if batch else 1) > MAX_LOOP_CELLS:
        return None
    visibility = Visibility(num_tokens, num_tokens, causal=spec.causal, window=spec.window)
    (visible,) = visibility.whole(source.vectors.device)
    looped = attend_by_loop(source.vectors, visible, scale=spec.scale, softmax=spec.softmax)
    return (looped - output).abs().max().item()


def run_self(spec: SelfSpec, texts: Texts, draws: Draws) -> Report:
    """Weights and output of softmax(query key^T scale) value; without projection the loop form as well."""
    (source,) = embed(spec, texts, draws)
    attention = sampled_attention(spec, [source], draws)
    tensors = attention.tensors | {"output": named(attention.output, "query", "dim")}
    statistics = attention.statistics
    notes = []
    variants = set(spec.variants_on())
    if not variants & {*POSITIONS, "window"}:
        notes.append(CAUSAL_NOTE if spec.causal else POSITION_NOTE)
    if spec.batch_size:
        notes.append("Batch items never talk to each other.")
    if spec.projection == "none" and variants - {"window"}:
        notes.append("The loop form stands for attention without variants: it is left out.")
    elif spec.projection == "none":
        difference = _loop_difference(spec, source, attention.output)
        if difference is None:
            notes.append(f"The loop form is left out beyond {MAX_LOOP_CELLS} weights.")
        else:
            statistics["agreement"] = Numbers(loop_vs_matmul=difference)
    return build_report(spec, texts, tensors, statistics, [*notes, *attention.notes])


def _head_note(spec: MultiheadSpec) -> str:
    if spec.num_kv_heads != spec.num_heads:
        shared = spec.num_heads // spec.num_kv_heads
        return f"Each key/value head serves {shared} query heads (grouped-query attention)."
    if spec.projection == "none":
        return "Without projections each head sees a slice of the embedding as query, key and value alike."
    return "Each head has its own query, key and value, so that each can look for something else."


def run_multihead(spec: MultiheadSpec, texts: Texts, draws: Draws) -> Report:
    """Weights (head, query, key), the output of each head, and the heads merged and unified."""
    attention = sampled_attention(spec, embed(spec, texts, draws), draws)
    tensors, merged = attention.tensors, merge_heads(attention.output)
    tensors["head_outputs"] = named(attention.output, "head", "query", "dim")
    output = merged
    if spec.output_projection:
        matrix = draws.draw(sample_linear, spec.embed_dim, merged.shape[-1])
        bias = draws.draw(sample_linear_bias, spec.embed_dim, merged.shape[-1])
        output = merged @ matrix.to(merged.device).mT + bias.to(merged.device).unsqueeze(-2)
        if spec.explain:
            tensors["merged"] = named(merged, "query", "dim")
            tensors["output_projection"] = named(matrix, "dim", "embed")
            tensors["output_bias"] = named(bias, "dim")
    tensors["output"] = named(output, "query", "dim")

    notes = [_head_note(spec)]
    if spec.batch_size:
        notes.append("Batch items never talk to each other.")
    return build_report(spec, texts, tensors, attention.statistics, [*notes, *attention.notes])


def run_cross(spec: CrossSpec, texts: Texts, draws: Draws) -> Report:
    """Weights (query, key) from the sentence's tokens to the context's, and the output for each query."""
    attention = sampled_attention(spec, embed(spec, texts, draws), draws)
    tensors = attention.tensors | {"output": named(attention.output, "query", "dim")}
    note = "Cross-attention takes keys and values from another source: here columns are the context's tokens."
    return build_report(spec, texts, tensors, attention.statistics, [note, *attention.notes])
