"""The classic mistakes of attention: a wrong and a right computation on the same numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import merge_heads, split_heads
from attncli.core.mechanisms import causal_mask, softmax_averaging_weights
from attncli.report import NamedTensor, Numbers, Report, Row, Statistic, Table, pair_names
from attncli.report_parts import build_report, named
from attncli.settings.lessons import PitfallsSpec
from attncli.settings.text import Texts
from attncli.toys.sources import Draws, embed, sample_linear


@dataclass(frozen=True)
class Start:
    """What a wrong and a right computation both start from; only merged_heads has several heads."""

    tokens: tuple[str, ...]
    vectors: Float[Tensor, "token dim"]
    generator: torch.Generator
    num_heads: int = 1

    def projected_scores(self) -> Float[Tensor, "query key"]:
        """(x W_Q) (x W_K)^T / sqrt(d), with projections as torch.nn.Linear starts them."""
        dim, device = self.vectors.shape[-1], self.vectors.device
        query, key = (self.vectors @ sample_linear(dim, dim, self.generator).to(device).mT for _ in range(2))
        scores: Tensor = query @ key.mT / dim**0.5
        return scores


@dataclass(frozen=True)
class Comparison:
    """Tensors computed both ways, the metrics of both under the same names, and further tables."""

    tensors: Mapping[str, NamedTensor]
    wrong: Numbers
    right: Numbers
    tables: Mapping[str, Table] = field(default_factory=dict)


def pair(
    name: str, wrong: Tensor, right: Tensor, axes: tuple[str, ...] = ("query", "key")
) -> dict[str, NamedTensor]:
    """The wrong and the right tensor by their names in a report."""
    return {own: named(tensor, *axes) for own, tensor in zip(pair_names(name), (wrong, right), strict=True)}


def compared_weights(
    wrong: Float[Tensor, "query key"],
    right: Float[Tensor, "query key"],
    metrics: Mapping[str, Callable[[Tensor], Tensor]],
) -> Comparison:
    """Weights computed both ways, and each metric of them."""
    of_wrong, of_right = (
        Numbers((name, metric(weights).item()) for name, metric in metrics.items())
        for weights in (wrong, right)
    )
    return Comparison(pair("weights", wrong, right), of_wrong, of_right)


Scores = Float[Tensor, "query key"]
Weights = Float[Tensor, "query key"]


def _weight_on_future(weights: Weights) -> Tensor:
    """The share of a row that lies on later keys, averaged over rows."""
    return weights.triu(1).sum(dim=-1).mean()


def _sum_error(weights: Weights, dim: int) -> Tensor:
    return (weights.sum(dim=dim) - 1).abs().max()


def softmax_twice(start: Start) -> Comparison:
    """softmax(softmax(s)) against softmax(s), over masked scores of zero: exp(0) = 1 lets the future in."""
    count = len(start.tokens)
    right = softmax_averaging_weights(causal_mask(count, count))
    metrics = {"weight_on_future": _weight_on_future, "first_row_on_itself": lambda weights: weights[0, 0]}
    return compared_weights(right.softmax(dim=-1), right, metrics)


def wrong_axis(start: Start) -> Comparison:
    """softmax over the queries against softmax over the keys."""
    scores = start.projected_scores()
    metrics = {"row_sum_error": lambda w: _sum_error(w, -1), "column_sum_error": lambda w: _sum_error(w, -2)}
    return compared_weights(scores.softmax(dim=-2), scores.softmax(dim=-1), metrics)


def late_mask(start: Start) -> Comparison:
    """Zeros after the softmax against -inf before it: the rows lose what the hidden keys took."""
    scores = start.projected_scores()
    hidden = ~causal_mask(*scores.shape).to(scores.device)
    wrong = scores.softmax(dim=-1).masked_fill(hidden, 0.0)
    right = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    metrics = {
        "smallest_row_sum": lambda weights: weights.sum(dim=-1).min(),
        "weight_on_future": _weight_on_future,
    }
    return compared_weights(wrong, right, metrics)


def _saturation(scores: Scores) -> Numbers:
    """The unbiased variance of all scores, and the mean largest weight: 1 where all rows are one-hot."""
    variance = scores.var().item() if scores.numel() > 1 else float("nan")
    largest = scores.softmax(dim=-1).amax(dim=-1).mean().item()
    return Numbers(score_variance=variance, mean_max_weight=largest)


def _compared_scores(wrong: Scores, right: Scores, **tables: Table) -> Comparison:
    tensors = pair("scores", wrong, right) | pair("weights", wrong.softmax(dim=-1), right.softmax(dim=-1))
    return Comparison(tensors, _saturation(wrong), _saturation(right), tables)


def no_scaling(start: Start) -> Comparison:
    """softmax(q k) against softmax(q k / sqrt(d)), for standard normal query and key."""
    shape, device = start.vectors.shape, start.vectors.device
    query, key = (torch.randn(shape, generator=start.generator).to(device) for _ in range(2))
    growth = Table()
    for dim in [*(4**n for n in range(1, 12) if 4**n < shape[1]), shape[1]]:
        raw = query[:, :dim] @ key[:, :dim].mT
        wrong, right = _saturation(raw), _saturation(raw / dim**0.5)
        row: dict[str, float | int | None] = {"head_dim": dim}
        for name in wrong:
            row |= {f"wrong_{name}": wrong[name], f"right_{name}": right[name]}
        growth.append(row)
    scores = query @ key.mT
    return _compared_scores(scores, scores / shape[1] ** 0.5, growth=growth)


def uniform_projections(start: Start) -> Comparison:
    """W ~ U[0, 1) against the same samples moved to U(-1/sqrt(d), 1/sqrt(d)), as torch.nn.Linear starts."""
    vectors, dim = start.vectors, start.vectors.shape[-1]
    positive = [torch.rand(dim, dim, generator=start.generator).to(vectors.device) for _ in range(2)]
    centred = [(2 * matrix - 1) / dim**0.5 for matrix in positive]
    wrong, right = ((vectors @ query) @ (vectors @ key).mT / dim**0.5 for query, key in (positive, centred))
    return _compared_scores(wrong, right)


def _merged_wrongly(heads: Float[Tensor, "head token dim"]) -> Float[Tensor, "token embed"]:
    """(head, token, dim) viewed as (token, head * dim): the right shape, and rows of several tokens."""
    num_heads, num_tokens, dim = heads.shape
    return heads.contiguous().view(num_tokens, num_heads * dim)


def merged_heads(start: Start) -> Comparison:
    """view alone against transpose and view: split and merged again, the input must come back."""
    num_heads, (count, embed_dim) = start.num_heads, start.vectors.shape
    # The same moves on the tokens' numbers show where each slice comes from.
    positions = torch.arange(count).float().unsqueeze(-1)
    heads = split_heads(start.vectors, num_heads)
    origins = split_heads(positions.expand(-1, embed_dim).contiguous(), num_heads)

    def merged_by(merge: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Numbers]:
        merged, sources = merge(heads), merge(origins)[:, :: embed_dim // num_heads].long()
        metrics = Numbers(
            difference_from_input=(merged - start.vectors).abs().max().item(),
            rows_of_one_token=int((sources == positions).all(dim=-1).sum()),
        )
        return merged, sources, metrics

    wrong, wrong_sources, of_wrong = merged_by(_merged_wrongly)
    right, right_sources, of_right = merged_by(merge_heads)
    tensors = pair("merged", wrong, right, ("token", "dim"))
    tensors |= pair("token_of_slice", wrong_sources, right_sources, ("token", "head"))
    return Comparison(tensors, of_wrong, of_right)


def vocabulary_labels(start: Start) -> Comparison:
    """Rows named by the sorted vocabulary against rows named by the sentence's words in their order."""
    weights = start.projected_scores().softmax(dim=-1)
    count, vocabulary = len(start.tokens), sorted(set(start.tokens))
    labels = [*vocabulary, *["(no label)"] * (count - len(vocabulary))]
    readings = Table(
        {
            "row": str(query),
            "wrong": f"{labels[query]} → {labels[key]}",
            "right": f"{start.tokens[query]} → {start.tokens[key]}",
            "weight": weights[query, key].item(),
        }
        for query, key in enumerate(weights.argmax(dim=-1).tolist())
    )
    named_wrongly = sum(label != token for label, token in zip(labels, start.tokens, strict=True))
    return Comparison(
        {"weights": named(weights, "query", "key")},
        Numbers(rows_named_wrongly=named_wrongly, labels=len(vocabulary)),
        Numbers(rows_named_wrongly=0, labels=count),
        {"readings": readings},
    )


@dataclass(frozen=True)
class Pitfall:
    """A mistake in short and in a sentence, the metric that exposes it, and how to notice it."""

    summary: str
    mistake: str
    metric: str
    notice: str
    compare: Callable[[Start], Comparison]


PITFALLS = {
    "softmax-twice": Pitfall(
        "softmax of finished weights: the future leaks in",
        "Softmax of a matrix that is already a distribution: exp(0) = 1, and the future leaks in.",
        "weight_on_future",
        "In a causal model weights.triu(1) must be all zeros; the first row is 1, 0, 0, ...",
        softmax_twice,
    ),
    "no-scaling": Pitfall(
        "unscaled scores grow with head_dim: softmax saturates",
        "Scores that are not scaled: their variance is head_dim, and softmax saturates.",
        "score_variance",
        "Print scores.var() for two sizes of head_dim before training: it must not grow.",
        no_scaling,
    ),
    "uniform-projections": Pitfall(
        "positive projections: enormous scores, one-hot rows",
        "Projections sampled from U[0, 1): all positive, so that scores are enormous even when scaled.",
        "mean_max_weight",
        "Print weights.max(-1).values.mean() before training: near 1 means that nothing is left to learn.",
        uniform_projections,
    ),
    "merged-heads": Pitfall(
        "heads viewed before they are moved back: tokens mix",
        "Heads viewed as (token, head * dim) without moving the head axis back: tokens are mixed.",
        "difference_from_input",
        "Split and merge with nothing between: the input must come back. Shapes alone pass.",
        merged_heads,
    ),
    "vocabulary-labels": Pitfall(
        "rows named by the vocabulary, not by the sentence",
        "Rows of a heatmap named by the sorted vocabulary: other words' names, and too few of them.",
        "rows_named_wrongly",
        "As many labels as tokens, taken from the tokens: a repeated word stays two rows.",
        vocabulary_labels,
    ),
    "wrong-axis": Pitfall(
        "softmax over queries: columns sum to one, rows do not",
        "Softmax over the queries: columns sum to one, rows do not.",
        "row_sum_error",
        "weights.sum(-1) must be all ones: name the axis, softmax(dim=-1).",
        wrong_axis,
    ),
    "late-mask": Pitfall(
        "masked after the softmax: rows do not sum to one",
        "The mask after the softmax, without renormalising: rows lose what the hidden keys took.",
        "smallest_row_sum",
        "weights.sum(-1) must be all ones after the mask, too: hide scores with -inf before the softmax.",
        late_mask,
    ),
}


def run(spec: PitfallsSpec, texts: Texts, draws: Draws) -> Report:
    """Both computations of one mistake with their metrics; without a name, one line per mistake.

    Every mistake starts from the same vectors and the same state of the generator.
    """
    (source,) = embed(spec, texts, draws)
    state = draws.generator.get_state()

    def compared(name: str) -> Comparison:
        draws.generator.set_state(state)
        return PITFALLS[name].compare(Start(texts.tokens, source.vectors, draws.generator, spec.num_heads))

    if spec.pitfall is None:
        rows = Table(_line(name, compared(name)) for name in PITFALLS)
        about = "attn pitfalls NAME shows one, wrong beside right, and how to notice it."
        return build_report(spec, texts, {}, {"pitfalls": rows}, [], about=about)
    pitfall, both = PITFALLS[spec.pitfall], compared(spec.pitfall)
    notes = [f"It shows in {pitfall.metric}. How to notice it: {pitfall.notice}"]
    if both.wrong[pitfall.metric] == both.right[pitfall.metric]:
        notes.append("Here the number is the same both ways: these settings do not expose the mistake.")
    statistics: dict[str, Statistic] = {"wrong": both.wrong, "right": both.right, **both.tables}
    return build_report(spec, texts, both.tensors, statistics, notes, about=pitfall.mistake)


def _line(name: str, both: Comparison) -> Row:
    metric = PITFALLS[name].metric
    return {
        "pitfall": name,
        "figure": metric,
        "wrong": both.wrong[metric],
        "right": both.right[metric],
        "mistake": PITFALLS[name].summary,
    }
