"""Memory for tiles, taken once: fresh pages for every call would cost as much as a matrix product."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from jaxtyping import Float
from torch import Tensor

_free: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
_lock = Lock()


class Scratch:
    """Pairs of tile-sized buffers, lent to one job at a time and kept from call to call.

    As many as jobs ever ran at once stay: a few megabytes for each thread.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self._size, self._like = size, like

    @contextmanager
    def lent(self) -> Iterator[Float[Tensor, "2 size"]]:
        """A pair of buffers, for as long as the with-block runs."""
        kept = _free.setdefault((self._like.dtype, self._like.device), [])
        with _lock:
            buffers = kept.pop() if kept else self._like.new_empty(2, 0)
        if buffers.shape[1] < self._size:
            buffers = self._like.new_empty(2, self._size)
        try:
            yield buffers[:, : self._size]
        finally:
            with _lock:
                kept.append(buffers)
