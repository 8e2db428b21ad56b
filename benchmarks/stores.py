"""What a store costs: bytes a run, seconds of CPU to write it and to read it, for runs of several shapes.

python benchmarks/stores.py                200,000 runs of sentences, 20,000 of 8 heads, 2,000 of 270
"""

import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from attncli.features.results.summaries import results, usual_groups
from attncli.records.stored_columns import StoredColumn, StoredColumns
from attncli.runs.chunks import Chunk, ChunkResult
from attncli.runs.jobs import Item, Job
from attncli.runs.reading import reading
from attncli.runs.store import open_store
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec

RUNS_A_CHUNK = 200
SENTENCE = "there was one word that he had not heard before"
STATISTICS = tuple(f"statistic_{number}.mean" for number in range(19))
SHAPES: dict[str, tuple[int, StoredColumns]] = {
    "38 numbers": (200_000, tuple(StoredColumn(f"statistic_{number}") for number in range(38))),
    "8 heads": (20_000, tuple(StoredColumn(name, h // 4, h % 4) for h in range(8) for name in STATISTICS)),
    "270 heads": (2_000, tuple(StoredColumn(name, h // 9, h % 9) for h in range(270) for name in STATISTICS)),
}


@contextmanager
def timed(say: Callable[[str, float], None], what: str) -> Iterator[None]:
    """Say how many seconds of CPU this process and those that it waited for took."""
    began = time.process_time()
    yield
    say(what, time.process_time() - began)


def write(path: Path, num_runs: int, columns: StoredColumns) -> None:
    """A store of runs with random numbers."""
    item = Item(build_spec(SPECS["self"], {"sentence": Given(SENTENCE, "sentence")}), "x.yaml:1:1")
    sampled = np.random.default_rng(0)
    with open_store(path, fresh=False, rows=False, weights=False) as store:
        for first in range(1, num_runs + 1, RUNS_A_CHUNK):
            places = range(first, first + RUNS_A_CHUNK)
            jobs = tuple((Job((item,), None, run), (run.to_bytes(32, "big"),)) for run in places)
            numbers = sampled.random((RUNS_A_CHUNK, len(columns)), dtype=np.float32).astype(np.float64)
            values = {place: (columns, row) for place, row in enumerate(numbers)}
            store.write(Chunk(jobs), ChunkResult(values=values, environment={"attncli": "0"}))


def summarise(path: Path, statistics: tuple[str, ...]) -> None:
    """What `attn results` computes."""
    with reading(path) as reader:
        results(path, reader, where=(), group_by=usual_groups(reader), statistics=statistics)


def main() -> None:
    """Print a line per shape."""
    for name, (num_runs, columns) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            path, seconds = Path(folder) / "runs.db", dict[str, float]()
            with timed(seconds.__setitem__, "write"):
                write(path, num_runs, columns)
            with timed(seconds.__setitem__, "results"):
                summarise(path, ())
            with timed(seconds.__setitem__, "one statistic"):
                summarise(path, (columns[0].statistic,))
            with timed(seconds.__setitem__, "SQL"), sqlite3.connect(path) as connection:
                table = "run_statistics" if columns[0].head is None else "head_statistics"
                query = f'SELECT avg("{columns[0].statistic}") FROM runs JOIN {table} USING (run)'
                connection.execute(f"{query} WHERE status = 'done'").fetchall()
            size = path.stat().st_size / num_runs
        costs = ", ".join(f"{what} {1e6 * taken / num_runs:,.0f} us" for what, taken in seconds.items())
        print(f"{name}: {num_runs:,} runs, {size:,.0f} bytes a run; CPU a run: {costs}")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
