"""The classic mistakes: the metric that exposes each, against published and independent numbers."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attncli.features.pitfalls.mistakes import COMPARISONS
from attncli.features.pitfalls.question import PITFALLS, PitfallsSpec
from attncli.records.report import Report
from tests.conftest import Attn
from tests.running import run

SENTENCE = (
    "Mathematics catalogues everything not self-contradictory; within its vast inventory, physics is an "
    "island of structures rich enough to contain their own beholders."
)

GOLDEN = Path(__file__).parents[2] / "toys" / "golden"


def values(report: Report, name: str) -> np.ndarray:
    return report.tensors[name].values.astype(np.float64)


def metrics(report: Report, name: str) -> tuple[float, float]:
    return report.statistics["wrong"][name], report.statistics["right"][name]


def test_every_mistake_has_a_name_and_a_comparison() -> None:
    annotation: Any = PitfallsSpec.model_fields["pitfall"].annotation
    names = annotation.__args__[0].__args__
    assert tuple(PITFALLS) == tuple(COMPARISONS) == names and len(names) == 7


def test_softmax_twice_gives_the_published_matrix() -> None:
    golden = json.loads((GOLDEN / "dot_product_notebook.json").read_text())
    report = run("pitfalls", pitfall="softmax-twice", num_tokens=8)
    published = golden["softmax_of_averaging_matrix_8x8"]
    np.testing.assert_allclose(values(report, "wrong_weights"), published, rtol=0, atol=6e-5)
    right = np.tril(np.ones((8, 8))) / np.arange(1, 9)[:, None]
    np.testing.assert_allclose(values(report, "right_weights"), right, rtol=1e-6)
    wrong, none = metrics(report, "weight_on_future")
    assert none == 0
    assert wrong == pytest.approx(np.triu(values(report, "wrong_weights"), 1).sum() / 8, rel=1e-6)
    assert metrics(report, "first_row_on_itself") == pytest.approx((math.e / (math.e + 7), 1))


def test_without_scaling_the_variance_is_head_dim() -> None:
    report = run("pitfalls", pitfall="no-scaling", num_tokens=64, embed_dim=256, seed=5)
    wrong, right = metrics(report, "score_variance")
    assert wrong == pytest.approx(256, rel=0.1) and right == pytest.approx(1, rel=0.1)
    np.testing.assert_allclose(values(report, "wrong_scores"), values(report, "right_scores") * 16, rtol=1e-5)
    for side in ("wrong", "right"):
        expected = torch.tensor(values(report, f"{side}_scores")).softmax(-1)
        np.testing.assert_allclose(values(report, f"{side}_weights"), expected, atol=1e-5)
    growth = report.statistics["growth"]
    assert [row["head_dim"] for row in growth] == [4, 16, 64, 256]
    for row in growth:
        assert row["wrong_score_variance"] == pytest.approx(row["head_dim"], rel=0.25)
        assert row["right_score_variance"] == pytest.approx(1, rel=0.25)
    saturation = [row["wrong_mean_max_weight"] for row in growth]
    assert saturation == sorted(saturation) and saturation[-1] > 0.9


def test_uniform_projections_give_enormous_scores_and_one_hot_rows() -> None:
    report = run("pitfalls", pitfall="uniform-projections", sentence=SENTENCE, seed=123)
    wrong, right = metrics(report, "score_variance")
    assert wrong > 1e4 and right < 1
    assert wrong == pytest.approx(values(report, "wrong_scores").var(ddof=1), rel=1e-4)
    one_hot, diffuse = metrics(report, "mean_max_weight")
    assert one_hot > 0.9 and diffuse < 0.3
    assert one_hot == pytest.approx(values(report, "wrong_weights").max(axis=-1).mean(), rel=1e-5)


def test_uniform_and_centred_projections_share_their_samples() -> None:
    report = run("pitfalls", pitfall="uniform-projections", num_tokens=5, embed_dim=7, seed=3)
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(5, 7, generator=generator)
    query, key = torch.rand(7, 7, generator=generator), torch.rand(7, 7, generator=generator)
    wrong = (vectors @ query) @ (vectors @ key).T / math.sqrt(7)
    np.testing.assert_allclose(values(report, "wrong_scores"), wrong, rtol=1e-5, atol=1e-5)
    query, key = ((2 * drawn - 1) / math.sqrt(7) for drawn in (query, key))
    right = (vectors @ query) @ (vectors @ key).T / math.sqrt(7)
    np.testing.assert_allclose(values(report, "right_scores"), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("num_tokens", "num_heads", "dim"), [(5, 3, 2), (7, 2, 3), (3, 5, 1)])
def test_heads_merged_wrongly_mix_tokens(num_tokens: int, num_heads: int, dim: int) -> None:
    width = num_heads * dim
    report = run(
        "pitfalls", pitfall="merged-heads", num_tokens=num_tokens, num_heads=num_heads, embed_dim=width
    )
    right, wrong = values(report, "right_merged"), values(report, "wrong_merged")
    sources = values(report, "wrong_token_of_slice")
    numbers = [right[token, head * dim + d] for head, token, d in np.ndindex(num_heads, num_tokens, dim)]
    np.testing.assert_array_equal(wrong.ravel(), numbers)
    for token, head in np.ndindex(num_tokens, num_heads):
        flat = token * width + head * dim
        assert sources[token, head] == flat // dim % num_tokens
        assert values(report, "right_token_of_slice")[token, head] == token
    difference, none = metrics(report, "difference_from_input")
    assert none == 0 and difference == pytest.approx(np.abs(wrong - right).max())
    assert metrics(report, "rows_of_one_token")[1] == num_tokens


def test_labels_from_the_vocabulary_are_wrong() -> None:
    report = run("pitfalls", pitfall="vocabulary-labels")
    assert metrics(report, "labels") == (5, 6)
    vocabulary = ["cat", "on", "street", "the", "walks"]
    tokens = ["the", "cat", "walks", "on", "the", "street"]
    weights = values(report, "weights")
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    wrong = [*vocabulary, "(no label)"]
    for i, reading in enumerate(report.statistics["readings"]):
        key = int(weights[i].argmax())
        assert reading["wrong"] == f"{wrong[i]} → {wrong[key]}"
        assert reading["right"] == f"{tokens[i]} → {tokens[key]}"
        assert reading["weight"] == weights[i, key]
    count = sum(a != b for a, b in zip(wrong, tokens, strict=True))
    assert metrics(report, "rows_named_wrongly") == (count, 0)
    ordered = run("pitfalls", pitfall="vocabulary-labels", sentence="a b c")
    assert metrics(ordered, "rows_named_wrongly") == (0, 0)


def test_softmax_over_the_wrong_axis_sums_columns() -> None:
    report = run("pitfalls", pitfall="wrong-axis", num_tokens=7)
    wrong, right = values(report, "wrong_weights"), values(report, "right_weights")
    np.testing.assert_allclose(wrong.sum(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(right.sum(axis=1), 1, rtol=1e-6)
    # Both are exponentials of the same scores: they differ by a factor a row and a factor a column.
    ratio = np.log(wrong) - np.log(right)
    rest = ratio - ratio.mean(axis=0) - ratio.mean(axis=1, keepdims=True) + ratio.mean()
    np.testing.assert_allclose(rest, 0, atol=1e-5)
    assert metrics(report, "row_sum_error")[0] == pytest.approx(np.abs(wrong.sum(axis=1) - 1).max(), rel=1e-4)
    assert metrics(report, "row_sum_error")[1] < 1e-6 < 0.01 < metrics(report, "row_sum_error")[0]


def test_a_mask_after_the_softmax_loses_weight() -> None:
    report = run("pitfalls", pitfall="late-mask", num_tokens=7)
    wrong, right = values(report, "wrong_weights"), values(report, "right_weights")
    assert (np.triu(wrong, 1) == 0).all() and (np.triu(right, 1) == 0).all()
    np.testing.assert_allclose(wrong / wrong.sum(axis=1, keepdims=True), right, rtol=1e-5)
    smallest = metrics(report, "smallest_row_sum")
    assert smallest == pytest.approx((wrong.sum(axis=1).min(), 1), rel=1e-5) and smallest[0] < 0.9


def test_the_list_has_the_metric_of_each_mistake(attn: Attn) -> None:
    """Each mistake also runs on a single token, and its name needs no flag."""
    rows = run("pitfalls").statistics["pitfalls"]
    assert [row["pitfall"] for row in rows] == list(PITFALLS)
    for row in rows:
        alone = run("pitfalls", pitfall=row["pitfall"])
        assert (row["wrong"], row["right"]) == metrics(alone, row["figure"])
        assert row["wrong"] != pytest.approx(row["right"], abs=1e-3), row["pitfall"]
        assert PITFALLS[row["pitfall"]].notice in alone.notes[0]
        assert run("pitfalls", pitfall=row["pitfall"], sentence="alone").experiment == "pitfalls"
        assert json.loads(attn(["pitfalls", row["pitfall"], "--format", "json"]).out) == alone.to_data()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["late-masks"],
            "--pitfall: got late-masks (did you mean 'late-mask'?): must be one of "
            "softmax-twice, no-scaling, uniform-projections, merged-heads, "
            "vocabulary-labels, wrong-axis or late-mask",
        ),
        (
            ["late-mask", "--pitfall", "wrong-axis"],
            "--pitfall: cannot be combined with the argument (late-mask): give one of them",
        ),
        (["late-mask", "--num-heads", "2"], "--num-heads: is not used by late-mask"),
        (
            ["--num-tokens", "3", "--batch-size", "2"],
            "--batch-size: does not apply to pitfalls: each pitfall shows one sequence",
        ),
        (
            ["merged-heads", "--num-heads", "5"],
            "--num-heads: --embed-dim (64) must be divisible by --num-heads (5)",
        ),
    ],
)
def test_wrong_settings_are_refused_on_one_line(attn: Attn, arguments: list[str], message: str) -> None:
    ended = attn(["pitfalls", *arguments])
    assert (ended.code, ended.out, ended.err) == (2, "", f"{message}\n")


def test_hostile_words_stay_plain_in_every_view(attn: Attn) -> None:
    hostile = "[/INST] :smile: <b>x</b> \x1b[31m \u202eb"
    arguments = ["pitfalls", "vocabulary-labels", "--sentence", hostile, "--tokenizer", "whitespace"]
    for view in ("table", "csv", "json"):
        ended = attn([*arguments, "--format", view])
        assert ended.code == 0 and not {"\x1b", "\u202e"} & set(ended.out), view
        assert "[/INST]" in ended.out and ":smile:" in ended.out
    rows = attn([*arguments, "--format", "csv", "--show", "readings"]).out
    assert "right" in next(csv.reader(io.StringIO(rows)))


def test_settings_that_hide_a_mistake_are_noted() -> None:
    for num_heads, is_hidden in ((1, True), (4, False)):
        notes = run("pitfalls", pitfall="merged-heads", num_heads=num_heads).notes
        assert any("the mistake is not exposed" in note for note in notes) == is_hidden
