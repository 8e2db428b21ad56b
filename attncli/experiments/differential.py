"""Differential attention in a report: two softmaxes, and the statistics that their difference has."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from attncli.experiments.attention_report import named, weight_statistics
from attncli.mechanisms.differential import attend_differentially
from attncli.mechanisms.score_rules import ScoreRules
from attncli.report import NamedTensor
from attncli.spec.attention import AttentionSpec
from attncli.statistics.moments import moments

SIGNED_ROW_STATISTICS = ("max_weight", "sink_mass")
"""The statistics of a row that need no distribution."""


def differential_figures(
    spec: AttentionSpec,
    vectors: Mapping[str, Float[Tensor, "..."]],
    visible: Bool[Tensor, "query key"],
    rules: ScoreRules,
    axes: tuple[str, ...],
    factor: float,
) -> tuple[Tensor, dict[str, NamedTensor], dict[str, Any]]:
    """The output, the tensors of both halves and of the whole, and the statistics; `factor` is lambda.

    scores and scaled_scores are those of the first half, second_scores and second_scaled_scores the other's.
    """
    query, key, value = vectors["query"], vectors["key"], vectors["value"]
    attention = attend_differentially(
        query, key, value, visible, factor=factor, scale=spec.scale, rules=rules
    )
    halves = {"": attention.first, "second_": attention.second}
    tensors = {}
    statistics: dict[str, Any] = {}
    for prefix, half in halves.items():
        if spec.explain:
            tensors[f"{prefix}scaled_scores"] = named(half.scaled_scores, *axes, "query", "key")
        tensors[f"{prefix}scores"] = named(half.scores, *axes, "query", "key")
        if spec.explain:
            name = f"{prefix or 'first_'}weights"
            tensors[name] = named(half.weights, *axes, "query", "key")
        statistics[f"{prefix}scores"] = moments(half.scores[..., visible])
        statistics[f"{prefix}scaled_scores"] = moments(half.scaled_scores[..., visible])
    tensors["weights"] = named(attention.weights, *axes, "query", "key")
    statistics["differential"] = {"lambda_init": spec.lambda_init, "lambda": factor}
    first, second = (rules.weights(half.scaled_scores.double()) for half in halves.values())
    statistics |= weight_statistics(
        first - factor * second, visible, top_k=spec.top_k, axes=axes, names=SIGNED_ROW_STATISTICS
    )
    return attention.output, tensors, statistics
