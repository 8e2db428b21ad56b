"""The steps from query and key to the numbers that the softmax takes: scores, scale, cap, bias, mask."""

from collections.abc import Mapping, Sequence

import numpy as np

from attncli.experiments.explained.row import Row
from attncli.experiments.explained.rules import Rule
from attncli.experiments.explained.terms import (
    Numbers,
    cell,
    dot_product,
    largest_difference,
    shapes_of,
    terms,
)
from attncli.mechanisms.positions import alibi_slopes
from attncli.report import Cell, Step, Terms
from attncli.spec.attention import AttentionSpec

Columns = Mapping[str, Sequence[object] | Numbers]


def key_table(row: Row, title: str, columns: Columns, *totals: tuple[object, ...]) -> Terms:
    """One row per key: its position and text, then these columns."""
    return terms(
        f"{title} of query {row.token}{row.place}",
        ("key", "text", *columns),
        (range(len(row.key_tokens)), row.key_tokens, *columns.values()),
        notable=[row.token, row.strongest],
        totals=totals,
    )


def hidden_keys(row: Row) -> Numbers:
    """True where the mask hides the key from the worked query."""
    return np.isneginf(row.of_query("scaled_scores"))


def compared(row: Row, worked: Numbers) -> dict[str, Cell]:
    """How far finished scores are from the report's."""
    return {"largest difference from the report": largest_difference(worked, row.of_query("scaled_scores"))}


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
    if row.half is not None:
        prose += " Differential attention does all this twice, with a half of query and key each."
    values = {
        f"score of key {key} in the report": cell(reported[key]),
        "largest difference over visible keys": largest_difference(scores, reported),
    }
    return Step(
        "Scores",
        "s_ij = q_i · k_j = Σ_d q_id k_jd",
        prose,
        shapes_of(row.tensors, "query", "key", row.name("scores")),
        values,
        (product, key_table(row, "scores", {"score": scores})),
        "Why a dot product?",
    )


def scale_step(spec: AttentionSpec, row: Row, rule: Rule) -> Step:
    """The row of scores before and after its factor."""
    head_dim = row.of_query("query").shape[-1]
    values: dict[str, Cell] = {"head_dim": head_dim, "factor": rule.factor}
    root = "A score is a sum of head_dim products: its variance grows with head_dim. "
    scale = "model" if spec.model is not None else spec.scale if isinstance(spec.scale, str) else "number"
    formula, prose = {
        "sqrt": ("s / √head_dim", f"{root}Dividing by √head_dim prevents this, and softmax stays diffuse."),
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
    if rule.is_scale_alone and not row.place:
        for name in ("scores", "scaled_scores"):
            said = f"variance of all visible {name.replace('_', ' ')}"
            values[said] = cell(row.report.numbers(name)["variance"])
    raw, scaled = row.raw_scores(), rule.scaled(row)
    if rule.is_scale_alone:
        values |= compared(row, scaled)
    table = key_table(row, "scores", {"score": raw, "scaled": scaled})
    shapes = shapes_of(row.tensors, row.name("scores"), row.name("scaled_scores"))
    return Step("Scale", formula, prose, shapes, values, (table,), "Why are scores scaled?")


def rule_steps(spec: AttentionSpec, row: Row, rule: Rule) -> list[Step]:
    """A step for each thing that follows the scale, and is there."""
    steps = []
    if rule.softcap is not None:
        columns = {"scaled": rule.scaled(row), "capped": rule.capped(row)}
        question = "Why bend the scores?"
        prose = (
            "No score goes beyond the cap, so that no key wins by more than that; small ones stay nearly as "
            "they are."
        )
        table = key_table(row, "scaled scores", columns)
        is_last = rule.bias is None and rule.temperature == 1
        values = {"cap": cell(rule.softcap)} | (compared(row, rule.capped(row)) if is_last else {})
        formula = "c tanh(s / c)"
        steps.append(Step("Soft cap", formula, prose, values=values, tables=(table,), question=question))
    if rule.bias is not None:
        steps.append(_bias_step(spec, row, rule, rule.bias))
    if rule.temperature != 1:
        table = key_table(row, "scores", {"score": rule.biased(row), "divided": rule.finished(row)})
        flatter = "more than 1 makes the row flatter" if rule.temperature > 1 else "less than 1, sharper"
        question = "Why divide once more?"
        prose = f"All that the softmax takes is divided by the temperature: {flatter}."
        values = {"temperature": cell(rule.temperature)} | compared(row, rule.finished(row))
        steps.append(Step("Temperature", "s / T", prose, values=values, tables=(table,), question=question))
    return steps


def _bias_step(spec: AttentionSpec, row: Row, rule: Rule, name: str) -> Step:
    """What is added to each score, whatever the words are."""
    bias, scores = row.of_query(name), rule.biased(row)
    values: dict[str, Cell] = {}
    formula, prose = (
        "s_ij + b_ij",
        "Products of vectors say nothing of order. So a number is added to each score that depends on the "
        "positions alone, not on the words.",
    )
    columns: dict[str, Sequence[object] | Numbers] = {"score": rule.capped(row)}
    if spec.model is None:
        columns["distance"] = [abs(row.token - j) for j in range(len(row.key_tokens))]
        if "bias_table" in row.tensors:
            prose += (
                " Distances share buckets; each bucket has a number, sampled here and learned in a model."
            )
        else:
            formula = "s_ij - slope |i - j|"
            num_heads = len(row.tensors[name].values) if row.has_heads else 1
            values["slope"] = cell(alibi_slopes(num_heads)[row.head].item())
            prose = (
                "Products of vectors say nothing of order. ALiBi: each score loses the head's slope times "
                "the distance, so that near keys win."
            )
    columns |= {"bias": bias, "sum": scores}
    if rule.temperature == 1:
        values |= compared(row, scores)
    shapes = shapes_of(row.tensors, name, "bias_table")
    table, question = key_table(row, "scores and bias", columns), "Why add what no word decides?"
    return Step("Bias", formula, prose, shapes, values, (table,), question)


def mask_step(spec: AttentionSpec, row: Row, rule: Rule) -> Step:
    """Which keys the worked query sees; hidden scores become -infinity."""
    hidden = hidden_keys(row)
    everywhere = np.isneginf(row.whole("scaled_scores"))
    values: dict[str, Cell] = {
        "hidden in this row": int(hidden.sum()),
        "hidden in the whole matrix": int(everywhere.sum()),
        "scores in the whole matrix": everywhere.size,
    }
    shapes = shapes_of(row.tensors, row.name("scaled_scores"))
    if not everywhere.any():
        prose = "The whole text is there before it is read: every query sees every key."
        if "causal" in type(spec).model_fields.keys() - spec.unused_keys():
            prose += " A decoder would hide the future: --causal."
        return Step("Mask", "s_ij, for every j", prose, shapes, values, question="Why is nothing hidden?")
    prose = (
        "A hidden key gets a score of -∞, and so a weight of 0, whatever its score was. It is hidden before "
        "the softmax, so that the weights that are left still sum to 1."
    )
    if getattr(spec, "window", None) is not None:
        prose += " The window hides what is too far away."
    if not hidden.any():
        prose += f" Query {row.token} sees every key; --token chooses an earlier one."
    columns: Columns = {
        "score": rule.finished(row),
        "sees": ["no" if h else "yes" for h in hidden],
        "masked": row.of_query("scaled_scores"),
    }
    table = key_table(row, "scores", columns)
    formula, question = "s_ij where i sees j, else -∞", "Why -∞ before the softmax, and not 0 after it?"
    return Step("Mask", formula, prose, shapes, values, (table,), question)
