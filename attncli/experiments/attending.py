"""One attention by either engine: dense keeps the weights, streaming their exact statistics and maps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from attncli.errors import RunError
from attncli.experiments.attention_report import moments_of_each, named, row_statistics, visible_entries
from attncli.experiments.differential import differential_figures
from attncli.experiments.memory import chosen_engine, readable_bytes, weights_bytes
from attncli.experiments.row_summaries import with_summaries
from attncli.experiments.variants import (
    NOTHING_DRAWN,
    VariantParameters,
    explained_variants,
    factor_of_second,
    meeting,
    score_rules,
    variant_notes,
    window_of,
)
from attncli.mechanisms.heads import repeat_heads
from attncli.mechanisms.masks import visible_keys
from attncli.mechanisms.scaled_dot_product import attend, scale_factors
from attncli.mechanisms.score_rules import ScoreRules
from attncli.report import NamedTensor
from attncli.spec.attention import AttentionSpec
from attncli.statistics.moments import combined_moments
from attncli.statistics.sinks import outside_mass
from attncli.streaming import AttentionStatistics, attention_statistics

MAP_SIZE = 64
LARGEST_FLOAT32 = 3.4e38
LEAST_FACTOR = 1e-20
"""Scores that were multiplied by less cannot be had back from float32."""
NO_SOFTMAX_NOTE = "Without softmax a row of weights is no distribution: it has no row statistics."
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Attended:
    """The output, the tensors that the engine kept, the statistics, and what is worth a note."""

    output: Float[Tensor, "*batch query value_dim"]
    tensors: dict[str, NamedTensor]
    statistics: dict[str, Any]
    notes: tuple[str, ...]


def attended(
    spec: AttentionSpec,
    vectors: Mapping[str, Float[Tensor, "..."]],
    *,
    causal: bool = False,
    axes: tuple[str, ...] = (),
    drawn: VariantParameters = NOTHING_DRAWN,
    progress: Progress | None = None,
) -> Attended:
    """softmax(query key^T scale) value by the spec's engine, with its variants.

    `axes` lie between batch and query; `drawn` is what the variants drew. Key and value may have fewer heads
    than the query. RunError where scores overflow.
    """
    counts = vectors["query"].shape[-2], vectors["key"].shape[-2]
    rules = score_rules(spec, drawn, vectors["query"])
    if rules.softmax_sink is not None and rules.softmax_sink.abs() > LARGEST_FLOAT32:
        given = f"got sink {spec.sink:g}, temperature {spec.temperature:g}"
        raise RunError(
            f"{spec.experiment}: sink / temperature overflows float32: use a smaller sink ({given})"
        )
    met = meeting(spec, vectors)
    if chosen_engine(spec, *counts) == "streaming":
        result = _streaming(spec, met, rules, causal, axes, progress)
    else:
        shared = _repeated(met, axes)
        visible = visible_keys(*counts, causal=causal, window=window_of(spec)).to(met["query"].device)
        if spec.differential:
            factor = factor_of_second(spec, drawn)
            result = Attended(*differential_figures(spec, shared, visible, rules, axes, factor), ())
        else:
            result = _dense(spec, shared, visible, rules, axes)
    explained = explained_variants(spec, vectors, drawn, rules, axes)
    notes = (*variant_notes(spec), *result.notes)
    result = replace(result, tensors=explained | result.tensors, notes=notes)
    if not result.output.abs().max().isfinite():
        raise RunError(_overflow(spec))
    return replace(result, statistics=with_summaries(result.statistics, counts[0]))


def _overflow(spec: AttentionSpec) -> str:
    message = f"{spec.experiment}: the scores overflow float32: use a smaller scale (got {spec.scale})"
    hotter = f" or a larger temperature (got {spec.temperature:g})"
    return message if spec.temperature == 1 else message + hotter


def _repeated(vectors: Mapping[str, Tensor], axes: tuple[str, ...]) -> dict[str, Tensor]:
    """Query, key and value with as many heads each."""
    if axes != ("head",):
        return dict(vectors)
    num_heads = vectors["query"].shape[-3]
    return {
        name: tensor if name == "query" else repeat_heads(tensor, num_heads)
        for name, tensor in vectors.items()
    }


def _dense(
    spec: AttentionSpec,
    vectors: Mapping[str, Tensor],
    visible: Bool[Tensor, "query key"],
    rules: ScoreRules,
    axes: tuple[str, ...],
) -> Attended:
    query, key, value = vectors["query"], vectors["key"], vectors["value"]
    attention = attend(query, key, value, visible, scale=spec.scale, softmax=spec.softmax, rules=rules)
    tensors = {"scaled_scores": named(attention.scaled_scores, *axes, "query", "key")} if spec.explain else {}
    tensors["scores"] = named(attention.scores, *axes, "query", "key")
    tensors["weights"] = named(attention.weights, *axes, "query", "key")
    statistics: dict[str, Any] = {
        name: moments_of_each(spec, visible_entries(scores, visible), axes)
        for name, scores in (("scores", attention.scores), ("scaled_scores", attention.scaled_scores))
    }
    if not spec.softmax:
        return Attended(attention.output, tensors, statistics, (NO_SOFTMAX_NOTE,))
    statistics |= row_statistics(attention.scaled_scores, visible, top_k=spec.top_k, axes=axes, rules=rules)
    return Attended(attention.output, tensors, statistics, ())


def _streaming(
    spec: AttentionSpec,
    vectors: Mapping[str, Tensor],
    rules: ScoreRules,
    causal: bool,
    axes: tuple[str, ...],
    progress: Progress | None,
) -> Attended:
    query, key, value = vectors["query"], vectors["key"], vectors["value"]
    each, product = scale_factors(spec.scale, query.shape[-1])
    factor = each * each * product
    try:
        # Temperature divides capped scores: c tanh(s / c) / T is (c / T) tanh((s / T) / (c / T)).
        figures = attention_statistics(
            query,
            key,
            value,
            causal=causal,
            window=window_of(spec),
            scale=factor / rules.temperature,
            softcap=None if rules.softcap is None else rules.softcap / rules.temperature,
            sink=rules.softmax_sink,
            top_k=min(spec.top_k, key.shape[-2]),
            keys=True,
            pooled=MAP_SIZE,
            progress=progress,
        )
    except ValueError as error:
        raise RunError(f"{_overflow(spec)}: {error}") from None
    names = (
        "entropy",
        "normalized_entropy",
        "max_weight",
        "sink_mass",
        "distance",
        "participation",
        "logsumexp",
    )
    rows = {name: named(getattr(figures, name), *axes, "query") for name in names}
    if rules.softmax_sink is not None:
        rows["outside_mass"] = named(outside_mass(figures.logsumexp, rules.softmax_sink), *axes, "query")
    if spec.top_k:
        rows["top_keys"] = named(figures.top_keys, *axes, "query", "rank")
        rows["top_weights"] = named(figures.top_weights, *axes, "query", "rank")
    assert figures.output is not None and figures.received_mass is not None
    assert figures.pooled_mean is not None and figures.pooled_max is not None
    scaled = _score_moments(figures)
    total_factor = factor / rules.temperature
    if rules.softcap is not None or abs(total_factor) < LEAST_FACTOR:
        # What was capped, or too small for float32, is lost: the moments before it take a pass of their own.
        unscaled = _score_moments(
            attention_statistics(query, key, causal=causal, window=window_of(spec), scale=1.0)
        )
    else:
        unscaled = _divided(scaled, total_factor)
    statistics = {
        "scores": unscaled,
        "scaled_scores": scaled,
        "rows": rows,
        "keys": {"received_mass": named(figures.received_mass, *axes, "key")},
    }
    blocks = (*axes, "query_block", "key_block")
    tensors = {
        "pooled_mean": named(figures.pooled_mean, *blocks),
        "pooled_max": named(figures.pooled_max, *blocks),
    }
    size = readable_bytes(weights_bytes(spec, query.shape[-2], key.shape[-2]))
    note = (
        f"Streamed: the weights would take {size}. The statistics are exact; the maps show blocks of weights."
    )
    return Attended(figures.output, tensors, statistics, (note,))


def _score_moments(figures: AttentionStatistics) -> dict[str, float]:
    """The moments of the scores of all batches and heads together."""
    return combined_moments(
        figures.visible.sum(dim=-1),
        figures.score_mean,
        figures.score_variance,
        figures.score_min,
        figures.score_max,
    )


def _divided(figures: Mapping[str, float], factor: float) -> dict[str, float]:
    """The moments of numbers that were multiplied by a factor, of either sign, before it."""
    ends = figures["min"] / factor, figures["max"] / factor
    variance = figures["variance"] / factor**2
    return {"mean": figures["mean"] / factor, "variance": variance, "min": min(ends), "max": max(ends)}
