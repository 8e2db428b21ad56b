"""Every term that --explain prints for self-, multi-head and cross-attention, recomputed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.errors import UserError
from attncli.features.attention.settings import VARIANTS as VARIANT_KEYS
from attncli.records.report import Report
from attncli.runs.saved_reports import parse_reports
from tests.conftest import Attn, in_turn
from tests.model_folders import save_model
from tests.running import run
from tests.toys.recomputed_steps import Recomputed

LONG = " ".join(f"word{i % 50}" for i in range(200))
SELF = ["Tokens", "Embeddings", "Query, key and value", "Scores", "Scale", "Mask", "Softmax", "Weighted sum"]
HEADS = [*SELF[:3], "Split into heads", *SELF[3:], "Merge the heads", "Output projection"]

SELF_CASES: list[dict[str, Any]] = [
    {},
    {"causal": True, "token": 2},
    {"causal": True, "token": 0},
    {"embed_dim": 7, "head_dim": 5, "value_dim": 3, "scale": "fourth-root", "seed": 3},
    {"scale": "none", "projection": "uniform", "embed_dim": 11, "head_dim": 3, "value_dim": 1},
    {"scale": 0.3, "projection": "none", "embed_dim": 5},
    {"num_tokens": 5, "batch_size": 3, "embed_dim": 7, "causal": True, "token": 3},
    {"num_tokens": 3, "embedding": "integers", "embed_dim": 2, "projection": "none", "scale": "none"},
    {"sentence": "alone", "embed_dim": 3},
    {"sentence": LONG, "causal": True, "token": 101, "embed_dim": 13},
]
HEAD_CASES: list[dict[str, Any]] = [
    {},
    {"num_heads": 6, "num_kv_heads": 2, "embed_dim": 42, "head": 5, "causal": True, "token": 1},
    {"num_heads": 6, "num_kv_heads": 1, "embed_dim": 42, "head": 3, "value_dim": 5},
    {"num_heads": 3, "embed_dim": 15, "projection": "none", "head": 2},
    {"num_heads": 1, "embed_dim": 5},
    {"num_heads": 3, "embed_dim": 15, "sentence": "alone"},
    {"num_heads": 2, "embed_dim": 6, "projection": "uniform", "scale": "none", "head_dim": 5},
    {"num_heads": 2, "embed_dim": 6, "num_tokens": 5, "batch_size": 3, "head": 1, "scale": "fourth-root"},
]


def explained(experiment: str, **settings: Any) -> Report:
    report = run(experiment, explain=True, **settings)
    for step in report.steps:
        assert step.formula and step.prose
    return report


def settings_name(settings: dict[str, Any]) -> str:
    return ",".join(f"{key}={str(value)[:8]}" for key, value in settings.items()) or "defaults"


@pytest.mark.parametrize("settings", SELF_CASES, ids=settings_name)
def test_every_term_of_self_attention(settings: dict[str, Any]) -> None:
    report = explained("self", **settings)
    token = settings.get("token", len(report.tokens) - 1)
    assert Recomputed(report, token).check() == SELF


@pytest.mark.parametrize("settings", HEAD_CASES, ids=settings_name)
def test_every_term_of_multi_head_attention(settings: dict[str, Any]) -> None:
    report = explained("multihead", **settings)
    token = settings.get("token", len(report.tokens) - 1)
    assert Recomputed(report, token, settings.get("head", 0)).check() == HEADS


def test_every_term_of_cross_attention() -> None:
    settings = {"sentence": "a b c", "context": "x a y z w", "embed_dim": 7, "head_dim": 5}
    assert Recomputed(explained("cross", **settings), 2).check() == SELF
    random = explained("cross", num_tokens=3, num_context_tokens=5, embed_dim=7, token=1)
    assert Recomputed(random, 1).check() == SELF


def test_without_softmax_and_without_output_projection() -> None:
    titles = Recomputed(explained("self", softmax=False, causal=True, token=2), 2).check()
    assert "No softmax" in titles and "Softmax" not in titles
    bare = explained("multihead", output_projection=False, num_heads=2, embed_dim=6)
    assert Recomputed(bare, 5).check() == HEADS[:-1]


VARIANTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"rope": True, "rope_base": 100.0}, ["Rotary positions"]),
    ({"qk_norm": True, "causal": True}, ["Normalise query and key"]),
    ({"qk_norm": True, "rope": True, "scale": "none"}, ["Normalise query and key", "Rotary positions"]),
    ({"alibi": True, "causal": True}, ["Bias"]),
    ({"relative_bias": True, "num_buckets": 4, "max_distance": 5}, ["Bias"]),
    ({"window": 2, "causal": True}, ["Mask"]),
    ({"window": 2}, ["Mask"]),
    ({"softcap": 0.3}, ["Soft cap"]),
    ({"sink": -0.5, "temperature": 0.5}, ["Temperature"]),
    ({"temperature": 3.0, "alibi": True, "softcap": 0.2}, ["Soft cap", "Bias", "Temperature"]),
    ({"differential": True, "lambda_init": 0.5}, ["Second softmax", "Difference"]),
    (
        {"differential": True, "rope": True, "qk_norm": True, "softcap": 0.4, "temperature": 2.0},
        ["Rotary positions", "Soft cap", "Temperature", "Second softmax", "Difference"],
    ),
    ({"softmax": False, "alibi": True, "softcap": 2.0}, ["Soft cap", "Bias", "No softmax"]),
]


def test_every_variant_is_tested() -> None:
    assert set(VARIANT_KEYS) <= {key for settings, _ in VARIANTS for key in settings}


@pytest.mark.parametrize(("settings", "titles"), VARIANTS, ids=lambda value: str(value)[:40])
def test_every_term_of_a_variant(settings: dict[str, Any], titles: list[str]) -> None:
    one = explained("self", embed_dim=12, token=3, seed=4, **settings)
    assert set(titles) <= set(Recomputed(one, 3).check())
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    several = explained("multihead", embed_dim=12, token=4, head=3, **heads, **settings)
    assert set(titles) <= set(Recomputed(several, 4, 3).check())


def test_variants_of_cross_attention() -> None:
    settings = {"sink": 0.3, "softcap": 0.5, "qk_norm": True, "temperature": 2.0}
    titles = Recomputed(explained("cross", embed_dim=6, token=1, **settings), 1).check()
    assert {"Soft cap", "Temperature", "Normalise query and key"} <= set(titles)


@pytest.mark.parametrize(
    ("architecture", "experiment"),
    in_turn(["Llama", "Gemma 2", "GPT-OSS", "Mistral", "T5"], ["self", "multihead"]),
)
def test_every_term_of_a_model(tmp_path: Path, experiment: str, architecture: str) -> None:
    folder = save_model(tmp_path, architecture)
    report = explained(experiment, model=str(folder), layer=1, head=3, token=4)
    titles = Recomputed(report, 4, 3).check()
    assert {"Gemma 2": "Soft cap", "T5": "Bias"}.get(architecture, "Softmax") in titles
    assert ("Merge the heads" in titles) == (experiment == "multihead")
    if architecture == "GPT-OSS":
        softmax = next(step for step in report.steps if step.title == "Softmax")
        share = softmax.values["weight of the sink"]
        weights = report.tensors["weights"].values.reshape(-1, 8, 8)[3 if experiment == "multihead" else 0]
        assert share == pytest.approx(1 - weights[4].sum(), abs=1e-6)


def test_cross_attention_of_a_model(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "T5")
    report = explained("cross", model=str(folder), context="the dog", token=0)
    Recomputed(report, 0).check()


def test_a_model_with_only_weights_is_explained_up_to_its_weights(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BLOOM")
    report = explained("multihead", model=str(folder), head=2, token=3)
    last = report.steps[-1]
    weights = report.tensors["weights"].values[2, 3]
    assert [step.title for step in report.steps] == ["Tokens", "Weights"] and "only its weights" in last.prose
    np.testing.assert_array_equal([row[2] for row in last.tables[0].rows], weights)
    assert last.tables[0].totals[0][2] == pytest.approx(float(weights.sum(dtype=np.float64)))
    assert last.values["entropy"] == pytest.approx(report.statistics["rows"]["entropy"].values[2, 3])


def test_a_long_row_is_shown_in_part_and_totals_are_over_all() -> None:
    report = explained("self", sentence=LONG, token=101)
    softmax = report.steps[6].tables[0]
    positions = [row[0] for row in softmax.rows]
    strongest = int(report.tensors["weights"].values[101].argmax())
    assert softmax.count == 200 and len(positions) < 12
    assert {0, 1, 101, strongest, 198, 199} <= set(positions)
    assert softmax.totals[0][-1] == pytest.approx(1)
    assert sum(float(row[-1] or 0) for row in softmax.rows) < 0.9


@pytest.mark.parametrize("experiment", ["multihead", "average"])
def test_a_wrong_token_or_head_is_refused_on_one_line(attn: Attn, experiment: str) -> None:
    for arguments, message in (
        ("6 --explain", "must be a position from 0 to 5, or from -1 to -6, counted from the end (got 6)"),
        ("the --explain", "must be one token: the is at 0, 4: use the#1 to the#2, or a position"),
        ("cats --explain", "must be a token of the text (got cats) (did you mean 'cat'?)"),
        ("1", "needs --explain: this setting selects what to explain"),
    ):
        assert attn([experiment, "--token", *arguments.split()]) == (2, "", f"--token: {message}\n")
    if experiment == "multihead":
        wrong = attn([experiment, "--explain", "--head", "8"])
        assert wrong == (2, "", "--head: must be below 8, the number of heads (got 8)\n")
        needs = "needs --explain: this setting selects what to explain; --num-heads sets their number"
        assert attn([experiment, "--head", "1"]) == (2, "", f"--head: {needs}\n")


@pytest.mark.parametrize("experiment", ["self", "average"])
def test_a_token_may_be_named(experiment: str) -> None:
    reports = [run(experiment, explain=True, token=name) for name in (4, "4", "-2", "the#2")]
    assert [report.spec["token"] for report in reports] == [4] * 4
    assert all(report.steps == reports[0].steps for report in reports)
    assert run(experiment, explain=True, token="last").spec["token"] == 5


def test_a_token_of_a_model_may_be_named(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, "Llama"))
    for name, position in (("last", 7), ("the#2", 5), ("[CLS]", 0)):
        assert run("self", model=folder, explain=True, token=name).spec["token"] == position
    with pytest.raises(
        UserError, match="token: must be one token: the is at 1, 5: use the#1 to the#2, or a position"
    ):
        run("self", model=folder, explain=True, token="the")


def test_a_head_or_token_that_a_model_lacks_is_refused(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, "Llama"))
    with pytest.raises(UserError, match=r"head: must be from 0:0 to 0:3 in .* \(got 0:4\)"):
        run("multihead", model=folder, explain=True, head=4)
    with pytest.raises(UserError, match=r"token: must be a position from 0 to 7, .* \(got 8\)"):
        run("multihead", model=folder, explain=True, token=8)


def test_steps_are_restored_from_json(attn: Attn) -> None:
    for report in (explained("multihead", causal=True, token=2), explained("self", sentence=LONG, token=101)):
        (back,) = parse_reports(json.dumps(report.to_data()), "saved").reports
        assert back.steps == report.steps
    assert "steps" not in run("multihead").to_data()
    shown = json.loads(attn(["multihead", "--explain", "--causal", "--format", "json"]).out)
    assert shown["steps"][0]["title"] == "Tokens"


def test_explain_changes_no_numbers() -> None:
    plain, explaining = run("multihead", causal=True), explained("multihead", causal=True)
    for name, tensor in plain.tensors.items():
        np.testing.assert_array_equal(tensor.values, explaining.tensors[name].values)
