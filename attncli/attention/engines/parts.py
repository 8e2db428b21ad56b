"""What the engine `rows` makes of the rows of its tiles: one class for each thing that can be asked for."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from attncli.attention.engines.tile import Source, Tile, part_of
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Moments, Wanted
from attncli.row_statistics import ROW_STATISTICS, load_formula
from attncli.statistics.moments import merged_moments
from attncli.statistics.top_keys import top_keys


class Part(Protocol):
    """Takes every tile and has a part of the result at the end."""

    def add(self, tile: Tile) -> Callable[[], None] | None:
        """Take in a tile; nothing of it may be kept. Tiles of different queries come at the same time.

        What sums over queries is returned as a function: those of all tiles are called in one order.
        """
        ...

    def result(self) -> dict[str, Any]:
        """Fields of `Computed`."""
        ...


def place_of(tile: Tile) -> tuple[slice, slice, slice]:
    """Where the rows of a tile lie."""
    return tile.block.texts, tile.block.heads, tile.block.queries


class Whole:
    """A tensor that tiles fill; where one tile is all of it, what came of that tile is the tensor."""

    def __init__(self, shape: Sequence[int], like: Tensor) -> None:
        self.shape, self.like = torch.Size(shape), like
        self.tensor: Tensor | None = None
        self.lock = Lock()

    def put(self, tile: Tile, place: tuple[slice, ...], part: Tensor) -> None:
        """Fill in a part; one that looks into the tile's buffers is copied, since they will be written to."""
        with self.lock:
            if self.tensor is None:
                buffers = tile.weights.untyped_storage().data_ptr()
                if part.shape == self.shape and part.untyped_storage().data_ptr() != buffers:
                    self.tensor = part
                    return
                self.tensor = torch.empty(self.shape, dtype=part.dtype, device=self.like.device)
        self.tensor[place] = part


class RowStatistics:
    """The statistics of each row, with its sum, logsumexp and number of visible keys."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        num_texts, num_heads, num_queries, _ = source.shape
        shape, like = (num_texts, num_heads, num_queries), source.like
        self.formulas = {name: load_formula(ROW_STATISTICS[name].formula) for name in wanted.rows}
        self.rows = {name: Whole(shape, like) for name in wanted.rows}
        self.sums, self.logsumexp = Whole(shape, like), Whole(shape, like)
        self.visible = Whole((num_texts, num_queries), like)

    def add(self, tile: Tile) -> None:
        place = place_of(tile)
        found = [(self.rows[name], formula(tile.rows)) for name, formula in self.formulas.items()]
        if tile.logsumexp is not None:
            found.append((self.logsumexp, tile.logsumexp))
        for whole, row in found:
            whole.put(tile, place, row if tile.blind is None else row.masked_fill(tile.blind, torch.nan))
        self.sums.put(tile, place, tile.rows.sums)
        num_texts = place[0].stop - place[0].start
        self.visible.put(tile, (place[0], place[2]), tile.rows.visible[:, 0].expand(num_texts, -1))

    def result(self) -> dict[str, Any]:
        rows = {name: whole.tensor for name, whole in self.rows.items()}
        shared = {"sums": self.sums.tensor, "logsumexp": self.logsumexp.tensor}
        return {"rows": rows, "visible": self.visible.tensor, **shared}


class PreviousToken:
    """The weight on the key before each query; NaN where there is no such key."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        *rows, self.num_keys = source.shape
        self.weights = source.like.new_empty(rows)

    def add(self, tile: Tile) -> None:
        before = tile.rows.queries - 1
        column = (before - tile.keys.start).clamp(0, tile.weights.shape[-1] - 1)
        found = tile.weights.gather(-1, column.unsqueeze(-1).expand(*tile.weights.shape[:-1], 1)).squeeze(-1)
        found = found.masked_fill((before < tile.keys.start) | (before >= tile.keys.stop), 0.0)
        no_such_key = (before < 0) | (before >= self.num_keys)
        no_such_key = no_such_key if tile.blind is None else no_such_key | tile.blind
        self.weights[place_of(tile)] = found.masked_fill(no_such_key, torch.nan)

    def result(self) -> dict[str, Any]:
        return {"previous_token": self.weights}


class TopKeys:
    """The keys of the largest weights of each row."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        *rows, _ = source.shape
        self.keys = torch.empty(*rows, wanted.top_k, dtype=torch.int64, device=source.like.device)
        self.weights = source.like.new_empty(*rows, wanted.top_k)

    def add(self, tile: Tile) -> None:
        place = place_of(tile)
        # Weights have no unit of their own; of scores a difference of 1 is a factor e between weights.
        unit = 0.0 if tile.scores is None else 1.0
        best = top_keys(tile.ranking(), self.keys.shape[-1], unit=unit)
        weights = tile.weights.gather(-1, best.clamp(min=0))
        self.weights[place] = weights.masked_fill(best < 0, torch.nan)
        self.keys[place] = torch.where(best < 0, -1, best + tile.keys.start)

    def result(self) -> dict[str, Any]:
        return {"top_keys": self.keys, "top_weights": self.weights}


class Output:
    """weights @ value."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        assert isinstance(source, AttentionLayer), "weights from elsewhere have no values"
        self.layer = source
        self.output = Whole((*source.shape[:3], source.value.shape[-1]), source.like)

    def add(self, tile: Tile) -> None:
        texts, heads, _ = place_of(tile)
        group = self.layer.group
        kv_heads = slice(heads.start // group, -(-heads.stop // group))
        weights = tile.weights
        value = part_of(self.layer.value, texts, kv_heads, tile.keys).to(weights.dtype)
        shared = weights.view(*value.shape[:2], -1, weights.shape[-1]) @ value
        self.output.put(tile, place_of(tile), shared.view(*weights.shape[:3], -1))

    def result(self) -> dict[str, Any]:
        return {"output": self.output.tensor}


class ScoreMoments:
    """The moments of the finished scores: of each row about its own mean, and the rows' together in float64.

    Chan, Golub and LeVeque 1979.
    """

    def __init__(self, source: Source, wanted: Wanted) -> None:
        *rows, _ = source.shape
        self.like = source.like
        self.numbers = self.like.new_zeros(5, *rows, dtype=torch.float64).unbind()

    def add(self, tile: Tile) -> None:
        assert tile.scores is not None
        scores, count = tile.scores, tile.rows.visible
        if tile.masked:
            hidden = scores == -torch.inf
            lowest = scores.masked_fill(hidden, torch.inf).amin(dim=-1)
            scores = scores.masked_fill(hidden, 0.0)
        else:
            hidden, lowest = None, scores.amin(dim=-1)
        mean = scores.sum(dim=-1, dtype=torch.float64) / count.clamp(min=1)
        centred = scores - mean.to(scores.dtype).unsqueeze(-1)
        if hidden is not None:
            centred.masked_fill_(hidden, 0.0)
        squares = torch.linalg.vector_norm(centred, dim=-1, dtype=torch.float64).square()
        found = (count.expand_as(mean), mean, squares, lowest, tile.scores.amax(dim=-1))
        for numbers, new in zip(self.numbers, found, strict=True):
            numbers[place_of(tile)] = new.double()

    def result(self) -> dict[str, Any]:
        return {"moments": moments_of_heads(*self.numbers)}


def moments_of_heads(count: Tensor, *blocks: Tensor) -> Moments:
    """From counts, means, squared deviations and ranges of blocks to the moments of each head."""
    merged = merged_moments(count.long(), *blocks)
    return Moments(*(merged[name] for name in ("mean", "variance", "min", "max")))
