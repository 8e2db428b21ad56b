"""Differential attention in a report: two softmaxes, and the statistics that their difference has."""

from dataclasses import replace

from torch import Tensor

from attncli.attention.engines import attend
from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted
from attncli.experiments.attention_report import LeadingAxes, row_tensors
from attncli.report import NamedTensor, Numbers, Statistic
from attncli.spec.attention import AttentionSpec
from attncli.statistics.moments import moments


def attend_differentially(
    spec: AttentionSpec, layer: AttentionLayer, lead: LeadingAxes, factor: float
) -> tuple[Tensor, dict[str, NamedTensor], dict[str, Statistic]]:
    """The output, the tensors of both halves and of the whole, and the statistics; `factor` is lambda.

    scores and scaled_scores are those of the first half, second_scores and second_scaled_scores the other's.
    """
    halves = zip(layer.query.chunk(2, dim=-1), layer.key.chunk(2, dim=-1), strict=True)
    both = [replace(layer, query=query, key=key) for query, key in halves]
    found = [attend(half, Wanted(weights=True, scores=True)) for half in both]
    seen = layer.visibility.whole(layer.query.device)
    everywhere = seen.unsqueeze(1).expand(layer.shape)
    tensors = {}
    statistics: dict[str, Statistic] = {}
    for prefix, half in zip(("", "second_"), found, strict=True):
        if spec.explain:
            tensors[f"{prefix}scaled_scores"] = half.scores
        tensors[f"{prefix}scores"] = half.raw_scores
        if spec.explain:
            tensors[f"{prefix or 'first_'}weights"] = half.weights
        for name, scores in (("scores", half.raw_scores), ("scaled_scores", half.scores)):
            assert scores is not None
            statistics[f"{prefix}{name}"] = Numbers(moments(scores[everywhere]))
    first, second = (half.weights for half in found)
    assert first is not None and second is not None
    weights = first - factor * second
    tensors["weights"] = weights
    statistics["differential"] = Numbers({"lambda_init": spec.lambda_init, "lambda": factor})
    difference = GivenWeights(weights, seen)
    wanted = Wanted(rows=spec.measured_of_rows(), top_k=min(spec.top_k, layer.shape[3]), received_mass=True)
    statistics |= row_tensors(attend(difference, wanted), lead, None)
    named = {name: lead.named(tensor, "query", "key") for name, tensor in tensors.items()}
    return lead.back(weights @ layer.expanded()[1]), named, statistics
