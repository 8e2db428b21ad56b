"""The views of whole reports: golden files of tables, and JSON with every number."""

import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Numbers, Report
from attncli.views import VIEWS, Display, load_view
from attncli.views.texts import shortened_heading
from tests.conftest import in_turn
from tests.running import run
from tests.same_text import assert_same_text

GOLDEN = Path(__file__).parent / "tables" / "golden"
LESSON = (
    "Mathematics catalogues everything not self-contradictory; within its vast inventory, physics is an "
    "island of structures rich enough to contain their own beholders."
)
HOSTILE = (
    "[/INST] [red]x[/red] :smile: <b>b</b> \x1b[31mred\x1b[0m a\u202eb 🙂 日本語 👨\u200d👩 $x$ =1+1 "
    + "long" * 75
)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "average": ("average", {"num_tokens": 4, "batch_size": 2, "embed_dim": 2}),
    "self": ("self", {}),
    "self-causal": ("self", {"causal": True, "embed_dim": 4, "explain": True}),
    "self-22-tokens": ("self", {"sentence": LESSON}),
    "self-hostile": ("self", {"sentence": HOSTILE, "tokenizer": "whitespace", "embed_dim": 3}),
    "multihead": ("multihead", {"num_heads": 2, "num_tokens": 3, "embed_dim": 4}),
    "cross": ("cross", {"sentence": "a b", "context": "c d e"}),
    "self-explained-22-tokens": ("self", {"sentence": LESSON, "explain": True, "token": 9, "causal": True}),
    "multihead-explained": (
        "multihead",
        {"num_heads": 4, "num_kv_heads": 2, "embed_dim": 12, "explain": True, "head": 3},
    ),
    "self-explained-hostile": (
        "self",
        {"sentence": HOSTILE, "tokenizer": "whitespace", "embed_dim": 3, "explain": True, "token": 11},
    ),
    "pitfalls": ("pitfalls", {}),
    "pitfalls-late-mask": ("pitfalls", {"pitfall": "late-mask"}),
    "scale-demo": ("scale-demo", {"head_dim": [4, 16]}),
    "norm": ("norm", {"variance": "biased"}),
}


def shown(view: str, reports: Sequence[Report], **display: Any) -> str:
    stream = io.StringIO()
    load_view(view)(reports, stream, Display(**display))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("case", CASES)
def test_tables_equal_their_golden_files_and_have_straight_columns(case: str, width: int) -> None:
    """After a deliberate change: UPDATE_GOLDEN=1 pytest tests/views, and read the difference."""
    experiment, settings = CASES[case]
    text = shown("table", [run(experiment, **settings)], width=width, show=("all",))
    path = GOLDEN / f"{case}-{width}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert_same_text(text, path.read_text())
    assert max(map(cell_len, text.splitlines())) <= width
    assert "0.…" not in text and "\x1b" not in text and "\u202e" not in text
    for block in text.split("\n\n"):
        lines = block.splitlines()
        for rule in (i for i, line in enumerate(lines) if line.startswith("──")):
            assert len({cell_len(line) for line in lines[rule + 1 :]}) <= 1, block


def test_nothing_is_cut_without_a_terminal() -> None:
    report = run("self", sentence=HOSTILE, tokenizer="whitespace")
    text = shown("table", [report], width=None, show=("all",))
    assert "…" not in text and "too wide" not in text and "long" * 75 in text


def test_colour_changes_nothing_but_colour() -> None:
    report = run("self", causal=True)
    coloured = shown("table", [report], width=80, colors="16")
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == shown("table", [report], width=80)


def test_precision_applies_only_to_tables() -> None:
    report = run("self")
    weight = report.tensors["weights"].values[0, 0]
    assert f" {weight:.2f} " in shown("table", [report], width=80, precision=2, show=("all",))
    assert f" {weight:.7f} " in shown("table", [report], width=80, precision=7, show=("all",))
    for view in ("json", "jsonl", "csv"):
        assert shown(view, [report], precision=2) == shown(view, [report], precision=7)


@pytest.mark.parametrize("view", ["svg", "html", "dot", "table"])
def test_edges_without_any_strength_are_drawn(tmp_path: Path, view: str) -> None:
    """An empty text has one token, [BOS], so there is no weight beyond the first key."""
    (tmp_path / "empty.txt").touch()
    assert shown(view, [run("circuit", file=str(tmp_path / "empty.txt"))])


def test_tiny_numbers_keep_their_exponent_and_no_zero_is_negative() -> None:
    tensor = NamedTensor(("query", "key"), np.array([[-1e-9, 12345678.9], [0.25, -0.5]]))
    report = Report(
        "self",
        {},
        {},
        tensors={"weights": tensor},
        result=read_result("", {"agreement": Numbers(difference=1.5e-8)}),
    )
    text = shown("table", [report], width=80, show=("all",))
    assert "1.5000e-08" in text and "-0.0000" not in text and "1.2346e+07" in text


@pytest.mark.parametrize(("case", "view"), in_turn(CASES, ["json", "jsonl"]))
def test_json_reads_back_equal_at_full_precision(case: str, view: str) -> None:
    experiment, settings = CASES[case]
    report = run(experiment, **settings)
    text = shown(view, [report])
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert data["schema_version"] == 1 and data["experiment"] == experiment
    assert data["tokens"] == list(report.tokens)
    assert not {"\x1b", "\u202e", "\u200d"} & set(text)
    for name, tensor in report.tensors.items():
        assert data["tensors"][name]["axes"] == list(tensor.axes)
        back = np.array(data["tensors"][name]["values"], dtype=np.float64)
        np.testing.assert_array_equal(back, np.where(np.isfinite(tensor.values), tensor.values, np.nan))


def test_several_reports_are_a_list_in_json_and_lines_in_jsonl() -> None:
    reports = [run("norm"), run("scale-demo")]
    assert [data["experiment"] for data in json.loads(shown("json", reports, several=True))] == [
        "norm",
        "scale-demo",
    ]
    assert json.loads(shown("json", [], several=True)) == []
    assert len(shown("jsonl", reports, several=True).splitlines()) == 2


OF_ANY_REPORT = [name for name, view in VIEWS.items() if not view.writes_bytes and name not in ("srt", "vtt")]
"""Subtitles are of spoken words."""


@pytest.mark.parametrize("view", OF_ANY_REPORT)
def test_the_same_report_gives_the_same_bytes(view: str) -> None:
    name = "circuit" if view == "dot" else "multihead"
    assert shown(view, [run(name)], width=80) == shown(view, [run(name)], width=80)


@pytest.mark.parametrize("folder", ["/v/bin/", f"/{'deep/' * 25}bin/"])
def test_a_heading_shortens_names_but_not_numbers(folder: str) -> None:
    command = f"{folder}python train.py"
    heading = f"watch: {command}, 6 heads, calls 1 to 1,234"
    fitting = shortened_heading(heading, 60, command)
    assert fitting.endswith("python train.py, 6 heads, calls 1 to 1,234") and len(fitting) <= 60
    assert shortened_heading(heading, None, command) == heading
    assert shortened_heading(heading, 42, command) == "watch: python…, 6 heads, calls 1 to 1,234"
