"""Averaging, normalisation and scaling in steps."""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from attncli.core.layer import score_factor
from attncli.report import Cell, Report, Row, Shape, Step, Terms
from attncli.toys.explained_attention import token_steps
from attncli.toys.explained_rows import (
    MOST_DIMS,
    ExplainedRow,
    TermColumns,
    cell,
    dot_product,
    explained_row,
    largest_difference,
    part,
    shapes_of,
    terms,
    weighted_terms,
)
from attncli.toys.lessons import AverageForm, NormForm


def average_steps(
    report: Report,
    form: AverageForm,
    *,
    token: int | None,
    embedding: str,
    is_sampled: bool,
    is_batched: bool,
) -> tuple[Step, ...]:
    """Tokens and vectors, each method that was asked for, and all methods side by side."""
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
    """1 for each token that the explained one sees, which are always the first ones, else 0."""
    count = len(row.report.tokens)
    return (np.arange(count) < (row.token + 1 if form.over == "past" else count)).astype(np.float64)


def _weights(form: AverageForm, row: ExplainedRow) -> np.ndarray:
    """The ones, divided by their sum for the mean."""
    ones = _ones(form, row)
    return ones / ones.sum() if form.aggregate == "mean" else ones


def _looped(form: AverageForm, row: ExplainedRow) -> np.ndarray:
    """The sum of the vectors that the explained token sees, one at a time; for the mean over their number."""
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
        "It is the simplest way to take in what the others hold: all have the same weight. One vector at a "
        f"time is added up: token {row.token} sees {whom}."
    )
    formula, totals = "y_i = Σ_j x_j, j seen by i", [("sum", "", *total[: len(dims)])]
    if form.aggregate == "mean":
        prose += " The sum over their number is the mean."
        formula = "y_i = Σ_j x_j / n, j seen by i"
        totals.append(("mean", "", *(total / seen)[: len(dims)]))
    columns = {"token": range(seen), "text": row.report.tokens} | {str(d): source[:, d] for d in dims}
    title = f"what token {row.token} sees: the first {len(dims)} of {source.shape[1]} dims"
    table = terms(title, columns, notable=[row.token], totals=totals)
    values = {"tokens seen": cell(seen)} | row.compared(_looped(form, row), "output")
    shapes, question = shapes_of(row.tensors, "input"), f"Why begin with a {form.aggregate}?"
    return Step("By a loop", formula, prose, shapes, values, (table,), question)


def _matrix(form: AverageForm, row: ExplainedRow) -> Step:
    ones, weights, source = _ones(form, row), _weights(form, row), row.whole("input")
    columns, sums = weighted_terms(weights, source)
    prose = (
        "A row of ones where a token is seen picks what the loop adds up; all rows make one matrix, and one "
        "product does the work of the loop for every token."
    )
    if form.aggregate == "mean":
        columns, sums = {"one": ones, **columns}, ("sum", "", ones.sum(), *sums[2:])
        prose += " Divided by its sum, the row is a mean: the simplest attention weights."
    shapes = shapes_of(row.tensors, "weights", "input", "output")
    table = _table(row, "row of the matrix", columns, sums)
    values, question = row.compared(weights @ source, "output"), "Why a matrix, where a loop does it?"
    return Step("By a matrix", "y_i = Σ_j w_ij x_j", prose, shapes, values, (table,), question)


def _softmax(form: AverageForm, row: ExplainedRow) -> Step:
    exponentials, weights = _ones(form, row), _weights(form, row)
    scores = np.where(exponentials > 0, 0.0, -np.inf)
    columns = {"score": scores, "exp": exponentials, "weight": weights}
    prose = (
        "Every score is 0, a hidden one -∞; exp(0) = 1 and exp(-∞) = 0, so that the quotients are the same "
        "weights. Attention is this with scores that depend on the words."
    )
    table = _table(row, "softmax", columns, ("sum", "", "", exponentials.sum(), weights.sum()))
    values = {} if form.softmax_twice else row.compared(weights @ row.whole("input"), "output")
    formula = "w_ij = exp(s_ij) / Σ_k exp(s_ik)"
    shapes, question = shapes_of(row.tensors, "weights"), "Why a softmax, where the weights are known?"
    return Step("By a softmax", formula, prose, shapes, values, (table,), question)


def _softmax_again(form: AverageForm, row: ExplainedRow) -> Step:
    once = _weights(form, row)
    exponentials = np.exp(once)
    twice = exponentials / exponentials.sum()
    columns = {"weight": once, "exp": exponentials, "weight again": twice}
    prose = (
        "The mistake: the weights are taken for scores. exp(0) = 1, not 0, so that hidden tokens get weight "
        "again, and the future leaks in."
    )
    values = {"weight on hidden tokens": cell(twice[once == 0].sum())}
    values |= row.compared(twice @ row.whole("input"), "output")
    sums = ("sum", "", *(column.sum() for column in columns.values()))
    table = _table(row, "softmax of the weights", columns, sums)
    shapes, question = shapes_of(row.tensors, "weights"), "Why does the future leak in?"
    formula = "w'_ij = exp(w_ij) / Σ_k exp(w_ik)"
    return Step("Softmax again", formula, prose, shapes, values, (table,), question)


def _side_by_side(form: AverageForm, row: ExplainedRow) -> Step:
    by_matrix = _weights(form, row) @ row.whole("input")
    ways = {"loop": _looped(form, row), "matrix": by_matrix}
    if form.aggregate == "mean":
        ways["softmax"] = by_matrix
    ways["in the report"] = row.of_query("output")
    dims = range(min(MOST_DIMS, len(by_matrix)))
    table = terms(
        f"output of token {row.token}: the first {len(dims)} of {len(by_matrix)} dims",
        {"way": list(ways)} | {str(d): [output[d] for output in ways.values()] for d in dims},
    )
    agreement = row.report.numbers("agreement")
    said = {
        "loop_vs_matmul": "largest difference of loop and matrix, over all tokens",
        "loop_vs_softmax": "largest difference of loop and softmax, over all tokens",
    }
    values = {
        said[name]: difference for name, value in agreement.items() if (difference := cell(value)) is not None
    }
    question = "Why three ways to one result?"
    prose = (
        "They agree to rounding, and each leads on: attention is the last, a mean whose weights are computed "
        "from the words."
    )
    if form.aggregate == "sum":
        question = "Why is there no third way?"
        prose = "Both ways agree to rounding. A softmax row sums to one: that way averages and cannot sum."
    return Step("Side by side", "loop = matrix = softmax", prose, (), values, (table,), question)


def norm_steps(report: Report, form: NormForm) -> tuple[Step, ...]:
    """For each kind its statistics, then example 0's feature 0 before and after."""
    data = part(report.tensors["input"])
    made: list[Step] = [_input(report, data)]
    if form.kind in ("batch", "all"):
        made += [*_centred(form, report, "batch"), _running(form, report)]
    if form.kind in ("layer", "all"):
        made += _centred(form, report, "layer")
    if form.kind in ("rms", "all"):
        made.append(_rms(form, report))
    return tuple(made)


def _input(report: Report, data: np.ndarray) -> Step:
    dims = range(min(MOST_DIMS, data.shape[1]))
    columns = {"example": range(len(data))} | {str(dim): data[:, dim] for dim in dims}
    table = terms(f"input: the first {len(dims)} of {data.shape[1]} features", columns)
    prose = (
        "Rows are examples, columns features. Batch norm makes every column alike, layer norm and RMS norm "
        "every row. The number at the top left is computed below."
    )
    shapes = shapes_of(report.tensors, "input")
    values, question = {"example 0, feature 0": cell(data[0, 0])}, "Why is there more than one norm?"
    return Step("Input", "x ~ N(0, 1)", prose, shapes, values, (table,), question)


def _centred(form: NormForm, report: Report, kind: str) -> list[Step]:
    """Mean and variance of a column (batch) or a row (layer), and the top left number normalised by them."""
    is_batch, is_unbiased = kind == "batch", form.is_unbiased
    data = part(report.tensors["input"])
    axis, numbers = ("example", data[:, 0]) if is_batch else ("feature", data[0])
    whose = "feature 0 over the examples" if is_batch else "example 0 over its features"
    count, mean = len(numbers), float(numbers.mean())
    divisor = count - is_unbiased
    deviations = numbers - mean
    squares = deviations**2
    variance = float(squares.sum() / divisor)
    values: dict[str, Cell] = {
        "n": count,
        "mean": mean,
        "divided by": divisor,
        "variance": variance,
        "standard deviation": sqrt(variance),
    }
    how = "n - 1 (unbiased)" if is_unbiased else "n (biased), as torch's layers do"
    prose = (
        "They say where numbers lie and how far apart: taken off and divided by, every layer meets the same "
        f"range. Here are those of {whose}; the squared deviations are divided by {how}."
    )
    formula = f"mean = Σ x / n,  variance = Σ (x - mean)² / {'(n - 1)' if is_unbiased else 'n'}"
    table = terms(
        whose,
        {axis: range(count), "x": numbers, "x - mean": deviations, "squared": squares},
        totals=[("sum", numbers.sum(), deviations.sum(), squares.sum())],
    )
    shapes = (Shape("numbers", (axis,), (count,)),)
    title, question = f"{kind.capitalize()} norm: mean and variance", "Why mean and variance?"
    return [
        Step(title, formula, prose, shapes, values, (table,), question),
        _normalised(form, report, kind, axis, numbers, mean, variance),
    ]


def _normalised(
    form: NormForm, report: Report, kind: str, axis: str, numbers: np.ndarray, mean: float, variance: float
) -> Step:
    name, root = f"{kind}_norm", sqrt(variance + form.eps)
    reported = part(report.tensors[name])
    centred = numbers - mean
    computed = centred / root
    values: dict[str, Cell] = {
        "x": cell(numbers[0]),
        "x - mean": cell(centred[0]),
        "variance + eps": variance + form.eps,
        "its root": root,
        "normalised": cell(computed[0]),
        f"{name} of example 0, feature 0 in the report": cell(reported[0, 0]),
        f"largest difference over all {axis}s": largest_difference(
            computed, reported[:, 0] if kind == "batch" else reported[0]
        ),
    }
    columns = {"x": numbers, "x - mean": centred, "normalised": computed}
    table = terms(
        f"{name}: before and after",
        {axis: range(len(numbers)), **columns},
        totals=[
            ("mean", *(column.mean() for column in columns.values())),
            ("variance", *(column.var(ddof=int(form.is_unbiased)) for column in columns.values())),
        ],
    )
    prose = (
        "Equal numbers have a variance of 0, and nothing can be divided by that: the number minus the mean "
        f"is divided by the root of variance and eps ({form.eps:g})."
    )
    title = f"{kind.capitalize()} norm: one value normalised"
    shapes = shapes_of(report.tensors, "input", name)
    return Step(title, "(x - mean) / √(variance + eps)", prose, shapes, values, (table,), "Why eps?")


def _running(form: NormForm, report: Report) -> Step:
    data = part(report.tensors["input"])[:, 0]
    mean, variance = float(data.mean()), float(data.var(ddof=1))
    running_mean = form.momentum * mean
    running_variance = (1 - form.momentum) + form.momentum * variance
    evaluated = (data[0] - running_mean) / sqrt(running_variance + form.eps)
    values: dict[str, Cell] = {
        "momentum": form.momentum,
        "mean of the batch": mean,
        "running mean": running_mean,
        "running mean in the report": cell(part(report.tensors["running_mean"])[0]),
        "unbiased variance of the batch": variance,
        "running variance": running_variance,
        "running variance in the report": cell(part(report.tensors["running_variance"])[0]),
        "x": cell(data[0]),
        "normalised in eval mode": evaluated,
        "batch_norm_eval in the report": cell(part(report.tensors["batch_norm_eval"])[0, 0]),
    }
    prose = (
        "An example by itself has no batch to be normalised with. So the layer remembers: its running "
        "statistics start at mean 0 and variance 1 and move by momentum toward the batch's. In eval mode "
        "they take the place of the batch's own."
    )
    shapes = shapes_of(report.tensors, "running_mean", "running_variance", "batch_norm_eval")
    formula = "running = (1 - momentum) · running + momentum · new"
    title, question = "Batch norm: running statistics", "Why remember a mean and a variance?"
    return Step(title, formula, prose, shapes, values, question=question)


def _rms(form: NormForm, report: Report) -> Step:
    numbers, reported = part(report.tensors["input"])[0], part(report.tensors["rms_norm"])[0]
    squares = numbers**2
    mean_square = float(squares.mean())
    root = sqrt(mean_square + form.eps)
    normalised = numbers / root
    table = terms(
        "example 0 over its features",
        {"feature": range(len(numbers)), "x": numbers, "squared": squares, "normalised": normalised},
        totals=[("sum", numbers.sum(), squares.sum(), normalised.sum())],
    )
    values: dict[str, Cell] = {
        "n": len(numbers),
        "mean of squares": mean_square,
        "root of it and eps": root,
        "x": cell(numbers[0]),
        "normalised": cell(normalised[0]),
        "rms_norm of example 0, feature 0 in the report": cell(reported[0]),
        "largest difference over all features": largest_difference(normalised, reported),
    }
    prose = (
        "Taking it off helps little and costs a pass over the numbers: each is divided by the root of the "
        "mean square of its example."
    )
    shapes = shapes_of(report.tensors, "input", "rms_norm")
    formula, question = "x / √(Σ x² / n + eps)", "Why leave the mean in?"
    return Step("RMS norm", formula, prose, shapes, values, (table,), question)


NAMES = ("query", "key", "raw_scores", "scaled_scores")


def tensor_name(name: str, number: int, num_sizes: int) -> str:
    """`query`, or `query_1` for the second of several sizes."""
    return name if num_sizes == 1 else f"{name}_{number}"


NamedSize = tuple[int, float, Sequence[str]]
"""A head_dim, the factor on its scores, and the names of its tensors."""


def scale_demo_steps(report: Report, *, head_dims: Sequence[int], scale: str | float) -> tuple[Step, ...]:
    """One score for each head_dim, all their variances, and each factor's softmax."""
    count = len(head_dims)
    sizes = [
        (head_dim, score_factor(scale, head_dim), [tensor_name(name, number, count) for name in NAMES])
        for number, head_dim in enumerate(head_dims)
    ]
    scores = [_score(report, size) for size in sizes]
    sharpened = [_sharpened(report, row) for row in report.table("sharpness")]
    return (*scores, _variances(report, sizes), *sharpened)


def _score(report: Report, size: NamedSize) -> Step:
    head_dim, factor, names = size
    query, key, raw, scaled = (part(report.tensors[name], batch=0, query=0, key=0) for name in names)
    score = float((query * key).sum())
    product = dot_product("query 0 · key 0 of batch item 0", ("q_0", query), ("k_0", key))
    values: dict[str, Cell] = {
        "head_dim": head_dim,
        "score": score,
        "score in the report": cell(raw),
        "factor": factor,
        "scaled score": score * factor,
        "scaled score in the report": cell(scaled),
    }
    prose = (
        "A score is a sum of head_dim products. Each product of two standard normal numbers has variance 1, "
        "and variances of independent terms add up: the score's is head_dim."
    )
    shapes = shapes_of(report.tensors, *names)
    formula, question = "s = Σ_d q_d k_d,  scaled = factor · s", "Why do scores grow with head_dim?"
    return Step(f"One score, head_dim {head_dim}", formula, prose, shapes, values, (product,), question)


def _variances(report: Report, sizes: Sequence[NamedSize]) -> Step:
    rows = []
    values: dict[str, Cell] = {}
    for head_dim, factor, names in sizes:
        for name, tensor in zip(NAMES, names, strict=True):
            numbers = part(report.tensors[tensor]).ravel()
            squares = float(((numbers - numbers.mean()) ** 2).sum())
            variance = squares / (numbers.size - 1)
            label = f"{name.replace('_', ' ')}, head_dim {head_dim}"
            rows.append((label, numbers.size, numbers.mean(), squares, variance))
            if name == "raw_scores":
                values[f"factor², head_dim {head_dim}"] = factor**2
                values[f"factor² · variance, head_dim {head_dim}"] = cell(factor**2 * variance)
    headings = ("numbers", "n", "mean", "Σ (x - mean)²", "variance")
    columns = dict(zip(headings, zip(*rows, strict=True), strict=True))
    table = terms("variance of all entries", columns, most=len(rows))
    prose = (
        "A factor on the scores multiplies their variance by its square. Unbiased: divided by n - 1. "
        "Around 1 is where softmax stays diffuse."
    )
    formula, question = "variance = Σ (x - mean)² / (n - 1)", "Why the root of head_dim?"
    return Step("Variance", formula, prose, (), values, (table,), question)


def _sharpened(report: Report, row: Row) -> Step:
    # A row of a table holds numbers and lists; this one is a number.
    factor = float(row["factor"])  # type: ignore[arg-type]
    logits = part(report.tensors["logits"])
    scaled = logits * factor
    shifted = scaled - scaled.max()
    exponentials = np.exp(shifted)
    weights = exponentials / exponentials.sum()
    surprise = -weights * np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    table = terms(
        f"softmax of the logits times {factor:g}",
        {
            "key": range(len(logits)),
            "logit": logits,
            "times factor": scaled,
            "minus the max": shifted,
            "exp": exponentials,
            "weight": weights,
            "-w ln w": surprise,
        },
        notable=[int(weights.argmax())],
        totals=[("sum", "", "", "", exponentials.sum(), weights.sum(), surprise.sum())],
    )
    reported: np.ndarray = np.asarray(row["softmax"], dtype=np.float64)
    jacobian = np.diag(weights) - np.outer(weights, weights)
    values: dict[str, Cell] = {
        "largest weight": cell(weights.max()),
        "entropy (nats)": cell(surprise.sum()),
        "norm of the Jacobian diag(w) - w wᵀ": cell(np.sqrt((jacobian**2).sum())),
        "largest difference from the report": largest_difference(weights, reported),
    }
    prose = (
        "Larger logits make the largest weight larger: the row goes toward one-hot, its entropy and its "
        "gradient (the Jacobian) toward 0, and nothing is learned any more."
    )
    shapes = shapes_of(report.tensors, "logits")
    title, formula = f"Sharpened by {factor:g}", "w_j = exp(c x_j) / Σ_k exp(c x_k)"
    return Step(title, formula, prose, shapes, values, (table,), "Why do large scores stop learning?")
