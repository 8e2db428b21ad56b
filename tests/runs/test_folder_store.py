"""Folder stores of Parquet parts: what they give is what a store in one file gives of the same runs."""

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from attncli.errors import RunError
from attncli.runs.parts import PART, check_shared
from attncli.runs.store_files import driving
from tests.conftest import Attn
from tests.duckdb_reader import read_by_duckdb
from tests.runs.stores import ATTN, ROOT, write_batch
from tests.runs.test_survival import ENVIRONMENT, TELLING, children

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
        ["results", "--tidy"],
        ["results", "--tidy", "--format", "jsonl"],
        ["results", "--format", "json"],
        ["results", "--group-by", "id", "--format", "csv"],
    ]
    printed = [attn([*command[:1], str(store), *command[1:], *flags]) for command in commands]
    return [f"{ended.code} {ended.out} {ended.err}".replace(str(store), "STORE") for ended in printed]


def assert_equal_stores(attn: Attn, folder: Path, file: Path, *flags: str) -> None:
    assert given(attn, folder, *flags) == given(attn, file, *flags)
    tables = [store.with_name(f"{store.name}-tidy.parquet") for store in (folder, file)]
    for store, table in zip((folder, file), tables, strict=True):
        assert attn(["results", "--tidy", str(store), "-o", str(table), *flags]).code == 0
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
    assert attn(["results", "--tidy", f"{tmp_path}/runs", "-o", str(tidy)]).code == 0
    of_entropy = f"FROM read_csv('{tidy}') WHERE statistic = 'entropy.mean' ORDER BY run"
    exported = read_by_duckdb(f"SELECT value {of_entropy}")[2]
    assert [row[:2] for row in rows] == [("0", "1"), ("1 a", "2"), ("2 a b", "3")]
    assert [row[2] for row in rows] == [value for (value,) in exported]


@pytest.mark.nightly
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


NUM_KILLS = 3
"""Three of a kind; a hundred were tried by hand."""


def tidy_rows(attn: Attn, store: Path) -> dict[tuple[str, ...], float]:
    """Every number of a store by what it is of, each once; the number of a run is its place in the plan."""
    lines = [line.split(",") for line in attn(["results", "--tidy", str(store)]).out.splitlines()[1:]]
    rows = {(*line[:-1],): float(line[-1] or "nan") for line in lines}
    assert len(rows) == len(lines)
    return rows


def assert_close(found: dict[tuple[str, ...], float], expected: dict[tuple[str, ...], float]) -> None:
    assert found.keys() == expected.keys()
    assert [*map(found.get, expected)] == pytest.approx([*expected.values()], rel=1e-6, abs=1e-6, nan_ok=True)


def test_killed_at_any_moment_it_loses_nothing(attn: Attn, tmp_path: Path) -> None:
    """A driver without workers, its one worker, and a driver with two, killed by SIGKILL."""
    arguments, folder, file = write_batch(tmp_path, 200), tmp_path / "runs", tmp_path / "runs.db"
    assert attn([*arguments, "-o", str(file)]).code == 0
    told, randomness = 0, random.Random()
    for number in range(NUM_KILLS):
        workers = ["--workers", str(number % 3)] if number % 3 else []
        process = subprocess.Popen(
            [ATTN[0], "-c", TELLING, *arguments, "-o", f"{folder}/", *workers],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]

            def kill(process: "subprocess.Popen[str]" = process, is_worker: bool = number % 3 == 1) -> None:
                for pid in children(process.pid)[-1:] if is_worker else [process.pid]:
                    os.kill(pid, signal.SIGKILL)

            killer = threading.Timer(randomness.uniform(0, 0.3), kill)
            killer.start()
            lines += process.stdout
            killer.cancel()
        told = max(told, int(lines[-1] or 0))
        assert len({row[0] for row in tidy_rows(attn, folder)}) >= told
    for half in ("attn-000000001-0123456789ab.parquet", "attn-000000001-0123456789ab.parquet.unfinished"):
        (folder / half).write_bytes(b"PAR1 half of it")
    ended = attn([*arguments, "-o", str(folder)])
    assert ended.code == 0 and "has 400 of 400 runs" in ended.err
    assert_close(tidy_rows(attn, folder), tidy_rows(attn, file))
    names = sorted(path.name for path in folder.iterdir())
    assert all(PART.fullmatch(name) for name in names[:-1]) and names[-1] == "catalogue.db"
    query = f"SELECT count(*), count(DISTINCT key) FROM '{folder}/*.parquet'"
    assert read_by_duckdb(query)[2] == [(400, 400)]


def test_a_part_that_nobody_told_of_is_taken_up(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that writes the catalogue dies between a worker's part and its own transaction."""
    arguments, folder, file = write_batch(tmp_path, 6, SELF), tmp_path / "runs", tmp_path / "runs.db"
    with monkeypatch.context() as dying:
        dying.setattr("attncli.runs.store.Store.write", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            attn([*arguments, "-o", f"{folder}/"])
    (part,) = parts_of(folder)
    ended = attn([*arguments, "-o", str(folder)])
    assert "has 12 of 12 runs" in ended.err and "12 were there" not in ended.err
    assert part in parts_of(folder)
    assert attn([*arguments, "-o", str(file)]).code == 0
    assert_close(tidy_rows(attn, folder), tidy_rows(attn, file))


def test_a_damaged_part_is_named_and_computed_again(attn: Attn, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for num_sentences in (3, 6):
        arguments = write_batch(tmp_path, num_sentences)
        assert attn([*arguments, "-o", f"{folder}/"]).code == 0
    whole = attn(["results", "--tidy", str(folder)]).out
    part = parts_of(folder)[-1]
    content = bytearray(part.read_bytes())
    for place in range(len(content) // 4, len(content) // 2):
        content[place] ^= 0x55
    part.write_bytes(content)
    for damage in (bytes(content), bytes(content)[:100]):
        part.write_bytes(damage)
        ended = attn(["results", "--tidy", str(folder)])
        advice = "remove the file, and the same batch computes its runs again"
        line = f"{folder}: {part.name} is damaged, with 6 runs: left out: {advice}"
        assert (ended.code, ended.err) == (1, f"{line}\n")
        assert set(ended.out.splitlines()) < set(whole.splitlines())
        shown = attn(["results", str(folder)])
        assert shown.code == 1 and "6 runs are done" in shown.out and line in shown.err
    part.unlink()
    ended = attn([*arguments, "-o", str(folder)])
    assert ended.code == 0 and "6 done now" in ended.err
    assert attn(["results", "--tidy", str(folder)]).out == whole


def test_folders_that_are_no_store_are_refused(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, other = write_batch(tmp_path, 2), tmp_path / "mine"
    other.mkdir()
    (other / "part-00000.parquet").write_bytes(b"of another program")
    line = f"{other}: is not an attn store, left unchanged: give a folder that -o FOLDER/ wrote\n"
    assert attn([*arguments, "-o", f"{other}/"]) == (2, "", line)
    assert attn([*arguments, "-o", f"{other}/", "--fresh"]) == (2, "", line)
    assert attn(["results", str(other)]) == (2, "", line)
    assert [path.name for path in other.iterdir()] == ["part-00000.parquet"]
    assert attn([*arguments, "-o", "nowhere/runs/"]).err == "-o nowhere/runs: no such directory: nowhere\n"
    (tmp_path / "file").write_text("mine")
    assert attn([*arguments, "-o", f"{tmp_path}/file/"]).code == 2
    assert (tmp_path / "file").read_text() == "mine"
    store = tmp_path / "runs"
    refused = attn([*arguments, "-o", f"{store}/", "--weights"])
    assert refused == (2, "", "--weights: needs a store in one file: -o runs.db\n") and not store.exists()
    store.mkdir()
    with driving(store):
        line = f"{store}: is being written by another attn (process {os.getpid()}): wait for it\n"
        assert attn([*arguments, "-o", f"{store}/"]) == (1, "", line)
    (store / "catalogue.db-lock").write_text("99999 0123456789abcdef")
    assert attn([*arguments, "-o", f"{store}/"]).code == 0
    monkeypatch.setattr("attncli.runs.parts.find_spec", lambda name: None)
    line = f'{store}: is a store of Parquet files: needs: pip install "attncli[parquet]"\n'
    assert attn(["results", "--tidy", str(store)]) == attn([*arguments, "-o", str(store)]) == (2, "", line)


@pytest.mark.nightly
def test_a_folder_that_cannot_be_written_is_one_line(attn: Attn, tmp_path: Path) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    arguments, store = write_batch(tmp_path, 150, SELF), tmp_path / "runs"
    command = [*arguments, "-o", f"{store}/"]
    full = subprocess.run(
        [*ATTN, *command],
        env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, preexec_fn=small_files,
    )  # fmt: skip
    kept = "cannot be written: .*: what was finished is kept"
    assert full.returncode == 4 and re.fullmatch(f"{store}: {kept}\n", full.stderr), full.stderr
    ended = attn(command)
    assert ended.code == 0 and "has 300 of 300 runs" in ended.err


def test_a_machine_that_does_not_see_the_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attncli.runs.parts.SECONDS_FOR_THE_FOLDER", 0.2)
    store = tmp_path / "runs"
    store.mkdir()
    with driving(store) as word:
        lock = store / "catalogue.db-lock"
        check_shared(lock, word)
        for path, other in ((tmp_path / "nowhere" / lock.name, word), (lock, "0123456789abcdef")):
            with pytest.raises(RunError, match="all machines share, under the same path"):
                check_shared(path, other)


def test_a_survey_of_texts_is_kept_in_a_folder(attn: Attn, tmp_path: Path) -> None:
    texts, printed = tmp_path / "texts.txt", []
    texts.write_text("the cat walks\nthe dog sleeps under the table\n")
    for store in (f"{tmp_path}/runs/", f"{tmp_path}/runs.db"):
        kept = attn(["heads", "--texts", str(texts), "-o", store])
        shown = attn(["heads", "--store", store.rstrip("/")])
        assert kept.code == shown.code == 0
        printed.append(shown.out.replace(store.rstrip("/"), "STORE"))
    assert printed[0] == printed[1]
    assert attn(["results", f"{tmp_path}/runs/"]).code == 0
