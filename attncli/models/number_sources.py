"""Sources of the numbers of weights: tensors in files, read in parts, possibly converted or processed."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from threading import local
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from attncli.core.few_rows import HALVES
from attncli.errors import UserError
from attncli.models.weight_headers import TensorInFile
from attncli.system.platforms import read_ahead

CHUNK_NUMBERS = 2**20
"""The count of numbers widened at a time, which stay in a core's cache until they are multiplied."""
AHEAD_BYTES = 2**28
"""The number of bytes that the system reads ahead: more than a disk delivers while they are used."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch types by their names in the header of a safetensors file."""


class WeightFile:
    """A file that is read in parts and must not change meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"model: {path}: cannot be read: {error.strerror}") from None
        finalize(self, os.close, self._file)
        self._state = self._now()

    def check_holds(self, begin: int, size: int) -> None:
        """Raise UserError if the file is shorter than its header requires."""
        if begin + size > self._state[0]:
            raise UserError(f"model: {self.path}: is truncated: its header specifies {begin + size} bytes")

    def _now(self) -> tuple[int, int]:
        about = os.fstat(self._file)
        return about.st_size, about.st_mtime_ns

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Read bytes, starting at an offset. Raises UserError if the file has changed or cannot be read."""
        done = 0
        try:
            while done < len(buffer):
                num_read = os.preadv(self._file, [buffer[done:]], offset + done)
                if not num_read:
                    break
                done += num_read
        except OSError as error:
            raise UserError(f"model: {self.path}: cannot be read: {error.strerror}") from None
        if done < len(buffer) or self._now() != self._state:
            raise UserError(f"model: {self.path}: changed while it was being read: run the command again")

    def mapped(self, offset: int, size: int) -> np.ndarray:
        """Map bytes from an offset on into the pages of the file; writes to them stay in this process.

        Raises UserError if the file has changed.
        """
        if self._now() != self._state:
            raise UserError(f"model: {self.path}: changed while it was being read: run the command again")
        with os.fdopen(os.dup(self._file), "rb") as file:
            return np.memmap(file, np.uint8, "c", offset, (size,))

    def read_ahead(self, offset: int, size: int) -> None:
        """Tell the system that these bytes will be needed, so that it reads them early."""
        read_ahead(self._file, offset, size)


class NumberSource:
    """A source of the numbers of a weight, which can read some rows without reading the others."""

    shape: torch.Size
    dtype: torch.dtype
    stored_bytes: int
    """The number of bytes that the whole weight takes in its files."""
    is_read_by_threads = False
    """True if several threads may read different rows at the same time."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Return the numbers of some rows (along the first axis)."""
        raise NotImplementedError

    def passing(self, start: int, stop: int) -> Tensor:
        """Return the rows as `rows` does, in memory that the next call in this thread reuses."""
        return self.rows(start, stop)

    def narrow(self) -> "NumberSource | None":
        """Return a source of these numbers in half precision, or None if half precision would change them."""
        return None

    def whole(self) -> Tensor:
        """Return all numbers, in the shape of the weight."""
        raise NotImplementedError

    def mapped(self) -> Tensor | None:
        """Return all numbers, in the pages of the file, or None if they are stored in another form."""
        return None

    def will_be_read(self) -> None:
        """Prepare for a read. This is called shortly before the numbers are needed."""
        raise NotImplementedError


def in_file(file: WeightFile, about: TensorInFile) -> NumberSource:
    """Return a source for a tensor of a safetensors file, or of a file written by torch.save."""
    return InRows(file, about) if about.strides is None else InStrides(file, about)


@dataclass
class InRows(NumberSource):
    """A tensor that is stored row by row."""

    file: WeightFile
    about: TensorInFile
    is_read_by_threads = True

    def __post_init__(self) -> None:
        self.shape, self.dtype = torch.Size(self.about.shape), DTYPES[str(self.about.kind)]
        self.stored_bytes = prod(self.shape) * self.dtype.itemsize
        self.file.check_holds(self.about.begin, self.stored_bytes)

    def rows(self, start: int, stop: int) -> Tensor:
        return self._read(torch.empty((stop - start, *self.shape[1:]), dtype=self.dtype), start)

    def passing(self, start: int, stop: int) -> Tensor:
        return self._read(_memory("read", (stop - start, *self.shape[1:]), self.dtype), start)

    def whole(self) -> Tensor:
        return self._read(torch.empty(self.shape, dtype=self.dtype))

    def narrow(self) -> NumberSource | None:
        return self if self.dtype in HALVES else None

    def mapped(self) -> Tensor | None:
        if self.about.begin % self.dtype.itemsize:  # safetensors headers may have any length
            return None
        pages = self.file.mapped(self.about.begin, self.stored_bytes)
        return torch.from_numpy(pages).view(self.dtype).view(self.shape)

    def _read(self, numbers: Tensor, start: int = 0) -> Tensor:
        begin = self.about.begin + start * prod(self.shape[1:]) * self.dtype.itemsize
        self.file.read_into(numbers.view(-1).view(torch.uint8).numpy().data, begin)
        return numbers

    def will_be_read(self) -> None:
        self.file.read_ahead(self.about.begin, self.stored_bytes)


@dataclass
class InStrides(NumberSource):
    """A tensor that was saved as a view, such as a transposed tensor; it is read as a whole."""

    file: WeightFile
    about: TensorInFile

    def __post_init__(self) -> None:
        strides = self.about.strides or ()
        self.shape = torch.Size(self.about.shape)
        span = 1 + sum((axis - 1) * stride for axis, stride in zip(self.shape, strides, strict=True))
        self._all = InRows(self.file, replace(self.about, shape=(span,), strides=None))
        self.dtype, self.stored_bytes = self._all.dtype, self._all.stored_bytes

    def rows(self, start: int, stop: int) -> Tensor:
        return self.whole()[start:stop]

    def whole(self) -> Tensor:
        return self._all.whole().as_strided(self.shape, self.about.strides or ()).contiguous()

    def will_be_read(self) -> None:
        self._all.will_be_read()


@dataclass
class InGguf(NumberSource):
    """A tensor in a GGUF file: blocks of numbers with few bits each, row by row."""

    file: WeightFile
    about: TensorInFile
    is_read_by_threads = True

    def __post_init__(self) -> None:
        from gguf import GGMLQuantizationType, quant_shape_to_byte_shape

        self.shape, self.dtype = torch.Size(self.about.shape), torch.float32
        self._kind = GGMLQuantizationType(int(self.about.kind))
        self._of_blocks = quant_shape_to_byte_shape(self.about.shape, self._kind)
        self.stored_bytes = prod(self._of_blocks)
        self.file.check_holds(self.about.begin, self.stored_bytes)

    def rows(self, start: int, stop: int) -> Tensor:
        # A vector's blocks lie along its only axis.
        if len(self.shape) < 2:
            return self.whole()[start:stop]
        begin = self.about.begin + start * prod(self._of_blocks[1:])
        return self._read((stop - start, *self._of_blocks[1:]), begin)

    def whole(self) -> Tensor:
        if len(self.shape) < 2:
            return self._read(self._of_blocks, self.about.begin)
        # This is done in chunks, so that only the numbers are stored as a whole.
        numbers = torch.empty(self.shape)
        for start, stop in chunks(self):
            numbers[start:stop] = self.rows(start, stop)
        return numbers

    def _read(self, of_blocks: Sequence[int], begin: int) -> Tensor:
        from gguf import dequantize

        blocks = np.empty(of_blocks, dtype=np.uint8)
        self.file.read_into(blocks.reshape(-1).data, begin)
        return torch.from_numpy(dequantize(blocks, self._kind))

    def will_be_read(self) -> None:
        self.file.read_ahead(self.about.begin, self.stored_bytes)


@dataclass
class Cast(NumberSource):
    """The numbers of another source, converted to the dtype and device of the computation."""

    source: NumberSource
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        self.shape, self.stored_bytes = self.source.shape, self.source.stored_bytes
        self.is_read_by_threads = self.source.is_read_by_threads and self.device.type == "cpu"

    def rows(self, start: int, stop: int) -> Tensor:
        # The numbers move in the stored type, since widening on the device is faster than the transfer.
        return self.source.rows(start, stop).to(self.device).to(self.dtype)

    def passing(self, start: int, stop: int) -> Tensor:
        read = self.source.passing(start, stop)
        if self.device.type != "cpu":
            return read.to(self.device).to(self.dtype)
        return read if read.dtype == self.dtype else _memory("widened", read.shape, self.dtype).copy_(read)

    def whole(self) -> Tensor:
        if self.shape and self.source.dtype != self.dtype and self.device.type == "cpu":
            widened = torch.empty(self.shape, dtype=self.dtype)
            for start, stop in chunks(self):
                widened[start:stop] = self.source.passing(start, stop)
            return widened
        return self.source.whole().to(self.device).to(self.dtype)

    def narrow(self) -> NumberSource | None:
        return self.source.narrow()

    def mapped(self) -> Tensor | None:
        return self.source.mapped() if self.source.dtype == self.dtype else None

    def will_be_read(self) -> None:
        self.source.will_be_read()


@dataclass
class Processed(NumberSource):
    """GGUF tensors as transformers converts them, with rows reordered or experts merged into one tensor."""

    parts: Sequence[tuple[str, NumberSource]]
    process: Callable[[np.ndarray, str, dict[str, Tensor]], np.ndarray | None]
    name: str
    """The name of the weight in the model."""
    shape: torch.Size
    dtype = torch.float32

    def __post_init__(self) -> None:
        self.stored_bytes = sum(part.stored_bytes for _, part in self.parts)

    def rows(self, start: int, stop: int) -> Tensor:
        # Experts are converted separately; rows of a matrix may be reordered.
        if len(self.shape) < 3:
            return self.whole()[start:stop]
        return self._made(lambda part: part.rows(start, stop))

    def whole(self) -> Tensor:
        return self._made(lambda part: part.whole())

    def _made(self, numbers: Callable[[NumberSource], Tensor]) -> Tensor:
        made: dict[str, Tensor] = {}
        for name, part in self.parts:
            numbers_made = self.process(numbers(part).numpy(), name, made)
            if numbers_made is not None:
                return torch.from_numpy(np.ascontiguousarray(numbers_made))
        return made[self.name]

    def will_be_read(self) -> None:
        for _, part in self.parts:
            part.will_be_read()


_reused_memory = local()


def _memory(what: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return memory for data needed only until the next read, since allocation takes longer than reading."""
    size = prod(shape)
    memory: Tensor | None = getattr(_reused_memory, what, None)
    if memory is None or size > len(memory):
        memory = torch.empty(size, dtype=torch.float64)
        setattr(_reused_memory, what, memory)
    return memory.view(torch.uint8)[: size * dtype.itemsize].view(dtype).view(*shape)


def chunks(source: NumberSource) -> Iterator[tuple[int, int]]:
    """Yield ranges of a source's rows, a few rows each."""
    row = max(1, prod(source.shape[1:]))
    at_a_time = max(1, CHUNK_NUMBERS // row)
    return pairwise([*range(0, source.shape[0], at_a_time), source.shape[0]])
