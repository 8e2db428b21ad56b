"""Reports of self-, multi-head and cross-attention with sampled weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import MAP_SIZE, AttentionLayer, Moments, merge_heads
from attncli.core.mechanisms import alibi_slopes
from attncli.core.summaries import merged_moments, moments
from attncli.errors import RunError, readable_bytes
from attncli.features.attention.settings import (
    POSITIONS,
    AttentionSpec,
    CrossSpec,
    MultiheadSpec,
    PositionSpec,
    SelfSpec,
)
from attncli.measure.masks import block_mask, layer_mask, scale_of
from attncli.records.attention import UNSCALED, LambdaFactor, LayerStatistics, LoopDifferences, ScoreMoments
from attncli.records.columns import Records
from attncli.records.report import NamedTensor, Report, Step
from attncli.runs.report_parts import build_report, named
from attncli.runs.runner import embedded
from attncli.runs.weight_rows import LeadingAxes, RowTensors, row_summaries, row_tensors
from attncli.settings.pages import SampledPage
from attncli.settings.text import Texts, explained_token
from attncli.toys.attention import (
    MAX_LOOP_CELLS,
    AttentionForm,
    NamedVectors,
    SampledAttention,
    loop_difference,
    project,
    sampled_attention,
    unify,
)
from attncli.toys.sampling import Draws, Source

POSITION_NOTE = "Attention has no notion of position: permuting the tokens only permutes the rows."
CAUSAL_NOTE = "Here positions matter only through the causal mask; an encoder block has no such mask."
BATCH_NOTE = "Batch items never exchange information."
NO_SOFTMAX_NOTE = "Without a softmax, a row of weights is not a distribution, so it has no row statistics."


def attention_form(spec: AttentionSpec) -> AttentionForm:
    """The form of attention that a Spec describes, as plain values."""
    form = AttentionForm(
        scale=spec.scale,
        softmax=spec.softmax,
        qk_norm_eps=spec.qk_norm_eps if spec.qk_norm else None,
        softcap=spec.softcap,
        temperature=spec.temperature,
        sink=spec.sink,
        lambda_init=spec.lambda_init if spec.differential else None,
    )
    positions = spec.positions()
    if positions is None:
        return form
    return replace(
        form,
        causal=positions.causal,
        window=positions.window,
        rope_base=positions.rope_base if positions.rope else None,
        alibi=positions.alibi,
        num_buckets=positions.num_buckets if positions.relative_bias else None,
        max_distance=positions.max_distance,
    )


def steps(spec: SelfSpec | MultiheadSpec | CrossSpec, report: Report) -> tuple[Step, ...]:
    """Explain the computation step by step."""
    from attncli.toys.explained_attention import attention_steps

    return attention_steps(
        report,
        attention_form(spec),
        projection=spec.projection,
        token=explained_token(spec.token, report.tokens),
        head=spec.head if isinstance(spec, MultiheadSpec) else None,
        embedding=spec.embedding,
        is_sampled=spec.num_tokens is not None,
        is_batched=spec.batch_size is not None,
    )


@dataclass(frozen=True)
class AttentionParts:
    """The output of attention, and the tensors, statistics and notes of its report."""

    output: Float[Tensor, "*batch query value_dim"]
    tensors: dict[str, NamedTensor]
    statistics: LayerStatistics
    notes: tuple[str, ...] = ()


def _attention(spec: AttentionSpec, sources: Sequence[Source], draws: Draws) -> AttentionParts:
    """Compute attention from the first source to the last; its tensors begin with the inputs."""
    vectors, projections = project(
        sources,
        draws,
        projection=spec.projection,
        order=spec.projection_order,
        sizes=spec.projection_sizes(),
    )
    parts = attention_parts(spec, vectors, draws)
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
            tensors[name] = named(tensor, *_head_axes(spec), "query" if name == "query" else "key", "dim")
    return replace(parts, tensors=tensors | parts.tensors)


def _head_axes(spec: AttentionSpec) -> tuple[str, ...]:
    return ("head",) if spec.shows_all_heads else ()


def attention_parts(spec: AttentionSpec, vectors: NamedVectors, draws: Draws) -> AttentionParts:
    """softmax(query key^T scale) value, with the variants of the spec."""
    query, key = (vectors[name] for name in ("query", "key"))
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    lead = LeadingAxes.of(query, has_head=spec.shows_all_heads)
    is_streamed = spec.chosen_engine(num_queries, num_keys) == "streaming"
    try:
        attention = sampled_attention(
            {name: lead.layered(tensor) for name, tensor in vectors.items()},
            attention_form(spec),
            draws,
            rows=spec.weight_statistics(),
            top_k=spec.top_k,
            is_streamed=is_streamed,
        )
    except RunError as error:
        raise RunError(*(f"{spec.experiment}: {line}" for line in error.lines)) from None
    notes = [*_variant_notes(spec)]
    if attention.halves:
        tensors = _half_matrices(spec, attention, lead)
        statistics = _half_moments(spec, attention)
    else:
        tensors = _streamed_maps(attention, lead) if is_streamed else _matrices(spec, attention, lead)
        statistics = _score_statistics(spec, attention, lead)
    if is_streamed:
        size = readable_bytes(4 * spec.num_weights(num_queries, num_keys))
        notes.append(
            f"Streamed: the weights would take {size}. "
            "The statistics are exact; the maps show blocks of weights."
        )
    measured = RowTensors()
    if spec.softmax:
        sink = None if attention.halves else attention.layer.rules.softmax_sink
        measured = row_tensors(attention.computed, lead, sink)
    else:
        notes.append(NO_SOFTMAX_NOTE)
    summaries = row_summaries(measured.rows, num_queries)
    return AttentionParts(
        lead.back(attention.output),
        (_explained_tensors(spec, vectors, attention, lead) if spec.explain else {}) | tensors,
        replace(statistics, **measured._asdict(), **summaries._asdict()),
        tuple(notes),
    )


def _explained_tensors(
    spec: AttentionSpec, before: NamedVectors, attention: SampledAttention, lead: LeadingAxes
) -> dict[str, NamedTensor]:
    """The parameters of the variants, and the query and key before and after the variants."""
    axes, tensors = _head_axes(spec), {}
    if {"qk_norm", "rope"} & set(spec.variants_on()):
        for name, after in (("query", attention.layer.query), ("key", attention.layer.key)):
            tensors[f"projected_{name}"] = named(before[name], *axes, name, "dim")
            tensors[name] = lead.named(after, name, "dim")
    table, rules = attention.parameters.bias_table, attention.layer.rules
    if table is not None:
        tensors |= {"bias_table": named(table if axes else table[0], *axes, "bucket")}
    if rules.bias is not None:
        tensors |= {"bias": named(rules.bias[0] if axes else rules.bias[0, 0], *axes, "query", "key")}
    if attention.parameters.lambda_vectors is not None:
        tensors |= {"lambda_vectors": named(attention.parameters.lambda_vectors, "vector", "dim")}
    return tensors


def _named_matrices(
    tensors: Mapping[str, Tensor | None], layer: AttentionLayer, lead: LeadingAxes
) -> dict[str, NamedTensor]:
    """Name the axes of query-key matrices, and attach the mask to them and the scale to the scores."""
    mask, scale = layer_mask(layer), scale_of(layer)
    return {
        name: lead.named(tensor, "query", "key", mask=mask, scale=scale if name in UNSCALED else None)
        for name, tensor in tensors.items()
    }


def _matrices(spec: AttentionSpec, attention: SampledAttention, lead: LeadingAxes) -> dict[str, NamedTensor]:
    computed = attention.computed
    matrices = {"scores": computed.raw_scores, "weights": computed.weights}
    explained = {"scaled_scores": computed.scores} if spec.explain else {}
    return _named_matrices(explained | matrices, attention.layer, lead)


def _streamed_maps(attention: SampledAttention, lead: LeadingAxes) -> dict[str, NamedTensor]:
    maps = {"pooled_mean": attention.computed.pooled_mean, "pooled_max": attention.computed.pooled_max}
    mask = block_mask(attention.layer, MAP_SIZE)
    return {name: lead.named(tensor, "query_block", "key_block", mask=mask) for name, tensor in maps.items()}


def _half_matrices(
    spec: AttentionSpec, attention: SampledAttention, lead: LeadingAxes
) -> dict[str, NamedTensor]:
    """The matrices of differential attention; the names of the second half begin with `second_`."""
    tensors: dict[str, Tensor | None] = {}
    for prefix, half in zip(("", "second_"), attention.halves, strict=True):
        if spec.explain:
            tensors |= {f"{prefix}scaled_scores": half.scores, f"{prefix}scores": half.raw_scores}
            tensors |= {f"{prefix or 'first_'}weights": half.weights}
        else:
            tensors |= {f"{prefix}scores": half.raw_scores}
    return _named_matrices(tensors | {"weights": attention.computed.weights}, attention.layer, lead)


def _half_moments(spec: AttentionSpec, attention: SampledAttention) -> LayerStatistics:
    layer = attention.layer
    everywhere = layer.visibility.whole(layer.query.device).unsqueeze(1).expand(layer.shape)

    def visible_moments(scores: Tensor | None) -> ScoreMoments:
        assert scores is not None
        return ScoreMoments.single(**moments(scores[everywhere]))

    first, second = attention.halves
    return LayerStatistics(
        scores=visible_moments(first.raw_scores),
        scaled_scores=visible_moments(first.scores),
        second_scores=visible_moments(second.raw_scores),
        second_scaled_scores=visible_moments(second.scores),
        differential=LambdaFactor.single(**{"lambda_init": spec.lambda_init, "lambda": attention.factor}),
    )


def _score_statistics(spec: AttentionSpec, attention: SampledAttention, lead: LeadingAxes) -> LayerStatistics:
    """Score moments of all heads before and after scaling; one row per text if several texts run together."""
    computed, raw = attention.computed, attention.raw_moments
    assert computed.moments is not None and computed.visible is not None and raw is not None
    counts = computed.visible.sum(dim=-1, keepdim=True).expand_as(raw.mean)
    by_text = lead.has_batch and spec.batch_size is None
    return LayerStatistics(
        scores=_moments_over_heads(raw, counts, by_text=by_text),
        scaled_scores=_moments_over_heads(computed.moments, counts, by_text=by_text),
    )


def _moments_over_heads(
    moments: Moments, counts: Tensor, *, by_text: bool
) -> ScoreMoments | Records[ScoreMoments]:
    squares = moments.variance * (counts - 1)
    parts = (counts, moments.mean, squares, moments.smallest, moments.largest)
    if by_text:
        per_text = merged_moments(*parts)
        return ScoreMoments.table(**{name: tensor.numpy(force=True) for name, tensor in per_text.items()})
    merged = merged_moments(*(part.flatten() for part in parts))
    return ScoreMoments.single(**{name: tensor.item() for name, tensor in merged.items()})


def _variant_notes(spec: AttentionSpec) -> Iterator[str]:
    """Yield one line per active variant about its effect on the numbers above."""
    on = spec.variants_on()
    if positions := spec.positions():
        yield from _position_notes(positions, spec.query_heads())
    if "qk_norm" in on:
        yield "Query and key have a root mean square of one, so scores cannot grow with their lengths."
    if "softcap" in on:
        yield f"Scaled scores are capped: they stay between -{spec.softcap:g} and {spec.softcap:g}."
    if "temperature" in on:
        how = "flatter" if spec.temperature > 1 else "sharper"
        yield f"Temperature {spec.temperature:g} divides all inputs of the softmax: rows become {how}."
    if "sink" in on:
        yield "A sink outside the keys takes outside_mass of each row, so the rows sum to less than one."
    if "differential" in on:
        yield (
            "Differential attention: a row sums to 1 - lambda and may have negative weights, so it is not a "
            "distribution. Entropy, distance and similar statistics are left out."
        )


def _position_notes(spec: PositionSpec, num_heads: int) -> Iterator[str]:
    if spec.rope:
        yield "Rotary positions: a score depends on positions only through the distance between the tokens."
    if spec.alibi:
        slopes = [f"{slope:.3g}" for slope in alibi_slopes(num_heads).tolist()]
        listed = f"slope {slopes[0]}" if len(slopes) == 1 else f"slopes {', '.join(slopes)}"
        yield f"ALiBi: each score is reduced by its head's slope times the distance in tokens ({listed})."
    if spec.relative_bias:
        yield "Relative bias: a bias by distance is added to each score (sampled here, learned in a model)."
    if spec.window is not None:
        seen = f"the last {spec.window} keys" if spec.causal else f"keys less than {spec.window} tokens away"
        seen = "only its own key" if spec.window == 1 else seen
        yield f"Sliding window: a query sees {seen}; information from farther away needs more layers."


def run_self(spec: SelfSpec, texts: Texts, draws: Draws) -> Report:
    """Report softmax(query key^T scale) value and its weights; without projections, compare with a loop."""
    (source,) = embedded(spec, texts, draws)
    attention = _attention(spec, [source], draws)
    tensors = attention.tensors | {"output": named(attention.output, "query", "dim")}
    statistics = attention.statistics
    notes = []
    variants = set(spec.variants_on())
    if not variants & {*POSITIONS, "window"}:
        notes.append(CAUSAL_NOTE if spec.causal else POSITION_NOTE)
    if spec.batch_size:
        notes.append(BATCH_NOTE)
    if spec.projection == "none" and variants - {"window"}:
        notes.append("The loop form is omitted because it does not support variants.")
    elif spec.projection == "none":
        difference = loop_difference(attention_form(spec), source.vectors, attention.output)
        if difference is None:
            notes.append(f"The loop form is omitted for more than {MAX_LOOP_CELLS} weights.")
        else:
            statistics = replace(statistics, agreement=LoopDifferences.single(loop_vs_matmul=difference))
    return build_report(spec, texts, tensors, statistics, [*notes, *attention.notes])


def _head_note(spec: MultiheadSpec) -> str:
    if spec.num_kv_heads != spec.num_heads:
        shared = spec.num_heads // spec.num_kv_heads
        return f"Each key/value head serves {shared} query heads (grouped-query attention)."
    if spec.projection == "none":
        return "Without projections, each head uses a slice of the embedding as its query, key and value."
    return "Each head has its own query, key and value, so each can look for something different."


def run_multihead(spec: MultiheadSpec, texts: Texts, draws: Draws) -> Report:
    """Report the weights (head, query, key), the output of each head, and the merged and unified outputs."""
    attention = _attention(spec, embedded(spec, texts, draws), draws)
    merged = merge_heads(attention.output)
    tensors = attention.tensors | {"head_outputs": named(attention.output, "head", "query", "dim")}
    output = merged
    if spec.output_projection:
        unified = unify(merged, spec.embed_dim, draws)
        output = unified.output
        if spec.explain:
            tensors |= {
                "merged": named(merged, "query", "dim"),
                "output_projection": named(unified.matrix, "dim", "embed"),
                "output_bias": named(unified.bias, "dim"),
            }
    tensors |= {"output": named(output, "query", "dim")}
    notes = [_head_note(spec), *([BATCH_NOTE] if spec.batch_size else []), *attention.notes]
    return build_report(spec, texts, tensors, attention.statistics, notes)


def run_cross(spec: CrossSpec, texts: Texts, draws: Draws) -> Report:
    """Report the weights (query, key) from sentence tokens to context tokens, and each query's output."""
    attention = _attention(spec, embedded(spec, texts, draws), draws)
    tensors = attention.tensors | {"output": named(attention.output, "query", "dim")}
    note = "Cross-attention takes keys and values from another source: the columns are the context's tokens."
    return build_report(spec, texts, tensors, attention.statistics, [note, *attention.notes])


SELF = SampledPage(run=run_self, steps=steps)
MULTIHEAD = SampledPage(run=run_multihead, steps=steps)
CROSS = SampledPage(run=run_cross, steps=steps)
