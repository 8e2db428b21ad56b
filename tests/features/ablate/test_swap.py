"""`attn ablate --method swap` on the command line: heads with their outputs on another prompt."""

import json
from pathlib import Path

import numpy as np
import pytest

import attncli
from tests.conftest import Attn

TEXT, OTHER = "to be or not to b", "to go or not to g"
SWAP = ["ablate", TEXT, "--method", "swap"]
ASKED = [*SWAP, "--other", OTHER, "--answer", "e", "--against", "o"]


def test_each_token_has_a_separate_row(attn: Attn) -> None:
    lines = attn([*ASKED, "--token", "each", "--top", "4"]).out.splitlines()
    assert any(line.startswith("4 swaps, sorted by restored, largest first") for line in lines)
    assert any(line.startswith(" 0:1  5 e ") for line in lines)
    report = json.loads(attn([*ASKED, "--token", "each", "--format", "json"]).out)
    rows = report["statistics"]["heads"]
    assert len(rows) == len(report["statistics"]["back"]) == 8 * 18
    assert {row["token"] for row in rows} == {*range(18)}


def test_the_report_is_what_python_gives(attn: Attn) -> None:
    report = json.loads(attn([*ASKED, "--into", "1:2", "--token", "e", "--format", "json"]).out)
    found = attncli.ablate(
        attncli.open_model(), TEXT, method="swap", other=OTHER, answer="e", against="o", into="1:2", token=5
    )
    for own, expected in (("heads", found.heads), ("back", found.back)):
        rows = {(row["layer"], row["head"]): row["kl"] for row in report["statistics"][own]}
        assert rows == pytest.approx({(row["layer"], row["head"]): row["kl"] for row in expected})
    assert report["statistics"]["back_baseline"] == pytest.approx(found.back_baseline)


def test_pairs_come_from_a_file(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pairs = [
        {"text": TEXT, "other": OTHER, "answer": "e", "against": "o"},
        {"text": "so do or not so d", "other": "so he or not so h", "answer": "o", "against": "e"},
        {"text": "too long", "other": "short", "answer": "o", "against": "e"},
    ]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    report = json.loads(attn(["ablate", "--method", "swap", "--texts", str(path), "--format", "json"]).out)
    row = report["statistics"]["heads"][0]
    assert row["restored_low"] <= row["restored"] <= row["restored_high"]
    assert any("1 text is left out" in note and "as many as the text" in note for note in report["notes"])


def test_each_pair_may_name_its_own_token(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pairs = [
        {"text": TEXT, "other": OTHER, "answer": "e", "against": "o", "token": -1},
        {"text": "so do so d", "other": "so he so h", "answer": "o", "against": "e", "token": "d#2"},
        {"text": "so d", "other": "so h", "answer": "o", "against": "e", "token": 3},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    ablated = ["ablate", "--method", "swap", "--texts", str(path), "--format", "json"]
    report = json.loads(attn(ablated).out)
    alone = list[dict[str, float]]()
    for pair, position in zip(pairs, (17, 10, 3), strict=True):
        text, other, answer, against = (str(pair[name]) for name in ("text", "other", "answer", "against"))
        result = attncli.ablate(
            attncli.open_model(),
            text,
            method="swap",
            other=other,
            answer=answer,
            against=against,
            token=position,
        )
        alone.append({f"{row.layer}:{row.head}": row["kl"] for row in result.heads})
    for row in report["statistics"]["heads"]:
        name = f"{row['layer']}:{row['head']}"
        assert row["kl"] == pytest.approx(np.mean([each[name] for each in alone]), rel=1e-4, abs=1e-9)
    assert (
        "Each text is swapped at one token, which its line or, by default, `--token` names."
        in report["notes"]
    )
    # In every line, or in none, or in the settings.
    del pairs[1]["token"]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    ended = attn(ablated)
    assert (ended.code, ended.err) == (2, "--texts: token must be on every line or on none\n")
    assert attn([*ablated, "--token", "last"]).code == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (SWAP, "--method: swap needs --other or --texts"),
        (["ablate", TEXT, "--other", OTHER], "--other: needs --method swap"),
        ([*SWAP, "--other", "to g"], "--other: must have 18 tokens, as many as the text (got 5)"),
        ([*ASKED, "--into", "0:1"], "--into: must be in a later layer than the heads to swap"),
        ([*ASKED, "--into", "1:1", "--jointly", "--heads", "0:0,0:1"], "--jointly: cannot be combined"),
        (["ablate", "--method", "swap", "--other", OTHER], "--other: needs --sentence or --file"),
    ],
)  # fmt: skip
def test_what_cannot_be_swapped_is_one_line(arguments: list[str], error: str, attn: Attn) -> None:
    ended = attn(arguments)
    assert ended.code == 2 and ended.err.startswith(error) and ended.err.count("\n") == 1, ended.err


@pytest.mark.parametrize(
    ("name", "line", "error"),
    [
        ("pairs.jsonl", '{"text": "to be", "answer": "e"}', ":1: other: is required"),
        ("lines.txt", "to be", "must be JSON Lines or CSV"),
    ],
)
def test_lines_without_another_prompt_are_refused(
    name: str, line: str, error: str, attn: Attn, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(f"{line}\n")
    ended = attn(["ablate", "--method", "swap", "--texts", str(tmp_path / name)])
    assert ended.code == 2 and error in ended.err
