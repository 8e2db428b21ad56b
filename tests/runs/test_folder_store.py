"""Folder stores of Parquet parts: what they give is what a store in one file gives of the same runs."""

import json
import re
from pathlib import Path

import pytest

from attncli.runs.parts import PART
from tests.conftest import Attn
from tests.duckdb_reader import read_by_duckdb
from tests.runs.stores import write_batch

pyarrow = pytest.importorskip("pyarrow")

SELF = "experiment: self\nembed_dim: 4\nsweep: {seed: [0, 1]}\n"
STEPS = "steps: [{experiment: norm}, {experiment: self, sentence: a b c}, {experiment: scale-demo}]\n"
MISSING = "experiment: self\nembedding: v.txt\n"


def written(folder: Path, settings: str, num_sentences: int) -> list[str]:
    """The arguments of a batch, whose word vectors know three of the words."""
    (folder / "v.txt").write_text("a 1 2\nb 3 4\nc 5 6\n")
    arguments = write_batch(folder, num_sentences, settings)
    (folder / "prompts.txt").write_text("\n".join("a b c a"[: 2 * (i % 4) + 1] for i in range(4)) + "\nd e\n")
    return arguments


def parts_of(store: Path) -> list[Path]:
    return sorted(path for path in store.iterdir() if PART.fullmatch(path.name))


def given(attn: Attn, store: Path, *flags: str) -> list[str]:
    """What all that reads a store prints of it, without its name."""
    commands = [
        ["export"],
        ["export", "--format", "jsonl"],
        ["results", "--format", "json"],
        ["results", "--group-by", "id", "--format", "csv"],
    ]
    printed = [attn([*command[:1], str(store), *command[1:], *flags]) for command in commands]
    return [f"{ended.code} {ended.out} {ended.err}".replace(str(store), "STORE") for ended in printed]


def assert_equal_stores(attn: Attn, folder: Path, file: Path, *flags: str) -> None:
    assert given(attn, folder, *flags) == given(attn, file, *flags)
    tables = [store.with_name(f"{store.name}-tidy.parquet") for store in (folder, file)]
    for store, table in zip((folder, file), tables, strict=True):
        assert attn(["export", str(store), "-o", str(table), *flags]).code == 0
    assert tables[0].read_bytes() == tables[1].read_bytes()


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        (SELF, []),
        (SELF, ["--rows"]),
        ("experiment: multihead\nembed_dim: 8\nsweep: {num_heads: [2, 4]}\n", ["--rows"]),
        (MISSING, []),
        ("experiment: heads\n", []),
        ("experiment: ablate\nhead: '1:0'\n", []),
    ],
    ids=["self", "rows", "several shapes", "failed runs", "heads", "ablate"],
)
def test_a_folder_gives_what_a_file_does(attn: Attn, tmp_path: Path, settings: str, flags: list[str]) -> None:
    arguments = written(tmp_path, settings, 5)
    folder, file = tmp_path / "runs", tmp_path / "runs.db"
    codes = [attn([*arguments, *flags, "-o", name]).code for name in (f"{folder}/", str(file))]
    assert codes == [3, 3] if settings == MISSING else codes == [0, 0]
    assert parts_of(folder)
    assert_equal_stores(attn, folder, file)
    again = attn([*arguments, *flags, "-o", str(folder)])
    assert "0 done now" in again.err if settings == MISSING else "nothing was left to do" in again.err


def test_several_plans_and_a_sequence_in_one_folder(attn: Attn, tmp_path: Path) -> None:
    folder, file = tmp_path / "ein Ordner ü", tmp_path / "runs.db"
    summaries = []
    for store in (f"{folder}/", str(file)):
        arguments = write_batch(tmp_path, 6, SELF)
        lines = [attn([*arguments, "-o", store]).err]
        (tmp_path / "prompts.txt").write_text("a new first line\n0 \n4 a b c d\n")
        lines.append(attn([*arguments, "--dry-run", "-o", store]).out)
        lines.append(attn([*arguments, "-o", store]).err)
        (tmp_path / "steps.yaml").write_text(STEPS)
        lines.append(attn(["batch", str(tmp_path / "steps.yaml"), "-o", store]).err)
        lines = [re.sub(r"in [\d.]+ m?s \(.*?/s\)", "", line) for line in lines]
        summaries.append([line.replace(store.rstrip("/"), "STORE") for line in lines])
    assert summaries[0] == summaries[1]
    for flags in ([], ["--all"]):
        assert_equal_stores(attn, folder, file, *flags)


def test_conditions_and_chosen_statistics(attn: Attn, tmp_path: Path) -> None:
    arguments = write_batch(tmp_path, 9)
    folder, file = tmp_path / "runs", tmp_path / "runs.db"
    expected = ["--expect", "entropy.max < 1.2", "--expect", "max_weight.min > 0.1"]
    for _ in range(2):  # what is there already is held to it, too
        ended = [attn([*arguments, *expected, "-o", name]) for name in (f"{folder}/", str(file))]
        assert ended[0].code == ended[1].code == 1
        lines = [[line for line in each.err.splitlines() if "expected" in line] for each in ended]
        assert lines[0] == lines[1] and lines[0]
    for flags in (
        ["--statistic", "entropy.mean"],
        ["--statistic", "entropy.mean", "--where", "head = 1", "--where", "distance.mean < 1"],
        ["--statistic", "entropy.mean", "--statistic", "scores.mean", "--where", "causal = true"],
    ):
        shown = [attn(["results", str(store), "--format", "json", *flags]) for store in (folder, file)]
        tables = [json.loads(each.out)["statistics"] for each in shown]
        assert tables[0] == tables[1] and tables[0]["summary"]


def test_parts_are_read_by_others(attn: Attn, tmp_path: Path) -> None:
    arguments = write_batch(tmp_path, 3, "experiment: self\nembed_dim: 4\n")
    assert attn([*arguments, "-o", f"{tmp_path}/runs/"]).code == 0
    query = f"SELECT sentence, id, \"entropy.mean\"[1] FROM '{tmp_path}/runs/*.parquet' ORDER BY run"
    _, _, rows = read_by_duckdb(query)
    tidy = tmp_path / "tidy.csv"
    assert attn(["export", f"{tmp_path}/runs", "-o", str(tidy)]).code == 0
    of_entropy = f"FROM read_csv('{tidy}') WHERE statistic = 'entropy.mean' ORDER BY run"
    exported = read_by_duckdb(f"SELECT value {of_entropy}")[2]
    assert [row[:2] for row in rows] == [("0", "1"), ("1 a", "2"), ("2 a b", "3")]
    assert [row[2] for row in rows] == [value for (value,) in exported]


def test_small_files_become_one(attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncli.runs.driver.MOST_JOBS", 3)
    monkeypatch.setattr("attncli.runs.driver.FIRST_JOBS", (1, 3))
    arguments, folder, file = write_batch(tmp_path, 20), tmp_path / "runs", tmp_path / "runs.db"
    for store in (f"{folder}/", str(file)):
        assert attn([*arguments, "-o", store, "--rows"]).code == 0
    (part,) = parts_of(folder)
    assert_equal_stores(attn, folder, file)
    (folder / "catalogue.db").unlink()  # the parts tell all of it again
    ended = attn([*arguments, "-o", f"{folder}/", "--rows"])
    assert "has 40 of 40 runs, nothing was left to do" in ended.err and parts_of(folder) == [part]
    assert_equal_stores(attn, folder, file)
