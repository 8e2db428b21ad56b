"""The store of a batch as a user sees it: written, resumed, refused, on a full disk."""

import io
import json
import os
import resource
import signal
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from attncli.records.kinds import read_result
from attncli.records.report import Report, Table
from attncli.runs.schema import SCHEMA_VERSION
from attncli.runs.store import open_store
from attncli.runs.store_files import create_file, driving
from attncli.views import SUFFIXES, Display, load_view
from tests.conftest import Attn
from tests.duckdb_reader import read_by_duckdb
from tests.forked import run_attn
from tests.running import run
from tests.runs.stores import (
    ATTN,
    ROOT,
    assert_same_numbers,
    done_runs,
    run_lines,
    tidy,
    with_tidy,
    write_batch,
)

SWEEP = (
    "experiment: multihead\nsentence: a b c\nembed_dim: 8\n"
    "sweep: {num_heads: [1, 2, 4], causal: [false, true], seed: [0, 1]}"
)
TEXTS = "abcabc\nhello hello\nto be or not to be\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores that tests only read: a batch without and with rows, a sweep, and a survey."""
    folder = tmp_path_factory.mktemp("stores")
    batch = write_batch(folder, 30)
    (folder / "grid.yaml").write_text(SWEEP)
    (folder / "texts.txt").write_text(TEXTS)
    run_lines(
        [*batch, "-o", str(folder / "batch.db")],
        [*batch, "-o", str(folder / "rows.db"), "--rows"],
        ["batch", str(folder / "grid.yaml"), "-o", str(folder / "sweep.db")],
        ["heads", "--texts", str(folder / "texts.txt"), "-o", str(folder / "survey.db")],
    )
    return folder


def test_a_batch_is_stored_and_nothing_is_repeated(attn: Attn, tmp_path: Path) -> None:
    arguments, store = write_batch(tmp_path, 20), tmp_path / "runs.db"
    first = attn([*arguments, "-o", str(store)])
    assert first.code == 0 and first.out == ""
    assert f"{store} has 40 of 40 runs, 40 done now" in first.err
    before = tidy(store)
    again = attn([*arguments, "-o", str(store)])
    assert again == (0, "", f"{store} has 40 of 40 runs, nothing was left to do\n")
    assert tidy(store) == before
    dry = attn([*arguments, "-o", str(store), "--dry-run"])
    assert dry.out.endswith(f"= 40 runs\n{store} has 40 of these runs, 0 left to do\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.txt", "runs.db", "sweep.yaml"]


def test_a_store_has_the_numbers_of_single_runs(folder: Path) -> None:
    store = folder / "batch.db"
    connection = sqlite3.connect(store)
    query = "SELECT sentence, spec, status, versions FROM runs JOIN settings USING (settings) "
    rows = connection.execute(query + "JOIN environments USING (environment)").fetchall()
    connection.close()
    assert len(rows) == 60
    figures = tidy(store)
    for sentence, text, status, versions in rows:
        spec = json.loads(text)
        assert status == "done" and {"attncli", "torch"} <= json.loads(versions).keys()
        report = run("multihead", sentence=sentence, embed_dim=8, num_heads=2, causal=spec["causal"])
        entropy = report.statistics["rows"]["entropy"].values
        for head in range(2):
            found = [figures[next(k for k in figures if k[:2] == (sentence, text) and k[4:] == (head, name))]
                     for name in ("entropy.mean", "entropy.min", "entropy.max")]  # fmt: skip
            row = entropy[head]
            np.testing.assert_allclose(found, [row.mean(), row.min(), row.max()], rtol=0, atol=1e-6)


def test_a_failed_run_is_reported_stored_and_retried(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("a 1 2\nb 3 4\n")
    (tmp_path / "x.yaml").write_text("experiment: self\nembedding: v.txt")
    (tmp_path / "p.jsonl").write_text(
        '{"sentence": "a b"}\n{"sentence": "a [/INST]\\u001b[31m", "id": "bad"}\n'
    )
    arguments = [
        "batch",
        str(tmp_path / "x.yaml"),
        "--file",
        str(tmp_path / "p.jsonl"),
        "-o",
        str(tmp_path / "r.db"),
    ]
    first = attn(arguments)
    assert first.code == 3 and "x.yaml:1:1, bad: " in first.err and "1 done now" in first.err
    assert "1 failed" in first.err and "\x1b" not in first.err
    again = attn(arguments)
    assert again.code == 3 and "0 done now" in again.err and "1 were already stored" in again.err
    shown = attn(["results", str(tmp_path / "r.db"), "--format", "json"])
    (failed,) = json.loads(shown.out)["statistics"]["failed"]
    assert failed["id"] == "bad" and "[/inst]" in failed["error"]


def test_steps_on_one_generator_are_stored_with_their_samples(attn: Attn, tmp_path: Path) -> None:
    steps = "steps: [{experiment: norm}, {experiment: norm}, {experiment: norm, seed: 0}]"
    (tmp_path / "x.yaml").write_text(steps)
    assert attn(["batch", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "r.db")]).code == 0
    reports = json.loads(attn(["batch", str(tmp_path / "x.yaml"), "--format", "json"]).out)
    connection = with_tidy(tmp_path / "r.db")
    query = "SELECT run, value FROM tidy WHERE statistic = 'input.feature0_mean' ORDER BY run"
    found = connection.execute(query).fetchall()
    connection.close()
    # The third run equals the first, so the store has it once.
    assert found == [(i + 1, reports[i]["statistics"]["input"]["feature0_mean"]) for i in range(2)]


def test_rows_and_weights_are_stored_on_request(attn: Attn, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    arguments, store = write_batch(tmp_path, 9), tmp_path / "runs.db"
    assert attn([*arguments, "-o", str(store), "--rows", "--weights"]).code == 0
    connection = with_tidy(store)
    runs = connection.execute("SELECT lower(hex(key)), sentence, weights, run FROM runs").fetchall()
    for key, sentence, file, number in runs:
        weights = load_file(tmp_path / "runs.db-weights" / file)[key]
        words = len(sentence.split())
        assert weights.shape == (2, words, words)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
        query = "SELECT head, token, value FROM tidy WHERE run = ? AND statistic = 'max_weight'"
        rows = connection.execute(query, (number,)).fetchall()
        assert len(rows) == 2 * words
        for head, token, value in rows:
            assert abs(weights[head, token].max() - value) < 1e-6
    connection.close()
    orphan = tmp_path / "runs.db-weights" / "000099.safetensors"
    orphan.write_bytes(b"of a crash")
    (tmp_path / "runs.db-weights" / "notes.txt").write_text("mine")
    assert attn([*arguments, "-o", str(store), "--rows", "--weights"]).code == 0
    assert not orphan.exists() and (tmp_path / "runs.db-weights" / "notes.txt").exists()
    assert attn([*arguments, "-o", str(store)]).err.splitlines() == [
        f"--rows: {store} was created with this flag: add it, or start over with --fresh",
        f"--weights: {store} was created with this flag: add it, or start over with --fresh",
    ]
    assert attn([*arguments, "-o", str(store), "--fresh"]).code == 0
    assert not list((tmp_path / "runs.db-weights").glob("*.safetensors"))


def test_experiments_without_weights_are_reported(attn: Attn, tmp_path: Path) -> None:
    line = "--weights: nothing was stored: these experiments have no weight matrix\n"
    for name, told in (("norm", True), ("self", False)):
        (tmp_path / "x.yaml").write_text(f"experiment: {name}")
        ended = attn(["batch", str(tmp_path / "x.yaml"), "-o", str(tmp_path / f"{name}.db"), "--weights"])
        assert ended.code == 0 and ended.err.endswith(line) is told


def foreign_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE precious (data)")
    connection.commit()
    connection.close()


def other_version(path: Path) -> None:
    from attncli.runs.store_files import create_file

    create_file(path, rows=False, weights=False)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()


@pytest.mark.parametrize(
    ("make", "fresh"),
    [
        (foreign_database, ["--fresh"]),
        (lambda path: path.write_text("notes"), []),
        (lambda path: path.touch(), ["--fresh"]),
    ],
    ids=["database", "text", "empty"],
)
def test_files_that_are_not_stores_are_left_unchanged(
    attn: Attn, tmp_path: Path, make: Callable[[Path], object], fresh: list[str]
) -> None:
    store = tmp_path / "runs.db"
    make(store)
    before = (store.read_bytes(), store.stat().st_mtime_ns)
    arguments = write_batch(tmp_path, 2)
    for command in (
        [*arguments, "-o", str(store), *fresh],
        ["results", str(store)],
        ["results", "--tidy", str(store)],
    ):
        instead = "give a file that -o FILE.db wrote, or a new name to write one"
        line = f"{store}: is not an attn store, left unchanged: {instead}\n"
        assert attn(command) == (2, "", line)
    assert (store.read_bytes(), store.stat().st_mtime_ns) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["prompts.txt", "runs.db", "sweep.yaml"]


def test_a_store_of_another_version_is_left_unchanged(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    other_version(store)
    before = store.read_bytes()
    arguments = write_batch(tmp_path, 2)
    ended = attn([*arguments, "-o", str(store)])
    assert ended.code == 2 and f"is a store of version {SCHEMA_VERSION + 1}" in ended.err
    assert store.read_bytes() == before
    assert attn([*arguments, "-o", str(store), "--fresh"]).code == 0


def test_a_second_driver_is_refused_and_a_dead_one_is_not(attn: Attn, tmp_path: Path) -> None:
    arguments, store = write_batch(tmp_path, 2), tmp_path / "runs.db"
    with driving(store):
        line = f"{store}: is being written by another attn process ({os.getpid()}): wait until it ends\n"
        assert attn([*arguments, "-o", str(store)]) == (1, "", line)
        assert not store.exists()
    (tmp_path / "runs.db-lock").write_text("99999")
    assert attn([*arguments, "-o", str(store)]).code == 0
    assert not (tmp_path / "runs.db-lock").exists()


def test_a_link_is_the_store_that_it_names(attn: Attn, tmp_path: Path) -> None:
    arguments, store, link = write_batch(tmp_path, 2), tmp_path / "runs.db", tmp_path / "latest.db"
    link.symlink_to("runs.db")
    assert attn([*arguments, "-o", str(link)]).code == 0  # this creates the store
    with driving(store):
        assert attn([*arguments, "-o", str(link)]).err.startswith(f"{link}: is being written by another attn")
    assert "nothing was left to do" in attn([*arguments, "-o", str(store)]).err
    assert attn([*arguments, "-o", str(link), "--fresh", "--weights"]).code == 0
    assert link.is_symlink() and (tmp_path / "runs.db-weights").is_dir()
    assert not list(tmp_path.glob("latest.db-*"))


def test_a_program_that_writes_the_store_is_waited_for(attn: Attn, tmp_path: Path) -> None:
    arguments, store = write_batch(tmp_path, 2), tmp_path / "runs.db"
    assert attn([*arguments, "-o", str(store)]).code == 0
    with closing(sqlite3.connect(store, isolation_level=None, check_same_thread=False)) as editor:
        editor.execute("BEGIN EXCLUSIVE")
        saved = Timer(0.3, editor.execute, ["COMMIT"])
        saved.start()
        assert "nothing was left to do" in attn([*arguments, "-o", str(store)]).err
        saved.join()


def test_a_lock_that_vanishes_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous writer unlinks its lock after ours was opened and before it is examined."""
    lock, ended, stat = tmp_path / "runs.db-lock", [], Path.stat

    def stat_of_a_moment_later(path: Path, **options: bool) -> os.stat_result:
        if path == lock and not ended:
            ended.append(lock.unlink())
        return stat(path, **options)

    with monkeypatch.context() as moment:
        moment.setattr(Path, "exists", lambda path: True)
        moment.setattr(Path, "stat", stat_of_a_moment_later)
        with driving(tmp_path / "runs.db"):
            assert ended and lock.read_text().split()[0] == str(os.getpid())
    assert not lock.exists()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--fresh"], "--fresh: needs a store: -o FILE.db"),
        (["--rows", "-o", "x.json"], "--rows: needs a store: -o FILE.db"),
        (["--workers", "2"], "--workers: needs a store: -o FILE.db"),
        (["-o", "x.db", "--format", "csv"], "--format: does not apply to a store: use attn results x.db --tidy -o FILE to export the store"),
        (["-o", "x.db", "--workers", "2", "--scheduler", "tcp://a:1"], "--workers: cannot be combined with --scheduler, whose cluster has its own workers"),
        (["--expect", "entropy"], "--expect 'entropy': must be a name, one of < <= > >= = == !=, and a value"),
        (["--expect", "entropy < low"], "--expect 'entropy < low': must end in a number (got low)"),
        (["--set", "x"], "--set: must be KEY=VALUE (got 'x')"),
        (["-o", "runs"], f"-o runs: the suffix must be one of .db, .sqlite, .sqlite3 (a store), {', '.join(SUFFIXES)} unless --format is given"),
        (["-o", "nowhere/x.db"], "-o nowhere/x.db: no such directory: nowhere"),
    ],
)  # fmt: skip
def test_flags_that_a_batch_refuses(attn: Attn, tmp_path: Path, flags: list[str], line: str) -> None:
    ended = attn([*write_batch(tmp_path, 1), *flags])
    assert ended == (2, "", f"{line}\n")


@pytest.mark.nightly
def test_sentences_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("experiment: self\nembed_dim: 4")
    command = ["batch", "x.yaml", "--file", "-", "-o", "r.db"]
    done = run_attn(command, given="a b\nc d e\n", folder=tmp_path)
    assert (done.code, len(done_runs(tmp_path / "r.db"))) == (0, 2), done.err


def test_input_that_can_be_read_only_once_is_refused(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("experiment: self\nfile: '-'")
    ended = attn(["batch", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "r.db")])
    assert ended == (2, "", "file: cannot be - in a batch: give the sentences with --file -\n")
    assert not (tmp_path / "r.db").exists()


def test_weights_on_a_full_disk(attn: Attn, tmp_path: Path) -> None:
    arguments, store = write_batch(tmp_path, 1000), tmp_path / "runs.db"
    (tmp_path / "runs.db-weights").touch()
    ended = attn([*arguments, "-o", str(store), "--weights"])
    line = f"{store}-weights: cannot be written: Not a directory: completed runs are kept\n"
    assert ended == (4, "", line) or ended == (4, "", line.replace("Not a directory", "File exists"))
    assert done_runs(store) == []


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_expectations_also_hold_for_stored_runs(attn: Attn, tmp_path: Path) -> None:
    arguments = [*write_batch(tmp_path, 3), "-o", str(tmp_path / "runs.db")]
    expected = ["--expect", "entropy.mean < 5", "--expect", "sink_mass.max <= 1.0001"]
    assert attn([*arguments, *expected]).code == 0
    for _ in range(2):
        ended = attn([*arguments, *expected, "--expect", "sink_mass.max <= 0.99"])
        # A single word gets all the weight, and so does the first key of a causal row.
        assert ended.code == 1
        *told, _, last = ended.err.splitlines()
        assert len(told) == 4 and all("expected sink_mass.max <= 0.99: got 1" in line for line in told)
        assert "line 1: " in ended.err and last == "4 runs do not meet the conditions"


@pytest.mark.parametrize(
    ("settings", "flags", "condition", "line"),
    [
        ("experiment: multihead", [], "entropi.mean < 2", "no run will have entropi.mean (did you mean 'entropy.mean'?)"),
        ("experiment: self\nsoftmax: false", [], "entropy.mean < 2", "no run will have entropy.mean; known: scores, scaled_scores (.mean .variance .min .max)"),
        ("experiment: cross", [], "distance.mean < 2", "no run will have distance.mean"),
        ("experiment: self", [], "entropy < 2", "no run will have entropy (did you mean 'entropy.min'?)"),
        ("experiment: self", ["-o", "x.db", "--rows"], "entropi < 2", "no run will have entropi (did you mean 'entropy'?)"),
        ("experiment: scale-demo", [], "sharpness.0.entrpy < 2", "no run will have sharpness.0.entrpy (did you mean 'sharpness.N.entropy'?)"),
        ("steps: [{experiment: norm}, {experiment: self}]", [], "rms_norm.feature0 < 2", "no run will have rms_norm.feature0 (did you mean 'rms_norm.feature0_std'?)"),
        ("experiment: norm\nkind: layer", [], "rms_norm.feature0_std < 2", "no run will have rms_norm.feature0_std"),
    ],
)  # fmt: skip
def test_a_statistic_that_no_run_will_have_is_refused_before_any_run(
    attn: Attn, tmp_path: Path, settings: str, flags: list[str], condition: str, line: str
) -> None:
    (tmp_path / "x.yaml").write_text(settings)
    flags = [str(tmp_path / flag) if flag == "x.db" else flag for flag in flags]
    for more in ([], ["--dry-run"]):
        ended = attn(["batch", str(tmp_path / "x.yaml"), "--expect", condition, *flags, *more])
        assert ended.code == 2 and ended.out == ""
        assert ended.err.startswith(f"--expect '{condition}': {line}") and ended.err.count("\n") == 1
    assert not (tmp_path / "x.db").exists()


def test_statistics_of_some_runs_are_accepted(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("steps: [{experiment: scale-demo}, {experiment: self}]")
    conditions = ["sharpness.1.softmax.0 < 2", "entropy.max < 9", "entropy < 9"]
    expected = [part for condition in conditions for part in ("--expect", condition)]
    command = ["batch", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "x.db"), "--rows"]
    assert attn([*command, *expected]).code == 0
    # Only the run itself shows that it has no tenth factor.
    ended = attn([*command, "--expect", "sharpness.9.entropy < 2"])
    assert ended.code == 1 and ended.err.endswith(
        "no run has sharpness.9.entropy (did you mean 'sharpness.2.entropy'?)\n"
    )


def test_expectations_without_a_store(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("steps: [{experiment: norm}, {experiment: self}]")
    condition = "entropy.mean>100.00000001"
    ended = attn(["batch", str(tmp_path / "x.yaml"), "--expect", condition, "--format", "jsonl"])
    assert ended.code == 1 and len(ended.out.splitlines()) == 2
    assert f"{tmp_path}/x.yaml:1:30: expected entropy.mean > 100.00000001: got 1." in ended.err
    assert "1 run does not meet the conditions" in ended.err


def test_fail_fast_stops_at_the_first(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("experiment: self\nsweep: {scale: [1e38, 1], seed: [1, 2, 3]}")
    command = ["batch", str(tmp_path / "x.yaml"), "--fail-fast"]
    kept = attn([*command, "-o", str(tmp_path / "r.db")])
    assert kept.code == 3 and "stopped by --fail-fast" in kept.err
    shown = attn([*command, "--format", "jsonl"])
    assert (shown.code, shown.out) == (3, "") and "1 of 6 experiments failed" in shown.err
    whole = attn([*command[:2], "--format", "jsonl"])
    assert (whole.code, len(whole.out.splitlines())) == (3, 3)
    assert "3 of 6 experiments failed" in whole.err


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*ATTN, *command], cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
    )


def wait_for_runs(store: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(3000):
        if process.poll() is not None:
            return
        if store.exists() and len(done_runs(store)):
            return
        time.sleep(0.02)
    process.kill()
    process.communicate()
    raise AssertionError("nothing was kept within 60 s")


# test_executors.py checks that workers end with their driver.
@pytest.mark.parametrize("workers", [[], pytest.param(["--workers", "2"], marks=pytest.mark.nightly)])
def test_an_interrupted_batch_resumes(attn: Attn, tmp_path: Path, workers: list[str]) -> None:
    arguments, store = write_batch(tmp_path, 1000), tmp_path / "runs.db"
    process = started([*arguments, "-o", str(store), *workers], tmp_path)
    wait_for_runs(store, process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    count = len(done_runs(store))
    assert 0 < count < 2000
    assert told == f"interrupted: {store} has {count:,} of 2,000 runs; rerun the same command to resume\n"
    assert not (tmp_path / "runs.db-lock").exists()
    ended = attn([*arguments, "-o", str(store)])
    assert ended.code == 0 and f"{count:,} were already stored" in ended.err
    assert len(set(done_runs(store))) == len(done_runs(store)) == 2000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1000k", "none", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small disk here: the next test limits the file's size instead")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def assert_full(process: subprocess.CompletedProcess[str], store: Path) -> None:
    assert process.returncode == 4, process.stderr
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"{store}: cannot be written: ") and line.endswith("completed runs are kept")
    assert 0 < len(done_runs(store)) < 2000


@pytest.mark.nightly
def test_a_full_disk_is_one_line_and_keeps_completed_runs(
    attn: Attn, tmp_path: Path, small_disk: Path
) -> None:
    arguments, store = write_batch(tmp_path, 1000), small_disk / "runs.db"
    command = [*ATTN, *arguments, "-o", str(store)]
    full = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert_full(full, store)
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    assert attn([*arguments, "-o", str(store)]).code == 0
    assert len(done_runs(store)) == 2000


def test_a_size_limit_is_one_line_and_keeps_completed_runs(attn: Attn, tmp_path: Path) -> None:
    arguments, store = write_batch(tmp_path, 1000), tmp_path / "runs.db"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))

    command = [*ATTN, *arguments, "-o", str(store)]
    full = subprocess.run(command, capture_output=True, text=True, env=environment(), preexec_fn=limit)
    assert_full(full, store)
    assert attn([*arguments, "-o", str(store)]).code == 0
    assert len(done_runs(store)) == 2000


def test_a_store_is_read_where_nothing_can_be_written_beside_it(attn: Attn, folder: Path) -> None:
    store = folder / "batch.db"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    command = [*ATTN, "results", str(store), "--format", "json"]
    read = subprocess.run(command, capture_output=True, text=True, env=environment(), preexec_fn=limit)
    assert (read.returncode, read.stderr) == (0, "")
    assert read.stdout == attn(["results", str(store), "--format", "json"]).out


@pytest.mark.parametrize(("suffix", "rows"), [("csv", True), ("jsonl", False), ("parquet", True)])
def test_exports_read_back_to_the_last_bit(
    attn: Attn, tmp_path: Path, folder: Path, suffix: str, rows: bool
) -> None:
    store = folder / ("rows.db" if rows else "batch.db")
    file = tmp_path / f"tidy.{suffix}"
    assert attn(["results", "--tidy", str(store), "-o", str(file)]) == (0, "", "")
    connection = with_tidy(store)
    token = ", token" if rows else ""
    cursor = connection.execute(f"SELECT * FROM tidy ORDER BY run, statistic, layer, head, value{token}")
    names, expected = [column[0] for column in cursor.description], cursor.fetchall()
    connection.close()
    order = "ORDER BY run, statistic COLLATE C, layer NULLS FIRST, head NULLS FIRST, value NULLS FIRST"
    order += token
    read = {"csv": f"read_csv('{file}', all_varchar = true)", "jsonl": f"read_json('{file}')"}.get(
        suffix, f"'{file}'"
    )
    kinds = dict.fromkeys(names, "BIGINT") | {"id": "VARCHAR", "statistic": "VARCHAR", "value": "DOUBLE"}
    cast = ", ".join(f"{name}::{kind} AS {name}" for name, kind in kinds.items())
    columns, _, found = read_by_duckdb(f"SELECT * FROM (SELECT {cast} FROM {read}) {order}")
    assert columns == names and found == expected
    assert len(names) == (8 if rows else 6) and len(expected) > 2000


def test_an_export_to_standard_output(attn: Attn, folder: Path) -> None:
    header, first, *_ = attn(["results", str(folder / "batch.db"), "--tidy"]).out.splitlines()
    assert header == "run,id,causal,layer,head,statistic,value"
    assert first.startswith("1,1,false,,,scores.mean,")


def rows_of(attn: Attn, store: Path, *flags: str) -> list[dict[str, object]]:
    ended = attn(["results", str(store), "--format", "json", *flags])
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["statistics"].get("summary", [])


POOLED = ("--group-by", "none")


def listed(flag: str, *names: str) -> list[str]:
    return [argument for name in names for argument in (flag, name)]


def test_results_equal_those_of_sql(attn: Attn, folder: Path) -> None:
    store = folder / "batch.db"
    connection = with_tidy(store)
    query = (
        "SELECT statistic, spec ->> 'causal', head, count(value), avg(value), min(value), max(value) "
        "FROM tidy JOIN runs USING (run) JOIN settings USING (settings) "
        "WHERE statistic IN ('entropy.mean', 'scores.max') GROUP BY 1, 2, 3"
    )
    expected = {row[:3]: row[3:] for row in connection.execute(query)}
    flags = [*listed("--group-by", "causal", "head"), *listed("--statistic", "entropy.mean", "scores.max")]
    rows = rows_of(attn, store, *flags)
    assert len(rows) == len(expected) == 6
    for row in rows:
        found = [row[name] for name in ("count", "mean", "min", "max")]
        np.testing.assert_allclose(found, expected[row["statistic"], row["causal"], row["head"]], rtol=1e-12)
    query = "SELECT count(*) FROM tidy WHERE statistic = 'entropy.mean' AND value < 0.5"
    (row,) = rows_of(attn, store, *POOLED, "--where", "entropy.mean < 0.5", "--statistic", "entropy.mean")
    assert row["count"] == connection.execute(query).fetchone()[0] > 0
    conditions = listed("--where", "causal = true", "head=1", "id = 4")
    (row,) = rows_of(attn, store, *conditions, "--statistic", "distance.max")
    assert row["count"] == 1
    assert rows_of(attn, store, "--where", "entropy.mean > 100") == []
    connection.close()


def test_the_deviation_is_that_of_all_values_in_blocks_of_any_size(
    attn: Attn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder / "batch.db"
    connection = with_tidy(store)
    values = [v for (v,) in connection.execute("SELECT value FROM tidy WHERE statistic = 'scores.max'") if v]
    connection.close()
    for numbers_at_once in (1, 500, 2**20):
        monkeypatch.setattr("attncli.runs.reading.NUMBERS_AT_ONCE", numbers_at_once)
        (row,) = rows_of(attn, store, *POOLED, "--statistic", "scores.max")
        np.testing.assert_allclose(row["std"], statistics.stdev(values), rtol=1e-12)
    (row,) = rows_of(attn, store, *POOLED, "--statistic", "scores.max", "--where", "run = 3")
    assert row["count"] == 1 and row["std"] is None
    ended = attn(
        ["results", str(store), *POOLED, "--statistic", "scores.max", "--where", "run = 3", "--format", "csv"]
    )
    assert ended.out.splitlines()[0] == "statistic,experiment,count,mean,std,min,max"
    assert ended.out.splitlines()[1].split(",")[4] == ""


def test_rows_are_sorted_and_cut(attn: Attn, folder: Path) -> None:
    store = folder / "batch.db"
    flags = ["--group-by", "id", *listed("--statistic", "entropy.mean", "scores.mean")]
    rows = rows_of(attn, store, *flags)
    for name in ("count", "mean", "std", "min", "max"):
        numbers = sorted(row[name] for row in rows)
        assert [row[name] for row in rows_of(attn, store, *flags, "--sort", name)] == numbers[::-1]
        shown = rows_of(attn, store, *flags, "--sort", name, "--ascending", "--top", "3")
        assert [row[name] for row in shown] == numbers[:3]
    ended = attn(["results", str(store), *flags, "--top", "3"])
    assert "Only the first 3 of 60 rows are shown.\n" in ended.out
    alone = [*flags, "--group-by", "causal", "--group-by", "head", "--sort", "std"]
    assert {row["std"] for row in rows_of(attn, store, *alone)} == {None}


def test_layers_and_heads_are_a_grid_of_means(attn: Attn, folder: Path) -> None:
    store = folder / "survey.db"
    connection = with_tidy(store)
    query = (
        "SELECT avg(value) FROM tidy WHERE statistic = 'induction' GROUP BY layer, head ORDER BY layer, head"
    )
    means = np.array(connection.execute(query).fetchall()).reshape(2, 4)
    connection.close()
    flags = ["--group-by", "head", "--group-by", "layer", "--statistic", "induction"]
    report = json.loads(attn(["results", str(store), *flags, "--format", "json"]).out)
    grid = report["tensors"]["mean of induction"]
    assert grid["axes"] == ["layer", "head"] and len(report["statistics"]["summary"]) == 8
    np.testing.assert_allclose(grid["values"], means, rtol=1e-12)
    shown = attn(["results", str(store), *flags, "--statistic", "model.sink_rate"]).out
    assert "mean of induction (layer × head)" in shown and "model.sink_rate" in shown
    assert not any(line.startswith("induction") for line in shown.splitlines())
    listed = attn(["results", str(store), *flags, "--sort", "mean"]).out
    assert "layer × head" not in listed and listed.count("\ninduction ") == 8


def test_a_sweep_is_grouped_by_its_swept_settings(attn: Attn, folder: Path) -> None:
    """head_dim follows from num_heads; seeds repeat an experiment."""
    store = folder / "sweep.db"
    rows = rows_of(attn, store, "--statistic", "scores.max")
    expected = [(causal, heads) for heads in (1, 2, 4) for causal in ("false", "true")]
    assert {(str(row["causal"]).lower(), row["num_heads"]) for row in rows} == {*expected}
    assert len(rows) == 6 and {row["count"] for row in rows} == {2} and "head_dim" not in rows[0]
    assert rows == rows_of(
        attn, store, "--statistic", "scores.max", *listed("--group-by", "causal", "num_heads")
    )
    shown = attn(["results", str(store)]).out
    lines = [line.split()[0] for line in shown.splitlines() if line.startswith(("entropy", "max", "norm"))]
    assert lines == [
        n for n in ("entropy.mean", "normalized_entropy.mean", "max_weight.mean") for _ in range(6)
    ]
    assert "Each mean covers every seed.\n" in shown
    assert "covers every seed" not in attn(["results", str(store), "--where", "seed = 0"]).out
    (pooled,) = rows_of(attn, store, "--statistic", "scores.max", *POOLED)
    assert pooled["count"] == 12


def test_a_survey_is_grouped_by_head(attn: Attn, folder: Path) -> None:
    store = folder / "survey.db"
    rows = rows_of(attn, store, "--statistic", "induction")
    assert rows == rows_of(attn, store, "--statistic", "induction", *listed("--group-by", "layer", "head"))
    assert rows == rows_of(attn, store, "--statistic", "induction", "--group-by", "head")
    named = [f"{row['layer']}:{row['head']}" for row in rows]
    for name, operator, expected in (("1:2", "=", {"1:2"}), ("1:2", "!=", {*named} - {"1:2"})):
        kept = rows_of(attn, store, "--statistic", "induction", "--where", f"head {operator} {name}")
        assert kept == [row for row, head in zip(rows, named, strict=True) if head in expected]
    assert len(rows_of(attn, store, "--statistic", "induction", "--where", "head = 2")) == 2
    none = attn(["results", str(store), "--where", "head = 7:1"]).out
    assert "No value meets these conditions.\nhead is 0:0, 0:1, 0:2, 0:3, 1:0, 1:1, 1:2 or 1:3.\n" in none
    assert len(rows) == 8 and {row["count"] for row in rows} == {3}
    (pooled,) = rows_of(attn, store, "--statistic", "induction", *POOLED)
    assert pooled["count"] == 24
    best = max(rows, key=lambda row: row["mean"])
    shown = attn(["results", str(store)]).out
    assert "the head with the largest mean of each statistic\n" in shown
    line = next(line.split() for line in shown.splitlines() if line.startswith("induction "))
    assert line[1:4] == [f"{best['layer']}:{best['head']}", "3", f"{best['mean']:.2f}"]


def test_ten_heads_of_one_statistic_are_the_strongest() -> None:
    rows = Table(
        {"statistic": "induction", "layer": i // 9, "head": i % 9, "count": 2, "mean": (i * 7 % 30) / 30}
        for i in range(30)
    )
    spec = {"store": "s.db", "where": [], "group_by": ["layer", "head"]}
    report = Report("results", spec, {}, result=read_result("results", {"summary": rows}))
    stream = io.StringIO()
    load_view("table")([report], stream, Display(width=80))
    shown = stream.getvalue()
    assert "the 10 heads with the largest mean" in shown and "Not shown: 20 rows" in shown
    heads = [line.split()[1] for line in shown.splitlines() if line.startswith("induction ")]
    order = sorted(range(30), key=lambda i: -(i * 7 % 30))[:10]
    assert heads == [f"{i // 9}:{i % 9}" for i in order]


def test_an_id_is_compared_as_it_is_written(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("experiment: self")
    lines = [
        json.dumps({"sentence": "a b", "id": i}) for i in ("1234567", "1234568", "007", "1e3", "1000", 7)
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    store = tmp_path / "runs.db"
    attn(["batch", str(tmp_path / "x.yaml"), "--file", str(tmp_path / "p.jsonl"), "-o", str(store)])
    flags = ["--group-by", "id", "--statistic", "entropy.mean", "--where"]
    for name in ("1234567", "007", "1e3", "7"):
        assert [row["id"] for row in rows_of(attn, store, *flags, f"id = {name}")] == [name]
        assert len(rows_of(attn, store, *flags, f"id != {name}")) == 5


def test_a_swept_setting_of_words_and_numbers(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "experiment: self\nsweep: {scale: [0.25, sqrt, none], causal: [false, true]}"
    )
    store = tmp_path / "runs.db"
    attn(["batch", str(tmp_path / "x.yaml"), "-o", str(store)])
    flags = ["--group-by", "scale", "--group-by", "causal", "--statistic", "entropy.mean"]
    ended = attn(["results", str(store), *flags])
    assert ended.code == 0, ended.err
    rows = [line.split()[1:3] for line in ended.out.splitlines() if line.startswith("entropy.mean")]
    expected = [[scale, causal] for scale in ("0.2500", "sqrt", "none") for causal in ("false", "true")]
    assert sorted(rows) == sorted(expected)
    assert len(rows_of(attn, store, *flags, "--where", "causal = True")) == 3
    assert len(rows_of(attn, store, *flags, "--where", "scale = 0.25")) == 2
    table = tmp_path / "x.parquet"
    assert attn(["results", "--tidy", str(store), "-o", str(table)]).code == 0
    *_, found = read_by_duckdb(f"SELECT DISTINCT scale, causal FROM '{table}' ORDER BY ALL")
    assert found == [(scale, causal) for scale in ("0.25", "none", "sqrt") for causal in ("false", "true")]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--where", "entropi.mean < 2"], "--where entropi.mean: the store has no such name (did you mean 'entropy.mean'?)"),
        (["--group-by", "casual"], "--group-by casual: the store has no such setting (did you mean 'causal'?)"),
        (["--statistic", "entropy"], "--statistic entropy: the store has no such statistic (did you mean 'entropy.min'?); known: scores, scaled_scores (.mean .variance .min .max); entropy, "),
        (["--group-by", "laier"], "--group-by laier: the store has no such setting (did you mean 'layer'?); known: layer, head, id, run, plan, experiment, "),
        (["--sort", "median"], "--sort: got median (did you mean 'mean'?): must be one of count, mean, std, min, max"),
        (["--ascending"], "--ascending: needs --sort count|mean|std|min|max"),
        (["--where", "scale < sqrt"], "--where 'scale < sqrt': must compare a text with = or != (got <)"),
        (["--where", "drop table"], "--where 'drop table': must be a name, one of < <= > >= = == !=, and a value"),
        (["--tidy", "--format", "parquet"], "--format parquet: needs -o FILE"),
        (["--tidy", "-o", "x.xyz"], "-o x.xyz: the suffix must be one of .csv"),
    ],
)  # fmt: skip
def test_what_a_store_cannot_answer_is_refused(attn: Attn, folder: Path, flags: list[str], line: str) -> None:
    ended = attn(["results", str(folder / "batch.db"), *flags])
    assert ended.code == 2 and ended.err.startswith(line)


def test_a_store_without_runs_is_refused_by_its_name(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    create_file(path, rows=False, weights=False)
    with open_store(path, fresh=False, rows=False, weights=False):
        pass
    ended = attn(["results", str(path)])
    assert ended.code == 2
    assert ended.err == f"{path}: contains no runs yet: rerun the command that writes the store\n"


def test_a_new_store_without_runs_is_removed(tmp_path: Path) -> None:
    with open_store(tmp_path / "runs.db", fresh=False, rows=False, weights=False):
        pass
    assert not [*tmp_path.iterdir()]


@pytest.mark.nightly
def test_executors_give_the_same_figures(attn: Attn, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")

    def local_cluster():
        options = {"n_workers": 2, "threads_per_worker": 1, "silence_logs": 50}
        return distributed.LocalCluster(host="127.0.0.1", dashboard_address="127.0.0.1:0", **options)

    arguments = write_batch(tmp_path, 150)
    stores = {name: tmp_path / f"{name}.db" for name in ("serial", "one", "two", "dask")}
    assert attn([*arguments, "-o", str(stores["serial"])]).code == 0
    assert attn([*arguments, "-o", str(stores["one"]), "--workers", "1"]).code == 0
    assert attn([*arguments, "-o", str(stores["two"]), "--workers", "2"]).code == 0
    with local_cluster() as cluster:
        address = cluster.scheduler_address
        assert attn([*arguments, "-o", str(stores["dask"]), "--scheduler", address]).code == 0
    expected = tidy(stores["serial"])
    for store in stores.values():
        assert len(done_runs(store)) == 300
        assert_same_numbers(tidy(store), expected)


def test_a_condition_that_nothing_meets_names_the_stored_values(attn: Attn, folder: Path) -> None:
    store = str(folder / "sweep.db")
    for condition, line in {
        "num_heads=3": "num_heads is 1, 2 or 4.",
        "causal=maybe": "causal is false or true.",
        "head=9": "head is 0, 1, 2 or 3.",
        "seed=4": "seed is 0 or 1.",
    }.items():
        shown = attn(["results", store, "--where", condition]).out
        assert f"No value meets these conditions.\n{line}\n" in shown
    assert "entropy.mean is from " in attn(["results", store, "--where", "entropy.mean > 99"]).out
