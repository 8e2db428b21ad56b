"""Chunks of numbers and what workers do with them, importable by name in a worker's process."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

KILLER = 13
WRONG = 7


@dataclass(frozen=True)
class Numbers:
    """A chunk as the engines see it: it has a length and can be halved."""

    numbers: tuple[int, ...]
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def split(self) -> "list[Numbers]":
        middle = len(self.numbers) // 2
        return [Numbers(half, self.folder) for half in (self.numbers[:middle], self.numbers[middle:])]


def chunks_of(count: int, size: int, folder: Path | None = None) -> list[Numbers]:
    return [Numbers(tuple(range(i, min(i + size, count))), folder) for i in range(0, count, size)]


def squares(chunk: Numbers) -> list[int]:
    return [number**2 for number in chunk.numbers]


def squares_by_process(chunk: Numbers) -> tuple[list[int], int, int]:
    import torch

    time.sleep(0.02)
    return squares(chunk), os.getpid(), torch.get_num_threads()


def killed_by_thirteen(chunk: Numbers) -> list[int]:
    if KILLER in chunk.numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return squares(chunk)


def killed_once(chunk: Numbers) -> list[int]:
    """The first worker that meets each chunk of a multiple of 3 dies."""
    assert chunk.folder is not None
    seen = chunk.folder / str(chunk.numbers[0])
    if chunk.numbers[0] % 3 == 0 and not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squares(chunk)


def wrong_at_seven(chunk: Numbers) -> list[int]:
    if WRONG in chunk.numbers:
        raise ValueError(f"no {WRONG}\nin here")
    return squares(chunk)


def tells_and_sleeps(chunk: Numbers) -> None:
    assert chunk.folder is not None
    (chunk.folder / f"pid-{os.getpid()}").touch()
    time.sleep(600)


def cannot_be_sent(chunk: Numbers) -> object:
    return lambda: chunk


def sends_much(chunk: Numbers) -> bytes:
    return bytes(5_000_000)
