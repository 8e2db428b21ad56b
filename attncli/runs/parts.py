"""The Parquet parts of a folder store: each is written whole by the process that computed its runs.

A part has a row for each run: what the run is, and one list of numbers for each statistic, in the order in
which its columns have the layers and heads. Nothing else is needed to know the runs again.
"""

import json
import os
import re
import secrets
import socket
import sqlite3
import struct
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import RunError, UserError, WriteError, reason_of
from attncli.runs.chunks import Chunk, ChunkResult, ChunkRunner, PartFile, Run
from attncli.runs.keys import settings_as_json
from attncli.runs.packing import DOUBLE, ENCODINGS, SINGLE, Packed, RunNumbers, unpacked
from attncli.runs.stored_columns import StoredColumn, StoredColumns
from attncli.system.plain_text import parsed_json

PART = re.compile(r"attn-\d{9,}-[0-9a-f]{12}\.parquet")
UNFINISHED = ".unfinished"
"""What the name of a part ends with until it is whole."""
ENCODINGS_IN_PARTS: Mapping[object, Any] = {4: SINGLE, 5: DOUBLE}
"""What the column `encoding` of a run says where `figures` is a place in a part."""
PLACE = struct.Struct("<qq")
"""The number of a part in the table `parts`, and the row in it."""
RUN = ("key", "run", "id", "source", "experiment", "seed", "settings", "sentence", "context")
ABOUT = (*RUN, "environment", "encoding", "columns")
"""The columns of a part that say what a run is; a statistic of such a name has another one."""
LEVEL = 3
"""Of zstd: 1 makes a survey 1 % larger, 9 takes twice as long for 1 %."""
FORMAT = b"attncli"
MOST_CACHED = 256 * 2**20
MERGED_BYTES, FEWEST_MERGED = 32 * 2**20, 8
"""Parts become files of that size, where there are more of them."""
SECONDS_FOR_THE_FOLDER = 2.0
"""A network file system may show a new file late."""


def refuse_without_pyarrow(path: Path) -> None:
    """Raise UserError if the package that reads and writes parts is not installed."""
    if find_spec("pyarrow") is None:
        raise UserError(f'{path}: is a store of Parquet files: needs: pip install "attncli[parquet]"')


def check_shared(lock: Path, token: str) -> None:
    """Raise RunError unless this machine sees the lock of the batch, with what its process wrote there."""
    last = time.monotonic() + SECONDS_FOR_THE_FOLDER
    while True:
        with suppress(OSError):
            if token in lock.read_text(encoding="ascii").split():
                return
        if time.monotonic() > last:
            break
        with suppress(OSError, StopIteration):  # which makes a network file system look again
            next(lock.parent.iterdir())
        time.sleep(0.1)
    machine = socket.gethostname()
    raise RunError(
        f"{lock.parent}: is not the folder of this batch on {machine}: a folder store needs one that all "
        "machines share, under the same path"
    )


def write_part(chunk: Chunk, *, compute: ChunkRunner, lock: Path, token: str) -> ChunkResult:
    """On a worker: compute a chunk and write its runs that are done to a part; of each run only its row.

    What cannot be written is the refusal of the result, since no run is to blame.
    """
    try:
        check_shared(lock, token)
    except RunError as error:
        return ChunkResult(refusal=error)
    result = compute(chunk)
    if not result.values:
        return result
    rows = [number for _, of_shape in _by_columns(result) for number in of_shape]
    try:
        part = _write(lock.parent, chunk.runs(), rows, result)
    except WriteError as error:
        return ChunkResult(refusal=error)
    places = {number: _place(result, number, row) for row, number in enumerate(rows)}
    return replace(result, values=places, part=part)


def _place(result: ChunkResult, number: int, row: int) -> tuple[StoredColumns, Packed]:
    columns, numbers = result.values[number]
    return columns, Packed(_encoding(numbers), PLACE.pack(0, row))


def _encoding(run: Packed) -> object:
    dtype = ENCODINGS[run.encoding].dtype
    return next(number for number, of_part in ENCODINGS_IN_PARTS.items() if of_part == dtype)


def _by_columns(result: ChunkResult) -> list[tuple[StoredColumns, list[int]]]:
    """The runs with the same columns, which are one object where they are equal: to hash them takes long."""
    groups: dict[int, tuple[StoredColumns, list[int]]] = {}
    for number in sorted(result.values):
        columns, _ = result.values[number]
        groups.setdefault(id(columns), (columns, []))[1].append(number)
    return [*groups.values()]


def _write(folder: Path, runs: Mapping[int, Run], rows: Sequence[int], result: ChunkResult) -> PartFile:
    """Write these runs to a new part, which has its name once all of it is on disk; its name and size."""
    import pyarrow

    about = _about([runs[number] for number in rows])
    shapes = [
        (columns, unpacked(columns, [result.values[number][1] for number in numbers]))
        for columns, numbers in _by_columns(result)
    ]
    places = [place for place, (_, values) in enumerate(shapes) for _ in values]
    encodings = [_encoding(result.values[number][1]) for number in rows]
    about["encoding"] = pyarrow.array(encodings, "int8")
    about["columns"] = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(places, "int32"), [_columns_as_json(columns) for columns, _ in shapes]
    )
    about["environment"] = pyarrow.repeat(json.dumps(result.environment), len(rows))
    return _written(folder, runs[rows[0]].place, {**about, **_lists(shapes, len(rows))})


def _written(folder: Path, place: int, arrays: Mapping[str, Any]) -> PartFile:
    """Write columns to a new part, whose name begins with a place in a plan."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(dict(arrays)).replace_schema_metadata({FORMAT: b"1"})
    buffer = pyarrow.BufferOutputStream()
    lists = [name for name in arrays if name not in ABOUT]
    parquet.write_table(
        table,
        buffer,
        compression="zstd",
        compression_level=LEVEL,
        write_statistics=False,
        use_dictionary=[name for name in ABOUT if name in arrays and name != "key"],
        column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in lists},
        write_page_checksum=True,
    )
    name = f"attn-{place:09}-{secrets.token_hex(6)}.parquet"
    unfinished = folder / f"{name}{UNFINISHED}"
    content = buffer.getvalue()
    try:
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(folder / name)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(
            f"{folder}: cannot be written: {reason_of(error)}: what was finished is kept"
        ) from None
    return PartFile(name, content.size)


def _about(runs: Sequence[Run]) -> dict[str, Any]:
    """What is known of each run before it is computed, as columns."""
    import pyarrow

    items = {id(run.item): run.item for run in runs}
    settings = {item: settings_as_json(items[item].spec) for item in items}
    planned = [
        (run.key, run.place, run.job.label, run.item.source, run.item.spec.experiment, run.item.spec.seed)
        for run in runs
    ]
    rows = [(*known, settings[id(run.item)], *run.texts()) for known, run in zip(planned, runs, strict=True)]
    types = dict.fromkeys(RUN, pyarrow.string())
    types |= {"key": pyarrow.binary(32), "run": pyarrow.int64(), "seed": pyarrow.int64()}
    cells = zip(*rows, strict=True)
    return {
        name: pyarrow.array(column, kind) for (name, kind), column in zip(types.items(), cells, strict=True)
    }


@lru_cache(maxsize=64)
def _columns_as_json(columns: StoredColumns) -> str:
    """The columns, field by field, so that zstd finds them alike: a survey has thousands."""
    names = list(dict.fromkeys(column.statistic for column in columns))
    fields: dict[str, Any] = {"names": names, "statistic": [names.index(c.statistic) for c in columns]}
    for place in StoredColumn._fields[1:]:
        if any(getattr(column, place) is not None for column in columns):
            fields[place] = [getattr(column, place) for column in columns]
    return json.dumps(fields)


def _columns_from_json(text: str) -> StoredColumns:
    """Raise ValueError or LookupError, TypeError for what `_columns_as_json` did not write."""
    fields = parsed_json(text)
    names, numbers = fields["names"], fields["statistic"]
    places = [fields.get(place, [None] * len(numbers)) for place in StoredColumn._fields[1:]]
    return tuple(StoredColumn(names[number], *about) for number, *about in zip(numbers, *places, strict=True))


def _name_of(statistic: str) -> str:
    """The name of its column in a part."""
    return f"statistic {statistic}" if statistic in ABOUT else statistic


def _lists(shapes: Sequence[tuple[StoredColumns, np.ndarray]], num_rows: int) -> dict[str, Any]:
    """A list per statistic and run, null where a run lacks the statistic; float32 where that is exact."""
    import pyarrow

    parts: dict[str, list[np.ndarray]] = {}
    lengths: dict[str, np.ndarray] = {}
    has: dict[str, np.ndarray] = {}
    first = 0
    for columns, values in shapes:
        rows = slice(first, first + len(values))
        for statistic, places in _places(columns).items():
            parts.setdefault(statistic, []).append(values[:, places].ravel())
            lengths.setdefault(statistic, np.zeros(num_rows, np.int64))[rows] = len(places)
            has.setdefault(statistic, np.zeros(num_rows, bool))[rows] = True
        first = rows.stop
    lists = {}
    for statistic, of_shapes in parts.items():
        offsets = np.concatenate([[0], np.cumsum(lengths[statistic])]).astype(np.int32)
        mask = None if has[statistic].all() else pyarrow.array(~has[statistic])
        numbers = pyarrow.array(_narrowed(np.concatenate(of_shapes)))
        lists[_name_of(statistic)] = pyarrow.ListArray.from_arrays(offsets, numbers, mask=mask)
    return lists


def _narrowed(values: np.ndarray) -> np.ndarray:
    """The same numbers in float32, where it has all of them; float64 otherwise."""
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(SINGLE)
    return single if np.array_equal(single.astype(DOUBLE), values, equal_nan=True) else values


@lru_cache(maxsize=64)
def _places(columns: StoredColumns) -> dict[str, list[int]]:
    """Of each statistic the places of its columns."""
    places: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        places.setdefault(column.statistic, []).append(place)
    return places


class Lists(NamedTuple):
    """A statistic of the runs of a part: the numbers of row r are `values[offsets[r]:offsets[r + 1]]`."""

    offsets: np.ndarray
    values: np.ndarray

    def rows(self, rows: np.ndarray, count: int) -> np.ndarray | None:
        """The numbers of these rows (row, number); None unless each has as many."""
        starts = self.offsets[rows]
        if (self.offsets[rows + 1] - starts != count).any():
            return None
        numbers: np.ndarray = self.values[starts[:, None] + np.arange(count)]
        return numbers


class Merge(NamedTuple):
    """Small files of parts to write as one."""

    lock: Path
    token: str
    files: tuple[PartFile, ...]

    def __len__(self) -> int:
        """One piece of work, as a chunk of one run is."""
        return 1


class Merged(NamedTuple):
    """The file that has all rows of others, and where those of each begin."""

    merge: Merge
    file: PartFile
    first_rows: tuple[int, ...]


def merge_parts(merge: Merge) -> Merged | None:
    """On a worker: write parts to one file; None where that cannot be, and all stays as it is."""
    import pyarrow
    from pyarrow import parquet

    folder = merge.lock.parent
    try:
        check_shared(merge.lock, merge.token)
        tables = [parquet.read_table(folder / file.file, partitioning=None) for file in merge.files]
        table = pyarrow.concat_tables(tables, promote_options="permissive").unify_dictionaries()
        arrays = {name: table.column(name) for name in table.column_names}
        file = _written(folder, tables[0].column("run")[0].as_py(), arrays)
    except (OSError, RunError, WriteError, pyarrow.ArrowException):
        return None
    first_rows = accumulate((table.num_rows for table in tables[:-1]), initial=0)
    return Merged(merge, file, tuple(first_rows))


class Parts:
    """The parts of a folder store, whose database names them. `token` is what its writer's lock has."""

    compress = False
    is_shared = True

    def __init__(self, connection: sqlite3.Connection, database: Path, token: str = "") -> None:
        self.folder = database.parent
        self._connection = connection
        self._lock, self._token = database.with_name(database.name + "-lock").resolve(), token
        self._files: dict[int, tuple[PartFile, int]] = {}
        self._read: OrderedDict[tuple[PartFile, frozenset[str] | None], dict[str, Lists]] = OrderedDict()

    def work(self, compute: ChunkRunner) -> ChunkRunner:
        """Workers write the numbers to parts, and send where they are."""
        return partial(write_part, compute=compute, lock=self._lock, token=self._token)

    def keep(self, result: ChunkResult) -> dict[int, Packed]:
        """The place of each run. Raises RunError where this process does not see the part that has them."""
        if result.part is None:
            return {}
        file, size = result.part
        path = self.folder / file
        if not path.is_file() or path.stat().st_size != size:
            shared = f"{self.folder} must be a folder that all machines share"
            raise RunError(f"{path}: is not as a worker wrote it: {shared}")
        number = self._connection.execute(
            "INSERT INTO parts (file, size) VALUES (?, ?)", result.part
        ).lastrowid
        return {
            run: Packed(encoding, PLACE.pack(number, PLACE.unpack(place)[1]))
            for run, (_, (encoding, place)) in result.values.items()
        }

    def checked(self, columns: StoredColumns, encoding: object, figures: object) -> Packed | None:
        """The same, if it can be a place in a part."""
        if not isinstance(figures, bytes) or len(figures) != PLACE.size or encoding not in ENCODINGS_IN_PARTS:
            return None
        return Packed(encoding, figures)

    def itemsize(self, run: Packed) -> int:
        """The bytes of a number of the run."""
        return int(ENCODINGS_IN_PARTS[run.encoding].itemsize)

    def numbers(
        self, columns: StoredColumns, runs: Sequence[Packed], statistics: Collection[str] | None = None
    ) -> RunNumbers:
        """Of some statistics, nothing else is read."""
        if statistics is not None:
            columns = _with_statistics(columns, frozenset(statistics))
        values = np.full((len(runs), len(columns)), np.nan)
        damaged: dict[int, str] = {}
        rows_of: dict[int, list[tuple[int, int]]] = {}
        for row, run in enumerate(runs):
            part, place = PLACE.unpack(run.data)
            rows_of.setdefault(part, []).append((row, place))
        wanted = None if statistics is None else frozenset(statistics)
        for part, pairs in rows_of.items() if columns else ():
            rows, places = np.array(pairs).T
            first, lists = self._lists(part, wanted)
            if not self._fill(values, rows, first + places, columns, lists):
                damaged |= dict.fromkeys(rows.tolist(), self._name(part))
        return RunNumbers(columns, values, damaged)

    def merges(self) -> list[Merge]:
        """What to write as one file, so that there are not many more files than the numbers need."""
        query = "SELECT DISTINCT file, size FROM parts WHERE size < ? ORDER BY part"
        small = [PartFile(*row) for row in self._connection.execute(query, (MERGED_BYTES // 2,))]
        merges: list[Merge] = []
        while small:
            sizes = accumulate(file.size for file in small)
            count = next((place for place, size in enumerate(sizes, 1) if size >= MERGED_BYTES), len(small))
            if count >= FEWEST_MERGED:
                merges.append(Merge(self._lock, self._token, tuple(small[:count])))
            del small[:count]
        return merges

    def take_merged(self, merged: Merged) -> None:
        """Note where parts are now."""
        query = "UPDATE parts SET file = ?, size = ?, first_row = first_row + ? WHERE file = ?"
        pairs = zip(merged.first_rows, merged.merge.files, strict=True)
        self._connection.executemany(query, [(*merged.file, row, before.file) for row, before in pairs])
        self._files.clear()

    def remove_merged(self, merged: Merged) -> None:
        """Remove the files in which they were."""
        for before in merged.merge.files:
            (self.folder / before.file).unlink(missing_ok=True)

    def _fill(
        self,
        values: np.ndarray,
        rows: np.ndarray,
        places: np.ndarray,
        columns: StoredColumns,
        lists: dict[str, Lists],
    ) -> bool:
        """Copy the numbers of a part into these rows; returns whether all of them exist."""
        for statistic, where in _places(columns).items():
            of_statistic = lists.get(statistic)
            if of_statistic is None or not 0 <= places.min() <= places.max() < len(of_statistic.offsets) - 1:
                return False
            numbers = of_statistic.rows(places, len(where))
            if numbers is None:
                return False
            values[rows[:, None], where] = numbers
        return True

    def lost(self) -> list[int]:
        """The parts in the database that are not there, or not as they were written."""
        sizes = {file.name: file.stat().st_size for file in self._named_as_parts()}
        query = "SELECT part, file, size FROM parts"
        return [part for part, file, size in self._connection.execute(query) if sizes.get(file) != size]

    def remove_unfinished(self) -> None:
        """Remove what a process was writing when it was killed."""
        for file in self.folder.iterdir():
            if file.name.endswith(UNFINISHED) and PART.fullmatch(file.name.removesuffix(UNFINISHED)):
                file.unlink(missing_ok=True)

    def unnamed(self) -> list[Path]:
        """The parts that the database does not name: of a batch that was killed after it wrote them."""
        named = {file for (file,) in self._connection.execute("SELECT file FROM parts")}
        return [file for file in self._named_as_parts() if file.name not in named]

    def _named_as_parts(self) -> list[Path]:
        return [file for file in self.folder.iterdir() if PART.fullmatch(file.name)]

    def _name(self, part: int) -> str:
        located = self._file(part)
        return located[0].file if located is not None else f"part {part}"

    def _file(self, part: int) -> tuple[PartFile, int] | None:
        """The file of the part of that number, and its first row there; None where that is damaged."""
        if part not in self._files:
            query = "SELECT file, size, first_row FROM parts WHERE part = ?"
            stored = self._connection.execute(query, (part,)).fetchone()
            if stored is None or [*map(type, stored)] != [str, int, int] or not PART.fullmatch(stored[0]):
                return None
            self._files[part] = PartFile(*stored[:2]), stored[2]
        return self._files[part]

    def _lists(self, part: int, statistics: frozenset[str] | None) -> tuple[int, dict[str, Lists]]:
        """The first row of a part in its file, and the file's statistics; empty for a damaged file."""
        if (located := self._file(part)) is None:
            return 0, {}
        if (lists := self._lists_of(located[0], statistics)) or (self.folder / located[0].file).exists():
            return located[1], lists
        del self._files[part]  # it may have been merged meanwhile
        located = self._file(part) or located
        return located[1], self._lists_of(located[0], statistics)

    def _lists_of(self, file: PartFile, statistics: frozenset[str] | None) -> dict[str, Lists]:
        if (key := (file, statistics)) not in self._read:
            self._read[key] = _read_lists(self.folder / file.file, file.size, statistics)
            while len(self._read) > 1 and sum(map(_num_bytes, self._read.values())) > MOST_CACHED:
                self._read.popitem(last=False)
        self._read.move_to_end(key)
        return self._read[key]


class RunOfPart(NamedTuple):
    """A run as a part has it: what it is (ABOUT), and its columns."""

    about: Mapping[str, Any]
    columns: StoredColumns


def runs_of_part(path: Path) -> list[RunOfPart] | None:
    """The runs of a part; None where it is not as it was written."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns=[*ABOUT])
        shapes = table.column("columns").combine_chunks().dictionary_encode()
        known = [_columns_from_json(text) for text in shapes.dictionary.to_pylist()]
        columns = [known[place] for place in shapes.indices.to_pylist()]
        rows = table.select([*RUN, "environment", "encoding"]).to_pylist()
    except (OSError, pyarrow.ArrowException, ValueError, LookupError, TypeError):
        return None
    return [RunOfPart(row, of_run) for row, of_run in zip(rows, columns, strict=True)]


def _num_bytes(lists: Mapping[str, Lists]) -> int:
    return sum(each.values.nbytes + each.offsets.nbytes for each in lists.values())


@lru_cache(maxsize=64)
def _with_statistics(columns: StoredColumns, statistics: frozenset[str]) -> StoredColumns:
    return tuple(column for column in columns if column.statistic in statistics)


def _read_lists(path: Path, size: int, statistics: frozenset[str] | None) -> dict[str, Lists]:
    """The lists of a part; empty where the file has changed since it was written."""
    import pyarrow
    from pyarrow import parquet

    try:
        if not path.is_file() or path.is_symlink() or path.stat().st_size != size:
            return {}
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = [name for name in file.schema_arrow.names if name not in ABOUT]
            if statistics is not None:
                wanted = {_name_of(statistic) for statistic in statistics}
                names = [name for name in names if name in wanted]
            table = file.read(columns=names)
    except (OSError, pyarrow.ArrowException):
        return {}
    return {
        name.removeprefix("statistic ") if name.removeprefix("statistic ") in ABOUT else name: lists
        for name in names
        if (lists := _as_lists(table.column(name))) is not None
    }


def _as_lists(column: Any) -> Lists | None:
    import pyarrow

    kind = column.type
    if not pyarrow.types.is_list(kind) or not pyarrow.types.is_floating(kind.value_type):
        return None
    lists = column.combine_chunks()
    lengths = lists.value_lengths().fill_null(0).to_numpy()
    return Lists(np.concatenate([[0], np.cumsum(lengths)]), lists.flatten().to_numpy(zero_copy_only=False))
