"""Memory for tiles, taken once: fresh pages for every call would cost as much as a matrix product."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from jaxtyping import Float
from torch import Tensor

_free: dict[tuple[torch.dtype, torch.device, int], list[Tensor]] = {}
_lock = Lock()


class Scratch:
    """Some tile-sized buffers, lent to one job at a time and kept from call to call.

    As many as jobs ever ran at once stay: a few megabytes for each thread.
    """

    def __init__(self, size: int, like: Tensor, count: int = 2) -> None:
        self._size, self._like, self._count = size, like, count

    @contextmanager
    def lent(self) -> Iterator[Float[Tensor, "count size"]]:
        """The buffers, for as long as the with-block runs."""
        kept = _free.setdefault((self._like.dtype, self._like.device, self._count), [])
        with _lock:
            buffers = kept.pop() if kept else self._new(0)
        if buffers.shape[1] < self._size:
            buffers = self._new(self._size)
        try:
            yield buffers[:, : self._size]
        finally:
            with _lock:
                kept.append(buffers)

    def _new(self, size: int) -> Tensor:
        # A buffer made in inference mode could not be written to outside of it.
        with torch.inference_mode(mode=False):
            return torch.empty(self._count, size, dtype=self._like.dtype, device=self._like.device)
