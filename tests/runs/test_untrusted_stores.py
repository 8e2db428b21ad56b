"""Stores are untrusted: anything that attn did not write is refused or left out, in one line."""

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from attncli.runs.connection import JOURNAL_NAME_MARK, connect_to_read
from tests.conftest import Attn, in_turn
from tests.runs.stores import run_lines, write_batch

ENDLESS = "WITH RECURSIVE e(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM e) SELECT x FROM e"


@pytest.fixture(scope="module")
def bytes_of_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the store of a batch of two sentences with two settings."""
    folder = tmp_path_factory.mktemp("batch")
    run_lines([*write_batch(folder, 2), "-o", str(folder / "runs.db")])
    return (folder / "runs.db").read_bytes()


@pytest.fixture(scope="module")
def bytes_of_survey(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the store of a survey of the shipped model's heads on two texts."""
    folder = tmp_path_factory.mktemp("survey")
    (folder / "texts.txt").write_text("the cat\nsat on the mat\n")
    run_lines(["heads", "--texts", str(folder / "texts.txt"), "-o", str(folder / "survey.db")])
    return (folder / "survey.db").read_bytes()


@pytest.fixture
def store(tmp_path: Path, bytes_of_store: bytes) -> Path:
    path = tmp_path / "runs.db"
    path.write_bytes(bytes_of_store)
    return path


def change(store: Path, *statements: str) -> None:
    """Run SQL without the tables' check constraints."""
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            connection.execute(statement)


def of_store(tmp_path: Path, store: Path) -> list[list[str]]:
    """Return the command lines that read or write a store."""
    return [
        ["results", str(store)],
        ["results", "--tidy", str(store)],
        ["watch", str(store)],
        ["heads", "--store", str(store)],
        [*write_batch(tmp_path, 3), "-o", str(store)],
        [*write_batch(tmp_path, 3), "-o", str(store), "--dry-run"],
    ]


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE runs RENAME TO r", f"CREATE VIEW runs AS SELECT r.* FROM r, ({ENDLESS})"],
        ["ALTER TABLE columns RENAME TO c", f"CREATE VIEW columns AS SELECT c.* FROM c, ({ENDLESS})"],
        ["DROP TABLE store", "CREATE VIEW store AS SELECT 0 AS keeps_rows, 0 AS keeps_weights, ')' AS plan"],
        ["CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM runs; END"],
        [f"CREATE TRIGGER t AFTER INSERT ON runs BEGIN UPDATE store SET plan = ({ENDLESS}); END"],
        ["CREATE INDEX i ON runs (abs(run))"],
        ["ALTER TABLE runs ADD COLUMN more AS (abs(run))"],
        ["DROP TABLE store", "CREATE TABLE store (keeps_rows, keeps_weights, plan DEFAULT (abs(1)))"],
        [f"CREATE VIEW tidy AS {ENDLESS}"],
        ["CREATE VIRTUAL TABLE v USING fts5(x)"],
        ["CREATE TABLE precious (data)"],
        ["DROP TABLE environments"],
    ],
)
def test_unknown_tables_views_and_triggers_are_refused(
    attn: Attn, tmp_path: Path, store: Path, statements: list[str]
) -> None:
    change(store, *statements)
    before = store.read_bytes()
    for command in of_store(tmp_path, store):
        ended = attn(command)
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended
        assert ended.err.startswith(f"{store}: has ") and "left unchanged" in ended.err
    assert store.read_bytes() == before


def test_a_store_is_read_after_analyze_and_vacuum(attn: Attn, store: Path) -> None:
    before = attn(["results", "--tidy", str(store)])
    change(store, "ANALYZE", "VACUUM", "PRAGMA journal_mode = delete")
    assert attn(["results", "--tidy", str(store)]) == before and before.code == 0


DAMAGED_RUNS = [
    (f"{statement} WHERE run = 2", "its statistics are")
    for statement in (
        """UPDATE head_statistics SET "entropy.mean" = 'text'""",
        """UPDATE head_statistics SET "entropy.mean" = x'00'""",
        """UPDATE run_statistics SET "scores.mean" = 'text'""",
        "DELETE FROM head_statistics",
        "DELETE FROM run_statistics",
        "INSERT INTO head_statistics (run, place) SELECT run, 99 FROM run_statistics",
    )
]
DAMAGED_RUNS += [
    ("UPDATE runs SET shape = 99 WHERE run = 2", "its statistics are"),
    ("UPDATE runs SET shape = 'a' WHERE run = 2", "its statistics are"),
    ("UPDATE runs SET settings = 99 WHERE run = 2", "its settings are"),
    ("UPDATE runs SET settings = x'00' WHERE run = 2", "its settings are"),
    ("UPDATE runs SET status = 'gone' WHERE run = 2", "its status is"),
    ("UPDATE runs SET id = x'ff' WHERE run = 2", "its texts are"),
]


@pytest.mark.parametrize(("statement", "what"), DAMAGED_RUNS)
def test_a_damaged_run_is_left_out_with_one_line(attn: Attn, store: Path, statement: str, what: str) -> None:
    whole = attn(["results", "--tidy", str(store)]).out.splitlines()
    change(store, statement)
    advice = "restore a backup of the store, or start over with --fresh"
    for command in (["results", "--tidy", str(store)], ["results", str(store)]):
        ended = attn(command)
        assert (ended.code, ended.err) == (1, f"{store}: run 2: {what} damaged: left out: {advice}\n")
        if "--tidy" in command:
            assert ended.out.splitlines() == [line for line in whole if not line.startswith("2,")]
        else:
            assert "\n3 runs are done, 0 failed" in ended.out


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE settings SET spec = '{' WHERE settings = 1",
        "UPDATE settings SET spec = '[1]' WHERE settings = 1",
        "UPDATE settings SET spec = x'ff' WHERE settings = 1",
        """UPDATE settings SET spec = '{"num_heads": {}}' WHERE settings = 1""",
        f"""UPDATE settings SET spec = '{{"num_heads": {10**30}}}' WHERE settings = 1""",
        "UPDATE environments SET versions = '[]'",
        "DELETE FROM settings WHERE settings = 1",
        "DELETE FROM settings",
        "DELETE FROM columns WHERE position = 3",
        "UPDATE columns SET statistic = x'00' WHERE position = 3",
        "UPDATE columns SET layer = 1000000000, head = 1000000000 WHERE position = 3",
        "UPDATE columns SET head = -1 WHERE position = 3",
        "DELETE FROM store",
        "INSERT INTO store VALUES (0, 0, 1)",
        "UPDATE store SET plan = 9223372036854775807",
        "UPDATE store SET plan = '1) FROM runs; --'",
        "UPDATE runs SET plan = 'x' WHERE run = 2",
        "UPDATE runs SET run = -5 WHERE run = 2",
    ],
)
def test_damaged_rows_are_one_line(attn: Attn, tmp_path: Path, store: Path, statement: str) -> None:
    change(store, statement)
    results = ["results", str(store), "--all"]
    assert attn(results).code == 1
    for command in [results, *of_store(tmp_path, store)]:
        ended = attn(command)
        assert ended.err.count("\n") <= 1 and "internal error" not in ended.err, ended
        assert ended.code == 0 or ended.err.startswith(f"{store}: ") or "--store: " in ended.err, ended


@pytest.mark.parametrize(
    ("ending", "make"),
    in_turn(
        ["", "-wal", "-shm", "-journal", "-lock"],
        [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/null")],
    ),
)
def test_special_files_are_refused(
    attn: Attn, tmp_path: Path, store: Path, ending: str, make: Callable[[Path], None]
) -> None:
    file = tmp_path / f"runs.db{ending}"
    file.unlink(missing_ok=True)
    make(file)
    for command in of_store(tmp_path, store):
        ended = attn(command)
        assert (ended.code, ended.err.count("\n")) == (2, 1) and str(tmp_path) in ended.err, ended
    assert os.path.lexists(file)


def test_a_journal_that_names_another_file_is_refused(attn: Attn, tmp_path: Path, store: Path) -> None:
    (tmp_path / "runs.db-journal").write_bytes(JOURNAL_NAME_MARK + bytes(600) + JOURNAL_NAME_MARK)
    assert "names another file" in attn(["results", str(store)]).err


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_ends_a_query(store: Path, number: int, raised: type[BaseException]) -> None:
    def stop(*_: object) -> None:
        raise SystemExit(143)

    handlers = signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with closing(connect_to_read(store)) as connection, pytest.raises(raised):
            threading.Timer(0.05, os.kill, [os.getpid(), number]).start()
            connection.execute(f"SELECT max(x) FROM ({ENDLESS})")
    finally:
        signal.signal(signal.SIGTERM, handlers[0])
        signal.signal(signal.SIGINT, handlers[1])


@pytest.mark.parametrize(
    ("key", "value"), [("skip_sink", '"x"'), ("to", "1e400"), ("model", "0.5"), ("full", "[1]")]
)
def test_a_survey_with_settings_of_other_types_is_refused(
    attn: Attn, tmp_path: Path, bytes_of_survey: bytes, key: str, value: str
) -> None:
    store = tmp_path / "survey.db"
    store.write_bytes(bytes_of_survey)
    change(store, f"UPDATE settings SET spec = json_set(spec, '$.{key}', json('{value}'))")
    ended = attn(["heads", "--store", str(store)])
    assert (ended.code, ended.err) == (
        1,
        f"{store}: cannot be read: the settings of its survey are damaged: "
        "restore a backup, or start over with --fresh\n",
    )
