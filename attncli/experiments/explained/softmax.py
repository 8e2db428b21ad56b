"""The steps from the scores of a row to its weights, and from weights and values to the output."""

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.scores import hidden_keys, key_table
from attncli.experiments.explained.terms import Numbers, cell, largest_difference, shapes_of
from attncli.report import Cell, Step

MOST_WEIGHTED_DIMS = 2


def softmax_step(row: Row) -> Step:
    """The largest score subtracted, exponentials, their sum, the quotients."""
    scores, reported = row.of_query("scaled_scores"), row.of_query("weights")
    sink = row.report.statistics.get("score_rule", {}).get("sink")
    everything = scores if sink is None else np.append(scores, float(sink))
    # A query that sees nothing has no largest score; its weights are zeros.
    largest = everything.max() if np.isfinite(everything.max()) else 0.0
    shifted = scores - largest
    exponentials = np.exp(shifted)
    total = np.exp(everything - largest).sum()
    weights = exponentials / total if total else exponentials
    columns: dict[str, object] = {
        "score": scores,
        "less the max": shifted,
        "exp": exponentials,
        "weight": weights,
    }
    values: dict[str, Cell] = {"largest score": cell(largest), "sum of exponentials": cell(total)}
    prose = (
        "The largest score is subtracted first: no exponential overflows, and the quotients are the same. "
        "Each exponential over their sum is a weight; a hidden key has exp(-∞) = 0."
    )
    totals: list[tuple[object, ...]] = [("sum", "", "", "", exponentials.sum(), weights.sum())]
    if sink is not None:
        share = np.exp(float(sink) - largest)
        values |= {"sink": cell(float(sink)), "exponential of the sink": cell(share)}
        values["weight of the sink"] = cell(share / total)
        prose += " The sink is a score outside the keys: it is in the sum, so that the keys get less than 1."
    values["ln Σ exp(score)"] = cell(largest + np.log(total)) if total else None
    values["largest difference from the report"] = largest_difference(weights, reported)
    return Step(
        "Softmax",
        "w_ij = exp(s_ij - m) / Σ_k exp(s_ik - m),  m = max_k s_ik",
        prose,
        shapes_of(row.tensors, "scaled_scores", "weights"),
        values,
        (key_table(row, "softmax", columns, *totals),),
    )


def no_softmax_step(row: Row) -> Step:
    """Scores as weights: hidden ones are zero."""
    scores, hidden = row.of_query("scaled_scores"), hidden_keys(row)
    weights = np.where(hidden, 0.0, scores)
    prose = "No softmax: the scores are the weights, may be negative and sum to anything; hidden ones are 0."
    table = key_table(row, "weights", {"score": scores, "weight": weights}, ("sum", "", "", weights.sum()))
    values = {"largest difference from the report": largest_difference(weights, row.of_query("weights"))}
    return Step("No softmax", "w_ij = s_ij", prose, shapes_of(row.tensors, "weights"), values, (table,))


def weighted_terms(
    row: Row, weights: Numbers, values: Numbers
) -> tuple[dict[str, object], tuple[object, ...]]:
    """For the first dims the value and its product with the weight, and the row of their sums."""
    columns: dict[str, object] = {"weight": weights}
    sums: list[object] = [weights.sum()]
    for dim in range(min(MOST_WEIGHTED_DIMS, values.shape[1])):
        products = weights * values[:, dim]
        columns |= {f"value dim {dim}": values[:, dim], f"times weight {dim}": products}
        sums += ["", products.sum()]
    return columns, ("sum", "", *sums)


def weighted_sum_step(row: Row) -> Step:
    """Weights times values, and their sums: the output of the worked query."""
    weights, values = row.of_query("weights"), row.whole("value")
    name = "head_outputs" if "head_outputs" in row.tensors else "output"
    output, worked = row.of_query(name), weights @ values
    columns, sums = weighted_terms(row, weights, values)
    shown = {f"{name} dim {dim} in the report": cell(output[dim]) for dim in range(min(2, len(output)))}
    shown["largest difference over all dims"] = largest_difference(worked, output)
    prose = (
        "The output is the values mixed by their weights, each dim by itself: what the query takes from the "
        "tokens that it attends to."
    )
    table = key_table(row, "weighted values", columns, sums)
    shapes = shapes_of(row.tensors, "weights", "value", name)
    return Step("Weighted sum", "y_i = Σ_j w_ij v_j", prose, shapes, shown, (table,))
