"""softmax(query key^T scale) value in steps, for one query: self-, multi-head and cross-attention."""

from attncli.experiments.explained.heads import merge_steps, split_step
from attncli.experiments.explained.projections import projection_step
from attncli.experiments.explained.row import Row, worked_row
from attncli.experiments.explained.scores import (
    bias_step,
    mask_step,
    scale_step,
    scores_step,
    softcap_step,
)
from attncli.experiments.explained.softmax import no_softmax_step, softmax_step, weighted_sum_step
from attncli.experiments.explained.terms import cells, shapes_of, terms
from attncli.experiments.explained.tokens import token_steps
from attncli.report import Report, Step
from attncli.spec import Spec
from attncli.spec.attention import AttentionSpec


def steps(spec: Spec, report: Report) -> tuple[Step, ...]:
    """From tokens to the output of the worked query; UserError where there is no such query."""
    assert isinstance(spec, AttentionSpec)
    row = worked_row(spec, report)
    first = token_steps(spec, row)
    if "query" not in row.tensors:
        return (*first, _weights_alone(row))
    heads = [split_step(row)] if row.place else []
    projections = [projection_step(spec, row), *heads]
    rule = report.statistics.get("score_rule", {})
    scores = [scores_step(row), scale_step(spec, row)]
    if rule.get("softcap") is not None:
        scores.append(softcap_step(row))
    if "bias" in row.tensors:
        scores.append(bias_step(spec, row))
    softmax = softmax_step(row) if spec.softmax else no_softmax_step(row)
    merge = merge_steps(row) if row.place else ()
    return (*first, *projections, *scores, mask_step(spec, row), softmax, weighted_sum_step(row), *merge)


def _weights_alone(row: Row) -> Step:
    """What is left to say where a model hands over nothing but its weights."""
    weights = row.of_query("weights")
    table = terms(
        f"weights of query {row.token}{row.place}",
        ("key", "text", "weight"),
        (range(len(weights)), row.key_tokens, weights),
        notable=[row.token, row.strongest],
        totals=[("sum", "", weights.sum())],
    )
    prose = (
        "This model hands over its weights alone: query, key and scores stay inside, so that the row cannot "
        "be worked out term by term."
    )
    values = {"entropy": row.report.statistics["rows"]["entropy"].values[..., row.token].ravel()[row.head]}
    return Step(
        "Weights",
        "w_i = softmax(scores_i)",
        prose,
        shapes_of(row.tensors, "weights"),
        dict(zip(values, cells(*values.values()), strict=True)),
        (table,),
    )
