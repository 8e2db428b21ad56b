"""npz and safetensors files: NumPy and safetensors read the tensors, and `attn show` the whole report."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from attncli.errors import UserError
from attncli.records.report import Report, Tensors
from attncli.runs.saved_reports import read_array_report
from attncli.views import Display, load_view
from tests.conftest import Attn, in_turn
from tests.running import run
from tests.views.test_views import CASES, shown

VIEWS_OF_ARRAYS = ("npz", "safetensors")


def written(view: str, report: Report, folder: Path) -> Path:
    path = folder / f"x.{view}"
    with path.open("wb") as stream:
        load_view(view)([report], stream, Display())
    return path


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    with safe_open(path, "np") as found:
        return {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118


@pytest.mark.parametrize(("view", "case"), in_turn(VIEWS_OF_ARRAYS, CASES))
def test_reports_are_restored_unchanged(case: str, view: str, tmp_path: Path) -> None:
    experiment, settings = CASES[case]
    report = run(experiment, **settings)
    path = written(view, report, tmp_path)
    arrays = arrays_of(path)
    for name, tensor in report.tensors.items():
        np.testing.assert_array_equal(arrays[name], tensor.values, strict=True)
    for group, members in report.statistics.items():
        for name, tensor in members.items() if isinstance(members, Tensors) else ():
            np.testing.assert_array_equal(arrays[f"{group}.{name}"], tensor.values, strict=True)
    back = read_array_report(str(path))
    assert back is not None and shown("json", [back]) == shown("json", [report])
    assert written(view, back, tmp_path).read_bytes() == path.read_bytes()


def test_axes_tokens_and_settings_stand_beside_the_arrays(tmp_path: Path) -> None:
    report = run("cross", sentence="a b", context="c 日本 e")
    arrays = arrays_of(written("npz", report, tmp_path))
    assert arrays["axes.weights"].tolist() == ["query", "key"]
    assert arrays["axes.rows.top_keys"].tolist() == ["query", "rank"]
    assert tuple(arrays["tokens"]) == ("a", "b") and tuple(arrays["context_tokens"]) == ("c", "日本", "e")
    assert json.loads(str(arrays["report"]))["spec"] == report.to_data()["spec"]
    with safe_open(written("safetensors", report, tmp_path), "np") as found:
        assert json.loads(found.metadata()["report"])["context_tokens"] == ["c", "日本", "e"]


@pytest.mark.parametrize("view", VIEWS_OF_ARRAYS)
def test_the_command_line_writes_and_shows_them(attn: Attn, tmp_path: Path, view: str) -> None:
    path, oracle = str(tmp_path / f"x.{view}"), attn(["self", "--causal", "--format", "json"]).out
    assert attn(["self", "--causal", "-o", path]).code == 0
    assert attn(["show", path, "--format", "json"]).out == oracle
    assert attn(["diff", path, path]).code == 0
    one = json.loads(attn(["show", path, "--array", "weights", "--format", "json"]).out)
    assert one["experiment"] == "show"
    assert one["tensors"]["weights"]["values"] == json.loads(oracle)["tensors"]["weights"]["values"]
    refused = attn(["show", path, "--tokens", "x.txt"])
    assert refused.err == f"--tokens: is only for arrays from another tool, but {path} is an attn report\n"
    (tmp_path / "two.yaml").write_text("steps:\n- experiment: self\n- experiment: norm\n")
    several = attn(["batch", str(tmp_path / "two.yaml"), "-o", str(tmp_path / f"y.{view}")])
    assert several.code == 2 and "a file holds one report, but there are several" in several.err
    assert not (tmp_path / f"y.{view}").exists()


@pytest.mark.parametrize("name", ["report", "weights"])
def test_arrays_from_another_tool_are_not_a_report(attn: Attn, tmp_path: Path, name: str) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, **{name: np.eye(3)})
    assert read_array_report(str(path)) is None
    assert json.loads(attn(["show", str(path), "--format", "json"]).out)["experiment"] == "show"


def changed(path: Path, arrays: dict[str, Any], **others: Any) -> str:
    np.savez(path, **{name: array for name, array in (arrays | others).items() if array is not None})
    return str(path)


def test_damaged_arrays_are_refused_in_one_line(tmp_path: Path) -> None:
    report = run("self", sentence="a b")
    path = written("npz", report, tmp_path)
    arrays = arrays_of(path)
    text = str(arrays["report"])
    cases = {
        "is not valid JSON: it ends too soon": {"report": "{"},
        "not a saved report": {"report": "{}"},
        "several reports": {"report": text + text},
        "the array weights of its report is missing": {"weights": None},
        "tensors.weights: has 2 axes, but its values have 3": {"weights": np.ones((2, 2, 2))},
        "tensors.weights: holds an empty list": {"weights": np.ones((0, 2))},
        "tensors.weights: holds a number too large": {"weights": np.full((2, 2), 1e300)},
        "must be an array of real numbers (got <U1)": {"weights": np.array([["a"]])},
        "top_keys: must hold whole numbers": {"rows.top_keys": np.ones((2, 2))},
        "has size 3 along query, but there are 2 tokens": {"output": np.ones((3, 64))},
    }
    for message, others in cases.items():
        with pytest.raises(UserError) as error:
            read_array_report(changed(tmp_path / "y.npz", arrays, **others))
        assert len(error.value.lines) == 1 and message in str(error.value), str(error.value)
