"""Small batches for tests: the files to run, and the numbers in the store afterwards."""

import os
import signal
import sqlite3
import sys
from pathlib import Path

from attncli.runs.chunks import Chunk, ChunkResult, run_chunk

ROOT = Path(__file__).parent.parent.parent
ATTN = [sys.executable, "-m", "attncli"]

SETTINGS = "experiment: multihead\nembed_dim: 8\nnum_heads: 2\nsweep: {causal: [false, true]}\n"

StoredNumbers = dict[tuple[object, ...], float | None]


def write_batch(folder: Path, num_sentences: int, settings: str = SETTINGS) -> list[str]:
    """Return the arguments of a batch of different sentences of 1 to 7 words."""
    (folder / "sweep.yaml").write_text(settings)
    lines = [f"{i} " + "a b c d e f"[: 2 * (i % 7)] for i in range(num_sentences)]
    (folder / "prompts.txt").write_text("\n".join(lines) + "\n")
    return ["batch", str(folder / "sweep.yaml"), "--file", str(folder / "prompts.txt")]


def run_lines(*lines: list[str]) -> None:
    """Run command lines that succeed, for fixtures of a module."""
    from attncli.cli import run

    for line in lines:
        assert run(line) == 0, line


def done_runs(store: Path) -> list[tuple[str, str]]:
    """Return the sentence and settings of every completed run, read by SQLite itself."""
    connection = sqlite3.connect(store)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        query = "SELECT sentence, spec FROM runs JOIN settings USING (settings) WHERE status = 'done'"
        return connection.execute(query).fetchall()
    finally:
        connection.close()


NUMBERS = {
    "run_statistics": (),
    "head_statistics": ("layer", "head"),
    "token_statistics": ("layer", "head", "batch", "token"),
}


def with_tidy(store: Path) -> sqlite3.Connection:
    """Open the store in SQLite, with a temporary table `tidy` of the runs in the last plan."""
    connection = sqlite3.connect(store)
    ((keeps_rows,),) = connection.execute("SELECT keeps_rows FROM store")
    kept = "batch, token, " if keeps_rows else ""
    connection.execute(f"CREATE TEMP TABLE tidy (run, id, layer, head, {kept}statistic, value)")
    names = {name for (name,) in connection.execute("SELECT DISTINCT statistic FROM columns")}
    for table, places in NUMBERS.items():
        of_table = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
        for name in sorted(names & of_table):
            missing = {place: "NULL" for place in ("layer", "head", "batch", "token") if place not in places}
            place = {each: missing.get(each, f"n.{each}") for each in ("layer", "head", "batch", "token")}
            same = " AND ".join(f"c.{each} IS {of_row}" for each, of_row in place.items())
            of_kept = f"{place['batch']}, {place['token']}, " if keeps_rows else ""
            connection.execute(
                f"INSERT INTO temp.tidy SELECT r.run, r.id, {place['layer']}, {place['head']}, {of_kept}"
                f'c.statistic, n."{name}" FROM runs r JOIN columns c USING (shape) '
                f"JOIN {table} n USING (run) "
                f"WHERE r.status = 'done' AND r.plan IS NULL AND c.statistic = ? AND {same}",
                (name,),
            )
    connection.commit()
    return connection


def tidy(store: Path) -> StoredNumbers:
    """Return every number in the table `tidy` by its sentence, settings, id, layer, head and statistic."""
    connection = with_tidy(store)
    query = (
        "SELECT sentence, spec, runs.id, layer, head, statistic, value "
        "FROM tidy JOIN runs USING (run) JOIN settings USING (settings)"
    )
    rows = connection.execute(query).fetchall()
    connection.close()
    figures = {tuple(row[:-1]): row[-1] for row in rows}
    assert len(figures) == len(rows), "each number is stored once"
    return figures


def assert_same_numbers(found: StoredNumbers, expected: StoredNumbers) -> None:
    """Check that two stores have the same numbers for the same runs, within 1e-6 of their size."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        other = found[name]
        if value is None or other is None:
            assert value is other, name
        else:
            assert abs(value - other) <= 1e-6 * max(1, abs(value)), (name, value, other)


def killed_by_thirteen(chunk: Chunk) -> ChunkResult:
    """Compute a chunk in a worker that dies at the sentence that begins with 13."""
    if any(job.prompt is not None and job.prompt.text.startswith("13") for job, _ in chunk.jobs):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_chunk(chunk)
