"""Chunks of numbers and what workers do with them, importable by name in a worker's process."""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attncli.runs.driver import Died

KILLER = 13
WRONG = 7


@dataclass(frozen=True)
class Numbers:
    """A chunk as the executors see it: it has a length and can be halved."""

    numbers: tuple[int, ...]
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def split(self) -> "list[Numbers]":
        middle = len(self.numbers) // 2
        return [Numbers(half, self.folder) for half in (self.numbers[:middle], self.numbers[middle:])]


def chunks_of(count: int, size: int, folder: Path | None = None) -> list[Numbers]:
    return [Numbers(tuple(range(i, min(i + size, count))), folder) for i in range(0, count, size)]


def by_number(results: Iterable[tuple[Numbers, object]]) -> dict[int, object]:
    """Each run's result, and that none came twice."""
    found = {}
    for chunk, result in results:
        each = [result] * len(chunk) if isinstance(result, Died) else result
        for number, value in zip(chunk.numbers, each, strict=True):
            assert number not in found
            found[number] = value
    return found


def squares(chunk: Numbers) -> list[int]:
    return [number**2 for number in chunk.numbers]


def squares_by_process(chunk: Numbers) -> tuple[list[int], int, int]:
    import torch

    time.sleep(0.02)
    return squares(chunk), os.getpid(), torch.get_num_threads()


def blocked_signals(chunk: Numbers) -> list[set[signal.Signals]]:
    return [signal.pthread_sigmask(signal.SIG_BLOCK, ())] * len(chunk)


def killed_by_thirteen(chunk: Numbers) -> list[int]:
    if KILLER in chunk.numbers:
        time.sleep(0.1)  # so that the next chunk waits behind this one
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


def older_attncli() -> None:
    """On a worker of its own: another version than here."""
    from attncli.runs import cluster

    cluster.__version__ = "0.0.1"


def without_attncli() -> None:
    """On a worker of its own: as if nobody had installed it there."""
    import sys

    sys.modules["attncli.runs.cluster"] = None
