"""Stores whose prompts, config or model changed: nothing is lost, and earlier runs do not count."""

import csv
import io
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.conftest import Attn
from tests.runs.stores import ROOT, done_runs

TINY = ROOT / "attncli" / "data" / "tiny-induction"


def batch(folder: Path, lines: list[str], settings: str = "experiment: self\nembed_dim: 4") -> list[str]:
    (folder / "x.yaml").write_text(settings)
    (folder / "p.txt").write_text("\n".join(lines))
    files = ["batch", str(folder / "x.yaml"), "--file", str(folder / "p.txt")]
    return [*files, "-o", str(folder / "runs.db")]


def exported(attn: Attn, store: Path, *flags: str) -> list[dict[str, str]]:
    ended = attn(["results", "--tidy", str(store), *flags])
    assert ended.code == 0, ended.err
    return list(csv.DictReader(io.StringIO(ended.out)))


def entropies(attn: Attn, store: Path, *flags: str) -> list[dict[str, object]]:
    """Return the summary of one statistic, with one row per group."""
    asked = ["--statistic", "entropy.mean", "--format", "json", *flags]
    ended = attn(["results", str(store), *asked])
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["statistics"].get("summary", [])


def sentences_by_id(store: Path) -> dict[str, str]:
    """Return the sentences of the runs in the last plan, read by SQL."""
    connection = sqlite3.connect(store)
    found = connection.execute("SELECT id, sentence FROM runs WHERE plan IS NULL").fetchall()
    connection.close()
    assert len({name for name, _ in found}) == len(found), "an id is one sentence"
    return dict(found)


def test_a_line_at_the_top_moves_the_ids_of_all(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    assert attn(batch(tmp_path, ["a b", "c d e"])).code == 0
    ended = attn(batch(tmp_path, ["new one here", "a b", "c d e"]))
    assert (
        ended.err.startswith(f"{store} has 3 of 3 runs, 1 done now") and "2 were already stored" in ended.err
    )
    assert sentences_by_id(store) == {"1": "new one here", "2": "a b", "3": "c d e"}
    groups = entropies(attn, store, "--group-by", "id")
    assert sorted((row["id"], row["count"]) for row in groups) == [("1", 1), ("2", 1), ("3", 1)]


def test_runs_of_deleted_lines_stay_and_do_not_count(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    attn(batch(tmp_path, ["a b", "c d e", "f"]))
    before = exported(attn, store)
    ended = attn(batch(tmp_path, ["c d e"]))
    left = "2 of earlier plans left out (use attn results --all to include them)"
    assert ended == (0, "", f"{store} has 1 of 1 runs, nothing was left to do, {left}\n")
    assert len(done_runs(store)) == 3
    assert [row["count"] for row in entropies(attn, store)] == [1]
    shown = attn(["results", str(store)])
    assert "1 run is done, 0 failed" in shown.out
    assert "Left out: 2 runs of earlier plans (use --all to include them)." in shown.out
    told = attn(["results", "--tidy", str(store)])
    assert told.err == f"{store}: left out: 2 runs of earlier plans (use --all to include them)\n"
    assert {row["id"] for row in exported(attn, store)} == {"1"}
    everything = exported(attn, store, "--all")
    assert {(row["run"], row["id"], row["plan"]) for row in everything} == {
        ("1", "1", "1"),
        ("2", "1", "2"),
        ("3", "3", "1"),
    }
    values = [(row["run"], row["statistic"], row["value"]) for row in everything]
    assert values == [(row["run"], row["statistic"], row["value"]) for row in before], "nothing was changed"


def test_all_tells_earlier_plans_apart(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    for lines in (["a b", "c d e"], ["c d e", "f g"], ["h"]):
        assert attn(batch(tmp_path, lines)).code == 0
    rows = entropies(attn, store, "--all", "--group-by", "id")
    # When they were last planned, `c d e` and `a b` were both line 1.
    assert [(row["id"], row["plan"], row["count"]) for row in rows] == [
        ("1", 1, 1), ("1", 2, 1), ("2", 2, 1), ("1", 3, 1)
    ]  # fmt: skip
    assert [row["count"] for row in entropies(attn, store, "--all", "--where", "plan = 2")] == [2]
    note = "Included: 3 runs of earlier plans (the plan of the last batch is number 3)."
    assert note in attn(["results", str(store), "--all"]).out
    attn(batch(tmp_path, ["f g", "a b", "c d e", "h"]))
    assert sentences_by_id(store) == {"1": "f g", "2": "a b", "3": "c d e", "4": "h"}
    assert "left out" not in attn(["results", "--tidy", str(store)]).err


def test_another_config_is_another_plan(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    attn(batch(tmp_path, ["a b c"]))
    attn(batch(tmp_path, ["a b c"], "# moved down\nexperiment: self\nembed_dim: 4"))
    assert [row["count"] for row in entropies(attn, store)] == [1]
    connection = sqlite3.connect(store)
    assert connection.execute("SELECT source FROM runs").fetchall() == [(f"{tmp_path}/x.yaml:2:1",)]
    connection.close()
    attn(batch(tmp_path, ["a b c"], "experiment: self\nembed_dim: 6"))
    (row,) = entropies(attn, store, "--group-by", "embed_dim")
    assert (row["embed_dim"], row["count"]) == (6, 1)
    assert len(done_runs(store)) == 2


def large_model(folder: Path) -> Path:
    """Save a model with a large file in its folder."""
    shutil.copytree(TINY, folder)
    with (folder / "large.bin").open("wb") as file:
        file.truncate(65 * 2**20)
    return folder


def write_in_the_middle(path: Path) -> None:
    """Change a byte, and restore the time of the last change."""
    about = path.stat()
    with path.open("r+b") as file:
        file.seek(about.st_size // 2)
        file.write(b"x")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_mtime_ns == about.st_mtime_ns


@pytest.mark.nightly
def test_a_copied_model_computes_nothing_again(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store, here = tmp_path / "runs.db", large_model(tmp_path / "here")
    assert attn(batch(tmp_path, ["a b c", "d e"], f"experiment: heads\nmodel: {here}")).code == 0
    there = tmp_path / "there"
    shutil.copytree(here, there, copy_function=shutil.copy)
    os.utime(there / "large.bin", (1, 1))
    again = attn(batch(tmp_path, ["a b c", "d e"], f"experiment: heads\nmodel: {there}"))
    assert "has 2 of 2 runs, nothing was left to do" in again.err
    more = attn(batch(tmp_path, ["a b c", "d e", "f g h"], f"experiment: heads\nmodel: {there}"))
    assert "has 3 of 3 runs, 1 done now" in more.err
    shown = attn(["heads", "--store", str(store)])
    assert shown.code == 0 and "there, 2 layers × 4 heads, 3 texts" in shown.out
    write_in_the_middle(there / "large.bin")
    changed = attn(batch(tmp_path, ["a b c", "d e"], f"experiment: heads\nmodel: {there}"))
    assert "has 2 of 2 runs, 2 done now" in changed.err


def test_equal_lines_are_one_run_wherever_they_stand(attn: Attn, tmp_path: Path) -> None:
    store, lines = tmp_path / "runs.db", [f"{i} b c" for i in range(300)]
    ended = attn(batch(tmp_path, [*lines, *lines, "0 b c"]))
    assert ended.err.startswith(f"{store} has 300 of 300 runs, 300 done now") and "there" not in ended.err
    again = attn(batch(tmp_path, [*lines, "new", *lines]))
    assert (
        again.err.startswith(f"{store} has 301 of 301 runs, 1 done now")
        and "300 were already stored" in again.err
    )
    dry = attn([*batch(tmp_path, [*lines, "newer", *lines]), "--dry-run"])
    assert dry.out.endswith(f"{store} has 300 of these runs, 1 left to do, 300 duplicates\n")
    assert sentences_by_id(store).keys() == {str(i) for i in range(1, 302)}


def test_steps_that_two_files_share_are_one_run(attn: Attn, tmp_path: Path) -> None:
    first, second = tmp_path / "x.yaml", tmp_path / "y.yaml"
    first.write_text("steps: [{experiment: norm}, {experiment: norm}]")
    second.write_text("steps: [{experiment: norm}, {experiment: norm, num_features: 7}]")
    store = tmp_path / "runs.db"
    ended = attn(["batch", str(first), str(second), "-o", str(store)])
    assert ended.err.startswith(f"{store} has 3 of 3 runs, 3 done now") and "there" not in ended.err
    second.write_text("steps: [{experiment: norm}, {experiment: norm, num_features: 9}]")
    ended = attn(["batch", str(first), str(second), "-o", str(store)])
    assert (
        ended.err.startswith(f"{store} has 3 of 3 runs, 1 done now") and "2 were already stored" in ended.err
    )


def failures(attn: Attn, store: Path, *flags: str) -> list[dict[str, object]]:
    shown = attn(["results", str(store), "--format", "json", *flags])
    return json.loads(shown.out)["statistics"].get("failed", [])


def test_a_repeated_sentence_that_fails_is_reported_once(attn: Attn, tmp_path: Path) -> None:
    store, settings = tmp_path / "runs.db", f"experiment: self\nembedding: {tmp_path}/v.txt"
    (tmp_path / "v.txt").write_text("a 1 2\nb 3 4\n")
    ended = attn([*batch(tmp_path, ["a b", "a x", "b", "a x"], settings), "--expect", "entropy.mean < 100"])
    assert ended.code == 3
    told, summary = ended.err.splitlines()
    assert "line 2: " in told and "has 2 of 3 runs, 2 done now" in summary and "1 failed" in summary
    assert [row["id"] for row in failures(attn, store)] == ["2"]
    assert attn(batch(tmp_path, ["a b"], settings)).code == 0
    assert failures(attn, store) == []
    assert [(row["id"], row["plan"]) for row in failures(attn, store, "--all")] == [("2", 1)]


def test_no_two_ids_become_equal_in_csv(attn: Attn, tmp_path: Path) -> None:
    names = ["a\nb", "a\\nb", "a\tb", "a\\tb", "a\rb", 'a"b', "a,b", " a", "a\\", "\x1b[31m", "\\x1b[31m"]
    lines = [json.dumps({"sentence": "a b", "id": name}) for name in names]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    (tmp_path / "x.yaml").write_text("experiment: self")
    store = tmp_path / "runs.db"
    attn(["batch", str(tmp_path / "x.yaml"), "--file", str(tmp_path / "p.jsonl"), "-o", str(store)])
    assert attn(["results", "--tidy", str(store), "-o", str(tmp_path / "tidy.csv")]).code == 0
    assert attn(["results", str(store), "--group-by", "id", "-o", str(tmp_path / "sums.csv")]).code == 0
    for file in ("tidy.csv", "sums.csv"):
        with (tmp_path / file).open(newline="") as stream:
            found = list(dict.fromkeys(row["id"] for row in csv.DictReader(stream)))
        assert sorted(found) == sorted(names), file
