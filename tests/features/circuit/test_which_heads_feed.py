"""`attn circuit`: which heads feed which, from the command line."""

import csv
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import attncli
from tests.conftest import Attn


@pytest.fixture
def saved(attn: Attn) -> dict[str, Any]:
    """The report on the shipped model."""
    report: dict[str, Any] = json.loads(attn(["circuit", "--format", "json"]).out)
    return report


def test_the_screen_shows_the_induction_circuit(attn: Attn) -> None:
    lines = attn(["circuit"]).out.splitlines()
    assert lines[0] == "circuit: tiny-induction, which heads feed which, on 49 tokens"
    assert "  0:1 -K-> 1:0, 1:1, 1:2, 1:3 -> logits" in lines
    table = next(place for place, line in enumerate(lines) if line.startswith("the strongest 5 "))
    assert lines[table + 3].split()[:3] == ["0:1", "1:3", "key"]
    assert any(line.startswith("added to the next token's logit: 1:") for line in lines)
    assert lines[-1] == "Next, with attn circuit: --model FOLDER | --head 1:3 | -o circuit.svg"
    last = attn(["circuit", "--head", "1:1"]).out.splitlines()[-1]
    assert last == "Next, with attn circuit: --model FOLDER | --weights | -o circuit.svg"


def test_the_report_agrees_with_python(attn: Attn) -> None:
    text = "to be or not to b"
    report = json.loads(attn(["circuit", text, "--head", "1:2", "--format", "json"]).out)
    found = attncli.head_edges(attncli.open_model(), text, heads="1:2")
    rows = {
        (row["kind"] == "head" and f"{row['from_layer']}:{row['from_head']}", row["side"]): row["share"]
        for row in found.rows
        if row["kind"] == "head" and row["layer"] is not None and abs(row["share"]) >= 0.01
    }
    edges = [
        row for row in report["statistics"]["edges"] if row["to"] == "1:2" and row["from_head"] is not None
    ]
    assert {(row["from"], row["side"]): row["share"] for row in edges} == pytest.approx(rows)
    (head,) = report["statistics"]["heads"]
    of_heads = [row["share"] for row in found.rows if (row["kind"], row["side"]) == ("head", "key")]
    assert head["key_of_heads"] == pytest.approx(sum(of_heads))
    assert head["weight"] == pytest.approx(found.weight[1, 2])


def test_a_pattern_selects_heads(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "edges.csv"
    assert attn(["circuit", "--pattern", "induction", "-o", str(path)]).code == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["to"] for row in rows} == {"1:0", "1:1", "1:2", "1:3", "logits"}
    logits = [abs(float(row["logit"])) for row in rows]
    assert logits == sorted(logits, reverse=True)


def test_many_texts_have_intervals(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("to be or not to be\nthe cat sat on the mat\nnever say never again\n")
    report = json.loads(attn(["circuit", "--texts", str(path), "--format", "json"]).out)
    assert report["statistics"]["texts"] == {"num_texts": 3}
    for row in report["statistics"]["edges"]:
        assert row["share_low"] <= row["share"] <= row["share_high"]
    screen = attn(["circuit", "--texts", str(path)]).out
    assert re.search(r"0:1 +1:\d +key +0\.\d\d +±0\.\d\d +\d", screen)


def test_weights_need_no_text(attn: Attn) -> None:
    report = json.loads(attn(["circuit", "--weights", "--head", "0:1", "--format", "json"]).out)
    assert "probe" not in report["spec"] and not report["tokens"]
    found = attncli.compositions(attncli.open_model(), head="0:1")
    own = {(row["to"], row["side"]): row["score"] for row in report["statistics"]["edges"]}
    expected = {(f"{row['layer']}:{row['head']}", row["side"]): row["score"] for row in found.rows}
    assert own == pytest.approx(expected)
    assert report["statistics"]["copying"][0]["score"] == pytest.approx(found.copying[0]["score"])


def test_pictures_and_dot_have_the_same_edges(attn: Attn, tmp_path: Path) -> None:
    svg, dot = tmp_path / "circuit.svg", tmp_path / "circuit.dot"
    assert attn(["circuit", "-o", str(svg)]).code == attn(["circuit", "-o", str(dot)]).code == 0
    texts = [element.text for element in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    lines = dot.read_text().splitlines()
    nodes = {name for line in lines if "rank=same" in line for name in re.findall(r'"([^"]+)"', line)}
    assert nodes == {"0:0", "0:1", "0:2", "1:0", "1:1", "1:2", "1:3", "logits"}
    assert nodes <= {*texts} and {"layer 0", "layer 1"} <= {*texts}
    assert any(re.fullmatch(r'  "0:1" -> "1:1" \[label="K \d\.\d\d", style=solid\];', line) for line in lines)
    assert lines[0].startswith('digraph "') and lines[-1] == "}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--head", "9:2"], "--head: must be from 0:0 to 1:3 in tiny-induction (got 9:2)"),
        (["--weights", "--head", "9:2"], "--head: must be from 0:0 to 1:3 in tiny-induction (got 9:2)"),
        (
            ["--head", "1:2", "--pattern", "induction"],
            "--pattern: cannot be combined with --head: give one of them",
        ),
        (
            ["--pattern", "next token"],
            "--pattern: no head of tiny-induction has this pattern on this input (got next token)",
        ),
        (["a text", "--weights"], "TEXT: cannot be combined with --weights"),
    ],
)
def test_invalid_settings_are_refused_on_one_line(arguments: list[str], error: str, attn: Attn) -> None:
    ended = attn(["circuit", *arguments])
    assert (ended.code, ended.err, ended.out) == (2, f"{error}\n", "")


def test_dot_is_for_reports_with_edges(attn: Attn, tmp_path: Path) -> None:
    ended = attn(["heads", "-o", str(tmp_path / "heads.dot")])
    error = "--format dot: this heads report has no edges: use a report from attn circuit"
    assert (ended.code, ended.err) == (2, f"{error}\n")


def test_missing_edges_between_heads_are_reported(attn: Attn, saved: dict[str, Any], tmp_path: Path) -> None:
    edges = saved["statistics"]["edges"]
    saved["statistics"]["edges"] = [row for row in edges if row["to"] == "logits"]
    (tmp_path / "one-layer.json").write_text(json.dumps(saved))
    shown = attn(["show", str(tmp_path / "one-layer.json")]).out
    assert (
        "No edges between heads: a head feeds only heads of later layers.\nadded to the next token's logit"
        in shown
    )
    assert "strongest" not in shown


def test_shares_of_parts_that_cancel_are_not_shown(attn: Attn, saved: dict[str, Any], tmp_path: Path) -> None:
    """-2.91 of a sum of parts that cancel is not a share of the sum; -0.91 is."""
    edges = saved["statistics"]["edges"]
    first, second = [row for row in edges if None not in (row["from_head"], row["to_head"])][:2]
    for share, shown, says_why in ((-2.91, "-", True), (None, "-", True), (-0.91, "-0.91", False)):
        first["share"], second["share"] = share, 0.25
        (tmp_path / "circuit.json").write_text(json.dumps(saved))
        lines = attn(["show", str(tmp_path / "circuit.json")]).out.splitlines()
        start = next(place for place, line in enumerate(lines) if line.startswith("head  feeds"))
        assert [line.split()[3] for line in lines[start + 2 : start + 4]] == [shown, "0.25"]
        assert ("share -: parts of opposite signs cancel" in "\n".join(lines)) == says_why
