"""Why scores are scaled, in steps: a score as a sum, its variance, and the softmax sharpened row by row."""

import numpy as np

from attncli.experiments.explained.terms import (
    Numbers,
    cell,
    dot_product,
    largest_difference,
    part,
    shapes_of,
    terms,
)
from attncli.mechanisms.dot_product_attention import scale_factors
from attncli.report import Cell, Report, Row, Step
from attncli.spec.lessons import ScaleDemoSpec

FIGURES = ("query", "key", "raw_scores", "scaled_scores")


def tensor_name(figure: str, number: int, spec: ScaleDemoSpec) -> str:
    """`query`, or `query_1` for the second of several sizes."""
    return figure if len(spec.head_dim) == 1 else f"{figure}_{number}"


def steps(spec: ScaleDemoSpec, report: Report) -> tuple[Step, ...]:
    """One score for each head_dim, all their variances, and each factor's softmax."""
    scores = [_score(spec, report, number) for number in range(len(spec.head_dim))]
    sharpened = [_sharpened(report, row) for row in report.table("sharpness")]
    return (*scores, _variances(spec, report), *sharpened)


def _factor(spec: ScaleDemoSpec, head_dim: int) -> float:
    each, product = scale_factors(spec.scale, head_dim)
    return each * each * product


def _score(spec: ScaleDemoSpec, report: Report, number: int) -> Step:
    names = {figure: tensor_name(figure, number, spec) for figure in FIGURES}
    query, key = (part(report.tensors[names[name]], batch=0, query=0, key=0) for name in ("query", "key"))
    score, factor = float((query * key).sum()), _factor(spec, spec.head_dim[number])
    product = dot_product("query 0 · key 0 of batch item 0", ("q_0", query), ("k_0", key))
    reported = {
        name: part(report.tensors[names[name]], batch=0, query=0, key=0)
        for name in FIGURES
        if "scores" in name
    }
    values: dict[str, Cell] = {
        "head_dim": spec.head_dim[number],
        "score": score,
        "score in the report": cell(reported["raw_scores"]),
        "factor": factor,
        "scaled score": score * factor,
        "scaled score in the report": cell(reported["scaled_scores"]),
    }
    prose = (
        "A score is a sum of head_dim products. Each product of two standard normal numbers has variance 1, "
        "and variances of independent terms add up: the score's is head_dim."
    )
    title = f"One score, head_dim {spec.head_dim[number]}"
    shapes = shapes_of(report.tensors, *names.values())
    formula, question = "s = Σ_d q_d k_d,  scaled = factor · s", "Why do scores grow with head_dim?"
    return Step(title, formula, prose, shapes, values, (product,), question)


def _variances(spec: ScaleDemoSpec, report: Report) -> Step:
    labels, rows = [], []
    for number, head_dim in enumerate(spec.head_dim):
        for figure in FIGURES:
            numbers = part(report.tensors[tensor_name(figure, number, spec)]).ravel()
            squares = float(((numbers - numbers.mean()) ** 2).sum())
            rows.append((numbers.size, numbers.mean(), squares, squares / (numbers.size - 1)))
            labels.append(f"{figure.replace('_', ' ')}, head_dim {head_dim}")
    table = terms(
        "variance of all entries",
        ("numbers", "n", "mean", "Σ (x - mean)²", "variance"),
        (labels, *zip(*rows, strict=True)),
        most=len(labels),
    )
    values: dict[str, Cell] = {}
    for number, head_dim in enumerate(spec.head_dim):
        raw, factor = rows[len(FIGURES) * number + FIGURES.index("raw_scores")][3], _factor(spec, head_dim)
        values |= {f"factor², head_dim {head_dim}": factor**2}
        values |= {f"factor² · variance, head_dim {head_dim}": cell(factor**2 * raw)}
    prose = (
        "A factor on the scores multiplies their variance by its square. Unbiased: divided by n - 1. "
        "Around 1 is where softmax stays diffuse."
    )
    formula, question = "variance = Σ (x - mean)² / (n - 1)", "Why the root of head_dim?"
    return Step("Variance", formula, prose, (), values, (table,), question)


def _sharpened(report: Report, figures: Row) -> Step:
    # A row of a table holds numbers and lists; this one is a number.
    factor = float(figures["factor"])  # type: ignore[arg-type]
    logits = part(report.tensors["logits"])
    scaled = logits * factor
    shifted = scaled - scaled.max()
    exponentials = np.exp(shifted)
    weights = exponentials / exponentials.sum()
    surprise = -weights * np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    table = terms(
        f"softmax of the logits times {factor:g}",
        ("key", "logit", "times factor", "minus the max", "exp", "weight", "-w ln w"),
        (range(len(logits)), logits, scaled, shifted, exponentials, weights, surprise),
        notable=[int(weights.argmax())],
        totals=[("sum", "", "", "", exponentials.sum(), weights.sum(), surprise.sum())],
    )
    reported: Numbers = np.asarray(figures["softmax"], dtype=np.float64)
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
