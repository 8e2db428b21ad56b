"""The steps from query and key to the numbers that the softmax takes: scores, scale, bias, mask."""

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.terms import (
    Numbers,
    cell,
    dot_product,
    largest_difference,
    shapes_of,
    terms,
)
from attncli.mechanisms.scaled_dot_product import scale_factors
from attncli.report import Cell, Step, Terms
from attncli.spec.attention import AttentionSpec


def key_table(row: Row, title: str, columns: dict[str, object], *totals: tuple[object, ...]) -> Terms:
    """A row a key: its position and text, then these columns."""
    return terms(
        f"{title} of query {row.token}{row.place}",
        ("key", "text", *columns),
        (range(len(row.key_tokens)), row.key_tokens, *columns.values()),  # type: ignore[arg-type]
        notable=[row.token, row.strongest],
        totals=totals,
    )


def hidden_keys(row: Row) -> Numbers:
    """True where the mask hides the key from the worked query."""
    return np.isneginf(row.of_query("scaled_scores"))


def scores_step(row: Row) -> Step:
    """One dot product written out, then the whole row."""
    query, keys, key = row.of_query("query"), row.whole("key"), row.strongest
    scores, reported = row.raw_scores(), row.of_query("scores")
    product = dot_product(
        f"query {row.token} · key {key}{row.place}", (f"q_{row.token}", query), (f"k_{key}", keys[key])
    )
    prose = (
        "A score says how well a key fits a query: large where their vectors point the same way. Written out "
        "is the key with the largest weight; the others go the same way."
    )
    values = {
        f"score of key {key} in the report": cell(reported[key]),
        "largest difference over visible keys": largest_difference(scores, reported),
    }
    return Step(
        "Scores",
        "s_ij = q_i · k_j = Σ_d q_id k_jd",
        prose,
        shapes_of(row.tensors, "query", "key", "scores"),
        values,
        (product, key_table(row, "scores", {"score": scores})),
    )


def score_factor(spec: AttentionSpec, row: Row) -> float:
    """What the scores are multiplied by: the model's own factor, or the spec's."""
    if spec.model is not None:
        return float(row.report.statistics["score_rule"]["scale"])
    each, product = scale_factors(spec.scale, row.of_query("query").shape[-1])
    return each * each * product


def scale_step(spec: AttentionSpec, row: Row) -> Step:
    """The row of scores before and after its factor."""
    factor = score_factor(spec, row)
    head_dim = row.of_query("query").shape[-1]
    values: dict[str, Cell] = {"head_dim": head_dim, "factor": factor}
    root = "A score is a sum of head_dim products: its variance grows with head_dim. "
    scale = "model" if spec.model is not None else spec.scale if isinstance(spec.scale, str) else "number"
    formula, prose = {
        "sqrt": ("s / √head_dim", f"{root}Divided by the root it does not, and softmax stays diffuse."),
        "fourth-root": (
            "(q · head_dim^-¼) · (k · head_dim^-¼)",
            f"{root}Here query and key are each divided by the fourth root: the same, with smaller numbers "
            "on the way.",
        ),
        "none": ("s", f"{root}Nothing is done about it here: the scores stay as they are."),
        "number": ("factor · s", f"{root}The factor was chosen; 1 / √head_dim would keep the variance."),
        "model": ("factor · s", f"{root}The factor is the model's own."),
    }[scale]
    if scale == "fourth-root":
        values["factor on query and key each"] = head_dim**-0.25
    for name in ("scores", "scaled_scores"):
        if name in row.report.statistics and not row.place:
            said = f"variance of all visible {name.replace('_', ' ')}"
            values[said] = cell(row.report.statistics[name]["variance"])
    raw = row.raw_scores()
    if not _is_changed_after(row):
        reported = row.of_query("scaled_scores")
        values["largest difference from the report"] = largest_difference(raw * factor, reported)
    table = key_table(row, "scores", {"score": raw, "scaled": raw * factor})
    return Step("Scale", formula, prose, shapes_of(row.tensors, "scores", "scaled_scores"), values, (table,))


def _is_changed_after(row: Row) -> bool:
    return "bias" in row.tensors or row.report.statistics.get("score_rule", {}).get("softcap") is not None


def softcap_step(row: Row) -> Step:
    """c tanh(s / c): no score goes beyond c."""
    cap = float(row.report.statistics["score_rule"]["softcap"])
    scaled = row.raw_scores() * float(row.report.statistics["score_rule"]["scale"])
    table = key_table(row, "scaled scores", {"scaled": scaled, "capped": cap * np.tanh(scaled / cap)})
    prose = (
        "The model bends its scores, so that none goes beyond the cap; small ones stay nearly as they are."
    )
    return Step("Soft cap", "c tanh(s / c)", prose, values={"cap": cap}, tables=(table,))


def before_mask(spec: AttentionSpec, row: Row) -> Numbers:
    """The worked query's numbers just before the mask, those of hidden keys, too."""
    scores = row.raw_scores() * score_factor(spec, row)
    cap = row.report.statistics.get("score_rule", {}).get("softcap")
    if cap is not None:
        scores = float(cap) * np.tanh(scores / float(cap))
    return scores + row.of_query("bias") if "bias" in row.tensors else scores


def bias_step(spec: AttentionSpec, row: Row) -> Step:
    """What the model adds to each score, whatever the words are."""
    bias, scores = row.of_query("bias"), before_mask(spec, row)
    prose = "The model adds a number to each score that depends on the positions alone, not on the words."
    columns: dict[str, object] = {"score": scores - bias, "bias": bias, "sum": scores}
    values = {"largest difference from the report": largest_difference(scores, row.of_query("scaled_scores"))}
    table = key_table(row, "scores and bias", columns)
    return Step("Bias", "s_ij + b_ij", prose, shapes_of(row.tensors, "bias"), values, (table,))


def mask_step(spec: AttentionSpec, row: Row) -> Step:
    """Which keys the worked query sees; hidden scores become -infinity."""
    hidden = hidden_keys(row)
    everywhere = np.isneginf(row.whole("scaled_scores"))
    values = {
        "hidden in this row": int(hidden.sum()),
        "hidden in the whole matrix": int(everywhere.sum()),
        "scores in the whole matrix": everywhere.size,
    }
    shapes = shapes_of(row.tensors, "scaled_scores")
    if not everywhere.any():
        prose = "Nothing is hidden: every query sees every key."
        if "causal" in type(spec).model_fields.keys() - spec.idle_keys():
            prose += " A decoder would hide the future: --causal."
        return Step("Mask", "s_ij, for every j", prose, shapes, values)
    prose = (
        "A hidden key gets a score of -∞, and so a weight of 0, whatever its score was. It is hidden before "
        "the softmax, so that the weights that are left still sum to 1."
    )
    if not hidden.any():
        prose += f" Query {row.token} sees every key; --token chooses an earlier one."
    columns: dict[str, object] = {
        "scaled": before_mask(spec, row),
        "sees": ["no" if h else "yes" for h in hidden],
        "masked": row.of_query("scaled_scores"),
    }
    table = key_table(row, "scores", columns)
    return Step("Mask", "s_ij where i sees j, else -∞", prose, shapes, values, (table,))
