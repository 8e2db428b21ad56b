"""Step-by-step explanation of normalisation."""

from math import sqrt

import numpy as np

from attncli.features.norm.normalisation import NormForm
from attncli.records.report import Cell, Report, Shape, Step
from attncli.toys.explained_rows import MOST_DIMS, cell, largest_difference, part, tensor_shapes, terms


def norm_steps(report: Report, form: NormForm) -> tuple[Step, ...]:
    """Return the input, then each norm's statistics and the first number before and after the norm."""
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
        "Rows are examples, columns are features. Batch norm normalises every column, layer norm and RMS "
        "norm every row. The next steps compute the number at the top left."
    )
    shapes = tensor_shapes(report.tensors, "input")
    values, question = {"example 0, feature 0": cell(data[0, 0])}, "Why is there more than one norm?"
    return Step("Input", "x ~ N(0, 1)", prose, shapes, values, (table,), question)


def _centred(form: NormForm, report: Report, kind: str) -> list[Step]:
    """The mean and variance of a column (batch) or row (layer), and the top left number, normalised."""
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
        "The mean is the centre of the numbers, the variance their spread. Subtracting the mean and dividing "
        "by the standard deviation gives every layer inputs in the same range. The table shows "
        f"{whose}; the squared deviations are divided by {how}."
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
        "Equal numbers have a variance of 0, and dividing by 0 is undefined. So "
        f"eps ({form.eps:g}) is added to the variance before its root is taken."
    )
    title = f"{kind.capitalize()} norm: one value normalised"
    shapes = tensor_shapes(report.tensors, "input", name)
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
        "A single example has no batch to be normalised with, so the layer keeps running statistics: they "
        "start at mean 0 and variance 1, and each batch moves them toward its own statistics by momentum. "
        "In eval mode they replace the statistics of the batch."
    )
    shapes = tensor_shapes(report.tensors, "running_mean", "running_variance", "batch_norm_eval")
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
        "Subtracting the mean helps little and costs another pass over the numbers, so RMS norm only "
        "divides each number by the root mean square of its example."
    )
    shapes = tensor_shapes(report.tensors, "input", "rms_norm")
    formula, question = "x / √(Σ x² / n + eps)", "Why is no mean subtracted?"
    return Step("RMS norm", formula, prose, shapes, values, (table,), question)
