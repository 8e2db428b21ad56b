"""The numbers of runs in tables with one column per statistic, which any tool can read."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from attncli.errors import WriteError
from attncli.records.stored_columns import StoredColumn, StoredColumns
from attncli.runs.chunks import Chunk, ChunkResult
from attncli.runs.jobs import Item, Job
from attncli.runs.reading import reading
from attncli.runs.store import Store, open_store
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec

ITEM = Item(build_spec(SPECS["self"], {"sentence": Given("a b", "sentence")}), "x.yaml:1:1")
HOSTILE = ('a "b', "-- x", "statistic layer", "item", "layer", "Run", "a; DROP TABLE runs", "é", "x.y[0]")
OF_SENTENCES: StoredColumns = (
    StoredColumn("scores.mean"),
    StoredColumn("entropy", 0, 1),
    StoredColumn("scores.max"),
    StoredColumn("distance", 0, 1),
    StoredColumn("entropy", 1, 0),  # this head has no distance
)
OF_ROWS: StoredColumns = tuple(
    StoredColumn("entropy", None, head, 0, t) for head in range(2) for t in range(3)
)
OF_LISTS: StoredColumns = (
    *(StoredColumn(f"sources.{n}.{name}") for n in range(700) for name in ("weight", "tokens", "a.b")),
    *(StoredColumn(name) for name in ("curve.0", "curve.0.value", "layers.1.heads.2.x", "list", "x.01.y")),
)
"""More numbers than an SQL table has columns."""
SHAPES = (OF_SENTENCES, OF_ROWS, tuple(map(StoredColumn, HOSTILE)), OF_LISTS)


def write(store: Store, shapes: list[StoredColumns], first: int = 1) -> list[np.ndarray]:
    """Write one chunk of runs with these columns; return their numbers."""
    sampled = np.random.default_rng(first)
    numbers = [sampled.normal(size=len(columns)) for columns in shapes]
    jobs = tuple((Job((ITEM,), None, first + n), (bytes([first + n]),)) for n in range(len(shapes)))
    values = {n: pair for n, pair in enumerate(zip(shapes, numbers, strict=True))}
    store.write(Chunk(jobs), ChunkResult(values=values, environment={}))
    return numbers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "runs.db", fresh=False, rows=True, weights=False) as opened:
        yield opened


def test_numbers_are_read_to_the_last_bit(store: Store) -> None:
    shapes = [SHAPES[n % 4] for n in range(9)]
    written = write(store, shapes)
    written[0][:2] = np.nan, np.inf
    store.replace_values(bytes([1]), OF_SENTENCES, written[0])
    with reading(store.path) as reader:
        read = [(runs.columns, row) for runs in reader.done() for row in runs.values]
    for (columns, row), shape, numbers in zip(read, shapes, written, strict=True):
        assert columns == shape
        np.testing.assert_array_equal(row, numbers)
    np.testing.assert_array_equal(store.values(bytes([2]))[1], written[1])


@pytest.mark.parametrize(
    "statistics",
    [{"scores.mean", "distance", 'a "b'}, {"sources.3.weight", "curve.0"}, {"layer"}, {"none"}],
)
def test_some_statistics_are_read_without_the_others(store: Store, statistics: set[str]) -> None:
    shapes = [SHAPES[n % 4] for n in range(9)]
    written = write(store, shapes)
    with reading(store.path) as reader:
        read = [(runs.columns, row) for runs in reader.done(statistics) for row in runs.values]
    for (columns, row), shape, numbers in zip(read, shapes, written, strict=True):
        chosen = [place for place, column in enumerate(shape) if column.statistic in statistics]
        assert columns == tuple(shape[place] for place in chosen)
        np.testing.assert_array_equal(row, numbers[chosen])


def test_any_tool_sees_columns_with_names(store: Store) -> None:
    numbers, of_rows, _, of_lists = write(store, [*SHAPES])
    with closing(sqlite3.connect(store.path)) as connection:
        heads = "SELECT layer, head, entropy, distance FROM head_statistics WHERE run = 1 ORDER BY layer"
        assert connection.execute(heads).fetchall() == [
            (0, 1, numbers[1], numbers[3]),
            (1, 0, numbers[4], None),
        ]
        tokens = "SELECT sum(entropy), count(*), max(token) FROM token_statistics WHERE run = 2"
        assert connection.execute(tokens).fetchone() == (pytest.approx(of_rows.sum()), 6, 2)
        items = "SELECT weight, tokens FROM item_statistics WHERE run = 4 AND list = 'sources' AND item = 699"
        assert connection.execute(items).fetchone() == tuple(of_lists[2097:2099])
        assert connection.execute('SELECT "scores.max" FROM run_statistics WHERE run = 1').fetchone() == (
            numbers[2],
        )


def test_names_that_differ_only_in_case_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    opened = open_store(path, fresh=False, rows=False, weights=False)
    with (
        pytest.raises(
            WriteError, match=r'differ only in case \("loss" is stored, "Loss" is new\): rename the statistic'
        ),
        opened as store,
    ):
        write(store, [(StoredColumn("loss"),)])
        write(store, [(StoredColumn("Loss"),)], first=2)
    with reading(path) as reader:
        assert reader.counts()["done"] == 1
