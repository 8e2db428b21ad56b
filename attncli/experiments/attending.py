"""One attention by either engine: dense keeps the weights, streaming their exact statistics and maps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from attncli.errors import RunError
from attncli.experiments.attention_report import moments_of_each, named, row_statistics, visible_entries
from attncli.experiments.memory import chosen_engine, readable_bytes, weights_bytes
from attncli.experiments.row_summaries import extreme_rows, quantile_rows
from attncli.mechanisms.heads import repeat_heads
from attncli.mechanisms.masks import causal_mask, full_mask
from attncli.mechanisms.scaled_dot_product import attend, scale_factors
from attncli.report import NamedTensor
from attncli.spec.attention import AttentionSpec
from attncli.statistics.moments import combined_moments
from attncli.streaming import attention_statistics

MAP_SIZE = 64
MAX_ROWS_WHOLE = 1000
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
    progress: Progress | None = None,
) -> Attended:
    """softmax(query key^T scale) value by the spec's engine; `axes` lie between batch and query.

    Key and value may have fewer heads than the query. RunError where scores overflow.
    """
    counts = vectors["query"].shape[-2], vectors["key"].shape[-2]
    if chosen_engine(spec, *counts) == "streaming":
        result = _streaming(spec, vectors, causal, axes, progress)
    else:
        result = _dense(spec, vectors, causal, axes)
    if not result.output.abs().max().isfinite():
        raise RunError(_overflow(spec))
    if "rows" in result.statistics and counts[0] > MAX_ROWS_WHOLE:
        rows = result.statistics["rows"]
        summarised = {name: rows[name] for name in rows if name not in ("top_keys", "top_weights")}
        result.statistics["quantiles"] = quantile_rows(summarised)
        result.statistics["extremes"] = extreme_rows(summarised)
    return result


def _overflow(spec: AttentionSpec) -> str:
    return f"{spec.experiment}: the scores overflow float32: use a smaller scale (got {spec.scale})"


def _dense(
    spec: AttentionSpec, vectors: Mapping[str, Tensor], causal: bool, axes: tuple[str, ...]
) -> Attended:
    query, key, value = vectors["query"], vectors["key"], vectors["value"]
    if axes == ("head",):
        key, value = (repeat_heads(shared, query.shape[-3]) for shared in (key, value))
    mask = causal_mask if causal else full_mask
    visible = mask(query.shape[-2], key.shape[-2]).to(query.device)
    attention = attend(query, key, value, visible, scale=spec.scale, softmax=spec.softmax)
    tensors = {"scaled_scores": named(attention.scaled_scores, *axes, "query", "key")} if spec.explain else {}
    tensors["scores"] = named(attention.scores, *axes, "query", "key")
    tensors["weights"] = named(attention.weights, *axes, "query", "key")
    statistics: dict[str, Any] = {
        name: moments_of_each(spec, visible_entries(scores, visible), axes)
        for name, scores in (("scores", attention.scores), ("scaled_scores", attention.scaled_scores))
    }
    if not spec.softmax:
        return Attended(attention.output, tensors, statistics, (NO_SOFTMAX_NOTE,))
    statistics |= row_statistics(attention.scaled_scores, visible, top_k=spec.top_k, axes=axes)
    return Attended(attention.output, tensors, statistics, ())


def _streaming(
    spec: AttentionSpec,
    vectors: Mapping[str, Tensor],
    causal: bool,
    axes: tuple[str, ...],
    progress: Progress | None,
) -> Attended:
    query, key, value = vectors["query"], vectors["key"], vectors["value"]
    each, product = scale_factors(spec.scale, query.shape[-1])
    factor = each * each * product
    try:
        figures = attention_statistics(
            query,
            key,
            value,
            causal=causal,
            scale=factor,
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
    if spec.top_k:
        rows["top_keys"] = named(figures.top_keys, *axes, "query", "rank")
        rows["top_weights"] = named(figures.top_weights, *axes, "query", "rank")
    assert figures.output is not None and figures.received_mass is not None
    assert figures.pooled_mean is not None and figures.pooled_max is not None
    scaled = combined_moments(
        figures.visible.sum(dim=-1),
        figures.score_mean,
        figures.score_variance,
        figures.score_min,
        figures.score_max,
    )
    statistics = {
        "scores": {
            "mean": scaled["mean"] / factor,
            "variance": scaled["variance"] / factor**2,
            "min": min(scaled["min"] / factor, scaled["max"] / factor),
            "max": max(scaled["min"] / factor, scaled["max"] / factor),
        },
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
