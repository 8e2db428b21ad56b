"""Arrays from other tools: all number types equal their library's, and damaged files are one line."""

import io
import json
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as safetensors_bytes
from safetensors.torch import save_file

from attncli.errors import UserError
from attncli.models.arrays import checked_weights, is_array_file, read_array, read_tokens

KINDS = ["f2", "f4", "f8", ">f4", ">f8", "i1", "i4", "i8", ">i4", "u1", "u8", "?"]
SHAPE = (2, 3, 5)


def numbers(kind: str) -> np.ndarray:
    return (np.random.default_rng(0).random(SHAPE) * 7).astype(kind)


def files(folder: Path, arrays: dict[str, np.ndarray]) -> list[tuple[Path, str]]:
    """The arrays in each format for several arrays."""
    np.savez(folder / "plain.npz", **arrays)
    np.savez_compressed(folder / "small.npz", **arrays)
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
    (folder / "x.safetensors").write_bytes(safetensors_bytes(native))
    return [(folder / file, name) for file in ("plain.npz", "small.npz", "x.safetensors") for name in arrays]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_number_is_read_exactly(tmp_path: Path, kind: str) -> None:
    array = numbers(kind)
    np.save(tmp_path / "x.npy", array)
    np.save(tmp_path / "columns.npy", np.asfortranarray(array))
    read = [read_array(str(tmp_path / name)) for name in ("x.npy", "columns.npy")]
    read += [read_array(str(path), name=name) for path, name in files(tmp_path, {"a": array, "b": array[0]})]
    for found in read:
        assert found.dtype == (np.float32 if array.dtype.kind == "f" and array.itemsize <= 4 else np.float64)
        assert found.flags.c_contiguous and found.flags.writeable
        expected = array if found.shape == SHAPE else array[0]
        np.testing.assert_array_equal(found, expected.astype(np.float64))


def test_bfloat16_equals_torch(tmp_path: Path) -> None:
    tensor = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16()
    tensor[0, 0, 0], tensor[0, 0, 1] = torch.nan, -torch.inf
    save_file({"weights": tensor}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    np.testing.assert_array_equal(read_array(str(tmp_path / "x.safetensors")), tensor.float().numpy())


def line_of(path: Path, **options: Any) -> str:
    with pytest.raises(UserError) as raised:
        read_array(str(path), **options)
    (line,) = raised.value.lines
    return line.replace(str(path), path.name)


def test_several_arrays_are_chosen_by_name(tmp_path: Path) -> None:
    for path in {path for path, _ in files(tmp_path, {"first": numbers("f4"), "second": numbers("f4")})}:
        assert line_of(path) == f"{path.name}: contains 2 arrays: choose one with --array NAME: first, second"
        expected = (
            f"--array: {path.name} has no array secnd, but it has first, second (did you mean 'second'?)"
        )
        assert line_of(path, name="secnd") == expected
    np.save(tmp_path / "x.npy", numbers("f4"))
    assert (
        line_of(tmp_path / "x.npy", name="a")
        == "--array: x.npy contains a single array, which has no name: omit --array"
    )


def npy(shape: tuple[int, ...], kind: str = "<f4", content: bytes = b"") -> bytes:
    """A .npy file with this shape in its header."""
    stream = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
    return stream.getvalue() + content


def npz(member: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights.npy", member)
    return stream.getvalue()


def safetensors(entry: Any, content: bytes = b"") -> bytes:
    header = json.dumps({"weights": entry}).encode()
    return struct.pack("<Q", len(header)) + header + content


class Runs:
    """An object that runs code when unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("the pickle was run",)


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Runs()], dtype=object), allow_pickle=True)
    return stream.getvalue()


TERABYTE = 2**40
OBJECTS = "contains Python objects, which can run code when they are read: save only numbers"
ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
DAMAGED = {
    "empty.npy": (b"", "is not a NumPy file, or is damaged"),
    "text.npz": (b"not a zip", "is not a NumPy file, or is damaged"),
    "text.safetensors": (b"hello, this is text", "is not a safetensors file, or is damaged"),
    "cut.npy": (npy((2, 2), content=b"1234"), "is truncated: its header specifies 16 bytes"),
    "huge.npy": (npy((TERABYTE,)), f"is truncated: its header specifies {4 * TERABYTE} bytes"),
    "huge.npz": (npz(npy((TERABYTE,))), f"is truncated: its header specifies {4 * TERABYTE} bytes"),
    "negative.npy": (npy((-2, 2)), "is not a NumPy file, or is damaged"),
    "texts.npy": (npy((2,), "<U3", b"0" * 24), "must be an array of real numbers (got <U3)"),
    "complex.npy": (npy((2,), "<c8", b"0" * 16), "must be an array of real numbers (got complex64)"),
    "pickled.npy": (pickled(), OBJECTS),
    "pickled.npz": (npz(pickled()), OBJECTS),
    "none.npz": (b"PK\5\6" + b"\0" * 18, "contains no arrays"),
    "none.safetensors": (struct.pack("<Q", 2) + b"{}", "contains no arrays"),
    "entry.safetensors": (safetensors(3), "is not a safetensors file, or is damaged"),
    "cut.safetensors": (safetensors(ENTRY, b"1234"), "is truncated: its header specifies 95 bytes"),
    "kind.safetensors": (
        safetensors({**ENTRY, "dtype": "F4", "shape": [32]}, b"0" * 16),
        "has type F4: must be one of F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL",
    ),
    "huge.safetensors": (
        safetensors({**ENTRY, "shape": [TERABYTE, TERABYTE]}, b"0" * 16),
        "is not a safetensors file, or is damaged",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_array_is_one_line_and_takes_little_memory(tmp_path: Path, name: str) -> None:
    content, message = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    tracemalloc.start()
    try:
        assert line_of(tmp_path / name) == f"{name}: {message}"
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_large_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "bomb.npz").write_bytes(npz(npy((40, 1000, 1000), "|i1", bytes(40_000_000))))
    assert (tmp_path / "bomb.npz").stat().st_size < 100_000
    tracemalloc.start()
    try:
        line = line_of(tmp_path / "bomb.npz", most_bytes=10_000_000)
        assert line == "bomb.npz: needs about 0.36 GB of memory, but only 0.01 GB is free"
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("num_arrays", [1, 30])
def test_an_archive_that_grows_a_hundredfold_is_refused(tmp_path: Path, num_arrays: int) -> None:
    """This does not depend on the free memory; one large array and many small ones."""
    layers = {
        f"blocks.{layer}.attn.hook_pattern": np.zeros((1, 90 // num_arrays, 500, 500), np.float32)
        for layer in range(num_arrays)
    }
    np.savez_compressed(tmp_path / "bomb.npz", **layers)
    tracemalloc.start()
    try:
        line = line_of(tmp_path / "bomb.npz", most_bytes=10**12)
        assert line.startswith("bomb.npz: unpacks to 90 MB, more than 100 times its size: save its arrays")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_array_names_may_have_thousands_of_digits(tmp_path: Path) -> None:
    name = f"blocks.{'9' * 6000}.attn.hook_pattern"
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes({name: numbers("f4"), "other": numbers("f4")}))
    assert line_of(tmp_path / "x.safetensors").startswith(
        "x.safetensors: contains 2 arrays: choose one with --array NAME"
    )
    (tmp_path / "y.safetensors").write_bytes(safetensors_bytes({name: numbers("f4")}))
    assert np.array_equal(read_array(str(tmp_path / "y.safetensors")), numbers("f4"))


def small_files() -> dict[str, bytes]:
    stream = io.BytesIO()
    np.save(stream, numbers("f4"))
    content = stream.getvalue()
    return {"x.npy": content, "x.npz": npz(content), "x.safetensors": safetensors_bytes({"a": numbers("f2")})}


SMALL = small_files()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.parametrize("name", SMALL)
def test_files_with_a_changed_byte_are_read_or_one_line(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    content = bytearray(SMALL[name])
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 8)))
    content[start:stop] = data.draw(st.binary(max_size=8))
    path = tmp_path / name
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), start]))])
    try:
        assert isinstance(read_array(str(path), most_bytes=10**9), np.ndarray)
    except UserError as error:
        assert len(error.lines) == 1


def test_array_files_are_recognised_by_name() -> None:
    assert (
        is_array_file("a/x.NPZ")
        and is_array_file("x.safetensors")
        and is_array_file("x.pt")
        and not is_array_file("x.json")
    )
    with pytest.raises(UserError, match=r"x\.pkl: is a pickled file, which can run code when it is read"):
        is_array_file("x.pkl")


FITTING = {
    (5,): "w: must have the axes (query, key) or (head, query, key) or (layer, head, query, key) (got 5)",
    (): "w: must have the axes (query, key) or (head, query, key) or (layer, head, query, key) (got a single number)",
    (2, 0): "w: is empty (2 × 0)",
    (2, 3): "--context-tokens: is required, since w has 2 queries but 3 keys",
    (3, 3): "--tokens: must contain 3 tokens, one for each query (got 2)",
}  # fmt: skip


@pytest.mark.parametrize("shape", FITTING, ids=str)
def test_arrays_of_wrong_shape_are_one_line(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as raised:
        checked_weights(np.ones(shape), "w", ["a", "b"], None)
    assert raised.value.lines == (FITTING[shape],)


def test_arrays_of_nan_or_huge_numbers_are_refused() -> None:
    for value, message in (
        (np.nan, "contains no numbers"),
        (1e300, "must contain only numbers between -1e+200 and 1e+200"),
    ):
        with pytest.raises(UserError, match=message.replace("+", r"\+")):
            checked_weights(np.full((2, 2), value), "w", None, None)
    with pytest.raises(
        UserError, match=r"--context-tokens: must contain 3 tokens, one for each key \(got 1\)"
    ):
        checked_weights(np.ones((2, 3)), "w", None, ["a"])
    with pytest.raises(UserError, match=r"needs about .* GB of memory"):
        checked_weights(np.ones((2, 3)), "w", None, None, most_bytes=10)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the\ncat\n", ("the", "cat")),
        ("the\r\ncat", ("the", "cat")),
        ("[CLS]\n[SEP]\n", ("[CLS]", "[SEP]")),
        ('["a\\nb", "[SEP]"]', ("a\nb", "[SEP]")),
        ("[1]\n", ("[1]",)),
        ("a\n\n b \n", ("a", "", " b ")),
        ("a\u2028b\x0bc\n", ("a\u2028b\x0bc",)),
    ],
)
def test_tokens_are_lines_or_a_list(tmp_path: Path, text: str, tokens: tuple[str, ...]) -> None:
    (tmp_path / "tokens").write_bytes(text.encode())
    assert read_tokens(str(tmp_path / "tokens")) == tokens


def test_files_without_tokens_are_refused(tmp_path: Path) -> None:
    for name, text, message in (
        ("x.json", "a\n", "must be a JSON list of strings"),
        ("x", "", "is empty: it contains no tokens"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=message):
            read_tokens(str(tmp_path / name))
