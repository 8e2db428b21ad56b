"""The work on one head, cut into jobs. Each owns what it fills, whatever runs beside it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Lock

from torch import Tensor

from attncli.attention.engines.matrices import PooledGrid
from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tiles.columns import column_statistics, no_column_sums, sum_columns
from attncli.attention.engines.tiles.row_sums import SAFE_BITS, no_sums
from attncli.attention.engines.tiles.rows import row_statistics, score_moments
from attncli.attention.engines.tiles.scores import Head
from attncli.attention.engines.tiles.ties import break_ties
from attncli.attention.engines.tiles.tiles import TileSizes, sum_rows

Job = Callable[[], None]

ROWS_AT_ONCE = 2048
"""Rows whose statistics come of their sums at once: with few, each operation costs more than its numbers."""
CHAINS = 8
"""Sums of columns of a head that are filled side by side."""


@dataclass(frozen=True)
class Plan:
    """What is the same for all heads."""

    num_queries: int
    top_k: int
    sizes: TileSizes
    scratch: Scratch
    grid: PooledGrid
    like: Tensor

    def blocks(self) -> list[slice]:
        """Queries of a job, the last first: under a causal mask they take longest."""
        return list(slices(self.num_queries, self.sizes.queries))[::-1]


class HeadJobs:
    """Fills `into`, the tensors of one head by name; the jobs of a stage may run once the last is done."""

    def __init__(self, head: Head, plan: Plan, into: dict[str, Tensor]) -> None:
        self.head, self.plan, self.into = head, plan, into
        self.block = head.block(slice(0, plan.num_queries))
        # One key more than is wanted, to see whether the last ties.
        num_top = plan.top_k + 1 if plan.top_k else 0
        self.sums = no_sums(into["output"], num_top, bounded=head.bound < SAFE_BITS)

    def rows(self) -> list[Job]:
        """The running sums of each block of queries; whatever ends a part also computes its statistics."""
        blocks = self.plan.blocks()
        self.blocks_left = Counter(part for rows in blocks for part in _parts_of(rows))
        self.lock = Lock()
        return [partial(self._sum_block, rows) for rows in blocks]

    def _sum_block(self, rows: slice) -> None:
        plan = self.plan
        sum_rows(self.head, self.block.of(rows), self.sums.of(rows), plan.sizes, plan.scratch)
        for part in _parts_of(rows):
            with self.lock:
                self.blocks_left[part] -= 1
                is_done = self.blocks_left[part] == 0
            if is_done:
                self._fill_part(part)

    def columns(self) -> list[Job]:
        """The sums of columns; of every so many blocks one job."""
        self.parts = [no_column_sums(self.head, self.plan.grid, self.plan.like) for _ in range(CHAINS)]
        return [
            partial(
                sum_columns,
                self.head,
                [self.block.of(rows) for rows in self.plan.blocks()[chain::CHAINS]],
                self.sums.reference,
                self.into["inverse"],
                self.plan.grid,
                self.plan.sizes,
                self.plan.scratch,
                part,
            )
            for chain, part in enumerate(self.parts)
        ]

    def fill_columns(self) -> None:
        """What comes of the sums of columns."""
        num_keys = len(self.into["received_mass"])
        for name, numbers in column_statistics(self.head, self.parts, self.plan.grid, num_keys).items():
            self.into[name].copy_(numbers)

    def _fill_part(self, part: int) -> None:
        plan = self.plan
        rows = slice(part * ROWS_AT_ONCE, min((part + 1) * ROWS_AT_ONCE, plan.num_queries))
        block, sums = self.block.of(rows), self.sums.of(rows)
        if plan.top_k:
            break_ties(self.head, rows, sums.top_scores, sums.top_ranks, plan.sizes, plan.scratch)
        for name, numbers in row_statistics(self.head, block, sums).items():
            self.into[name][rows] = numbers
        self.into["moments"][part] = score_moments(block, sums)


def _parts_of(rows: slice) -> range:
    """The parts of ROWS_AT_ONCE rows in which these lie."""
    return range(rows.start // ROWS_AT_ONCE, -(-rows.stop // ROWS_AT_ONCE))


def slices(count: int, size: int) -> Iterator[slice]:
    """Slices of that size over so many; the last is shorter."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
