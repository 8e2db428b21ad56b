"""softmax(query key^T scale) value in steps, for one query: self-, multi-head and cross-attention."""

from attncli.experiments.explained.heads import merge_steps, split_step
from attncli.experiments.explained.projections import projection_step, qk_norm_and_rope_steps
from attncli.experiments.explained.row import Row, explained_row, row_scores
from attncli.experiments.explained.scores import (
    key_table,
    mask_step,
    scale_step,
    scores_step,
    steps_after_scale,
)
from attncli.experiments.explained.softmax import (
    difference_step,
    no_softmax_step,
    softmax_step,
    weighted_sum_step,
)
from attncli.experiments.explained.terms import cell, shapes_of
from attncli.experiments.explained.tokens import token_steps
from attncli.report import Report, Step
from attncli.spec.attention import AttentionSpec


def steps(spec: AttentionSpec, report: Report) -> tuple[Step, ...]:
    """From tokens to the output of the explained query; UserError where there is no such query."""
    row = explained_row(spec, report)
    first = token_steps(spec, row)
    if "query" not in row.tensors:
        return (*first, _weights_alone(row))
    projections = [projection_step(spec, row), *([split_step(row)] if row.has_heads else [])]
    last = [weighted_sum_step(row), *(merge_steps(row) if row.has_heads else ())]
    return (*first, *projections, *_weights_steps(spec, row), *last)


def _weights_steps(spec: AttentionSpec, row: Row) -> list[Step]:
    """From query and key to weights; of the second half of differential attention the softmax alone."""
    half = row.of_half(0) if spec.differential else row
    scores = row_scores(spec, half)
    made = [*qk_norm_and_rope_steps(spec, half), scores_step(half, scores), scale_step(spec, half, scores)]
    made += [*steps_after_scale(spec, half, scores), mask_step(spec, half, scores)]
    made.append(softmax_step(half, scores.sink) if spec.softmax else no_softmax_step(half))
    if spec.differential:
        made += [softmax_step(row.of_half(1), scores.sink), difference_step(row, spec.lambda_init)]
    return made


def _weights_alone(row: Row) -> Step:
    """The only step of a model that exposes nothing but its weights."""
    weights = row.of_query("weights")
    table = key_table(row, "weights", {"weight": weights}, ("sum", "", weights.sum()))
    prose = (
        "This model hands over its weights alone: query, key and scores stay inside, so that the row cannot "
        "be worked out term by term."
    )
    entropies = row.report.tensors_of("rows")["entropy"].values[..., row.token].ravel()
    values = {"entropy": cell(entropies[row.head])}
    shapes = shapes_of(row.tensors, "weights")
    formula, question = "w_i = softmax(scores_i)", "Why is the row not worked out?"
    return Step("Weights", formula, prose, shapes, values, (table,), question)
