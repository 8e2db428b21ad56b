"""`attn separate` with a store: texts are measured once and separated by the stored numbers."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attncli import cli
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


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the first half of the example's texts, beside the file of these texts."""
    file = tmp_path_factory.mktemp("half") / "half.csv"
    lines = [*csv.reader(io.StringIO(EXAMPLE.read_text()))]
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(lines[: 1 + len(lines) // 2])
    store = file.with_suffix(".db")
    assert cli.run(["separate", str(file), *FEW, "-o", str(store)]) == 0
    return store


def test_measured_texts_are_not_measured_again(
    attn: Attn, half: Path, detector_file: Path, tmp_path: Path
) -> None:
    store = shutil.copy(half, tmp_path / "run.db")
    ended = attn(["separate", str(EXAMPLE), *FEW, "-o", str(store), "--format", "json"])
    assert ended.code == 0 and "60 of 60 runs, 30 done now" in ended.err, ended.err
    other = ("--label", "answered", "--permutations", "19")
    assert "nothing was left to do" in attn(["separate", str(EXAMPLE), *other, "-o", str(store)]).err
    ours, theirs = (json.loads(text)["statistics"] for text in (ended.out, detector_file.read_text()))
    assert ours["coefficients"] and len(ours["by_group"]) == len(theirs["by_group"])
    assert ours["held_out"] == pytest.approx(theirs["held_out"], abs=1e-6)
    for mine, other_row in zip(ours["features"], theirs["features"], strict=True):
        assert mine == pytest.approx(other_row, abs=1e-5)
    assert [(row["id"], row["predicted"]) for row in ours["predictions"]] == [
        (str(row["text"]), row["predicted"]) for row in theirs["predictions"]
    ]


@pytest.mark.nightly
def test_a_store_keeps_parts(attn: Attn, tmp_path: Path) -> None:
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


def test_a_survey_is_separated_by_the_labels_in_a_file(
    attn: Attn, example: SeparatedTexts, tmp_path: Path
) -> None:
    texts, store = tmp_path / "texts.jsonl", str(tmp_path / "survey.db")
    rows = [*csv.DictReader(io.StringIO(EXAMPLE.read_text()))]
    # In another order, since lines are matched by their texts.
    texts.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in reversed(rows)))
    assert attn(["heads", "--texts", str(texts), "-o", store]).code == 0
    ours = as_json(attn, str(EXAMPLE), *FEW, "--store", store)
    assert ours["statistics"]["held_out"]["auroc"] == pytest.approx(example.held_out.auroc, abs=1e-6)
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


def test_settings_that_stores_do_not_support_are_refused(attn: Attn, half: Path) -> None:
    store, other = str(half), str(half.with_name("other.db"))
    for arguments, message in (
        ((store, "--label", "answer"), "has no column answer (it has answered, lines, text)"),
        ((store, *BY, "--model", str(SHIPPED_MODEL)), "cannot be combined with the store"),
        ((store, *BY, "-o", other), "cannot be combined with the store"),
        ((str(half.with_suffix(".csv")), *BY, "--workers", "2"), "needs a store"),
        (("--store", store), "--store: needs --label"),
    ):
        ended = attn(["separate", *arguments])
        assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1, ended.err


@pytest.mark.nightly
def test_texts_that_are_too_long_are_left_out(attn: Attn, tmp_path: Path) -> None:
    file, store = tmp_path / "texts.csv", str(tmp_path / "run.db")
    texts = [f"hat={'oak' if n % 2 else 'wool'}{n}" for n in range(12)] + ["hat=wool\n" * 60]
    rows = "".join(f'"{text}",{n % 2}\n' for n, text in enumerate(texts))
    file.write_text(f"text,label\n{rows}")
    given = ("separate", str(file), "--label", "label", "--permutations", "3")
    direct, kept = attn([*given]), attn([*given, "-o", store])
    assert (direct.code, kept.code) == (0, 0) and "1 failed" in kept.err
    assert all("1 text is left out:" in ended.out for ended in (direct, kept))
    assert all("must be at most 128 tokens" in ended.out for ended in (direct, kept))
