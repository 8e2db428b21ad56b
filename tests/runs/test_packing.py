"""Numbers of a store in float32, compressed or not: what comes back, how many bytes, what damage does."""

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from attncli.runs.packing import Packed, inflated, numbers_of, packed, rounded, unpacked
from attncli.runs.stored_columns import StoredColumn, StoredColumns
from tests.conftest import Attn
from tests.runs.stores import unpacked_number_by_number, with_tidy, write_batch

FLOAT32 = 1
COMPRESSED = 2
COMPRESSED_FLOAT64 = 3


def columns_of(num_heads: int, *statistics: str) -> StoredColumns:
    """Head by head, as in a survey."""
    return tuple(StoredColumn(name, 0, head) for head in range(num_heads) for name in statistics)


SURVEY = columns_of(151, "entropy", "zero", "sink_mass", "missing", "entropy_again", "distance", "one")
"""1,057 numbers."""


def survey(rng: np.random.Generator, count: int = 3) -> np.ndarray:
    """As surveys have them: some statistics are equal, constant or missing."""
    values = rng.normal(size=(count, 151, 7)) * 10.0 ** rng.integers(-6, 6, size=(count, 151, 7))
    values[..., 1], values[..., 3], values[..., 4], values[..., 6] = 0, np.nan, values[..., 0], 1
    return values.reshape(count, -1)


@pytest.mark.parametrize("columns", [(), columns_of(1, "a"), columns_of(3, "a", "b"), SURVEY])
def test_numbers_come_back_as_float32(columns: StoredColumns) -> None:
    rng = np.random.default_rng()
    values = rng.normal(size=(5, len(columns))) * 10.0 ** rng.integers(-30, 6, size=(5, len(columns)))
    values[:, ::3] = np.nan
    values[:, 1::7] = -0.0
    stored = packed(columns, values)
    expected = values.astype(np.float32).astype(np.float64)
    for run, row, of_row in zip(stored, expected, values, strict=True):
        numbers = numbers_of(columns, *run)
        assert numbers is not None and numbers.tobytes() == row.tobytes() == rounded(of_row).tobytes()
        naive = unpacked_number_by_number(run.encoding, run.data, [column.statistic for column in columns])
        np.testing.assert_array_equal(np.array(naive, float), row)


@pytest.mark.parametrize(
    "number", [1e39, -3.5e38, 1e-39, -5e-324, 2.0**24 + 1, -(2.0**53) + 1, np.finfo(np.float64).max]
)
@pytest.mark.parametrize("columns", [columns_of(3, "a", "b"), SURVEY])
def test_a_run_with_a_number_that_float32_loses_is_float64(columns: StoredColumns, number: float) -> None:
    values = np.zeros((3, len(columns)))
    values[:, 0] = 0.1
    values[1, 5] = number
    before, run, after = packed(columns, values)
    assert {before.encoding, after.encoding} <= {FLOAT32, COMPRESSED}
    assert run.encoding in (None, COMPRESSED_FLOAT64)
    np.testing.assert_array_equal(numbers_of(columns, *run), values[1])
    np.testing.assert_array_equal(rounded(values[1]), values[1])
    np.testing.assert_array_equal(numbers_of(columns, *after), np.float32(values[2]))


@pytest.mark.parametrize("number", [2.0**24, 2.0**25, 1e30, 1.2e-38, 16777217.5, np.inf, -np.inf, 0.1])
def test_what_float32_rounds_is_float32(number: float) -> None:
    (run,) = packed(columns_of(2, "a"), np.array([[1.0, number]]))
    assert run.encoding == FLOAT32 or number == 1e30  # 10^30 is whole
    (value,) = numbers_of(columns_of(2, "a"), *run)[1:]
    assert value == pytest.approx(number, rel=2**-24)


def test_statistics_that_say_nothing_cost_next_to_nothing() -> None:
    for run in packed(SURVEY, survey(np.random.default_rng(), 20)):
        of_three = 3 * 4 * 151
        assert run.encoding == COMPRESSED and len(run.data) < of_three + 200, (
            "the other four take 2,416 bytes"
        )


def test_short_runs_and_noise_are_not_compressed() -> None:
    rng = np.random.default_rng()
    (short,) = packed(SURVEY[:1000], np.zeros((1, 1000)))
    bits = rng.integers(0, 2**32, size=(1, len(SURVEY)), dtype=np.uint32) & 0xBFFFFFFF
    noise = np.abs(bits.view(np.float32)).astype(np.float64) + 1e-30
    (noisy,) = packed(SURVEY, noise)
    assert (short.encoding, len(short.data)) == (FLOAT32, 4000)
    assert (noisy.encoding, len(noisy.data)) == (FLOAT32, 4 * len(SURVEY))


def test_bytes_depend_on_the_numbers_alone() -> None:
    values = survey(np.random.default_rng(), 7)
    values[3, 8] = 1e-40
    together = packed(SURVEY, values)
    assert together == [run for row in values for run in packed(SURVEY, row[None])]
    assert together == packed(SURVEY, np.asfortranarray(values))


DAMAGED = {
    "an unknown encoding": (9, bytes(4 * len(SURVEY))),
    "an encoding in words": ("2", bytes(4 * len(SURVEY))),
    "far too many": (COMPRESSED, zlib.compress(bytes(2**26), 1)),
    "one byte more": (COMPRESSED, zlib.compress(bytes(4 * len(SURVEY) + 1))),
    "one byte less": (COMPRESSED, zlib.compress(bytes(4 * len(SURVEY) - 1))),
    "trailing bytes": (COMPRESSED, zlib.compress(bytes(4 * len(SURVEY))) + b"x"),
    "two streams": (COMPRESSED, 2 * zlib.compress(bytes(4 * len(SURVEY)))),
    "no end": (COMPRESSED, zlib.compress(bytes(4 * len(SURVEY)))[:-1]),
    "a wrong sum": (COMPRESSED, zlib.compress(bytes(4 * len(SURVEY)))[:-4] + b"sums"),
    "no stream": (COMPRESSED, bytes(4 * len(SURVEY))),
    "nothing": (COMPRESSED, b""),
    "float32 as float64": (None, bytes(4 * len(SURVEY))),
    "a text": (FLOAT32, "0" * 4 * len(SURVEY)),
    "NULL": (None, None),
}


@pytest.mark.parametrize(("encoding", "data"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_numbers_are_none(encoding: object, data: object) -> None:
    assert inflated(encoding, data, len(SURVEY)) is None


def test_what_a_store_has_of_other_encodings_is_read_together() -> None:
    values = survey(np.random.default_rng(), 4)
    runs = [
        Packed(None, values[0].astype("<f8").tobytes()),
        *packed(SURVEY, values[1:2]),
        Packed(FLOAT32, values[2].astype("<f4").tobytes()),
        *packed(SURVEY, values[3:]),
    ]
    plain = [Packed(run.encoding, inflated(*run, len(SURVEY)) or b"") for run in runs]
    expected = np.concatenate([values[:1], values[1:].astype(np.float32)])
    np.testing.assert_array_equal(unpacked(SURVEY, plain), expected)


def test_numbers_that_signal_are_read_without_a_word(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    attn([*write_batch(tmp_path, 1), "-o", str(store)])
    with closing(sqlite3.connect(store)) as connection:
        ((size,),) = connection.execute("SELECT length(figures) FROM runs LIMIT 1")
        signals = np.full(size // 4, 0x7FA00000, "<u4").tobytes()
        connection.execute("UPDATE runs SET figures = ?", (signals,))
        connection.commit()
    ended = attn(["results", "--tidy", str(store)])
    assert (ended.code, ended.err) == (0, "") and ended.out.splitlines()[1].endswith("scores.mean,")


@pytest.mark.nightly
def test_workers_pack_as_one_process_does(attn: Attn, tmp_path: Path) -> None:
    batch, found = write_batch(tmp_path, 60), {}
    for workers in ("1", "2"):
        store = tmp_path / f"{workers}.db"
        assert attn([*batch, "-o", str(store), "--workers", workers]).code == 0
        with closing(sqlite3.connect(store)) as connection:
            query = "SELECT key, shape, encoding, length(figures) FROM runs ORDER BY key"
            found[workers] = connection.execute(query).fetchall()
    assert found["1"] == found["2"] and len(found["1"]) == 120


def test_what_is_expected_of_fresh_and_of_stored_runs_is_the_same(attn: Attn, tmp_path: Path) -> None:
    batch, store = write_batch(tmp_path, 9), tmp_path / "runs.db"
    expect = ["--expect", "entropy.mean < 1.05", "--expect", "distance.max = 0"]
    fresh = attn([*batch, "-o", str(store), *expect])
    again = attn([*batch, "-o", str(store), *expect])
    lines = [line for line in fresh.err.splitlines() if ": expected " in line]
    assert lines and sorted(lines) == sorted(line for line in again.err.splitlines() if ": expected " in line)
    with closing(with_tidy(store)) as connection:
        ((most,),) = connection.execute("SELECT max(value) FROM tidy WHERE statistic = 'entropy.mean'")
    assert any(repr(most) in line for line in lines), "the number that the store has"


def test_a_number_as_it_is_written_equals_what_was_rounded(attn: Attn, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    (tmp_path / "x.yaml").write_text("experiment: scale-demo\nfactors: [0.1, 3]\n")
    assert attn(["batch", str(tmp_path / "x.yaml"), "-o", str(store)]).code == 0
    shown = attn(["results", str(store), "--format", "json", "--where", "sharpness.0.factor = 0.1"])
    names = [row["statistic"] for row in json.loads(shown.out)["statistics"]["summary"]]
    assert "sharpness.0.factor" in names
    for condition, code in {
        "= 0.1": 0,
        "<= 0.1": 0,
        ">= 0.1": 0,
        "< 0.1": 1,
        "> 0.1": 1,
        "!= 0.1": 1,
    }.items():
        expected = ["--expect", f"sharpness.0.factor {condition}"]
        assert attn(["batch", str(tmp_path / "x.yaml"), "-o", str(store), *expected]).code == code, condition
