"""Converts a store of attn 0.4, whose numbers were packed: python tools/upgrade_store.py OLD.db NEW.db

Runs, keys and plans stay, so that the same batch goes on in the new one. A folder OLD.db-weights is to be
renamed to NEW.db-weights.
"""

import sqlite3
import sys
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np

from attncli.runs.number_tables import insert_numbers
from attncli.runs.store import Store, columns_of
from attncli.runs.store_files import PACKED_VERSION, create_file
from attncli.runs.stored_columns import StoredColumns

TYPES = {None: "<f8", 1: "<f4", 2: "<f4", 3: "<f8"}
COMPRESSED = (2, 3)
"""Encodings of runs whose numbers were sorted by statistic, transposed and compressed."""


def unpacked(columns: StoredColumns, encoding: int | None, data: bytes) -> np.ndarray:
    """The numbers of a run in the order of its columns."""
    dtype = np.dtype(TYPES[encoding])
    if encoding not in COMPRESSED:
        return np.frombuffer(data, dtype).astype(np.float64)
    planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(dtype.itemsize, -1)
    names = list(dict.fromkeys(column.statistic for column in columns))
    order = np.argsort([names.index(column.statistic) for column in columns], kind="stable")
    return planes.T.copy().view(dtype)[:, 0].take(np.argsort(order)).astype(np.float64)


def upgrade(packed: Path, path: Path) -> None:
    """Write what a store of attn 0.4 has to a new one; SystemExit if it is none, or if the new one exists."""
    if path.exists():
        raise SystemExit(f"{path}: is there already")
    create_file(path, rows=False, weights=False)
    with closing(sqlite3.connect(packed)) as old, closing(sqlite3.connect(path)) as new:
        if old.execute("PRAGMA user_version").fetchone() != (PACKED_VERSION,):
            raise SystemExit(f"{packed}: is not a store of attn 0.4")
        new.execute("DELETE FROM store")
        for table in ("store", "settings", "environments", "columns", "runs"):
            names = [name for _, name, *_ in new.execute(f"PRAGMA table_info({table})")]
            rows = old.execute(f"SELECT {', '.join(names)} FROM {table}")
            new.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", rows)
        store = Store(path, new, rows=False, weights=False)
        columns: dict[int, StoredColumns] = {}
        for (shape,) in new.execute("SELECT DISTINCT shape FROM columns").fetchall():
            columns[shape] = columns_of(new, shape)
            store.add_statistics(columns[shape])
        done = "SELECT run, shape, encoding, figures FROM runs WHERE status = 'done' ORDER BY run"
        for run, shape, encoding, figures in old.execute(done):
            values = unpacked(columns[shape], encoding, figures)
            insert_numbers(new, columns[shape], [run], values[None])
        new.commit()


if __name__ == "__main__":
    upgrade(*map(Path, sys.argv[1:]))
