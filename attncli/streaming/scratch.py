"""Memory for tiles, taken once: fresh pages for every block would cost as much as a matrix product."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from jaxtyping import Float
from torch import Tensor


class Scratch:
    """Pairs of tile-sized buffers, one pair for each thread, lent to one job at a time."""

    def __init__(self, num_threads: int, size: int, like: Tensor) -> None:
        self._free: SimpleQueue[Tensor] = SimpleQueue()
        for _ in range(num_threads):
            self._free.put(like.new_empty(2, size))

    @contextmanager
    def lent(self) -> Iterator[Float[Tensor, "2 size"]]:
        """A pair of buffers, for as long as the with-block runs."""
        buffers = self._free.get()
        try:
            yield buffers
        finally:
            self._free.put(buffers)
