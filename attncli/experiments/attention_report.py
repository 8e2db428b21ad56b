"""What self-, multi-head and cross-attention report alike: named tensors and statistics of the weights."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli import __version__
from attncli.experiments.explained import explained_steps
from attncli.experiments.sources import Source
from attncli.experiments.texts import Texts
from attncli.inputs.projections import Projection
from attncli.mechanisms.score_rules import PLAIN, ScoreRules
from attncli.report import NamedTensor, Report
from attncli.spec import Spec
from attncli.spec.attention import AttentionSpec
from attncli.spec.text import TextSpec
from attncli.statistics import ROW_STATISTICS
from attncli.statistics.concentration import top_keys
from attncli.statistics.entropy import share_of_most
from attncli.statistics.moments import batch_moments, moments
from attncli.statistics.sinks import outside_mass, received_mass
from attncli.statistics.softmax_rows import softmax_rows


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
    settings = spec.model_dump(mode="json", exclude=set(spec.unsaid_keys()))
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


def has_axis_of_texts(spec: TextSpec, num_dims: int, num_axes: int) -> bool:
    """Whether several texts run together: a batch that the spec itself has not asked for."""
    return spec.batch_size is None and num_dims > num_axes


def visible_entries(
    scores: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch entry"]:
    """The entries that are visible, in order."""
    flat = scores.flatten(-2)
    return flat if visible.all() else flat.index_select(-1, visible.flatten().nonzero()[:, 0])


def moments_of_each(
    spec: TextSpec, numbers: Float[Tensor, "*batch entry"], axes: tuple[str, ...]
) -> dict[str, Any]:
    """The moments of all numbers of a report; where several texts run together, of each text's."""
    if not has_axis_of_texts(spec, numbers.dim(), len(axes) + 1):
        return dict(moments(numbers))
    return {name: named(figure) for name, figure in batch_moments(numbers).items()}


def largest_difference(spec: TextSpec, one: Float[Tensor, "*shape"], other: Float[Tensor, "*shape"]) -> Any:
    """max |one - other|; where several texts run together, of each text. The last axes are token and dim."""
    difference = (one - other).abs()
    if not has_axis_of_texts(spec, difference.dim(), 2):
        return difference.max().item()
    return named(difference.flatten(1).amax(dim=1))


def weight_statistics(
    weights: Float[Tensor, "*batch query key"],
    visible: Bool[Tensor, "query key"],
    *,
    top_k: int,
    axes: tuple[str, ...] = (),
    names: Collection[str] = tuple(ROW_STATISTICS),
    known: Mapping[str, Float[Tensor, "*batch query"]] = MappingProxyType({}),
) -> dict[str, dict[str, NamedTensor]]:
    """The statistics of each row of weights and of each key: those of these names.

    `axes` are those between batch and query. `known` statistics are not computed again.
    """
    ranks = {}
    if top_k:
        keys, key_weights = top_keys(weights, visible, top_k)
        ranks["top_keys"] = named(keys, *axes, "query", "rank")
        ranks["top_weights"] = named(key_weights, *axes, "query", "rank")
        known = {**known, "max_weight": key_weights[..., 0]}
    rows = {
        name: named(known[name] if name in known else ROW_STATISTICS[name](weights, visible), *axes, "query")
        for name in names
    }
    return {"rows": rows | ranks, "keys": {"received_mass": named(received_mass(weights), *axes, "key")}}


def row_statistics(
    scores: Float[Tensor, "*batch query key"],
    visible: Bool[Tensor, "query key"],
    *,
    top_k: int,
    axes: tuple[str, ...] = (),
    rules: ScoreRules = PLAIN,
) -> dict[str, dict[str, NamedTensor]]:
    """The statistics of each row of weights and of each key, in float64 from the scores that softmax takes.

    Hidden scores are -inf. `axes` are the axes between the batch and the query. A sink is in logsumexp and is
    no key; the weight that it takes is outside_mass.
    """
    scores = scores.double()
    totals: dict[str, NamedTensor] = {}
    known: dict[str, Tensor] = {}
    sink = rules.softmax_sink
    if sink is None:
        softmax = softmax_rows(scores)
        weights, total = softmax.weights, softmax.logsumexp
        known["entropy"] = softmax.entropy
        known["normalized_entropy"] = share_of_most(softmax.entropy, visible)
    else:
        weights, total = rules.weights(scores), rules.logsumexp(scores)
        totals["outside_mass"] = named(outside_mass(total, sink), *axes, "query")
    totals = {"logsumexp": named(total, *axes, "query")} | totals
    statistics = weight_statistics(weights, visible, top_k=top_k, axes=axes, known=known)
    rows = statistics["rows"]
    ranks = {name: rows.pop(name) for name in ("top_keys", "top_weights") if name in rows}
    return statistics | {"rows": rows | totals | ranks}


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
