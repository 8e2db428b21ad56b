"""A store whose prompts, config or model changed: nothing is lost, and nothing of before counts today."""

import csv
import hashlib
import io
import json
import math
import os
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from attncli.runs import schema
from tests.conftest import Attn
from tests.runs.stores import ROOT, done_runs, with_tidy

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
    """The summary of one statistic, a row a group."""
    asked = ["--statistic", "entropy.mean", "--format", "json", *flags]
    ended = attn(["results", str(store), *asked])
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["statistics"].get("summary", [])


def sentences_by_id(store: Path) -> dict[str, str]:
    """What SQL says of the runs of the last plan."""
    connection = sqlite3.connect(store)
    found = connection.execute("SELECT id, sentence FROM runs WHERE plan IS NULL").fetchall()
    connection.close()
    assert len({name for name, _ in found}) == len(found), "an id is one sentence"
    return dict(found)


def test_a_line_at_the_top_moves_the_ids_of_all(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    assert attn(batch(tmp_path, ["a b", "c d e"])).code == 0
    ended = attn(batch(tmp_path, ["new one here", "a b", "c d e"]))
    assert ended.err.startswith(f"{store} has 3 of 3 runs, 1 done now") and "2 were there" in ended.err
    assert sentences_by_id(store) == {"1": "new one here", "2": "a b", "3": "c d e"}
    groups = entropies(attn, store, "--group-by", "id")
    assert sorted((row["id"], row["count"]) for row in groups) == [("1", 1), ("2", 1), ("3", 1)]


def test_runs_of_deleted_lines_stay_and_do_not_count(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    attn(batch(tmp_path, ["a b", "c d e", "f"]))
    before = exported(attn, store)
    ended = attn(batch(tmp_path, ["c d e"]))
    left = "2 of earlier plans left out (attn results --all has them)"
    assert ended == (0, "", f"{store} has 1 of 1 runs, nothing was left to do, {left}\n")
    assert len(done_runs(store)) == 3
    assert [row["count"] for row in entropies(attn, store)] == [1]
    shown = attn(["results", str(store)])
    assert "1 run is done, 0 failed" in shown.out
    assert "Left out: 2 runs of earlier plans (--all includes them)." in shown.out
    told = attn(["results", "--tidy", str(store)])
    assert told.err == f"{store}: left out: 2 runs of earlier plans (--all includes them)\n"
    assert {row["id"] for row in exported(attn, store)} == {"1"}
    everything = exported(attn, store, "--all")
    assert {(row["run"], row["id"], row["plan"]) for row in everything} == {
        ("1", "1", "1"),
        ("2", "1", "2"),
        ("3", "3", "1"),
    }
    values = [(row["run"], row["statistic"], row["value"]) for row in everything]
    assert values == [(row["run"], row["statistic"], row["value"]) for row in before], "nothing was changed"


def test_earlier_plans_are_told_apart_where_all_is_asked_for(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    for lines in (["a b", "c d e"], ["c d e", "f g"], ["h"]):
        assert attn(batch(tmp_path, lines)).code == 0
    rows = entropies(attn, store, "--all", "--group-by", "id")
    # `c d e` was line 1 when it was last planned, as `a b` was when that was.
    assert [(row["id"], row["plan"], row["count"]) for row in rows] == [
        ("1", 1, 1), ("1", 2, 1), ("2", 2, 1), ("1", 3, 1)
    ]  # fmt: skip
    assert [row["count"] for row in entropies(attn, store, "--all", "--where", "plan = 2")] == [2]
    note = "Included: 3 runs of earlier plans (that of the last batch is plan 3)."
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


def test_an_earlier_state_of_a_model_does_not_count(attn: Attn, tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "model")
    command = batch(tmp_path, ["a b c", "d e"], "experiment: heads\nmodel: model")
    assert attn(command).code == 0
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text() + "\n")
    assert "has 2 of 2 runs, 2 done now" in attn(command).err
    assert len(done_runs(tmp_path / "runs.db")) == 4
    assert {row["plan"] for row in exported(attn, tmp_path / "runs.db", "--all")} == {"1", "2"}
    assert len({row["run"] for row in exported(attn, tmp_path / "runs.db")}) == 2


def large_model(folder: Path) -> Path:
    """A model with a file in its folder whose beginning and end say little about it."""
    shutil.copytree(TINY, folder)
    with (folder / "large.bin").open("wb") as file:
        file.truncate(65 * 2**20)
    return folder


def write_in_the_middle(path: Path) -> None:
    """Change a byte, and set the time of change back."""
    about = path.stat()
    with path.open("r+b") as file:
        file.seek(about.st_size // 2)
        file.write(b"x")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_mtime_ns == about.st_mtime_ns


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


def test_a_store_of_before_knows_large_files_by_their_time(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs are found as long as that has not changed, and have the keys of today afterwards."""

    def digest_of_before(path: Path, _: object) -> str:
        content = path.read_bytes()
        if len(content) > 64 * 2**20:
            about = f"{len(content)} {path.stat().st_mtime_ns} ".encode()
            content = about + content[: 8 * 2**20] + content[-8 * 2**20 :]
        return hashlib.sha256(content).hexdigest()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = large_model(tmp_path / "model")
    settings = f"experiment: heads\nmodel: {model}\nsweep: {{skip_sink: [0, 1]}}"
    with monkeypatch.context() as before:
        before.setattr("attncli.runs.keys.content_digest", digest_of_before)
        assert attn(batch(tmp_path, ["a b c", "d e f"], settings)).code == 0
    old = {key for (key,) in all_keys(tmp_path / "runs.db")}
    lines = ["a b c", "d e f", "g h i"]
    dry = attn([*batch(tmp_path, lines, settings), "--dry-run"])
    assert dry.out.endswith("has 4 of them, 2 are left\n")
    assert {key for (key,) in all_keys(tmp_path / "runs.db")} == old
    ended = attn(batch(tmp_path, lines, settings))
    assert "has 6 of 6 runs, 2 done now" in ended.err and "4 were there" in ended.err
    assert not old & {key for (key,) in all_keys(tmp_path / "runs.db")}
    os.utime(model / "large.bin", (1, 1))
    assert "nothing was left to do" in attn(batch(tmp_path, lines, settings)).err
    write_in_the_middle(model / "large.bin")
    assert "has 6 of 6 runs, 6 done now" in attn(batch(tmp_path, lines, settings)).err


def all_keys(store: Path) -> list[tuple[bytes]]:
    with closing(sqlite3.connect(store)) as connection:
        return connection.execute("SELECT key FROM runs").fetchall()


def test_equal_lines_are_one_run_wherever_they_stand(attn: Attn, tmp_path: Path) -> None:
    store, lines = tmp_path / "runs.db", [f"{i} b c" for i in range(300)]
    ended = attn(batch(tmp_path, [*lines, *lines, "0 b c"]))
    assert ended.err.startswith(f"{store} has 300 of 300 runs, 300 done now") and "there" not in ended.err
    again = attn([*batch(tmp_path, [*lines, "new", *lines]), "--workers", "2"])
    assert again.err.startswith(f"{store} has 301 of 301 runs, 1 done now") and "300 were there" in again.err
    dry = attn([*batch(tmp_path, [*lines, "newer", *lines]), "--dry-run"])
    assert dry.out.endswith(f"{store} has 300 of them, 1 are left, 300 repeat another\n")
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
    assert ended.err.startswith(f"{store} has 3 of 3 runs, 1 done now") and "2 were there" in ended.err


def failures(attn: Attn, store: Path, *flags: str) -> list[dict[str, object]]:
    shown = attn(["results", str(store), "--format", "json", *flags])
    return json.loads(shown.out)["statistics"].get("failed", [])


def test_a_repeated_sentence_that_fails_is_told_once(attn: Attn, tmp_path: Path) -> None:
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


def as_earlier_version(store: Path, versions: tuple[int, ...]) -> None:
    """What an attn of before wrote, and perhaps migrated: float64, and a view; in version 1 no plans."""
    with closing(with_tidy(store)) as connection:
        numbers: dict[int, list[float]] = {}
        for run, value in connection.execute("SELECT run, value FROM temp.tidy ORDER BY rowid"):
            numbers.setdefault(run, []).append(math.nan if value is None else value)
        for run, values in numbers.items():
            figures = struct.pack(f"<{len(values)}d", *values)
            connection.execute("UPDATE runs SET figures = ? WHERE run = ?", (figures, run))
        connection.execute("ALTER TABLE runs DROP COLUMN encoding")
        connection.execute(schema.POWERS)
        powers = [(exponent, 2.0 ** (max(exponent, 1) - 1023)) for exponent in range(2047)]
        connection.executemany("INSERT INTO powers VALUES (?, ?)", [*powers, (2047, None)])
        ((rows,),) = connection.execute("SELECT keeps_rows FROM store")
        view = schema._tidy(rows=rows).replace("VIEW tidy", "VIEW main.tidy")
        if 1 in versions:
            connection.execute("ALTER TABLE runs DROP COLUMN plan")
            connection.execute("ALTER TABLE store DROP COLUMN plan")
            assert " AND plan IS NULL" in view
            connection.execute(view.replace(" AND plan IS NULL", ""))
        else:
            connection.execute(view)
        connection.execute("DROP TABLE temp.tidy")
        if versions == (1, 2):
            schema._add_plans(connection)
        connection.execute(f"PRAGMA user_version = {versions[-1]}")
        connection.commit()


EARLIER = [(1,), (2,), (1, 2)]


@pytest.mark.parametrize("versions", EARLIER)
@pytest.mark.parametrize("rows", [[], ["--rows"]])
def test_a_store_of_an_earlier_version_is_read_and_carried_on(
    attn: Attn, tmp_path: Path, rows: list[str], versions: tuple[int, ...]
) -> None:
    store = tmp_path / "runs.db"
    attn([*batch(tmp_path, ["a b", "c d e", "f"]), *rows])
    before, summary = attn(["results", "--tidy", str(store)]), attn(["results", str(store)])
    as_earlier_version(store, versions)
    old = store.read_bytes()
    with closing(sqlite3.connect(store)) as connection:
        of_view = connection.execute("SELECT value FROM tidy ORDER BY run, statistic, value").fetchall()
    assert len(of_view) == len(exported(attn, store))
    assert attn(["results", "--tidy", str(store)]) == before and attn(["results", str(store)]) == summary
    assert {row["plan"] for row in exported(attn, store, "--all")} == {"1"}
    dry = attn([*batch(tmp_path, ["c d e", "new"]), *rows, "--dry-run"])
    assert dry.out.endswith("has 1 of them, 1 are left\n")
    assert store.read_bytes() == old, "reading changes nothing"
    ended = attn([*batch(tmp_path, ["c d e", "new"]), *rows])
    assert ended.err.startswith(f"{store} has 2 of 2 runs, 1 done now") and "1 were there" in ended.err
    assert sentences_by_id(store) == {"1": "c d e", "2": "new"} and len(done_runs(store)) == 4
    with closing(with_tidy(store)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.SCHEMA_VERSION,)
        found = connection.execute("SELECT run, statistic, value FROM tidy").fetchall()
        assert len(found) == len(exported(attn, store))
        encodings = connection.execute("SELECT id, encoding FROM runs WHERE plan IS NULL").fetchall()
        assert dict(encodings) == {"1": None, "2": 1}, "only new runs are in float32"
        kept = connection.execute("SELECT name FROM main.sqlite_schema WHERE name IN ('tidy', 'powers')")
        assert kept.fetchall() == []


@pytest.mark.parametrize("versions", EARLIER)
def test_a_store_of_an_earlier_version_is_whole_when_migrating_is_cut_short(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: tuple[int, ...]
) -> None:
    store = tmp_path / "runs.db"
    attn(batch(tmp_path, ["a b", "c d e"]))
    before = attn(["results", "--tidy", str(store)])
    as_earlier_version(store, versions)

    def cut_short(connection: sqlite3.Connection) -> None:
        connection.execute("DROP VIEW tidy")
        connection.execute("no SQL")

    monkeypatch.setattr(schema, "_add_encodings", cut_short)
    assert attn(batch(tmp_path, ["new"])).code == 4
    monkeypatch.undo()
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == versions[-1:]
    assert attn(["results", "--tidy", str(store)]) == before
    assert attn(batch(tmp_path, ["a b"])).code == 0


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


def test_an_id_that_is_no_text_is_refused(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("experiment: self")
    (tmp_path / "p.jsonl").write_text('{"sentence": "a", "id": "\\ud800"}')
    ended = attn(
        ["batch", str(tmp_path / "x.yaml"), "--file", str(tmp_path / "p.jsonl"), "-o", str(tmp_path / "r.db")]
    )
    assert ended == (2, "", f"{tmp_path}/p.jsonl:1: id: must be valid UTF-8 text\n")
