"""Sums over columns, in a second pass, since they take the rows' sums: received mass and pooled maps."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines.matrices import PooledGrid
from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tiles.scores import Head, QueryBlock
from attncli.attention.engines.tiles.tile_passes import tile_pass_for
from attncli.attention.engines.tiles.tiles import TileSizes, score_tiles


@dataclass(frozen=True)
class ColumnSums:
    """Of some rows of a head: what each kept key receives; sum and largest weight of each pooled block."""

    received: Float[Tensor, " kept"]
    mass: Float[Tensor, "query_block key_block"]
    largest: Float[Tensor, "query_block key_block"]


def no_column_sums(head: Head, grid: PooledGrid, like: Tensor) -> ColumnSums:
    """The sums before any row was seen."""
    received = like.new_zeros(len(head.visibility.kept), dtype=torch.float64)
    return ColumnSums(received, like.new_zeros(grid.counts, dtype=torch.float64), like.new_zeros(grid.counts))


def sum_columns(
    head: Head,
    blocks: Iterable[QueryBlock],
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    grid: PooledGrid,
    sizes: TileSizes,
    scratch: Scratch,
    into: ColumnSums,
) -> None:
    """Adds the weights 2^(score - reference) * inverse of blocks of queries, by strips of pooled rows."""
    add_columns = tile_pass_for(reference).add_columns
    height, width = grid.steps
    block_of_key = head.visibility.kept.div(width, rounding_mode="floor")
    for block in blocks:
        rows = block.rows
        for tile in score_tiles(head, block, sizes, scratch):
            of_keys = block_of_key[tile.keys]
            for row in range(rows.start // height, -(-rows.stop // height)):
                strip = slice(max(row * height, rows.start), min((row + 1) * height, rows.stop))
                own = slice(strip.start - rows.start, strip.stop - rows.start)
                mass, largest = torch.zeros(2, len(of_keys), dtype=reference.dtype, device=reference.device)
                add_columns(tile, own, reference[strip], inverse[strip], mass, largest)
                received = mass.double()
                into.received[tile.keys] += received
                into.mass[row].index_add_(0, of_keys, received)
                into.largest[row].scatter_reduce_(0, of_keys, largest, "amax")


def column_statistics(
    head: Head, parts: Iterable[ColumnSums], grid: PooledGrid, num_keys: int
) -> dict[str, Tensor]:
    """The mass that each key receives, and mean and largest weight of each pooled block."""
    received, mass, largest = (
        [getattr(part, name) for part in parts] for name in ("received", "mass", "largest")
    )
    whole = received[0].new_zeros(num_keys)
    whole[head.visibility.kept] = torch.stack(received).sum(0)
    together = torch.stack(mass).sum(0)
    return {
        "received_mass": whole,
        "pooled_mean": together / grid.entries().to(together),
        "pooled_max": torch.stack(largest).amax(0),
    }
