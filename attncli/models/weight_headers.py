"""The headers of safetensors and GGUF files, checked before other readers open the files, without torch."""

import io
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from attncli.errors import UserError
from attncli.system.files import open_file
from attncli.system.plain_text import parsed_json

LFS = b"version https://git-lfs"
LARGEST_HEADER, LARGEST_FILE = 100_000_000, 2**63
MOST_COMMAS = 10_000_000
"""The most commas in a header, since its entries become objects that take far more memory than the text."""
BITS = re.compile("[0-9]+")
"""Matches the number of bits in the name of a type: F32, BF16, F8_E4M3; BOOL has 8."""


def safetensors_header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """Return the tensors of a safetensors file of the given size, by name, and the offset of their bytes.

    The file begins with the length of the header (8 bytes, little-endian), followed by the header: JSON with
    offsets, which the optional package safetensors does not expose. Raises EOFError if the file is too short,
    and ValueError for a damaged file.
    """
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, LARGEST_HEADER):
        raise EOFError
    written = file.read(length)
    if not written.startswith(b"{") or written.count(b",") > MOST_COMMAS:
        raise ValueError("not an object, or too many entries")
    return parsed_json(written), 8 + length


@dataclass(frozen=True)
class TensorInFile:
    """The location of a tensor's numbers in a file: type (a name, or in GGUF a number), shape, first byte.

    `strides` are the distances between neighbours along each axis, in numbers, or None if the tensor is
    contiguous.
    """

    kind: str | int
    shape: tuple[int, ...]
    begin: int
    strides: tuple[int, ...] | None = None


def safetensors_tensors(path: Path) -> dict[str, TensorInFile]:
    """Return the tensors of a safetensors file, from its header. Raises UserError for a damaged file."""
    size = path.stat().st_size
    try:
        with open_file(path) as file:
            if file.read(len(LFS)) == LFS:
                raise UserError(f"model: {path}: is a Git LFS pointer, not the weights: run git lfs pull")
            file.seek(0)
            header, begin = safetensors_header(file, size)
        tensors, end = tensors_and_end(header, begin)
    except EOFError:
        raise UserError(f"model: {path}: is not a safetensors file, or is truncated") from None
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise UserError(f"model: {path}: is not a safetensors file: its header is damaged") from None
    if end != size:
        raise UserError(f"model: {path}: is truncated: its header specifies {end} bytes")
    return tensors


def tensors_and_end(header: Mapping[str, Any], begin: int) -> tuple[dict[str, TensorInFile], int]:
    """Return the tensors whose bytes begin at this offset, and the end of the last tensor.

    Raises ValueError for a damaged header. As in the safetensors package, every byte must belong to exactly
    one tensor: a file whose tensors share bytes would take far more memory than its size.
    """
    tensors: dict[str, TensorInFile] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        match entry:
            case _ if name == "__metadata__":
                continue
            case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(end)]} if (
                0 <= start <= end <= LARGEST_FILE
            ):
                if not all(type(length) is int and 0 <= length <= LARGEST_FILE for length in shape):
                    raise ValueError(name)
                bits = int(bits_in_name[0]) if (bits_in_name := BITS.search(kind)) else 8
                if prod(shape) * bits != 8 * (end - start):
                    raise ValueError(name)
                tensors[name] = TensorInFile(kind, tuple(shape), begin + start)
                spans.append((start, end))
            case _:
                raise ValueError(name)
    last = 0
    for start, end in sorted(spans):
        if start != last:
            raise ValueError("bytes that belong to two tensors or to none")
        last = end
    return tensors, begin + last


BYTES_A_NUMBER = 4
"""The number of bytes per number as float32, regardless of the bits that a GGUF file uses."""
MAGIC = b"GGUF"
NUMBERS = dict(enumerate("BbHhIif?")) | dict(zip((10, 11, 12), "Qqd", strict=True))
TEXT, ARRAY = 8, 9
"""The types of values in a GGUF header: numbers in `struct` format, strings, and arrays of either."""
MOST_AXES, MOST_ITEMS, NUMBERS_PER_BYTE = 8, 4_000_000, 8
"""The most axes of a tensor, items in all arrays of a header (each an object), and numbers per byte."""
MOST_TENSORS, MOST_VALUES, MOST_TEXT = 1_000_000, 100_000, 2**26
"""The most tensors and settings in a header, and the most bytes of names and strings outside arrays."""
ARCHITECTURE, VOCABULARY = "general.architecture", "tokenizer.ggml.tokens"
ROPE_FREQS, ROPE_LONG, ROPE_SHORT = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
ROPE_TENSORS = (ROPE_FREQS, ROPE_LONG, ROPE_SHORT)
"""Tensors that divide the frequencies of rotary positions; they become settings, not weights."""
MOST_PER_BLOCK = 4096
"""The most items in an array that is kept, such as one per block of a model."""
ALIGNMENT, DEFAULT_ALIGNMENT = "general.alignment", 32
BLOCK, BLOCK_COUNT = re.compile(r"(?:^|\.)blk\.([0-9]+)\."), ".block_count"


Setting = str | int | float | tuple[int | float, ...]
"""A value in a header; a tuple for an array of numbers."""


def check_gguf(path: Path) -> None:
    """Raise a one-line UserError for anything but a GGUF file."""
    try:
        with open_file(path) as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
    if start != MAGIC:
        raise UserError(f"model: {path}: is not a GGUF file")


@dataclass(frozen=True)
class GgufHeader:
    """The tensors and settings of a GGUF file, without long arrays and arrays of strings."""

    tensors: Mapping[str, TensorInFile]
    num_blocks: int
    num_tokens: int
    """The number of tokens in its vocabulary."""
    settings: Mapping[str, Setting]

    @property
    def num_parameters(self) -> int:
        """The number of parameters, regardless of the bits that each takes."""
        return sum(prod(tensor.shape) for tensor in self.tensors.values())


def gguf_header(path: Path) -> GgufHeader:
    """Return the header of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    Raises UserError for a damaged file. The reader in the gguf package turns all tokens into objects, which
    takes 2 s for a vocabulary of 49,000 instead of 0.1 s.
    """
    check_gguf(path)
    about = path.stat()
    return _gguf_header(path, (about.st_size, about.st_mtime_ns))


@lru_cache(maxsize=8)
def _gguf_header(path: Path, _state: tuple[int, int]) -> GgufHeader:
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            header = _Header(file, size)
            tensors, settings = header.read()
            num_tokens = header.lengths.get(VOCABULARY, 0)
    except (OSError, ValueError, KeyError, struct.error, RecursionError):
        raise UserError(f"model: {path}: is not a GGUF file: its header is damaged") from None
    blocks = {block[1] for name in tensors if (block := BLOCK.search(name))}
    whole = GgufHeader(tensors, len(blocks), num_tokens, settings)
    if whole.num_parameters > NUMBERS_PER_BYTE * size:
        raise UserError(f"model: {path}: is truncated: its header specifies {whole.num_parameters} numbers")
    return whole


LONG_ARRAY_BYTES = 2**16


@contextmanager
def gguf_settings(path: Path) -> Iterator[Path]:
    """Write a temporary GGUF file with the metadata of another file and no tensors.

    The reader in the gguf package turns every token of a vocabulary into an object, which takes seconds.
    """
    size = path.stat().st_size
    with TemporaryDirectory() as folder, path.open("rb") as file:
        short = Path(folder) / path.name
        with short.open("wb") as made:
            made.write(_Header(file, size).without_long_arrays())
            # The tensors have places but no numbers: the file has a hole, which takes up no disk space.
            made.truncate(made.tell() + size)
        yield short


class _Header:
    """Reads a GGUF header. Raises ValueError, KeyError or struct.error if the header is damaged."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._num_items = self._text_bytes = 0
        self.lengths: dict[str, int] = {}
        """The lengths of the arrays."""
        version = int.from_bytes(file.read(8)[4:], "little")
        self._order = "<" if version & 0xFFFF else ">"

    def read(self) -> tuple[dict[str, TensorInFile], dict[str, Setting]]:
        """Return the tensors, and the settings without long arrays and arrays of strings."""
        num_tensors, num_values = self._counts()
        values = [self._value() for _ in range(num_values)]
        settings = {name: value for name, value in values if value is not None}
        tensors = dict(self._tensor() for _ in range(num_tensors))
        alignment = settings.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(ALIGNMENT)
        begin = -(-self._file.tell() // alignment) * alignment
        return {
            name: replace(tensor, begin=begin + tensor.begin) for name, tensor in tensors.items()
        }, settings

    def without_long_arrays(self) -> bytes:
        """Return the header with all tensors and settings, without long arrays such as vocabularies."""
        num_tensors, num_values = self._counts()
        values: list[bytes] = []
        for _ in range(num_values):
            begin = self._file.tell()
            self._value()
            length = self._file.tell() - begin
            if length <= LONG_ARRAY_BYTES:
                values.append(self._bytes(begin, length))
        begin = self._file.tell()
        for _ in range(num_tensors):
            self._tensor()
        tensors = self._bytes(begin, self._file.tell() - begin)
        return b"".join(
            [self._bytes(0, 8), struct.pack(f"{self._order}QQ", num_tensors, len(values)), *values, tensors]
        )

    def _bytes(self, begin: int, length: int) -> bytes:
        after = self._file.tell()
        self._file.seek(begin)
        data = self._file.read(length)
        self._file.seek(max(after, begin + length))
        return data

    def _counts(self) -> tuple[int, int]:
        """Return the numbers of tensors and of settings."""
        num_tensors, num_values = self._numbers("QQ")
        if num_tensors > MOST_TENSORS or num_values > MOST_VALUES:
            raise ValueError("too many tensors or settings")
        return num_tensors, num_values

    def _numbers(self, form: str) -> tuple[Any, ...]:
        form = self._order + form
        return struct.unpack(form, self._file.read(struct.calcsize(form)))

    def _skip(self, length: int) -> None:
        if length > self._size - self._file.tell():
            raise ValueError("beyond the end")
        self._file.seek(length, io.SEEK_CUR)

    def _text(self) -> str:
        (length,) = self._numbers("Q")
        self._text_bytes += length
        if length > self._size - self._file.tell() or self._text_bytes > MOST_TEXT:
            raise ValueError("beyond the end, or too long")
        return self._file.read(length).decode()

    def _value(self) -> tuple[str, Setting | None]:
        name, (kind,) = self._text(), self._numbers("I")
        if kind == TEXT:
            return name, self._text()
        if kind == ARRAY:
            item_kind, count = self._numbers("IQ")
            self.lengths[name] = count
            if item_kind in NUMBERS and count <= MOST_PER_BLOCK and name.partition(".")[0] != "tokenizer":
                self._num_items += count
                return name, self._numbers(f"{count}{NUMBERS[item_kind]}")
            self._skip_values(item_kind, count)
            return name, None
        return name, self._numbers(NUMBERS[kind])[0]

    def _skip_values(self, kind: int, count: int) -> None:
        """Skip values of one type; values of variable length are skipped one by one."""
        self._num_items += count
        if self._num_items > MOST_ITEMS:
            raise ValueError("too many items")
        if kind == TEXT:
            for _ in range(count):
                self._skip(*self._numbers("Q"))
        elif kind == ARRAY:
            for _ in range(count):
                self._skip_values(*self._numbers("IQ"))
        else:
            self._skip(count * struct.calcsize(f"<{NUMBERS[kind]}"))

    def _tensor(self) -> tuple[str, TensorInFile]:
        """Return a tensor, with its first byte relative to that of the first tensor."""
        name, (num_axes,) = self._text(), self._numbers("I")
        if num_axes > MOST_AXES:
            raise ValueError("too many axes")
        *shape, kind, offset = self._numbers(f"{num_axes}QIQ")
        return name, TensorInFile(kind, tuple(reversed(shape)), offset)


def check_model_gguf(path: Path) -> GgufHeader:
    """Return the header of a GGUF file. Raises UserError if the file is damaged or contains no model."""
    header = gguf_header(path)
    counts = {key: count for key, count in header.settings.items() if key.endswith(BLOCK_COUNT)}
    key = f"{header.settings[ARCHITECTURE]}{BLOCK_COUNT}" if ARCHITECTURE in header.settings else ARCHITECTURE
    # Without this key, transformers would use another model's count.
    if ARCHITECTURE not in header.settings or key not in counts:
        raise UserError(f"model: {path}: does not contain a model: {key:.200} is missing")
    for key, count in counts.items():
        if not isinstance(count, int) or count > header.num_blocks:
            wrong = f"must be at most {header.num_blocks}, the number of blocks in its tensors"
            raise UserError(f"model: {path}: {key:.200} {wrong} (got {count!s:.20})")
    return header
