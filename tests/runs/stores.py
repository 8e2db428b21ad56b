"""Small batches for the tests: files to run, and what a store holds afterwards."""

import math
import os
import signal
import sqlite3
import struct
import sys
import zlib
from pathlib import Path

from attncli.runs.chunks import Chunk, ChunkResult, run_chunk

ROOT = Path(__file__).parent.parent.parent
ATTN = [sys.executable, "-m", "attncli"]

SETTINGS = "experiment: multihead\nembed_dim: 8\nnum_heads: 2\nsweep: {causal: [false, true]}\n"

Figures = dict[tuple[object, ...], float | None]


def write_batch(folder: Path, num_sentences: int, settings: str = SETTINGS) -> list[str]:
    """The arguments of a batch of sentences of 1 to 7 words, each line another."""
    (folder / "sweep.yaml").write_text(settings)
    lines = [f"{i} " + "a b c d e f"[: 2 * (i % 7)] for i in range(num_sentences)]
    (folder / "prompts.txt").write_text("\n".join(lines) + "\n")
    return ["batch", str(folder / "sweep.yaml"), "--file", str(folder / "prompts.txt")]


def done_runs(store: Path) -> list[tuple[str, str]]:
    """Sentence and settings of every run that is done, read by SQLite alone."""
    connection = sqlite3.connect(store)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        query = "SELECT sentence, spec FROM runs JOIN settings USING (settings) WHERE status = 'done'"
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def unpacked_number_by_number(
    encoding: int | None, figures: bytes, statistics: list[str]
) -> list[float | None]:
    """The numbers of a run as docs/batch.md defines them; None for what is no number."""
    size = 4 if encoding in (1, 2) else 8
    if encoding in (2, 3):
        planes, count = zlib.decompress(figures), len(statistics)
        figures = bytes(planes[place * count + number] for number in range(count) for place in range(size))
    numbers = struct.unpack(f"<{len(statistics)}{'f' if size == 4 else 'd'}", figures)
    if encoding in (2, 3):
        names = list(dict.fromkeys(statistics))
        places = sorted(range(len(statistics)), key=lambda place: (names.index(statistics[place]), place))
        numbers = [number for _, number in sorted(zip(places, numbers, strict=True))]
    return [number if math.isfinite(number) else None for number in numbers]


def with_tidy(store: Path) -> sqlite3.Connection:
    """The store, opened by SQLite, with a temporary table `tidy` of the runs of the last plan."""
    connection = sqlite3.connect(store)
    ((keeps_rows,),) = connection.execute("SELECT keeps_rows FROM store")
    places = "batch, token, " if keeps_rows else ""
    connection.execute(f"CREATE TEMP TABLE tidy (run, id, layer, head, {places}statistic, value)")
    query = "SELECT run, id, shape, encoding, figures FROM runs WHERE status = 'done' AND plan IS NULL"
    for run, name, shape, encoding, figures in connection.execute(query).fetchall():
        about = f"SELECT layer, head, {places}statistic FROM columns WHERE shape = ? ORDER BY position"
        columns = connection.execute(about, (shape,)).fetchall()
        values = unpacked_number_by_number(encoding, figures, [column[-1] for column in columns])
        rows = [(run, name, *column, value) for column, value in zip(columns, values, strict=True)]
        connection.executemany(f"INSERT INTO temp.tidy VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.commit()
    return connection


def tidy(store: Path) -> Figures:
    """Every figure of the table `tidy`, by what it is of."""
    connection = with_tidy(store)
    query = (
        "SELECT sentence, spec, runs.id, layer, head, statistic, value "
        "FROM tidy JOIN runs USING (run) JOIN settings USING (settings)"
    )
    rows = connection.execute(query).fetchall()
    connection.close()
    figures = {tuple(row[:-1]): row[-1] for row in rows}
    assert len(figures) == len(rows), "a figure is there once"
    return figures


def assert_same_figures(found: Figures, expected: Figures) -> None:
    """The same figures of the same runs, within 1e-6 of their size."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        other = found[name]
        if value is None or other is None:
            assert value is other, name
        else:
            assert abs(value - other) <= 1e-6 * max(1, abs(value)), (name, value, other)


def killed_by_thirteen(chunk: Chunk) -> ChunkResult:
    """Computes a chunk in a worker that does not survive the sentence that begins with 13."""
    if any(job.prompt is not None and job.prompt.text.startswith("13") for job, _ in chunk.jobs):
        os.kill(os.getpid(), signal.SIGKILL)
    return run_chunk(chunk)
