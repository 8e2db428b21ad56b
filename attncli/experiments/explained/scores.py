"""The steps from query and key to the numbers that the softmax takes: scores, scale, cap, bias, mask."""

from collections.abc import Sequence

import numpy as np

from attncli.experiments.explained.row import Row, RowScores
from attncli.experiments.explained.terms import (
    Columns,
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


def key_table(row: Row, title: str, columns: Columns, *totals: tuple[object, ...]) -> Terms:
    """One row per key: its position and text, then these columns."""
    return terms(
        f"{title} of query {row.token}{row.place}",
        {"key": range(len(row.key_tokens)), "text": row.key_tokens, **columns},
        notable=[row.token, row.strongest],
        totals=totals,
    )


def scores_step(row: Row, scores: RowScores) -> Step:
    """One dot product written out, then the whole row."""
    key, reported = row.strongest, row.of_query("scores")
    left, right = (f"q_{row.token}", row.of_query("query")), (f"k_{key}", row.whole("key")[key])
    product = dot_product(f"query {row.token} · key {key}{row.place}", left, right)
    prose = (
        "A score says how well a key fits a query: large where their vectors point the same way. Written out "
        "is the key with the largest weight; the others go the same way."
    )
    if row.half is not None:
        prose += " Differential attention does all this twice, with a half of query and key each."
    values = {
        f"score of key {key} in the report": cell(reported[key]),
        "largest difference over visible keys": largest_difference(scores.raw, reported),
    }
    shapes = shapes_of(row.tensors, "query", "key", row.name("scores"))
    tables = product, key_table(row, "scores", {"score": scores.raw})
    return Step(
        "Scores", "s_ij = q_i · k_j = Σ_d q_id k_jd", prose, shapes, values, tables, "Why a dot product?"
    )


def scale_step(spec: AttentionSpec, row: Row, scores: RowScores) -> Step:
    """The row of scores before and after its factor."""
    head_dim = row.of_query("query").shape[-1]
    values: dict[str, Cell] = {"head_dim": head_dim, "factor": scores.factor}
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
    if scores.is_scale_alone and not row.place:
        for name in ("scores", "scaled_scores"):
            said = f"variance of all visible {name.replace('_', ' ')}"
            values[said] = cell(row.report.numbers(name)["variance"])
    if scores.is_scale_alone:
        values |= row.compared(scores.scaled, "scaled_scores")
    table = key_table(row, "scores", {"score": scores.raw, "scaled": scores.scaled})
    shapes = shapes_of(row.tensors, row.name("scores"), row.name("scaled_scores"))
    return Step("Scale", formula, prose, shapes, values, (table,), "Why are scores scaled?")


def steps_after_scale(spec: AttentionSpec, row: Row, scores: RowScores) -> list[Step]:
    """One step each for the soft cap, the bias and the temperature, where they are on."""
    steps = []
    if scores.softcap is not None:
        table = key_table(row, "scaled scores", {"scaled": scores.scaled, "capped": scores.capped})
        values = {"cap": cell(scores.softcap)}
        if scores.bias is None and scores.temperature == 1:
            values |= row.compared(scores.capped, "scaled_scores")
        prose = (
            "No score goes beyond the cap, so that no key wins by more than that; small ones stay nearly as "
            "they are."
        )
        steps.append(Step("Soft cap", "c tanh(s / c)", prose, (), values, (table,), "Why bend the scores?"))
    if scores.bias is not None:
        steps.append(_bias_step(spec, row, scores, scores.bias))
    if scores.temperature != 1:
        table = key_table(row, "scores", {"score": scores.biased, "divided": scores.finished})
        values = {"temperature": cell(scores.temperature)} | row.compared(scores.finished, "scaled_scores")
        flatter = "more than 1 makes the row flatter" if scores.temperature > 1 else "less than 1, sharper"
        prose = f"All that the softmax takes is divided by the temperature: {flatter}."
        steps.append(Step("Temperature", "s / T", prose, (), values, (table,), "Why divide once more?"))
    return steps


def _bias_step(spec: AttentionSpec, row: Row, scores: RowScores, name: str) -> Step:
    """What is added to each score, whatever the words are."""
    values: dict[str, Cell] = {}
    formula, prose = (
        "s_ij + b_ij",
        "Products of vectors say nothing of order. So a number is added to each score that depends on the "
        "positions alone, not on the words.",
    )
    columns: dict[str, Sequence[object] | Numbers] = {"score": scores.capped}
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
    columns |= {"bias": row.of_query(name), "sum": scores.biased}
    if scores.temperature == 1:
        values |= row.compared(scores.biased, "scaled_scores")
    shapes = shapes_of(row.tensors, name, "bias_table")
    table, question = key_table(row, "scores and bias", columns), "Why add what no word decides?"
    return Step("Bias", formula, prose, shapes, values, (table,), question)


def mask_step(spec: AttentionSpec, row: Row, scores: RowScores) -> Step:
    """Which keys the explained query sees; hidden scores become -infinity."""
    everywhere = np.isneginf(row.whole("scaled_scores"))
    hidden = everywhere[row.token]
    values: dict[str, Cell] = {
        "hidden in this row": int(hidden.sum()),
        "hidden in the whole matrix": int(everywhere.sum()),
        "scores in the whole matrix": everywhere.size,
    }
    shapes, positions = shapes_of(row.tensors, row.name("scaled_scores")), spec.positions()
    if not everywhere.any():
        prose = "The whole text is there before it is read: every query sees every key."
        if positions and spec.model is None:
            prose += " A decoder would hide the future: --causal."
        return Step("Mask", "s_ij, for every j", prose, shapes, values, question="Why is nothing hidden?")
    prose = (
        "A hidden key gets a score of -∞, and so a weight of 0, whatever its score was. It is hidden before "
        "the softmax, so that the weights that are left still sum to 1."
    )
    if positions and positions.window is not None:
        prose += " The window hides what is too far away."
    if not hidden.any():
        prose += f" Query {row.token} sees every key; --token chooses an earlier one."
    columns: Columns = {
        "score": scores.finished,
        "sees": ["no" if h else "yes" for h in hidden],
        "masked": row.of_query("scaled_scores"),
    }
    table = key_table(row, "scores", columns)
    formula, question = "s_ij where i sees j, else -∞", "Why -∞ before the softmax, and not 0 after it?"
    return Step("Mask", formula, prose, shapes, values, (table,), question)
