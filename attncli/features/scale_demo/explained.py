"""A step-by-step explanation of score scaling."""

from collections.abc import Sequence

import numpy as np

from attncli.core.layer import score_factor
from attncli.records.report import Cell, Report, Row, Step
from attncli.toys.explained_rows import cell, dot_product, largest_difference, part, tensor_shapes, terms

NAMES = ("query", "key", "raw_scores", "scaled_scores")


def tensor_name(name: str, number: int, num_sizes: int) -> str:
    """The name of a tensor of one size: `query`, or `query_1` for the second of several sizes."""
    return name if num_sizes == 1 else f"{name}_{number}"


NamedSize = tuple[int, float, Sequence[str]]
"""A head_dim, the factor on its scores, and the names of its tensors."""


def scale_demo_steps(report: Report, *, head_dims: Sequence[int], scale: str | float) -> tuple[Step, ...]:
    """Return one score for each head_dim, the variances, and the softmax for each factor."""
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
        "and variances of independent terms add up, so the variance of the score is head_dim."
    )
    shapes = tensor_shapes(report.tensors, *names)
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
        "A factor on the scores multiplies their variance by its square. While the variance "
        "is near 1, softmax stays diffuse. The variance is unbiased: divided by n - 1."
    )
    formula, question = "variance = Σ (x - mean)² / (n - 1)", "Why the root of head_dim?"
    return Step("Variance", formula, prose, (), values, (table,), question)


def _sharpened(report: Report, row: Row) -> Step:
    # Cells of a table are numbers or lists; this one is a number.
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
        "Larger logits make the largest weight larger: the row approaches one-hot, its entropy and its "
        "gradient (the Jacobian) approach 0, and learning stops."
    )
    shapes = tensor_shapes(report.tensors, "logits")
    title, formula = f"Sharpened by {factor:g}", "w_j = exp(c x_j) / Σ_k exp(c x_k)"
    return Step(title, formula, prose, shapes, values, (table,), "Why do large scores stop learning?")
