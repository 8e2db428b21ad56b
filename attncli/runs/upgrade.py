"""Convert a store of attn 0.4, whose numbers were packed: python -m attncli.runs.upgrade OLD.db NEW.db

The new store has the runs, keys and plans of the old one, so that the same batch can continue in it. Rename a
folder OLD.db-weights to NEW.db-weights.
"""

import sqlite3
import sys
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np

from attncli.errors import UserError
from attncli.records.stored_columns import StoredColumns
from attncli.runs.number_tables import insert_numbers
from attncli.runs.schema import schema_version
from attncli.runs.store import Store, read_columns
from attncli.runs.store_files import PACKED_VERSION, check_header, create_file

TYPES = {None: "<f8", 1: "<f4", 2: "<f4", 3: "<f8"}
COMPRESSED = (2, 3)
"""Encodings whose numbers are sorted by statistic, transposed and compressed."""


def unpacked(columns: StoredColumns, encoding: int | None, data: bytes) -> np.ndarray:
    """Return the numbers of a run in the order of the run's columns."""
    dtype = np.dtype(TYPES[encoding])
    if encoding not in COMPRESSED:
        return np.frombuffer(data, dtype).astype(np.float64)
    # Limited to the size of the numbers, because a crafted file may unpack to any size.
    unpacked_bytes = zlib.decompressobj().decompress(data, dtype.itemsize * len(columns) + 1)
    planes = np.frombuffer(unpacked_bytes, np.uint8).reshape(dtype.itemsize, -1)
    names = list(dict.fromkeys(column.statistic for column in columns))
    order = np.argsort([names.index(column.statistic) for column in columns], kind="stable")
    return planes.T.copy().view(dtype)[:, 0].take(np.argsort(order)).astype(np.float64)


def upgrade(packed: Path, path: Path) -> None:
    """Copy the runs of an attn 0.4 store to a new store.

    Raises UserError if the old file is not such a store or is damaged, or if the new file exists.
    """
    check_header(packed, any_version=True)
    if path.exists():
        raise UserError(f"{path}: already exists: choose another name")
    create_file(path, rows=False, weights=False)
    try:
        _copy(packed, path)
    except UserError:
        path.unlink()
        raise
    except (sqlite3.Error, zlib.error, ValueError, KeyError) as error:
        path.unlink()
        raise UserError(f"{packed}: is damaged: {error}") from None


def _copy(packed: Path, path: Path) -> None:
    old_name = f"{packed.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(old_name, uri=True)) as old, closing(sqlite3.connect(path)) as new:
        old.execute("PRAGMA trusted_schema = OFF")
        if schema_version(old) != PACKED_VERSION:
            raise UserError(f"{packed}: is not an attn 0.4 store: attn results may read the file as it is")
        new.execute("DELETE FROM store")
        for table in ("store", "settings", "environments", "columns", "runs"):
            names = [name for _, name, *_ in new.execute(f"PRAGMA table_info({table})")]
            rows = old.execute(f"SELECT {', '.join(names)} FROM {table}")
            new.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", rows)
        store = Store(path, new, rows=False, weights=False)
        columns: dict[int, StoredColumns] = {}
        for (shape,) in new.execute("SELECT DISTINCT shape FROM columns").fetchall():
            columns[shape] = read_columns(new, shape)
            store.add_statistics(columns[shape])
        done = "SELECT run, shape, encoding, figures FROM runs WHERE status = 'done' ORDER BY run"
        for run, shape, encoding, figures in old.execute(done):
            values = unpacked(columns[shape], encoding, figures)
            insert_numbers(new, columns[shape], [run], values[None])
        new.commit()


if __name__ == "__main__":
    try:
        upgrade(*map(Path, sys.argv[1:3]))
    except TypeError:
        sys.exit("usage: python -m attncli.runs.upgrade OLD.db NEW.db")
    except UserError as error:
        sys.exit(f"error: {error}")
