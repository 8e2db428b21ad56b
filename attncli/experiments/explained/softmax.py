"""The steps from the scores of a row to its weights, and from weights and values to the output."""

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.scores import key_table
from attncli.experiments.explained.terms import (
    Numbers,
    cell,
    dot_product,
    largest_difference,
    part,
    shapes_of,
)
from attncli.report import Cell, Step

MOST_WEIGHTED_DIMS = 2


def softmax_step(row: Row, sink: float | None) -> Step:
    """The largest score subtracted, exponentials, their sum with that of the sink, the quotients."""
    scores = row.of_query("scaled_scores")
    everything = scores if sink is None else np.append(scores, sink)
    # A query that sees nothing has no largest score; its weights are zeros.
    largest = everything.max() if np.isfinite(everything.max()) else 0.0
    shifted = scores - largest
    exponentials = np.exp(shifted)
    total = np.exp(everything - largest).sum()
    weights = exponentials / total if total else exponentials
    columns = {"score": scores, "minus the max": shifted, "exp": exponentials, "weight": weights}
    values: dict[str, Cell] = {"largest score": cell(largest), "sum of exponentials": cell(total)}
    prose = (
        "An exponential is positive whatever the score, and over their sum it is a weight; a hidden key has "
        "exp(-∞) = 0. Minus the largest score none overflows, and the quotients are the same."
    )
    if sink is not None:
        share = np.exp(sink - largest)
        values |= {"sink": sink, "exponential of the sink": cell(share)}
        values["weight of the sink"] = cell(share / total)
        prose += " The sink is a score outside the keys: it is in the sum, so that the keys get less than 1."
    values["ln Σ exp(score)"] = cell(largest + np.log(total)) if total else None
    values |= row.compared(weights, "weights")
    sums = ("sum", "", "", "", exponentials.sum(), weights.sum())
    table = key_table(row, "softmax", columns, sums)
    shapes = shapes_of(row.tensors, row.name("scaled_scores"), row.name("weights"))
    title = "Second softmax" if row.half else "Softmax"
    formula = "w_ij = exp(s_ij - m) / Σ_k exp(s_ik - m),  m = max_k s_ik"
    return Step(title, formula, prose, shapes, values, (table,), "Why exponentials?")


def difference_step(row: Row, lambda_init: float) -> Step:
    """first - lambda second: what both halves attend to cancels."""
    first, second = (row.of_half(half).of_query("weights") for half in (0, 1))
    vectors = part(row.tensors["lambda_vectors"])
    positive, negative = (np.exp(vectors[n] @ vectors[n + 1]) for n in (0, 2))
    factor = positive - negative + lambda_init
    weights = first - factor * second
    columns = {"first": first, "second": second, "lambda · second": factor * second, "weight": weights}
    sums = ("sum", "", *(column.sum() for column in columns.values()))
    values: dict[str, Cell] = {
        "exp(a · b)": cell(positive),
        "exp(c · d)": cell(negative),
        "lambda_init": lambda_init,
        "lambda": cell(factor),
    }
    values |= row.compared(weights, "weights")
    prose = (
        "Lambda, of four learned vectors, says how much of the second softmax is taken off the first: what "
        "both attend to cancels. A row sums to 1 - lambda and may be negative."
    )
    product = dot_product("a · b, of the vectors behind lambda", ("a", vectors[0]), ("b", vectors[1]))
    table = key_table(row, "difference", columns, sums)
    shapes = shapes_of(row.tensors, "first_weights", "second_weights", "lambda_vectors", "weights")
    formula = "w = w1 - λ w2,  λ = exp(a · b) - exp(c · d) + lambda_init"
    question = "Why take one softmax off another?"
    return Step("Difference", formula, prose, shapes, values, (product, table), question)


def no_softmax_step(row: Row) -> Step:
    """Scores as weights: hidden ones are zero."""
    scores = row.of_query("scaled_scores")
    weights = np.where(np.isneginf(scores), 0.0, scores)
    prose = "No softmax: the scores are the weights, may be negative and sum to anything; hidden ones are 0."
    table = key_table(row, "weights", {"score": scores, "weight": weights}, ("sum", "", "", weights.sum()))
    shapes, question = shapes_of(row.tensors, "weights"), "Why is there usually a softmax?"
    values = row.compared(weights, "weights")
    return Step("No softmax", "w_ij = s_ij", prose, shapes, values, (table,), question)


def weighted_terms(weights: Numbers, values: Numbers) -> tuple[dict[str, Numbers], tuple[object, ...]]:
    """For the first dims the value and its product with the weight, and the row of their sums."""
    columns = {"weight": weights}
    sums: list[object] = [weights.sum()]
    for dim in range(min(MOST_WEIGHTED_DIMS, values.shape[1])):
        products = weights * values[:, dim]
        columns |= {f"value dim {dim}": values[:, dim], f"times weight {dim}": products}
        sums += ["", products.sum()]
    return columns, ("sum", "", *sums)


def weighted_sum_step(row: Row) -> Step:
    """Weights times values, and their sums: the output of the explained query."""
    weights, values = row.of_query("weights"), row.whole("value")
    name = "head_outputs" if "head_outputs" in row.tensors else "output"
    output = row.of_query(name)
    columns, sums = weighted_terms(weights, values)
    shown = {f"{name} dim {dim} in the report": cell(output[dim]) for dim in range(min(2, len(output)))}
    shown["largest difference over all dims"] = largest_difference(weights @ values, output)
    prose = (
        "A sum takes a little from many keys, and a gradient reaches each of them; the best key alone would "
        "be a choice, which has none. Each dim is mixed by itself."
    )
    table = key_table(row, "weighted values", columns, sums)
    shapes = shapes_of(row.tensors, "weights", "value", name)
    question = "Why a sum, and not the best key's value?"
    return Step("Weighted sum", "y_i = Σ_j w_ij v_j", prose, shapes, shown, (table,), question)
