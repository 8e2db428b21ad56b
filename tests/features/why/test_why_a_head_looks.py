"""`attn why --head`: the score of a query and a key, from the command line."""

import csv
import json
from pathlib import Path

import pytest
import torch

import attncli
from tests.conftest import Attn


def test_the_screen_shows_the_score_and_its_parts(attn: Attn) -> None:
    lines = attn(["why", "--head", "1:2"]).out.splitlines()
    assert lines[0] == "why: tiny-induction, head 1:2"
    assert lines[2].startswith('from 48 "_" to 25 s: weight 1.00, score ')
    assert any(line.startswith("0:1 ") and "embedding" in line for line in lines)
    assert any("pairs, query × key: embedding × 0:1 " in line for line in lines)
    assert any(line.startswith('where these heads looked: 0:1 at 24 "_" 1.00') for line in lines)
    assert lines[-1].startswith("Next, with attn why: ")


def test_over_sets_the_number_of_listed_heads(attn: Attn) -> None:
    def writers(count: str) -> list[dict[str, object]]:
        out = attn(["why", "--head", "1:2", "--over", count, "--format", "json"]).out
        rows: list[dict[str, object]] = json.loads(out)["statistics"].get("writers", [])
        return rows

    assert not writers("0") and len(writers("1")) == 2 and len(writers("3")) == 6
    assert "where these heads looked" not in attn(["why", "--head", "1:2", "--over", "0"]).out


def test_the_report_is_what_python_gives(attn: Attn, tmp_path: Path) -> None:
    text = "to be or not to b"
    report = json.loads(attn(["why", text, "--head", "1:2", "--format", "json"]).out)
    found = attncli.score_parts(attncli.open_model(), text, "1:2")
    score, sides = report["statistics"]["score"], report["statistics"]["sides"]
    assert (score["key"], score["query"]) == (found.key, found.query) == (found.key, len(text))
    assert score["weight"] == pytest.approx(found.weight)
    for side, rows in (("key", found.key_side), ("query", found.query_side)):
        own = {row["part"]: row["score"] for row in sides if row["side"] == side}
        assert own == pytest.approx({row["part"]: row["score"] for row in rows})
        assert sum(own.values()) == pytest.approx(score["above_mean"], abs=1e-4)
    weights = torch.tensor(report["statistics"]["keys"]["weight"])
    assert float(weights.sum()) == pytest.approx(1) and int(weights[1:].argmax()) + 1 == found.key

    saved = tmp_path / "why.json"
    saved.write_text(json.dumps(report))
    assert (
        attn(["show", str(saved)]).out.splitlines()[:2]
        == attn(["why", text, "--head", "1:2"]).out.splitlines()[:2]
    )


def test_a_table_has_a_row_for_each_part_and_side(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "parts.csv"
    assert attn(["why", "to be or not to b", "--head", "1:0", "-o", str(path)]).code == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["side"] for row in rows] == ["key"] * 7 + ["query"] * 7
    assert {row["part"] for row in rows} == {"embedding", "0:0", "0:1", "0:2", "0:3", "MLP 0", "biases"}


def test_query_and_key_may_be_names_or_positions(attn: Attn) -> None:
    named = attn(
        ["why", "to be or not to b", "--head", "1:2", "--from", "b#2", "--to", "b#1", "--format", "json"]
    )
    at = attn(["why", "to be or not to b", "--head", "1:2", "--from", "-1", "--to", "4", "--format", "json"])
    assert named.code == 0, named.err
    assert json.loads(named.out)["statistics"] == json.loads(at.out)["statistics"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--from", "3"], "--from: needs --head"),
        (
            ["--head", "1:2", "--answer", "e", "--to", "3"],
            "--to: cannot be combined with --answer",
        ),
        (
            ["--head", "1:2", "--top", "2"],
            "--top: needs --answer in addition to --head, because a single head has no table of heads",
        ),
        (["--head", "9:2"], "--head: must be from 0:0 to 1:3 in tiny-induction (got 9:2)"),
        (["--head", "1:2", "--from", "3", "--to", "7"], "--to: must be a key that query 3 sees (got 7)"),
    ],
)
def test_what_cannot_be_said_is_one_line(arguments: list[str], error: str, attn: Attn) -> None:
    ended = attn(["why", "to be or not to b", *arguments])
    assert (ended.code, ended.err, ended.out) == (2, f"{error}\n", "")
