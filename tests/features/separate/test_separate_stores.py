"""`attn separate` with a store: texts are measured once, and separated by what is kept of them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import attncli
from attncli.features.separate.question import EXAMPLE
from attncli.features.separate.results import SeparatedTexts
from attncli.models.folder import SHIPPED_MODEL
from tests.conftest import Attn

BY = ("--label", "answered", "--hold-out", "lines")
FEW = (*BY, "--permutations", "19")


def as_json(attn: Attn, *arguments: str) -> dict[str, Any]:
    ended = attn(["separate", *arguments, "--format", "json"])
    assert ended.code == 0, ended.err
    report: dict[str, Any] = json.loads(ended.out)
    return report


def numbers_of(report: dict[str, Any]) -> dict[str, Any]:
    """What a report says of texts, but for how they are called."""
    statistics = report["statistics"]
    told = [{**row, "text": None, "id": None} for row in statistics["predictions"]]
    kept = ("held_out", "detectors", "by_group", "features", "coefficients")
    return {**{name: statistics[name] for name in kept}, "predictions": told}


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """The first half of the example's lines."""
    lines = [*csv.reader(io.StringIO(EXAMPLE.read_text()))]
    half = tmp_path / "half.csv"
    with half.open("w", newline="") as file:
        csv.writer(file).writerows(lines[: 1 + len(lines) // 2])
    return half


def test_what_was_measured_is_not_measured_again(attn: Attn, tmp_path: Path, halves: Path) -> None:
    store = str(tmp_path / "run.db")
    assert attn(["separate", str(halves), *FEW, "-o", store]).code == 0
    ended = attn(["separate", str(EXAMPLE), *FEW, "-o", store])
    assert ended.code == 0 and "60 of 60 runs, 30 done now" in ended.err, ended.err
    again = attn(["separate", str(EXAMPLE), "--label", "answered", "--permutations", "19", "-o", store])
    assert "nothing was left to do" in again.err  # whatever the label and the groups
    stored, direct = (as_json(attn, source, *FEW) for source in (store, str(EXAMPLE)))
    ours, theirs = numbers_of(stored), numbers_of(direct)
    assert ours["coefficients"] and len(ours["by_group"]) == len(theirs["by_group"])
    assert ours["held_out"] == pytest.approx(theirs["held_out"], abs=1e-6)
    assert [row["predicted"] for row in ours["predictions"]] == [
        row["predicted"] for row in theirs["predictions"]
    ]
    for mine, other in zip(ours["features"], theirs["features"], strict=True):
        assert mine == pytest.approx(other, abs=1e-5)
    assert [row["id"] for row in stored["statistics"]["predictions"]] == [
        str(row["text"]) for row in direct["statistics"]["predictions"]
    ]


@pytest.mark.nightly
def test_parts_are_kept_in_a_store(attn: Attn, tmp_path: Path) -> None:
    rows = [
        {"text": f"key=<<{word}>>\nhat=", "document": f"hat=wool {place}", "answer": word, "kind": kind}
        for place, (word, kind) in enumerate(
            zip(["blue", "oak", "wool", "iron"] * 4, "abba" * 4, strict=True)
        )
    ]
    file, store = tmp_path / "texts.jsonl", str(tmp_path / "run.db")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    by = ("--label", "kind=a", "--permutations", "19")
    direct = as_json(attn, str(file), *by)
    assert attn(["separate", str(file), *by, "-o", store]).code == 0
    stored = as_json(attn, store, *by)
    statistics = {row["statistic"] for row in stored["statistics"]["features"]}
    assert {"lookback_ratio", "marked_mass", "document_mass"} <= statistics
    assert stored["statistics"]["held_out"] == pytest.approx(direct["statistics"]["held_out"], abs=1e-6)
    assert {row["detector"] for row in direct["statistics"]["detectors"]} >= {"loss", "answer length"}


def test_a_survey_is_separated_by_labels_of_a_file(attn: Attn, tmp_path: Path) -> None:
    texts, store = tmp_path / "texts.jsonl", str(tmp_path / "survey.db")
    rows = [*csv.DictReader(io.StringIO(EXAMPLE.read_text()))]
    # In another order: they are known by their texts.
    texts.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in reversed(rows)))
    assert attn(["heads", "--texts", str(texts), "-o", store]).code == 0
    ours = as_json(attn, str(EXAMPLE), *FEW, "--store", store)
    direct = attncli.separate(
        attncli.open_model(), EXAMPLE, label="answered", hold_out="lines", permutations=19
    )
    assert isinstance(direct, SeparatedTexts)
    assert ours["statistics"]["held_out"]["auroc"] == pytest.approx(direct.held_out.auroc, abs=1e-6)
    assert "loss" not in {row["detector"] for row in ours["statistics"]["detectors"]}
    assert any("has no losses" in note for note in ours["notes"])

    ended = attn(["separate", store, *FEW])
    assert ended.code == 2 and "has no column answered (a survey stores only texts)" in ended.err
    assert "--store" in ended.err and ended.err.count("\n") == 1
    other = tmp_path / "other.csv"
    other.write_text("text,answered,lines\nunknown,1,a\n" + "".join(f"hat={n},{n % 2},b\n" for n in range(9)))
    ended = attn(["separate", str(other), *FEW, "--store", store])
    assert ended.code == 2 and f"this text is not in the store {store}" in ended.err
    parted = tmp_path / "parted.csv"
    parted.write_text("text,answer,answered,lines\n" + "".join(f"h={n},a,{n % 2},b\n" for n in range(9)))
    ended = attn(["separate", str(parted), *FEW, "--store", store])
    assert ended.code == 2 and "has text and answer, but a survey stores only texts" in ended.err


def test_what_no_store_does_is_refused_in_a_line(attn: Attn, tmp_path: Path, halves: Path) -> None:
    store = str(tmp_path / "run.db")
    assert attn(["separate", str(halves), *FEW, "-o", store]).code == 0
    other = str(tmp_path / "other.db")
    for arguments, message in (
        ((store, "--label", "answer"), "has no column answer (it has answered, lines, text)"),
        ((store, *BY, "--model", str(SHIPPED_MODEL)), "cannot be combined with the store"),
        ((store, *BY, "-o", other), "cannot be combined with the store"),
        ((str(halves), *BY, "--workers", "2"), "needs a store"),
    ):
        ended = attn(["separate", *arguments])
        assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1, ended.err


@pytest.mark.nightly
def test_texts_too_long_are_left_out_with_a_store_and_without(attn: Attn, tmp_path: Path) -> None:
    file, store = tmp_path / "texts.csv", str(tmp_path / "run.db")
    texts = [f"hat={'oak' if n % 2 else 'wool'}{n}" for n in range(12)] + ["hat=wool\n" * 60]
    rows = "".join(f'"{text}",{n % 2}\n' for n, text in enumerate(texts))
    file.write_text(f"text,label\n{rows}")
    given = ("separate", str(file), "--label", "label", "--permutations", "3")
    direct, kept = attn([*given]), attn([*given, "-o", store])
    assert (direct.code, kept.code) == (0, 0) and "1 failed" in kept.err
    assert all("1 text is left out:" in ended.out for ended in (direct, kept))
    assert all("must be at most 128 tokens" in ended.out for ended in (direct, kept))
