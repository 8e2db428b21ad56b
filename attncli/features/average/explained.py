"""Step-by-step explanation of averaging."""

import numpy as np

from attncli.features.average.averaging import AverageForm
from attncli.records.report import Report, Step, Terms
from attncli.toys.explained_attention import token_steps
from attncli.toys.explained_rows import (
    MOST_DIMS,
    ExplainedRow,
    TermColumns,
    cell,
    explained_row,
    tensor_shapes,
    terms,
    weighted_terms,
)


def average_steps(
    report: Report,
    form: AverageForm,
    *,
    token: int | None,
    embedding: str,
    is_sampled: bool,
    is_batched: bool,
) -> tuple[Step, ...]:
    """Return steps for the tokens and vectors, for each selected method, and for all methods side by side."""
    row = explained_row(report, token)
    ways = []
    if form.method in ("loop", "all"):
        ways.append(_loop(form, row))
    if form.method in ("matmul", "all"):
        ways.append(_matrix(form, row))
    if form.aggregate == "mean" and form.method in ("softmax", "all"):
        ways.append(_softmax(form, row))
    if form.softmax_twice:
        ways.append(_softmax_again(form, row))
    if form.method == "all":
        ways.append(_side_by_side(form, row))
    first = token_steps(row, embedding=embedding, is_sampled=is_sampled, is_batched=is_batched)
    return (*first, *ways)


def _ones(form: AverageForm, row: ExplainedRow) -> np.ndarray:
    """1 for each token that the explained token sees (these always come first), else 0."""
    count = len(row.report.tokens)
    return (np.arange(count) < (row.token + 1 if form.over == "past" else count)).astype(np.float64)


def _weights(form: AverageForm, row: ExplainedRow) -> np.ndarray:
    """The row of ones, divided by its sum for a mean."""
    ones = _ones(form, row)
    return ones / ones.sum() if form.aggregate == "mean" else ones


def _looped(form: AverageForm, row: ExplainedRow) -> np.ndarray:
    """The sum of the vectors that the explained token sees, added token by token; divided for a mean."""
    source, seen = row.whole("input"), int(_ones(form, row).sum())
    total = np.zeros(source.shape[1])
    for vector in source[:seen]:
        total = total + vector
    return total / seen if form.aggregate == "mean" else total


def _table(row: ExplainedRow, title: str, columns: TermColumns, *totals: tuple[object, ...]) -> Terms:
    tokens = row.report.tokens
    every = {"token": range(len(tokens)), "text": tokens, **columns}
    return terms(f"{title} of token {row.token}", every, notable=[row.token], totals=totals)


def _loop(form: AverageForm, row: ExplainedRow) -> Step:
    source, seen = row.whole("input"), int(_ones(form, row).sum())
    dims = range(min(MOST_DIMS - 1, source.shape[1]))
    total = source[:seen].sum(axis=0)
    whom = "itself and the tokens before it" if form.over == "past" else "every token"
    prose = (
        f"A {form.aggregate} is the simplest way to take in other tokens: all have the same weight. The "
        f"vectors are added one at a time. Token {row.token} sees {whom}."
    )
    formula, totals = "y_i = Σ_j x_j, j seen by i", [("sum", "", *total[: len(dims)])]
    if form.aggregate == "mean":
        prose += " Dividing the sum by the number of vectors gives the mean."
        formula = "y_i = Σ_j x_j / n, j seen by i"
        totals.append(("mean", "", *(total / seen)[: len(dims)]))
    columns = {"token": range(seen), "text": row.report.tokens} | {str(d): source[:, d] for d in dims}
    title = f"what token {row.token} sees: the first {len(dims)} of {source.shape[1]} dims"
    table = terms(title, columns, notable=[row.token], totals=totals)
    values = {"tokens seen": cell(seen)} | row.compared(_looped(form, row), "output")
    shapes, question = tensor_shapes(row.tensors, "input"), f"Why begin with a {form.aggregate}?"
    return Step("By a loop", formula, prose, shapes, values, (table,), question)


def _matrix(form: AverageForm, row: ExplainedRow) -> Step:
    ones, weights, source = _ones(form, row), _weights(form, row), row.whole("input")
    columns, sums = weighted_terms(weights, source)
    prose = (
        "A row with a one for each visible token selects the vectors that the loop adds up. All rows form "
        "one matrix, and a single product does the work of the loop for every token."
    )
    if form.aggregate == "mean":
        columns, sums = {"one": ones, **columns}, ("sum", "", ones.sum(), *sums[2:])
        prose += " Divided by its sum, the row gives a mean: the simplest attention weights."
    shapes = tensor_shapes(row.tensors, "weights", "input", "output")
    table = _table(row, "row of the matrix", columns, sums)
    values, question = row.compared(weights @ source, "output"), "Why a matrix if a loop can do it?"
    return Step("By a matrix", "y_i = Σ_j w_ij x_j", prose, shapes, values, (table,), question)


def _softmax(form: AverageForm, row: ExplainedRow) -> Step:
    exponentials, weights = _ones(form, row), _weights(form, row)
    scores = np.where(exponentials > 0, 0.0, -np.inf)
    columns = {"score": scores, "exp": exponentials, "weight": weights}
    prose = (
        "Visible tokens have a score of 0, hidden ones -∞; exp(0) = 1 and exp(-∞) = 0, so the quotients are "
        "the same weights. Attention does this with scores that depend on the words."
    )
    table = _table(row, "softmax", columns, ("sum", "", "", exponentials.sum(), weights.sum()))
    values = {} if form.softmax_twice else row.compared(weights @ row.whole("input"), "output")
    formula = "w_ij = exp(s_ij) / Σ_k exp(s_ik)"
    shapes, question = tensor_shapes(row.tensors, "weights"), "Why a softmax if the weights are known?"
    return Step("By a softmax", formula, prose, shapes, values, (table,), question)


def _softmax_again(form: AverageForm, row: ExplainedRow) -> Step:
    once = _weights(form, row)
    exponentials = np.exp(once)
    twice = exponentials / exponentials.sum()
    columns = {"weight": once, "exp": exponentials, "weight again": twice}
    prose = (
        "The mistake is to treat the weights as scores: exp(0) is 1, not 0, so hidden tokens get weight "
        "again and the future leaks in."
    )
    values = {"weight on hidden tokens": cell(twice[once == 0].sum())}
    values |= row.compared(twice @ row.whole("input"), "output")
    sums = ("sum", "", *(column.sum() for column in columns.values()))
    table = _table(row, "softmax of the weights", columns, sums)
    shapes, question = tensor_shapes(row.tensors, "weights"), "Why does the future leak in?"
    formula = "w'_ij = exp(w_ij) / Σ_k exp(w_ik)"
    return Step("Softmax again", formula, prose, shapes, values, (table,), question)


def _side_by_side(form: AverageForm, row: ExplainedRow) -> Step:
    by_matrix = _weights(form, row) @ row.whole("input")
    ways = {"loop": _looped(form, row), "matrix": by_matrix}
    if form.aggregate == "mean":
        ways["softmax"] = by_matrix
    ways["in the report"] = row.query_row("output")
    dims = range(min(MOST_DIMS, len(by_matrix)))
    table = terms(
        f"output of token {row.token}: the first {len(dims)} of {len(by_matrix)} dims",
        {"way": list(ways)} | {str(d): [output[d] for output in ways.values()] for d in dims},
    )
    agreement = row.report.numbers("agreement")
    labels = {
        "loop_vs_matmul": "largest difference of loop and matrix, over all tokens",
        "loop_vs_softmax": "largest difference of loop and softmax, over all tokens",
    }
    values = {
        labels[name]: difference
        for name, value in agreement.items()
        if (difference := cell(value)) is not None
    }
    question = "Why are there three ways to compute one result?"
    prose = (
        "They agree up to rounding. The softmax leads to attention: a mean whose weights are computed from "
        "the words."
    )
    if form.aggregate == "sum":
        question = "Why is there no third way?"
        prose = "Both ways agree up to rounding. A softmax row sums to one: it can average but not sum."
    return Step("Side by side", "loop = matrix = softmax", prose, (), values, (table,), question)
