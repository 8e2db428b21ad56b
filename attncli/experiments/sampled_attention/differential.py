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
    seen = layer.visibility.whole(layer.query.device)
    everywhere = seen.unsqueeze(1).expand(layer.shape)
    tensors: dict[str, Tensor] = {}
    statistics: dict[str, Statistic] = {}
    halves = zip(("", "second_"), layer.query.chunk(2, dim=-1), layer.key.chunk(2, dim=-1), strict=True)
    weights = []
    for prefix, query, key in halves:
        half = attend(replace(layer, query=query, key=key), Wanted(weights=True, scores=True))
        assert half.raw_scores is not None and half.scores is not None and half.weights is not None
        weights.append(half.weights)
        scores = {f"{prefix}scaled_scores": half.scores, f"{prefix}scores": half.raw_scores}
        if spec.explain:
            tensors |= scores | {f"{prefix or 'first_'}weights": half.weights}
        else:
            tensors[f"{prefix}scores"] = half.raw_scores
        statistics |= {name: Numbers(moments(scores[name][everywhere])) for name in reversed(scores)}
    difference = weights[0] - factor * weights[1]
    tensors["weights"] = difference
    statistics["differential"] = Numbers({"lambda_init": spec.lambda_init, "lambda": factor})
    wanted = Wanted(rows=spec.measured_of_rows(), top_k=min(spec.top_k, layer.shape[3]), received_mass=True)
    statistics |= row_tensors(attend(GivenWeights(difference, seen), wanted), lead, None)
    named = {name: lead.named(tensor, "query", "key") for name, tensor in tensors.items()}
    return lead.back(difference @ layer.expanded()[1]), named, statistics
