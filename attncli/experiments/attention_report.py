"""What self-, multi-head and cross-attention report alike: named tensors and statistics of the weights."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli import __version__
from attncli.experiments.explained import explained_steps
from attncli.experiments.sources import Source
from attncli.experiments.texts import Texts
from attncli.inputs.projections import Projection
from attncli.report import NamedTensor, Report
from attncli.spec import Spec
from attncli.spec.attention import AttentionSpec
from attncli.statistics import ROW_STATISTICS
from attncli.statistics.concentration import top_keys
from attncli.statistics.sinks import received_mass


def named(tensor: Tensor, *axes: str) -> NamedTensor:
    """A tensor as the report's plain data, its last axes named; axes before them are batches."""
    batch = ("batch",) * (tensor.dim() - len(axes))
    return NamedTensor((*batch, *axes), tensor.numpy(force=True))


def build_report(
    spec: Spec,
    texts: Texts,
    tensors: Mapping[str, NamedTensor],
    statistics: Mapping[str, Any],
    notes: Iterable[str],
) -> Report:
    """A report with the settings and versions that it came from, and its steps where asked to explain."""
    environment = {"attncli": __version__, "torch": torch.__version__}
    settings = spec.model_dump(mode="json", exclude=set(spec.idle_keys()))
    report = Report(
        spec.experiment,
        settings,
        environment,
        texts.tokens,
        texts.context_tokens,
        tensors=tensors,
        statistics=statistics,
        notes=tuple(notes),
    )
    return replace(report, steps=explained_steps(spec, report))


def weight_statistics(
    weights: Float[Tensor, "*batch query key"],
    visible: Bool[Tensor, "query key"],
    *,
    top_k: int,
    axes: tuple[str, ...] = (),
) -> dict[str, dict[str, NamedTensor]]:
    """The statistics of each row of weights and of each key. `axes` are those between batch and query."""
    rows = {
        name: named(statistic(weights, visible), *axes, "query") for name, statistic in ROW_STATISTICS.items()
    }
    if top_k:
        keys, key_weights = top_keys(weights, visible, top_k)
        rows["top_keys"] = named(keys, *axes, "query", "rank")
        rows["top_weights"] = named(key_weights, *axes, "query", "rank")
    return {"rows": rows, "keys": {"received_mass": named(received_mass(weights), *axes, "key")}}


def row_statistics(
    scores: Float[Tensor, "*batch query key"],
    visible: Bool[Tensor, "query key"],
    *,
    top_k: int,
    axes: tuple[str, ...] = (),
) -> dict[str, dict[str, NamedTensor]]:
    """The statistics of each row of weights and of each key, in float64 from the scores that softmax takes.

    Hidden scores are -inf. `axes` are the axes between the batch and the query.
    """
    scores = scores.double()
    statistics = weight_statistics(scores.softmax(dim=-1), visible, top_k=top_k, axes=axes)
    logsumexp = {"logsumexp": named(scores.logsumexp(dim=-1), *axes, "query")}
    rows = statistics["rows"]
    ranks = {name: rows.pop(name) for name in ("top_keys", "top_weights") if name in rows}
    return statistics | {"rows": rows | logsumexp | ranks}


def explained_ids(
    spec: AttentionSpec, source: Source, context: Source | None = None
) -> dict[str, NamedTensor]:
    """The tokens' rows in the vocabulary's table, where there is one and the spec asks to explain."""
    sides = {"token_ids": (source, "token"), "context_token_ids": (context, "key")}
    return {
        name: named(side.token_ids, axis)
        for name, (side, axis) in sides.items()
        if spec.explain and side is not None and side.token_ids is not None
    }


def explained_vectors(
    spec: AttentionSpec, vectors: Mapping[str, Tensor], axes: tuple[str, ...] = ()
) -> dict[str, NamedTensor]:
    """query, key and value, where the spec asks to explain."""
    if not spec.explain:
        return {}
    return {
        name: named(tensor, *axes, "query" if name == "query" else "key", "dim")
        for name, tensor in vectors.items()
    }


def explained_projections(
    spec: AttentionSpec, projections: Mapping[str, Projection]
) -> dict[str, NamedTensor]:
    """The matrices behind query, key and value, in the layout they were drawn in, where asked to explain."""
    if not spec.explain:
        return {}
    return {
        f"{name}_projection": named(projection.matrix, *projection.axes)
        for name, projection in projections.items()
    }
