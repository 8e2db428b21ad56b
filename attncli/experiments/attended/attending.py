"""One attention in a report: its matrix or, where that is too large, exact statistics and maps of blocks."""

from collections.abc import Callable, Mapping
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
from attncli.experiments.attended.differential import attend_differentially
from attncli.experiments.attended.row_summaries import with_summaries
from attncli.experiments.attended.variants import (
    NOTHING_DRAWN,
    VariantParameters,
    explained_variants,
    factor_of_second,
    meeting,
    score_rules,
    variant_notes,
    window_of,
)
from attncli.experiments.attention_report import LeadingAxes, named, row_tensors
from attncli.mechanisms.scaling import scale_factors
from attncli.memory import readable_bytes
from attncli.report import NamedTensor, Numbers, Statistic, Tensors
from attncli.spec.attention import AttentionSpec
from attncli.statistics.moments import merged_moments

LARGEST_FLOAT32 = 3.4e38
LEAST_FACTOR = 1e-20
"""Scores that were multiplied by less cannot be had back from float32."""
NO_SOFTMAX_NOTE = "Without softmax a row of weights is not a distribution: it has no row statistics."
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Attended:
    """The output, the tensors that the report keeps, the statistics, and what is worth a note."""

    output: Float[Tensor, "*batch query value_dim"]
    tensors: dict[str, NamedTensor]
    statistics: dict[str, Statistic]
    notes: tuple[str, ...] = ()


def attended(
    spec: AttentionSpec,
    vectors: Mapping[str, Float[Tensor, "..."]],
    *,
    causal: bool = False,
    axes: tuple[str, ...] = (),
    drawn: VariantParameters = NOTHING_DRAWN,
    progress: Progress | None = None,
) -> Attended:
    """softmax(query key^T scale) value as the spec asks for it, with its variants.

    `axes` lie between batch and query; `drawn` is what the variants drew. Key and value may have fewer heads
    than the query. RunError where scores overflow.
    """
    counts = vectors["query"].shape[-2], vectors["key"].shape[-2]
    lead = LeadingAxes.of(vectors["query"], axes)
    layer = _layer(spec, meeting(spec, vectors), lead, causal, drawn)
    if spec.chosen_engine(*counts) == "streaming":
        result = _streaming(spec, layer, lead, progress)
    elif spec.differential:
        factor = factor_of_second(spec, drawn)
        result = Attended(*attend_differentially(spec, layer, lead, factor))
    else:
        result = _dense(spec, layer, lead)
    explained = explained_variants(spec, vectors, drawn, layer.rules, axes)
    notes = (*variant_notes(spec), *result.notes)
    result = replace(result, tensors=explained | result.tensors, notes=notes)
    if not result.output.abs().max().isfinite():
        raise RunError(_overflow(spec))
    return replace(result, statistics=with_summaries(result.statistics, counts[0]))


def _layer(
    spec: AttentionSpec,
    met: Mapping[str, Tensor],
    lead: LeadingAxes,
    causal: bool,
    drawn: VariantParameters,
) -> AttentionLayer:
    """The layer of these vectors: fourth-root scales query and key each, any other scale their product."""
    rules = score_rules(spec, drawn, met["query"])
    sink = rules.softmax_sink
    if sink is not None and sink.abs() > LARGEST_FLOAT32:
        given = f"got sink {spec.sink:g}, temperature {spec.temperature:g}"
        raise RunError(
            f"{spec.experiment}: sink / temperature overflows float32: use a smaller sink ({given})"
        )
    query, key, value = (lead.layered(met[name]) for name in ("query", "key", "value"))
    head_dim = query.shape[-1] // (2 if spec.differential else 1)
    each, product = scale_factors(spec.scale, head_dim)
    window = window_of(spec)
    visibility = Visibility(query.shape[-2], key.shape[-2], causal=causal, window=window)
    return AttentionLayer(query, key, value, visibility, each * each * product, rules)


def _overflow(spec: AttentionSpec) -> str:
    message = f"{spec.experiment}: the scores overflow float32: use a smaller scale (got {spec.scale})"
    hotter = f" or a larger temperature (got {spec.temperature:g})"
    return message if spec.temperature == 1 else message + hotter


def _dense(spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes) -> Attended:
    wanted = Wanted(weights=True, scores=True, score_moments=True)
    if spec.softmax:
        wanted = replace(
            wanted,
            rows=spec.measured_of_rows(),
            top_k=min(spec.top_k, layer.shape[3]),
            output=True,
            received_mass=True,
        )
    found = attend(layer, wanted)
    weights, output = found.weights, found.output
    assert found.scores is not None and found.raw_scores is not None
    if not spec.softmax:
        weights = found.scores.masked_fill(found.scores == -torch.inf, 0.0)
        output = weights @ layer.expanded()[1]
    shown = {"scores": found.raw_scores, "weights": weights}
    tensors = {"scaled_scores": found.scores, **shown} if spec.explain else shown
    named = {name: lead.named(tensor, "query", "key") for name, tensor in tensors.items()}
    statistics = score_statistics(spec, layer, lead, found)
    notes: tuple[str, ...] = () if spec.softmax else (NO_SOFTMAX_NOTE,)
    if spec.softmax:
        statistics |= row_tensors(found, lead, layer.rules.softmax_sink)
    return Attended(lead.back(output), named, statistics, notes)


def _streaming(
    spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes, progress: Progress | None
) -> Attended:
    wanted = Wanted(
        rows=spec.measured_of_rows(),
        top_k=min(spec.top_k, layer.shape[3]),
        output=True,
        score_moments=True,
        received_mass=True,
        pooled=MAP_SIZE,
    )
    found = attend(layer, wanted, progress)
    maps = {"pooled_mean": found.pooled_mean, "pooled_max": found.pooled_max}
    tensors = {name: lead.named(tensor, "query_block", "key_block") for name, tensor in maps.items()}
    statistics = score_statistics(spec, layer, lead, found) | row_tensors(
        found, lead, layer.rules.softmax_sink
    )
    size = readable_bytes(4 * spec.num_weights(*layer.shape[2:]))
    note = (
        f"Streamed: the weights would take {size}. The statistics are exact; the maps show blocks of weights."
    )
    return Attended(lead.back(found.output), tensors, statistics, (note,))


def score_statistics(
    spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes, found: Computed
) -> dict[str, Statistic]:
    """The moments of all heads' scores before and after scaling; of each text where several run together."""
    assert found.moments is not None and found.visible is not None
    factor = layer.scale / layer.rules.temperature
    if layer.rules.is_plain and abs(factor) >= LEAST_FACTOR:
        raw = _divided(found.moments, factor)
    else:
        # What was capped, or too small for float32, is lost: the moments before it take a pass of their own.
        unscaled = attend(replace(layer, scale=1.0, rules=PLAIN), Wanted(score_moments=True)).moments
        assert unscaled is not None
        raw = unscaled
    counts = found.visible.sum(dim=-1, keepdim=True).expand_as(raw.mean)
    by_text = lead.has_batch and spec.batch_size is None
    return {
        name: _of_all_heads(moments, counts, by_text=by_text)
        for name, moments in (("scores", raw), ("scaled_scores", found.moments))
    }


def _of_all_heads(moments: Moments, counts: Tensor, *, by_text: bool) -> Statistic:
    squares = moments.variance * (counts - 1)
    parts = (counts, moments.mean, squares, moments.smallest, moments.largest)
    if by_text:
        merged = merged_moments(*parts)
        return Tensors({name: named(tensor) for name, tensor in merged.items()})
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
