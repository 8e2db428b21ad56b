"""The average of the worked token's past in steps: by a loop, a matrix product and a masked softmax."""

import numpy as np

from attncli.experiments.explained.row import Row, worked_row
from attncli.experiments.explained.scores import Columns
from attncli.experiments.explained.softmax import weighted_terms
from attncli.experiments.explained.terms import (
    MOST_DIMS,
    Numbers,
    cell,
    largest_difference,
    shapes_of,
    terms,
)
from attncli.experiments.explained.tokens import token_steps
from attncli.report import Cell, Report, Step, Terms
from attncli.spec.lessons import AverageSpec


def steps(spec: AverageSpec, report: Report) -> tuple[Step, ...]:
    """Tokens and vectors, each way that was asked for, and where there are three what they agree on."""
    row = worked_row(spec, report)
    ways = []
    if spec.method in ("loop", "all"):
        ways.append(_loop(spec, row))
    if spec.method in ("matmul", "all"):
        ways.append(_matrix(spec, row))
    if spec.aggregate == "mean" and spec.method in ("softmax", "all"):
        ways.append(_softmax(spec, row))
    if spec.softmax_twice:
        ways.append(_softmax_again(spec, row))
    if spec.method == "all":
        ways.append(_side_by_side(spec, row))
    return (*token_steps(spec, row), *ways)


def _seen(spec: AverageSpec, row: Row) -> int:
    """How many tokens the worked one sees: always the first ones."""
    return row.token + 1 if spec.over == "past" else len(row.report.tokens)


def _table(row: Row, title: str, columns: Columns, *totals: tuple[object, ...]) -> Terms:
    tokens = row.report.tokens
    return terms(
        f"{title} of token {row.token}",
        ("token", "text", *columns),
        (range(len(tokens)), tokens, *columns.values()),
        notable=[row.token],
        totals=totals,
    )


def looped(spec: AverageSpec, row: Row) -> Numbers:
    """The sum of what the worked token sees, over their number for the mean: one vector at a time."""
    seen = _seen(spec, row)
    total = np.zeros(row.whole("input").shape[1])
    for vector in row.whole("input")[:seen]:
        total = total + vector
    return total / seen if spec.aggregate == "mean" else total


def softmax_weights(spec: AverageSpec, row: Row) -> tuple[Numbers, Numbers]:
    """Scores of zero, -inf where hidden, and their softmax."""
    sees = np.arange(len(row.report.tokens)) < _seen(spec, row)
    exponentials = np.where(sees, 1.0, 0.0)
    return np.where(sees, 0.0, -np.inf), exponentials / exponentials.sum()


def matrix_weights(spec: AverageSpec, row: Row) -> tuple[Numbers, Numbers]:
    """Ones where a token is seen, and the same over their sum for the mean."""
    ones = (np.arange(len(row.report.tokens)) < _seen(spec, row)).astype(np.float64)
    return ones, ones / ones.sum() if spec.aggregate == "mean" else ones


def _loop(spec: AverageSpec, row: Row) -> Step:
    source, seen = row.whole("input"), _seen(spec, row)
    dims = range(min(MOST_DIMS - 1, source.shape[1]))
    total = source[:seen].sum(axis=0)
    table = terms(
        f"what token {row.token} sees: the first {len(dims)} of {source.shape[1]} dims",
        ("token", "text", *map(str, dims)),
        (range(seen), row.report.tokens[:seen], *(source[:seen, dim] for dim in dims)),
        notable=[row.token],
        totals=[
            ("sum", "", *total[: len(dims)]),
            *([("mean", "", *(total / seen)[: len(dims)])] if spec.aggregate == "mean" else []),
        ],
    )
    mean = spec.aggregate == "mean"
    whom = "itself and the tokens before it" if spec.over == "past" else "every token"
    prose = (
        "It is the simplest way to take in what the others hold: all have the same weight. One vector at a "
        f"time is added up: token {row.token} sees {whom}."
    )
    if mean:
        prose += " The sum over their number is the mean."
    values = {"tokens seen": cell(seen)} | _difference(row, looped(spec, row))
    formula = "y_i = Σ_j x_j / n, j seen by i" if mean else "y_i = Σ_j x_j, j seen by i"
    shapes, question = shapes_of(row.tensors, "input"), f"Why begin with a {spec.aggregate}?"
    return Step("By a loop", formula, prose, shapes, values, (table,), question)


def _difference(row: Row, worked: Numbers) -> dict[str, Cell]:
    return {"largest difference from the report": largest_difference(worked, row.of_query("output"))}


def _matrix(spec: AverageSpec, row: Row) -> Step:
    ones, weights = matrix_weights(spec, row)
    source = row.whole("input")
    columns, sums = weighted_terms(row, weights, source)
    if spec.aggregate == "mean":
        columns, sums = {"one": ones, **columns}, ("sum", "", ones.sum(), *sums[2:])
    prose = (
        "A row of ones where a token is seen picks what the loop adds up; all rows make one matrix, and one "
        "product does the work of the loop for every token."
    )
    if spec.aggregate == "mean":
        prose += " Divided by its sum, the row is a mean: the simplest attention weights."
    shapes = shapes_of(row.tensors, "weights", "input", "output")
    table = _table(row, "row of the matrix", columns, sums)
    values, question = _difference(row, weights @ source), "Why a matrix, where a loop does it?"
    return Step("By a matrix", "y_i = Σ_j w_ij x_j", prose, shapes, values, (table,), question)


def _softmax(spec: AverageSpec, row: Row) -> Step:
    scores, weights = softmax_weights(spec, row)
    exponentials = np.exp(scores)
    columns = {"score": scores, "exp": exponentials, "weight": weights}
    prose = (
        "Every score is 0, a hidden one -∞; exp(0) = 1 and exp(-∞) = 0, so that the quotients are the same "
        "weights. Attention is this with scores that depend on the words."
    )
    table = _table(row, "softmax", columns, ("sum", "", "", exponentials.sum(), weights.sum()))
    values = {} if spec.softmax_twice else _difference(row, weights @ row.whole("input"))
    formula = "w_ij = exp(s_ij) / Σ_k exp(s_ik)"
    shapes, question = shapes_of(row.tensors, "weights"), "Why a softmax, where the weights are known?"
    return Step("By a softmax", formula, prose, shapes, values, (table,), question)


def _softmax_again(spec: AverageSpec, row: Row) -> Step:
    _, once = softmax_weights(spec, row)
    exponentials = np.exp(once)
    twice = exponentials / exponentials.sum()
    columns = {"weight": once, "exp": exponentials, "weight again": twice}
    prose = (
        "The mistake: the weights are taken for scores. exp(0) = 1, not 0, so that hidden tokens get weight "
        "again, and the future leaks in."
    )
    values: dict[str, Cell] = {"weight on hidden tokens": cell(twice[once == 0].sum())}
    table = _table(
        row, "softmax of the weights", columns, ("sum", "", once.sum(), exponentials.sum(), twice.sum())
    )
    return Step(
        "Softmax again",
        "w'_ij = exp(w_ij) / Σ_k exp(w_ik)",
        prose,
        shapes_of(row.tensors, "weights"),
        values | _difference(row, twice @ row.whole("input")),
        (table,),
        "Why does the future leak in?",
    )


def _side_by_side(spec: AverageSpec, row: Row) -> Step:
    source = row.whole("input")
    ways = {"loop": looped(spec, row), "matrix": matrix_weights(spec, row)[1] @ source}
    if spec.aggregate == "mean":
        ways["softmax"] = softmax_weights(spec, row)[1] @ source
    ways["in the report"] = row.of_query("output")
    dims = range(min(MOST_DIMS, source.shape[1]))
    table = terms(
        f"output of token {row.token}: the first {len(dims)} of {source.shape[1]} dims",
        ("way", *map(str, dims)),
        (list(ways), *([output[dim] for output in ways.values()] for dim in dims)),
    )
    agreement = row.report.numbers("agreement")
    said = {
        "loop_vs_matmul": "largest difference of loop and matrix, over all tokens",
        "loop_vs_softmax": "largest difference of loop and softmax, over all tokens",
    }
    values = {said[name]: found for name, value in agreement.items() if (found := cell(value)) is not None}
    question = "Why three ways to one result?"
    prose = (
        "They agree to rounding, and each leads on: attention is the last, a mean whose weights are computed "
        "from the words."
    )
    if spec.aggregate == "sum":
        question = "Why is there no third way?"
        prose = "Both ways agree to rounding. A softmax row sums to one: that way averages and cannot sum."
    return Step("Side by side", "loop = matrix = softmax", prose, (), values, (table,), question)
