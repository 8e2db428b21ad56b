"""Where a store keeps the numbers of its runs: in its database, run by run, or in Parquet parts beside it."""

from collections.abc import Collection, Sequence
from typing import Protocol

from attncli.runs.chunks import ChunkResult, ChunkRunner
from attncli.runs.packing import ENCODINGS, Packed, RunNumbers, inflated, unpacked
from attncli.runs.stored_columns import StoredColumns


class Figures(Protocol):
    """What the column `figures` of a run stands for."""

    compress: bool
    """Whether workers compress the numbers of each long run."""
    is_shared: bool
    """Whether readers must not block the database's writer, which does not use a write-ahead log."""

    def work(self, compute: ChunkRunner) -> ChunkRunner:
        """What a worker does with a chunk."""

    def keep(self, result: ChunkResult) -> dict[int, Packed]:
        """What the table `runs` has of the values of each run, by its number in the chunk."""

    def checked(self, columns: StoredColumns, encoding: object, figures: object) -> Packed | None:
        """What the table has of a run, as `numbers` takes it; None where it is damaged."""

    def itemsize(self, run: Packed) -> int:
        """The bytes of a number of the run."""

    def numbers(
        self, columns: StoredColumns, runs: Sequence[Packed], statistics: Collection[str] | None = None
    ) -> RunNumbers:
        """The numbers of runs that are `checked`, all or those of some statistics."""


class Blobs:
    """The numbers of each run are a blob in its row."""

    compress = True
    is_shared = False

    def work(self, compute: ChunkRunner) -> ChunkRunner:
        """Workers send the numbers to the process that writes the store."""
        return compute

    def keep(self, result: ChunkResult) -> dict[int, Packed]:
        """As they come."""
        return {number: packed for number, (_, packed) in result.values.items()}

    def checked(self, columns: StoredColumns, encoding: object, figures: object) -> Packed | None:
        """Decompressed."""
        data = inflated(encoding, figures, len(columns))
        return None if data is None else Packed(encoding, data)

    def itemsize(self, run: Packed) -> int:
        """The bytes of a number of the run."""
        return ENCODINGS[run.encoding].dtype.itemsize

    def numbers(
        self, columns: StoredColumns, runs: Sequence[Packed], statistics: Collection[str] | None = None
    ) -> RunNumbers:
        """All columns exist anyway."""
        return RunNumbers(columns, unpacked(columns, runs), {})
