"""The mistakes by name."""

from collections.abc import Callable
from dataclasses import dataclass

from attncli.experiments.pitfalls.comparison import Comparison, Start
from attncli.experiments.pitfalls.computations import (
    late_mask,
    merged_heads,
    no_scaling,
    softmax_twice,
    uniform_projections,
    vocabulary_labels,
    wrong_axis,
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
