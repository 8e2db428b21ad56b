"""The classic mistakes of attention: a wrong and a correct computation on the same numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import merge_heads, split_heads
from attncli.core.mechanisms import TokenWeights, causal_mask, softmax_averaging_weights
from attncli.features.pitfalls.results import (
    GrownScores,
    LabelledRow,
    MistakeComparison,
    MistakeMetrics,
    masks_of_mistake,
)
from attncli.records.columns import Records
from attncli.records.values import Mask
from attncli.toys.sampling import sample_linear


@dataclass(frozen=True)
class MistakeInputs:
    """Inputs shared by the wrong and the correct computation; only merged_heads has several heads."""

    tokens: tuple[str, ...]
    vectors: Float[Tensor, "token dim"]
    generator: torch.Generator
    num_heads: int = 1

    def projected_scores(self) -> Float[Tensor, "query key"]:
        """(x W_Q) (x W_K)^T / sqrt(d), with projections initialised as in torch.nn.Linear."""
        dim, device = self.vectors.shape[-1], self.vectors.device
        query, key = (self.vectors @ sample_linear(dim, dim, self.generator).to(device).mT for _ in range(2))
        scores: Tensor = query @ key.mT / dim**0.5
        return scores


class BothWays(NamedTuple):
    """A tensor computed both ways, wrong and right, with its axes; `masks` marks the hidden keys."""

    wrong: Tensor
    right: Tensor
    axes: tuple[str, ...] = ("query", "key")
    masks: tuple[Mask | None, Mask | None] = (None, None)


@dataclass(frozen=True)
class Comparison:
    """Tensors computed both ways, with metrics. `weights` is set if both ways have the same weights."""

    pairs: Mapping[str, BothWays]
    result: MistakeComparison
    weights: TokenWeights | None = None


def compared_weights(
    wrong: Float[Tensor, "query key"],
    right: Float[Tensor, "query key"],
    metrics: Mapping[str, Callable[[Tensor], Tensor]],
    masks: tuple[Mask, Mask],
) -> Comparison:
    """Compare weights computed both ways: the keys that they hide, and each metric."""
    of_wrong, of_right = (
        MistakeMetrics.single(**{name: metric(weights).item() for name, metric in metrics.items()})
        for weights in (wrong, right)
    )
    result = MistakeComparison(wrong=of_wrong, right=of_right)
    return Comparison({"weights": BothWays(wrong, right, masks=masks)}, result)


def _weight_on_future(weights: TokenWeights) -> Tensor:
    """The share of a row that lies on later keys, averaged over the rows."""
    return weights.triu(1).sum(dim=-1).mean()


def _sum_error(weights: TokenWeights, dim: int) -> Tensor:
    return (weights.sum(dim=dim) - 1).abs().max()


def softmax_twice(inputs: MistakeInputs) -> Comparison:
    """softmax(softmax(s)) against softmax(s), for masked scores of zero: exp(0) = 1 lets the future in."""
    count = len(inputs.tokens)
    right = softmax_averaging_weights(causal_mask(count, count))
    metrics = {"weight_on_future": _weight_on_future, "first_row_on_itself": lambda weights: weights[0, 0]}
    return compared_weights(right.softmax(dim=-1), right, metrics, masks_of_mistake("softmax-twice"))


def wrong_axis(inputs: MistakeInputs) -> Comparison:
    """softmax over the queries against softmax over the keys."""
    scores = inputs.projected_scores()
    metrics = {"row_sum_error": lambda w: _sum_error(w, -1), "column_sum_error": lambda w: _sum_error(w, -2)}
    wrong, right = scores.softmax(dim=-2), scores.softmax(dim=-1)
    return compared_weights(wrong, right, metrics, masks_of_mistake("wrong-axis"))


def late_mask(inputs: MistakeInputs) -> Comparison:
    """Zeros after the softmax against -inf before it: rows lose the weight that hidden keys received."""
    scores = inputs.projected_scores()
    hidden = ~causal_mask(*scores.shape).to(scores.device)
    wrong = scores.softmax(dim=-1).masked_fill(hidden, 0.0)
    right = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    metrics = {
        "smallest_row_sum": lambda weights: weights.sum(dim=-1).min(),
        "weight_on_future": _weight_on_future,
    }
    return compared_weights(wrong, right, metrics, masks_of_mistake("late-mask"))


def _saturation(scores: Float[Tensor, "query key"]) -> MistakeMetrics:
    """The unbiased variance of all scores, and the mean largest weight, which is 1 for one-hot rows."""
    variance = scores.var().item() if scores.numel() > 1 else float("nan")
    largest = scores.softmax(dim=-1).amax(dim=-1).mean().item()
    return MistakeMetrics.single(score_variance=variance, mean_max_weight=largest)


def _compared_scores(
    wrong: Float[Tensor, "query key"],
    right: Float[Tensor, "query key"],
    growth: Records[GrownScores] | None = None,
) -> Comparison:
    masks = Mask(), Mask()
    weights = BothWays(wrong.softmax(dim=-1), right.softmax(dim=-1), masks=masks)
    pairs = {"scores": BothWays(wrong, right, masks=masks), "weights": weights}
    result = MistakeComparison(wrong=_saturation(wrong), right=_saturation(right), growth=growth)
    return Comparison(pairs, result)


def no_scaling(inputs: MistakeInputs) -> Comparison:
    """softmax(q k) against softmax(q k / sqrt(d)), for standard normal queries and keys."""
    shape, device = inputs.vectors.shape, inputs.vectors.device
    query, key = (torch.randn(shape, generator=inputs.generator).to(device) for _ in range(2))
    growth = []
    for dim in [*(4**n for n in range(1, 12) if 4**n < shape[1]), shape[1]]:
        raw = query[:, :dim] @ key[:, :dim].mT
        wrong, right = _saturation(raw), _saturation(raw / dim**0.5)
        grown = GrownScores.single(
            head_dim=dim,
            wrong_score_variance=wrong.score_variance,
            right_score_variance=right.score_variance,
            wrong_mean_max_weight=wrong.mean_max_weight,
            right_mean_max_weight=right.mean_max_weight,
        )
        growth.append(grown)
    scores = query @ key.mT
    return _compared_scores(scores, scores / shape[1] ** 0.5, GrownScores.rows(growth))


def uniform_projections(inputs: MistakeInputs) -> Comparison:
    """W ~ U[0, 1) against the same samples moved to U(-1/sqrt(d), 1/sqrt(d)), as in torch.nn.Linear."""
    vectors, dim = inputs.vectors, inputs.vectors.shape[-1]
    positive = [torch.rand(dim, dim, generator=inputs.generator).to(vectors.device) for _ in range(2)]
    centred = [(2 * matrix - 1) / dim**0.5 for matrix in positive]
    wrong, right = ((vectors @ query) @ (vectors @ key).mT / dim**0.5 for query, key in (positive, centred))
    return _compared_scores(wrong, right)


def _merged_wrongly(heads: Float[Tensor, "head token dim"]) -> Float[Tensor, "token embed"]:
    """(head, token, dim) viewed as (token, head * dim): the right shape, but rows mix several tokens."""
    num_heads, num_tokens, dim = heads.shape
    return heads.contiguous().view(num_tokens, num_heads * dim)


def merged_heads(inputs: MistakeInputs) -> Comparison:
    """view against transpose and view: after splitting and merging, the input must be unchanged."""
    num_heads, (count, embed_dim) = inputs.num_heads, inputs.vectors.shape
    # The same operations on token numbers show where each slice comes from.
    positions = torch.arange(count).float().unsqueeze(-1)
    heads = split_heads(inputs.vectors, num_heads)
    origins = split_heads(positions.expand(-1, embed_dim).contiguous(), num_heads)

    def merged_by(merge: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, MistakeMetrics]:
        merged, sources = merge(heads), merge(origins)[:, :: embed_dim // num_heads].long()
        metrics = MistakeMetrics.single(
            difference_from_input=(merged - inputs.vectors).abs().max().item(),
            rows_of_one_token=int((sources == positions).all(dim=-1).sum()),
        )
        return merged, sources, metrics

    wrong, wrong_sources, of_wrong = merged_by(_merged_wrongly)
    right, right_sources, of_right = merged_by(merge_heads)
    pairs = {
        "merged": BothWays(wrong, right, ("token", "dim")),
        "token_of_slice": BothWays(wrong_sources, right_sources, ("token", "head")),
    }
    return Comparison(pairs, MistakeComparison(wrong=of_wrong, right=of_right))


def vocabulary_labels(inputs: MistakeInputs) -> Comparison:
    """Rows named by the sorted vocabulary against rows named by the sentence's words in order."""
    weights = inputs.projected_scores().softmax(dim=-1)
    count, vocabulary = len(inputs.tokens), sorted(set(inputs.tokens))
    labels = [*vocabulary, *["(no label)"] * (count - len(vocabulary))]
    largest = weights.argmax(dim=-1).tolist()
    readings = LabelledRow.table(
        row=[str(query) for query in range(count)],
        wrong=[f"{labels[query]} → {labels[key]}" for query, key in enumerate(largest)],
        right=[f"{inputs.tokens[query]} → {inputs.tokens[key]}" for query, key in enumerate(largest)],
        weight=[weights[query, key].item() for query, key in enumerate(largest)],
    )
    named_wrongly = sum(label != token for label, token in zip(labels, inputs.tokens, strict=True))
    result = MistakeComparison(
        wrong=MistakeMetrics.single(rows_named_wrongly=named_wrongly, labels=len(vocabulary)),
        right=MistakeMetrics.single(rows_named_wrongly=0, labels=count),
        readings=readings,
    )
    return Comparison({}, result, weights)


COMPARISONS = {
    "softmax-twice": softmax_twice,
    "no-scaling": no_scaling,
    "uniform-projections": uniform_projections,
    "merged-heads": merged_heads,
    "vocabulary-labels": vocabulary_labels,
    "wrong-axis": wrong_axis,
    "late-mask": late_mask,
}
