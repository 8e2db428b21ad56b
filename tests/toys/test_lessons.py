"""The shipped config files reproduce every published number of five lessons, to its printed digits."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attncli.records.report import Report
from attncli.runs.saved_reports import read_reports
from tests.running import LESSON_FILES, ROOT, run, run_file

PRINTED = 6e-5
first_run = cache(run_file)


def golden(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
    return figures


def values(report: Report, name: str) -> np.ndarray:
    return report.tensors[name].values


def assert_printed(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=PRINTED)


def assert_corners(matrix: np.ndarray, corners: dict[str, list[float]]) -> None:
    assert_printed(matrix[0, :3], corners["first_row_head"])
    assert_printed(matrix[0, -3:], corners["first_row_tail"])
    assert_printed(matrix[-1, :3], corners["last_row_head"])
    assert_printed(matrix[-1, -3:], corners["last_row_tail"])


def test_simple() -> None:
    figures = golden("gist")
    batched, report = first_run(LESSON_FILES / "simple.yaml")
    torch.manual_seed(figures["seed"])
    first, vectors = torch.randn(1, figures["t"], figures["k"]), torch.randn(figures["t"], figures["k"])
    np.testing.assert_array_equal(values(batched, "input"), first)
    np.testing.assert_array_equal(values(report, "input"), vectors)
    weights = (vectors @ vectors.T).softmax(dim=1)
    np.testing.assert_allclose(values(report, "weights"), weights, rtol=1e-6)
    np.testing.assert_allclose(values(report, "output"), weights @ vectors, rtol=1e-5)
    assert report.statistics["agreement"]["loop_vs_matmul"] < 1e-6


def test_causal() -> None:
    figures = golden("causal_notebook")
    average, attention, scale, norm = first_run(LESSON_FILES / "causal.yaml")
    assert_printed(values(average, "input")[0], figures["x0_4x8x2"])
    assert_printed(values(average, "output")[0], figures["running_mean0"])
    for weights in values(average, "weights"):
        assert_printed(weights, figures["average_weights_8x8"])
    assert max(average.statistics["agreement"].values()) < 1e-6
    assert_printed(values(attention, "weights")[0], figures["self_attention_weights0"])
    names = {
        "q_var": "query",
        "k_var": "key",
        "raw_score_var": "raw_scores",
        "scaled_score_var": "scaled_scores",
    }
    for theirs, ours in names.items():
        assert_printed(scale.statistics["variance"][ours], figures["scale_demo"][theirs])
    sharpness = figures["softmax_sharpness"]
    assert scale.spec["logits"] == sharpness["logits"]
    for row in scale.statistics["sharpness"]:
        assert_printed(row["softmax"], sharpness[f"x{row['factor']:g}"])
    for kind in ("batch_norm", "layer_norm"):
        for name, figure in figures[f"{kind}_32x100"].items():
            assert_printed(norm.statistics[kind][name], figure)


def test_sentence() -> None:
    figures = golden("sentence_notebook")
    vanilla, scaled, attention, multihead, curve = first_run(LESSON_FILES / "sentence.yaml")
    vectors = values(vanilla, "input")
    assert len(vanilla.tokens) == figures["n_tokens"]
    assert values(attention, "token_ids").tolist() == figures["token_ids"]
    assert_printed(vectors[1], figures["embedding_token1"])
    assert_corners(vectors, figures["embedding_corners"])
    np.testing.assert_allclose(values(vanilla, "weights"), vectors @ vectors.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        values(vanilla, "output"), values(vanilla, "weights") @ vectors, rtol=1e-4, atol=1e-2
    )
    tensor = torch.from_numpy(vectors)
    expected = torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
    np.testing.assert_allclose(values(scaled, "output"), expected, rtol=1e-4, atol=1e-5)
    assert_corners(values(attention, "query_projection"), figures["W_Q_corners"])

    shapes = figures["shapes"]
    for report, name, key in (
        (vanilla, "weights", "vanilla_weights"),
        (vanilla, "output", "vanilla_output"),
        (attention, "query_projection", "W_Q"),
        (attention, "key_projection", "W_K"),
        (attention, "value_projection", "W_V"),
        (attention, "weights", "weights"),
        (attention, "output", "output"),
        (multihead, "query", "M_Q"),
        (multihead, "key", "M_K"),
        (multihead, "value", "M_V"),
    ):
        assert list(values(report, name).shape) == shapes[key], key
    assert values(multihead, "weights").shape == (shapes["heads"], 22, 22)
    assert values(multihead, "head_outputs").shape == (shapes["heads"], 22, 48)
    np.testing.assert_allclose(values(curve, "curve_logits"), np.arange(-50, 50) / 10, atol=1e-12)
    np.testing.assert_allclose(
        values(curve, "curve_weights"), torch.arange(-5, 5, 0.1).softmax(dim=0), rtol=1e-5
    )


def test_the_steps_of_a_file_share_one_generator() -> None:
    figures = golden("sentence_notebook")
    _, _, attention, multihead, _ = first_run(LESSON_FILES / "sentence.yaml")
    torch.manual_seed(figures["seed"])
    vectors = torch.randn(22, 64)[figures["token_ids"]]
    query, key, value = torch.rand(64, 32), torch.rand(64, 32), torch.rand(64, 48)
    weights = ((vectors @ query) @ (vectors @ key).T / 32**0.5).softmax(dim=-1)
    np.testing.assert_allclose(values(attention, "weights"), weights, atol=1e-4)
    np.testing.assert_allclose(values(attention, "output"), weights @ (vectors @ value), atol=2e-3)
    for name, size in (("query", 32), ("key", 32), ("value", 48)):
        np.testing.assert_array_equal(values(multihead, f"{name}_projection"), torch.rand(4, size, 64))
    # The mistake that lesson 3 contains: rows near one-hot, from scores of enormous variance.
    assert np.mean(attention.statistics["rows"]["max_weight"].values) > 0.9
    assert attention.statistics["scaled_scores"]["variance"] > 1e4


def test_glove() -> None:
    figures = golden("glove_notebook")
    single, multihead = first_run(LESSON_FILES / "glove.yaml")
    assert single.spec["sentence"] == figures["sentence"]
    shapes = {name: shape[1:] if shape[0] == 1 else shape for name, shape in figures["shapes"].items()}
    assert list(values(single, "input").shape) == shapes["X"]
    assert list(values(single, "weights").shape) == shapes["single_head_weights"]
    assert list(values(multihead, "merged").shape) == shapes["projected"]
    assert list(values(multihead, "query").swapaxes(0, 1).shape) == shapes["split"]
    assert list(values(multihead, "query").shape) == shapes["folded"]
    assert list(values(multihead, "weights").shape) == shapes["multihead_weights"]
    assert list(values(multihead, "output").shape) == shapes["output"]
    query, key = (values(single, name) / 50**0.25 for name in ("query", "key"))
    np.testing.assert_allclose(values(single, "scaled_scores"), query @ key.T, atol=1e-6)
    np.testing.assert_array_equal(values(single, "input")[0], values(single, "input")[4])
    assert single.tokens == ("the", "cat", "walks", "on", "the", "street")


def test_dot_product() -> None:
    figures = golden("dot_product_notebook")
    loop, sum_all, sum_past, mean_past, twice, attention = first_run(LESSON_FILES / "dot-product.yaml")
    torch.manual_seed(figures["seed"])
    np.testing.assert_array_equal(values(loop, "input"), torch.randn(4, 8, 2))
    for report in (sum_all, sum_past, mean_past):
        assert_printed(values(report, "input"), figures["randint_3x2"])
    assert_printed(values(sum_all, "output"), figures["sum_all"])
    assert_printed(values(sum_past, "output"), figures["sum_to_t"])
    assert_printed(values(mean_past, "output"), figures["mean_to_t"])
    for weights in values(twice, "weights"):
        assert_printed(weights, figures["softmax_of_averaging_matrix_8x8"])
    assert_printed(values(attention, "weights")[0], figures["self_attention_weights0_unscaled"])


@pytest.mark.parametrize("path", sorted(LESSON_FILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_same_file_gives_the_same_numbers_twice(path: Path) -> None:
    first, second = first_run(path), run_file(path)
    assert [report.to_data() for report in first] == [report.to_data() for report in second]


@pytest.mark.parametrize("sentence", ["bird b", "kird b"])
def test_the_heads_of_the_lessons_match_the_shipped_model(sentence: str) -> None:
    model = ROOT / "attncli" / "data" / "tiny-induction"
    computed = run("self", model=str(model), sentence=sentence, layer=1, head=2)
    (saved,) = read_reports(str(LESSON_FILES / f"copy-{sentence[:4]}.json")).reports
    assert saved.tokens == computed.tokens
    np.testing.assert_allclose(saved.tensors["weights"].values, computed.tensors["weights"].values, atol=1e-5)


def test_the_decayed_matrix_is_the_other_one_halved_per_token() -> None:
    """tools/lesson_decay.py computed it with the kernel of lightning attention."""
    (saved,) = read_reports(str(LESSON_FILES / "decay.json")).reports
    plain = run("self", sentence="the cat sees the dog", causal=True, softmax=False)
    assert saved.tokens == plain.tokens
    places = np.arange(len(plain.tokens))
    decay = 0.5 ** (places[:, None] - places).clip(min=0)
    expected = np.tril(np.nan_to_num(values(plain, "weights")) * decay)
    np.testing.assert_allclose(np.nan_to_num(values(saved, "weights")), expected, atol=1e-6)
