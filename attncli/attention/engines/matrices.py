"""What the engine `rows` makes of whole tiles: matrices, maps of blocks, and sums over the queries."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncli.attention.engines.parts import place_of
from attncli.attention.engines.tile import Source, Tile
from attncli.attention.results import Wanted
from attncli.statistics.contributions import received_mass


class Matrices:
    """Whole matrices: weights, and scores where they are wanted; hidden scores are -inf."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        like = source.like
        self.weights = like.new_zeros(source.shape)
        self.scores = {
            name: like.new_full(source.shape, -torch.inf)
            for name in ("scores", "raw_scores")
            if wanted.scores
        }

    def add(self, tile: Tile) -> None:
        place = (*place_of(tile), tile.keys)
        self.weights[place] = tile.weights
        if self.scores and tile.scores is not None and tile.raw_scores is not None:
            raw = tile.raw_scores
            hidden = tile.scores == -torch.inf
            self.scores["scores"][place] = tile.scores
            self.scores["raw_scores"][place] = raw.masked_fill(hidden, -torch.inf) if tile.masked else raw

    def result(self) -> dict[str, Any]:
        return {"weights": self.weights, **self.scores}


class KeptHeads:
    """The weights of some heads."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        num_texts, _, num_queries, num_keys = source.shape
        self.heads = wanted.kept_heads
        self.weights = source.like.new_zeros(num_texts, len(self.heads), num_queries, num_keys)

    def add(self, tile: Tile) -> None:
        texts, heads, queries = place_of(tile)
        for number, head in enumerate(self.heads):
            if heads.start <= head < heads.stop:
                self.weights[texts, number, queries, tile.keys] = tile.weights[:, head - heads.start]

    def result(self) -> dict[str, Any]:
        return {"kept_weights": self.weights}


class HeadMean:
    """The mean of the heads' weights."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        num_texts, self.num_heads, num_queries, num_keys = source.shape
        self.mean = source.like.new_zeros(num_texts, num_queries, num_keys)

    def add(self, tile: Tile) -> None:
        texts, _, queries = place_of(tile)
        self.mean[texts, queries, tile.keys] += tile.weights.sum(dim=1) / self.num_heads

    def result(self) -> dict[str, Any]:
        return {"head_mean": self.mean}


class ReceivedMass:
    """The sum over queries of the weights on each key."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        num_texts, num_heads, _, num_keys = source.shape
        self.shape, self.like = (num_texts, num_heads, num_keys), source.like
        self.mass: Tensor | None = None

    def add(self, tile: Tile) -> Callable[[], None]:
        texts, heads, _ = place_of(tile)
        return partial(self._sum, (texts, heads, tile.keys), received_mass(tile.weights))

    def _sum(self, place: tuple[slice, ...], mass: Tensor) -> None:
        if self.mass is None:
            if mass.shape == self.shape:
                self.mass = mass
                return
            self.mass = self.like.new_zeros(self.shape, dtype=torch.float64)
        self.mass[place] += mass

    def result(self) -> dict[str, Any]:
        mass = self.like.new_zeros(self.shape) if self.mass is None else self.mass.to(self.like.dtype)
        return {"received_mass": mass}


class PooledGrid:
    """Blocks of ceil(length / pooled) queries and keys; the last are shorter."""

    def __init__(self, num_queries: int, num_keys: int, pooled: int) -> None:
        self.sizes = (num_queries, num_keys)
        self.steps = [max(1, -(-size // pooled)) for size in self.sizes]
        self.counts = [-(-size // step) for size, step in zip(self.sizes, self.steps, strict=True)]

    def entries(self) -> Tensor:
        """How many entries each block has."""
        numbers = [
            (size - torch.arange(0, size, step)).clamp(max=step)
            for size, step in zip(self.sizes, self.steps, strict=True)
        ]
        return numbers[0].unsqueeze(-1) * numbers[1]


class PooledMaps:
    """Mean and largest weight of blocks of queries and keys."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        assert wanted.pooled is not None
        num_texts, num_heads, num_queries, num_keys = source.shape
        self.grid = PooledGrid(num_queries, num_keys, wanted.pooled)
        self.mass = source.like.new_zeros(num_texts, num_heads, *self.grid.counts)
        self.largest = torch.zeros_like(self.mass)

    def add(self, tile: Tile) -> Callable[[], None]:
        texts, heads, queries = place_of(tile)
        width = self.grid.steps[1]
        before = tile.keys.start % width
        first = tile.keys.start // width
        num_blocks = -(-(before + tile.weights.shape[-1]) // width)
        after = num_blocks * width - before - tile.weights.shape[-1]
        padded = torch.nn.functional.pad(tile.weights, (before, after))
        padded = padded.view(*padded.shape[:-1], num_blocks, width)
        columns = slice(first, first + num_blocks)
        place = texts, heads, queries, columns
        return partial(self._sum, place, padded.sum(dim=-1), padded.amax(dim=-1))

    def _sum(self, place: tuple[slice, ...], mass: Tensor, largest: Tensor) -> None:
        texts, heads, queries, columns = place
        height = self.grid.steps[0]
        for row in range(queries.start // height, -(-queries.stop // height)):
            own = slice(max(row * height - queries.start, 0), (row + 1) * height - queries.start)
            self.mass[texts, heads, row, columns] += mass[:, :, own].sum(dim=2)
            here = self.largest[texts, heads, row, columns]
            torch.maximum(here, largest[:, :, own].amax(dim=2), out=here)

    def result(self) -> dict[str, Any]:
        return {"pooled_mean": self.mass / self.grid.entries().to(self.mass), "pooled_max": self.largest}


FEW_ENTRIES = 4096
"""Entries of a head in a tile up to which a product of matrices costs more to start than to do."""


class PatternMass:
    """The weight of each head on each pattern: a product, since it is linear in the weights."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        assert wanted.patterns is not None
        self.patterns = wanted.patterns
        num_texts, num_heads, *_ = source.shape
        self.shape = (num_texts, num_heads, len(self.patterns.names))
        self.dtype = source.like.dtype
        self.mass: Tensor | None = None

    def add(self, tile: Tile) -> Callable[[], None]:
        texts, heads, queries = place_of(tile)
        patterns = self.patterns.block(texts, queries, tile.keys).to(tile.weights.dtype)
        flat = tile.weights.flatten(-2)
        if len(flat) > 1:
            mass = flat @ patterns.flatten(-2).mT
        elif flat.shape[-1] > FEW_ENTRIES:  # one by one: products with few columns take longer than with one
            mass = torch.stack([flat @ pattern for pattern in patterns[0].flatten(-2)], dim=-1)
        else:  # without a product of matrices, for which threads would have to wake up
            mass = (flat.unsqueeze(1) * patterns.flatten(-2).unsqueeze(2)).sum(dim=-1).mT
        return partial(self._sum, (texts, heads), mass)

    def _sum(self, place: tuple[slice, ...], mass: Tensor) -> None:
        if self.mass is None:
            if mass.shape == self.shape:
                self.mass = mass
                return
            self.mass = mass.new_zeros(self.shape, dtype=torch.float64)
        self.mass[place] += mass

    def result(self) -> dict[str, Any]:
        return {"pattern_mass": None if self.mass is None else self.mass.to(self.dtype)}
