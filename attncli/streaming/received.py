"""The second pass: once logsumexp is known, weights come tile by tile, to be summed over the queries."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.streaming.scores import LOG2_E, Head, QueryBlock
from attncli.streaming.scratch import Scratch
from attncli.streaming.tiles import TileSizes


@dataclass(frozen=True)
class Grid:
    """The blocks of queries and keys over which weights are pooled, and the runs of keys done at a time."""

    num_queries: int
    num_keys: int
    rows: int
    columns: int
    run: int
    """Keys of one job: whole columns, about a tile of them."""

    @classmethod
    def of(cls, num_queries: int, num_keys: int, pooled: int | None, sizes: TileSizes) -> "Grid":
        """At most pooled x pooled blocks; of the size of a tile where nothing is pooled."""
        if pooled is None:
            return cls(num_queries, num_keys, sizes.queries, sizes.keys, sizes.keys)
        rows, columns = max(1, -(-num_queries // pooled)), max(1, -(-num_keys // pooled))
        return cls(num_queries, num_keys, rows, columns, columns * max(1, sizes.keys // columns))

    @property
    def shape(self) -> tuple[int, int]:
        return -(-self.num_queries // self.rows), -(-self.num_keys // self.columns)


@dataclass(frozen=True)
class ColumnFigures:
    """What one head's second pass fills: sums over the queries, and the pooled maps."""

    received_mass: Float[Tensor, " key"]
    pooled_mean: Float[Tensor, "pooled_query pooled_key"]
    pooled_max: Float[Tensor, "pooled_query pooled_key"]


def fill_columns(
    head: Head,
    logsumexp: Float[Tensor, " query"],
    start: int,
    grid: Grid,
    sizes: TileSizes,
    scratch: Scratch,
    into: ColumnFigures,
) -> None:
    """Fill the columns of the keys from `start` on, one run of the grid.

    Each job owns its columns, so threads share nothing and sums have one order, whoever runs them.
    """
    stop = min(start + grid.run, grid.num_keys)
    columns = slice(start // grid.columns, -(-stop // grid.columns))
    width = torch.full((columns.stop - columns.start,), grid.columns, device=logsumexp.device)
    width[-1] = stop - (columns.stop - 1) * grid.columns
    received = logsumexp.new_zeros(len(width) * grid.columns, dtype=torch.float64)
    for row in range(grid.shape[0]):
        first, last = row * grid.rows, min((row + 1) * grid.rows, grid.num_queries)
        mass, peak = torch.zeros_like(received), torch.zeros_like(received, dtype=logsumexp.dtype)
        for query in range(first, last, sizes.queries):
            block = head.block(slice(query, min(query + sizes.queries, last)))
            _add_block(head, block, logsumexp, start, stop, sizes, scratch, mass, peak)
        received += mass
        into.pooled_mean[row, columns] = mass.view(-1, grid.columns).sum(-1) / (width * (last - first))
        into.pooled_max[row, columns] = peak.view(-1, grid.columns).amax(-1)
    into.received_mass[start:stop] = received[: stop - start]


def _add_block(
    head: Head,
    block: QueryBlock,
    logsumexp: Float[Tensor, " query"],
    start: int,
    stop: int,
    sizes: TileSizes,
    scratch: Scratch,
    mass: Float[Tensor, " key"],
    peak: Float[Tensor, " key"],
) -> None:
    kept = head.visibility.kept
    ranks = torch.searchsorted(kept, torch.tensor([start, stop], device=kept.device)).tolist()
    reference = (logsumexp[block.rows].double() * LOG2_E - block.centre).nan_to_num(0.0).to(peak.dtype)
    with scratch.lent() as (buffer, _):
        for keys, seen_by_all in block.interval.within(*ranks).tiles(sizes.keys):
            scores = head.scores(block, keys, buffer)
            weights = scores.sub_(reference[:, None]).exp2_()
            if not seen_by_all:
                own = torch.arange(keys.start, keys.stop, device=kept.device)
                weights.masked_fill_(block.interval.hides(own), 0.0)
            here = kept[keys] - start
            mass[here] += weights.sum(0)
            peak[here] = torch.maximum(peak[here], weights.amax(0))
