"""The numbers of a run as a store keeps them: float32 where they survive it, compressed where that pays."""

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attncli.runs.stored_columns import StoredColumns


class Encoding(NamedTuple):
    """The type of the numbers; compressed ones are sorted and transposed first, see `packed`."""

    dtype: np.dtype[np.float32] | np.dtype[np.float64]
    is_compressed: bool


DOUBLE, SINGLE = np.dtype("<f8"), np.dtype("<f4")
ENCODINGS: Mapping[object, Encoding] = {
    None: Encoding(DOUBLE, False),
    1: Encoding(SINGLE, False),
    2: Encoding(SINGLE, True),
    3: Encoding(DOUBLE, True),
}
"""What the column `encoding` of a run says of its `figures`."""
NUMBERS = {encoding: number for number, encoding in ENCODINGS.items()}

LEVEL = 6
"""Of zlib: 1 makes a survey 2 % larger, and 9 takes twice as long for 0.3 %."""
FEWEST_COMPRESSED = 1024
"""In float32 a page of SQLite's: of shorter runs zlib saves a fifth, and doubles the time to read them."""
MOST_LEFT = 7 / 8
"""Of the bytes, at most, where numbers are compressed."""
WHOLE_NUMBERS = 2.0**24
"""Up to here float32 has every whole number."""


class Packed(NamedTuple):
    """The numbers of a run as bytes, and which of ENCODINGS these are."""

    encoding: object
    data: bytes


class RunNumbers(NamedTuple):
    """Float64 numbers (run, column) of runs with these columns; by its row, the damaged part of a run."""

    columns: StoredColumns
    values: np.ndarray
    damaged: Mapping[int, str]


@lru_cache(maxsize=64)
def by_statistic(columns: StoredColumns) -> tuple[np.ndarray, np.ndarray]:
    """The places of the columns, those of a statistic together, and where each column is among these."""
    first: dict[str, int] = {}
    ranks = [first.setdefault(column.statistic, len(first)) for column in columns]
    order = np.argsort(ranks, kind="stable")
    return order, np.argsort(order)


def _survives(values: np.ndarray, single: np.ndarray) -> np.ndarray:
    """Of which rows no number loses more than float32's rounding, a relative error of 2^-24."""
    size, is_changed = np.abs(values), single != values
    is_lost = np.isfinite(values) & ~np.isfinite(single)
    is_lost |= is_changed & (size < np.finfo(SINGLE).smallest_normal)
    is_lost |= is_changed & (size > WHOLE_NUMBERS) & (values == np.floor(values))
    survives: np.ndarray = ~is_lost.any(axis=1)
    return survives


def _single(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(SINGLE)


def rounded(values: np.ndarray) -> np.ndarray:
    """The float64 numbers (column,) that a store gives back for these."""
    single = _single(values[None])
    return single[0].astype(np.float64) if _survives(values[None], single)[0] else values


def packed(columns: StoredColumns, values: np.ndarray, *, compress: bool = True) -> list[Packed]:
    """Each row of float64 numbers (run, column) for the store, compressed where that pays, if at all.

    They are float32 unless a number of the row would lose more than its rounding: one beyond its range or
    among its denormals, or a whole number above 2^24. Rows to compress are first sorted by statistic, then
    transposed: the first bytes of all numbers, the second bytes, and so on (the shuffle of Blosc and HDF5),
    which puts similar bytes next to each other. The bytes depend on numbers, columns and zlib's version.
    """
    single = _single(values)
    survives = _survives(values, single)
    packed_rows: list[Packed | None] = [None] * len(values)
    for numbers, rows in ((single, survives), (values.astype(DOUBLE, copy=False), ~survives)):
        places = np.flatnonzero(rows).tolist()
        for place, row in zip(places, _packed(columns, numbers[rows], compress=compress), strict=True):
            packed_rows[place] = row
    return [row for row in packed_rows if row is not None]


def _packed(columns: StoredColumns, numbers: np.ndarray, *, compress: bool) -> list[Packed]:
    count, num_columns = numbers.shape
    number = NUMBERS[Encoding(numbers.dtype, False)]
    if num_columns < FEWEST_COMPRESSED or not compress:
        return [Packed(number, row.tobytes()) for row in numbers]
    in_order = numbers.take(by_statistic(columns)[0], axis=1)
    as_bytes = in_order.view(np.uint8).reshape(count, num_columns, numbers.itemsize)
    compressed = [zlib.compress(row.T.tobytes(), LEVEL) for row in as_bytes]
    most = MOST_LEFT * num_columns * numbers.itemsize
    shorter = NUMBERS[Encoding(numbers.dtype, True)]
    return [
        Packed(shorter, short) if len(short) <= most else Packed(number, row.tobytes())
        for short, row in zip(compressed, numbers, strict=True)
    ]


def inflated(number: object, data: object, num_columns: int) -> bytes | None:
    """The decompressed bytes of one number per column; None for damaged data.

    No more bytes than those are decompressed, however many the data holds.
    """
    encoding = ENCODINGS.get(number)
    if encoding is None or not isinstance(data, bytes):
        return None
    size = num_columns * encoding.dtype.itemsize
    if encoding.is_compressed:
        stream = zlib.decompressobj()
        try:
            data = stream.decompress(data, size + 1)
        except zlib.error:
            return None
        if not stream.eof or stream.unused_data:
            return None
    return data if len(data) == size else None


def unpacked(columns: StoredColumns, runs: Sequence[Packed]) -> np.ndarray:
    """The float64 numbers (run, column) of runs whose data is `inflated` already."""
    rows: dict[object, list[int]] = {}
    for row, run in enumerate(runs):
        rows.setdefault(run.encoding, []).append(row)
    values = np.empty((len(runs), len(columns)))
    with np.errstate(invalid="ignore"):  # a NaN that signals, which a damaged store may have
        for number, of_encoding in rows.items():
            dtype, is_compressed = ENCODINGS[number]
            if is_compressed:
                _, places = by_statistic(columns)
                for row in of_encoding:
                    transposed = np.frombuffer(runs[row].data, np.uint8).reshape(dtype.itemsize, -1)
                    values[row] = transposed.T.copy().view(dtype)[:, 0].take(places)
            else:
                data = b"".join(runs[row].data for row in of_encoding)
                values[of_encoding] = np.frombuffer(data, dtype).reshape(len(of_encoding), len(columns))
    return values


def numbers_of(columns: StoredColumns, encoding: object, data: object) -> np.ndarray | None:
    """The float64 numbers (column,) of one run; None for damaged data."""
    plain = inflated(encoding, data, len(columns))
    return None if plain is None else unpacked(columns, [Packed(encoding, plain)])[0]
