"""Memory for tiles, taken once: fresh pages for every tile would cost as much as a matrix product."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from types import TracebackType

import torch
from jaxtyping import Float
from torch import Tensor

MOST_KEPT = 2**24
"""Bytes that stay for the next call at most: the three buffers of a float32 tile are 12 MB."""

_kept: list[Tensor] = []
"""The one buffer that the last call left, on the CPU: small calls come by the thousand. CUDA has a cache."""
_lock = Lock()


class Scratch:
    """Some tile-sized buffers, lent to one job at a time, for as long as the with-block of a call runs.

    As many as jobs run at once are there until the call ends.
    """

    def __init__(self, like: Tensor, count: int = 2) -> None:
        self._like, self._count = like, count
        self._free: list[Tensor] = []

    def __enter__(self) -> "Scratch":
        if self._like.device.type == "cpu":
            with _lock:
                self._free += _kept
                _kept.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with _lock:
            small = (one for one in (*self._free, *_kept) if one.nbytes <= MOST_KEPT and one.is_cpu)
            _kept[:] = sorted(small, key=lambda one: one.nbytes)[-1:]

    @contextmanager
    def lent(self, size: int) -> Iterator[Float[Tensor, "count size"]]:
        """Buffers of that size, for as long as the with-block runs."""
        num_bytes = self._count * size * self._like.itemsize
        with _lock:
            buffer = self._free.pop() if self._free else None
        if buffer is None or buffer.nbytes < num_bytes:
            # A buffer made in inference mode could not be written to outside of it.
            with torch.inference_mode(mode=False):
                buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._like.device)
        try:
            yield buffer[:num_bytes].view(self._like.dtype).view(self._count, size)
        finally:
            with _lock:
                self._free.append(buffer)
