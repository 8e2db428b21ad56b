"""Moves the runs of a recorded program into a store.

The program's processes append the runs to files, which attn reads while the program runs.
"""

import json
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attncli.features.record.settings import RecordSpec
from attncli.records.stored_columns import StoredColumn, StoredColumns
from attncli.runs.chunks import Chunk, ChunkResult
from attncli.runs.jobs import Item, Job
from attncli.runs.keys import canonical
from attncli.runs.report_values import Expectations
from attncli.runs.store import Store
from attncli.system.plain_text import counted

SIZES = struct.Struct("<II")
"""The sizes in bytes of a run's header and numbers, written before the run."""


class WrittenRun(NamedTuple):
    """A run as a process wrote it.

    `process` is the name of the run's file without the suffix (PROCESS.RANK), `number` is its number in the
    file, and `environment` holds the versions that computed it.
    """

    process: str
    number: int
    environment: Mapping[str, str]
    columns: StoredColumns
    values: np.ndarray

    def name(self, number: int) -> str:
        """Return the name of the run in a store, with the rank of the process if it has one: `rank1:12`."""
        rank = self.process.rpartition(".")[2]
        return f"rank{rank}:{number}" if rank else str(number)


def as_bytes(run: WrittenRun, before: WrittenRun | None) -> bytes:
    """Return the bytes of a run; columns that equal those of the previous run in the file are omitted."""
    head: dict[str, object] = {"number": run.number, "environment": run.environment}
    if before is None or before.columns != run.columns:
        head |= {"columns": run.columns}
    text, numbers = json.dumps(head).encode(), run.values.astype("<f8").tobytes()
    return SIZES.pack(len(text), len(numbers)) + text + numbers


@dataclass
class RunFile:
    """A file to which a process appends runs; only complete runs are read."""

    path: Path
    offset: int = 0
    columns: StoredColumns = ()

    def new_runs(self) -> Iterator[WrittenRun]:
        """Yield the runs added since the last call."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while len(sizes := file.read(SIZES.size)) == SIZES.size:
                size, num_bytes = SIZES.unpack(sizes)
                data = file.read(size + num_bytes)
                if len(data) < size + num_bytes:
                    break
                self.offset = file.tell()
                head = json.loads(data[:size])
                if "columns" in head:
                    self.columns = tuple(StoredColumn(*column) for column in head["columns"])
                values = np.frombuffer(data, dtype="<f8", offset=size)
                yield WrittenRun(self.path.stem, head["number"], head["environment"], self.columns, values)


@dataclass
class RunsIntoStore:
    """Moves runs to a store from the folder into which a program's processes write them.

    Runs that cannot be stored yet stay in `unwritten`. `tell` is called with a line for each expectation that
    a run does not meet.
    """

    folder: Path
    store: Store
    spec: RecordSpec
    expectations: Expectations
    tell: Callable[[str], None]
    num_stored: int = field(default=0, init=False)
    num_broken: int = field(default=0, init=False)
    unwritten: list[WrittenRun] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._files: dict[Path, RunFile] = {}
        self._item = Item(self.spec, self.spec.program)
        self._first = self.store.last_run() + 1

    def take_new(self, pattern: str = "*.runs") -> None:
        """Store the runs written since the last call. Raises sqlite3.Error or OSError if that fails."""
        for path in sorted(self.folder.glob(pattern)):
            for run in self._files.setdefault(path, RunFile(path)).new_runs():
                self.unwritten.append(run)
                self._check(run, self._first + self.num_stored + len(self.unwritten) - 1)
        if self.unwritten:
            self._write(self.unwritten)
            self.num_stored += len(self.unwritten)
            self.unwritten.clear()

    def try_to_take_new(self) -> None:
        """Store new runs; a failure is ignored, because the next call tries again."""
        with suppress(sqlite3.Error, OSError):
            self.take_new()

    def _check(self, run: WrittenRun, number: int) -> None:
        lines = self.expectations.broken(run.columns, run.values)
        self.num_broken += bool(lines)
        for line in lines:
            self.tell(f"run {run.name(number)}: {line}")

    def _write(self, runs: Sequence[WrittenRun]) -> None:
        """Write runs, in one transaction for each set of versions."""
        by_versions: dict[str, list[WrittenRun]] = {}
        for run in runs:
            by_versions.setdefault(json.dumps(run.environment), []).append(run)
        for alike in by_versions.values():
            result, jobs = ChunkResult(environment=dict(alike[0].environment)), []
            for number, run in enumerate(alike):
                place = self.store.last_run() + 1 + number
                # Recording the same program again must add new runs.
                key = sha256(canonical([self.spec.program, self._first, run.process, run.number])).digest()
                item = self._item._replace(id=run.name(place))
                jobs.append((Job((item,), None, place), (key,)))
                result.values[number] = run.columns, run.values
            self.store.write(Chunk(tuple(jobs)), result)

    def __str__(self) -> str:
        added = f" added to {counted(self._first - 1, 'run')}" if self._first > 1 else ""
        return f"{self.store.path}: {counted(self.num_stored, 'run')}{added}"
