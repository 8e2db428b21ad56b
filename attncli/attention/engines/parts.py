"""What the engine `rows` makes of its tiles: one class for each thing that can be asked for."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from attncli.attention.engines.tile import Source, Tile
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Moments, Wanted
from attncli.row_statistics import ROW_STATISTICS, load_formula
from attncli.statistics.concentration import top_keys
from attncli.statistics.moments import merged_moments


class Part(Protocol):
    """Takes every tile in turn and has a part of the result at the end."""

    def add(self, tile: Tile) -> None:
        """Take in a tile; nothing of it may be kept."""
        ...

    def result(self) -> dict[str, Any]:
        """Fields of `Computed`."""
        ...


def _type_of(source: Source) -> Tensor:
    """An empty tensor of the type and on the device of the computation."""
    tensor = source.query if isinstance(source, AttentionLayer) else source.weights
    return tensor.new_empty(0, dtype=torch.promote_types(tensor.dtype, torch.float32))


def _place(tile: Tile) -> tuple[slice, slice, slice]:
    return tile.block.texts, tile.block.heads, tile.block.queries


class Whole:
    """A tensor that tiles fill; where one tile is all of it, that tile's own."""

    def __init__(self, shape: Sequence[int], like: Tensor) -> None:
        self.shape, self.like = torch.Size(shape), like
        self.tensor: Tensor | None = None

    def put(self, place: tuple[slice, ...], part: Tensor) -> None:
        """Fill in a part, which must not be written to any more."""
        if self.tensor is None:
            if part.shape == self.shape:
                self.tensor = part
                return
            self.tensor = torch.empty(self.shape, dtype=part.dtype, device=self.like.device)
        self.tensor[place] = part


class RowStatistics:
    """The statistics of each row, with its sum, logsumexp and number of visible keys."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        num_texts, num_heads, num_queries, _ = source.shape
        shape, like = (num_texts, num_heads, num_queries), _type_of(source)
        self.formulas = {name: load_formula(ROW_STATISTICS[name].formula) for name in wanted.rows}
        self.rows = {name: Whole(shape, like) for name in wanted.rows}
        self.sums, self.logsumexp = Whole(shape, like), Whole(shape, like)
        self.visible = torch.empty(num_texts, num_queries, dtype=torch.int64, device=like.device)

    def add(self, tile: Tile) -> None:
        place = _place(tile)
        found = [(self.rows[name], formula(tile.rows)) for name, formula in self.formulas.items()]
        if tile.logsumexp is not None:
            found.append((self.logsumexp, tile.logsumexp))
        for whole, row in found:
            whole.put(place, row if tile.blind is None else row.masked_fill(tile.blind, torch.nan))
        self.sums.put(place, tile.rows.sums)
        self.visible[place[0], place[2]] = tile.rows.visible[:, 0]

    def result(self) -> dict[str, Any]:
        rows = {name: whole.tensor for name, whole in self.rows.items()}
        shared = {"sums": self.sums.tensor, "logsumexp": self.logsumexp.tensor}
        return {"rows": rows, "visible": self.visible, **shared}


class PreviousToken:
    """The weight on the key before each query; NaN where there is no such key."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        *rows, self.num_keys = source.shape
        self.weights = _type_of(source).new_empty(rows)

    def add(self, tile: Tile) -> None:
        before = tile.rows.queries - 1
        column = (before - tile.keys.start).clamp(0, tile.weights.shape[-1] - 1)
        found = tile.weights.gather(-1, column.unsqueeze(-1).expand(*tile.weights.shape[:-1], 1)).squeeze(-1)
        found = found.masked_fill((before < tile.keys.start) | (before >= tile.keys.stop), 0.0)
        no_such_key = (before < 0) | (before >= self.num_keys)
        no_such_key = no_such_key if tile.blind is None else no_such_key | tile.blind
        self.weights[_place(tile)] = found.masked_fill(no_such_key, torch.nan)

    def result(self) -> dict[str, Any]:
        return {"previous_token": self.weights}


class TopKeys:
    """The keys of the largest weights of each row."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        *rows, _ = source.shape
        self.keys = torch.empty(*rows, wanted.top_k, dtype=torch.int64, device=_type_of(source).device)
        self.weights = _type_of(source).new_empty(*rows, wanted.top_k)

    def add(self, tile: Tile) -> None:
        place = _place(tile)
        best = top_keys(tile.ranking(), self.keys.shape[-1])
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
        self.output = Whole((*source.shape[:3], source.value.shape[-1]), _type_of(source))

    def add(self, tile: Tile) -> None:
        texts, heads, _ = _place(tile)
        group = self.layer.group
        kv_heads = slice(heads.start // group, -(-heads.stop // group))
        weights = tile.weights
        value = self.layer.value[texts, kv_heads, tile.keys].to(weights.dtype)
        shared = weights.view(*value.shape[:2], -1, weights.shape[-1]) @ value
        self.output.put(_place(tile), shared.view(*weights.shape[:3], -1))

    def result(self) -> dict[str, Any]:
        return {"output": self.output.tensor}


class Matrices:
    """Whole matrices: weights, and scores where they are wanted; hidden scores are -inf."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        like = _type_of(source)
        self.weights = like.new_zeros(source.shape)
        self.scores = {
            name: like.new_full(source.shape, -torch.inf)
            for name in ("scores", "raw_scores")
            if wanted.scores
        }

    def add(self, tile: Tile) -> None:
        place = (*_place(tile), tile.keys)
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
        self.weights = _type_of(source).new_zeros(num_texts, len(self.heads), num_queries, num_keys)

    def add(self, tile: Tile) -> None:
        texts, heads, queries = _place(tile)
        for number, head in enumerate(self.heads):
            if heads.start <= head < heads.stop:
                self.weights[texts, number, queries, tile.keys] = tile.weights[:, head - heads.start]

    def result(self) -> dict[str, Any]:
        return {"kept_weights": self.weights}


class HeadMean:
    """The mean of the heads' weights."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        num_texts, self.num_heads, num_queries, num_keys = source.shape
        self.mean = _type_of(source).new_zeros(num_texts, num_queries, num_keys)

    def add(self, tile: Tile) -> None:
        texts, _, queries = _place(tile)
        self.mean[texts, queries, tile.keys] += tile.weights.sum(dim=1) / self.num_heads

    def result(self) -> dict[str, Any]:
        return {"head_mean": self.mean}


class ScoreMoments:
    """The moments of the finished scores: of each row about its own mean, and the rows' together in float64.

    Chan, Golub and LeVeque 1979.
    """

    def __init__(self, source: Source, wanted: Wanted) -> None:
        *rows, _ = source.shape
        self.like = _type_of(source)
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
        mean = scores.sum(dim=-1) / count.clamp(min=1)
        centred = scores - mean.unsqueeze(-1)
        if hidden is not None:
            centred.masked_fill_(hidden, 0.0)
        squares = torch.linalg.vector_norm(centred, dim=-1).double().square()
        found = (count.expand_as(mean), mean, squares, lowest, tile.scores.amax(dim=-1))
        for numbers, new in zip(self.numbers, found, strict=True):
            numbers[_place(tile)] = new.double()

    def result(self) -> dict[str, Any]:
        return {"moments": moments_of_heads(*self.numbers, dtype=self.like.dtype)}


def moments_of_heads(count: Tensor, *blocks: Tensor, dtype: torch.dtype) -> Moments:
    """From counts, means, squared deviations and ranges of blocks to the moments of each head."""
    merged = merged_moments(count.long(), *blocks)
    return Moments(*(merged[name].to(dtype) for name in ("mean", "variance", "min", "max")))


class ReceivedMass:
    """The sum over queries of the weights on each key."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        num_texts, num_heads, _, num_keys = source.shape
        self.like = _type_of(source)
        self.mass = self.like.new_zeros(num_texts, num_heads, num_keys, dtype=torch.float64)

    def add(self, tile: Tile) -> None:
        texts, heads, _ = _place(tile)
        self.mass[texts, heads, tile.keys] += tile.weights.sum(dim=-2)

    def result(self) -> dict[str, Any]:
        return {"received_mass": self.mass.to(self.like.dtype)}


class PooledMaps:
    """Mean and largest weight of blocks of ceil(length / pooled) queries and keys; the last are shorter."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        assert wanted.pooled is not None
        num_texts, num_heads, *sizes = source.shape
        self.sizes = sizes
        self.steps = [max(1, -(-size // wanted.pooled)) for size in sizes]
        self.counts = [-(-size // step) for size, step in zip(sizes, self.steps, strict=True)]
        self.mass = _type_of(source).new_zeros(num_texts, num_heads, *self.counts)
        self.largest = torch.zeros_like(self.mass)

    def add(self, tile: Tile) -> None:
        texts, heads, queries = _place(tile)
        height, width = self.steps
        before = tile.keys.start % width
        first = tile.keys.start // width
        num_blocks = -(-(before + tile.weights.shape[-1]) // width)
        after = num_blocks * width - before - tile.weights.shape[-1]
        padded = torch.nn.functional.pad(tile.weights, (before, after))
        padded = padded.view(*padded.shape[:-1], num_blocks, width)
        mass, largest = padded.sum(dim=-1), padded.amax(dim=-1)
        columns = slice(first, first + num_blocks)
        for row in range(queries.start // height, -(-queries.stop // height)):
            own = slice(max(row * height - queries.start, 0), (row + 1) * height - queries.start)
            self.mass[texts, heads, row, columns] += mass[:, :, own].sum(dim=2)
            here = self.largest[texts, heads, row, columns]
            torch.maximum(here, largest[:, :, own].amax(dim=2), out=here)

    def result(self) -> dict[str, Any]:
        starts = [torch.arange(0, size, step) for size, step in zip(self.sizes, self.steps, strict=True)]
        numbers = [
            (size - first).clamp(max=step)
            for size, step, first in zip(self.sizes, self.steps, starts, strict=True)
        ]
        entries = (numbers[0].unsqueeze(-1) * numbers[1]).to(self.mass)
        return {"pooled_mean": self.mass / entries, "pooled_max": self.largest}


class PatternMass:
    """The weight of each head on each pattern: a product, since it is linear in the weights."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        assert wanted.patterns is not None
        self.patterns = wanted.patterns
        num_texts, num_heads, *_ = source.shape
        self.like = _type_of(source)
        self.mass = self.like.new_zeros(num_texts, num_heads, len(self.patterns.names), dtype=torch.float64)

    def add(self, tile: Tile) -> None:
        texts, heads, queries = _place(tile)
        patterns = self.patterns.block(texts, queries, tile.keys).to(self.like.dtype)
        flat = tile.weights.flatten(-2)
        if len(flat) == 1:  # one by one: products with few columns take longer than with one
            mass = torch.stack([flat[0] @ pattern for pattern in patterns[0].flatten(-2)], dim=-1)
        else:
            mass = flat @ patterns.flatten(-2).mT
        self.mass[texts, heads] += mass

    def result(self) -> dict[str, Any]:
        return {"pattern_mass": self.mass.to(self.like.dtype)}


# Whether a part is asked for, and what makes it.
PARTS: tuple[tuple[Callable[[Wanted], bool], Callable[[Source, Wanted], Part]], ...] = (
    (lambda wanted: True, RowStatistics),
    (lambda wanted: wanted.top_k > 0, TopKeys),
    (lambda wanted: wanted.previous_token, PreviousToken),
    (lambda wanted: wanted.output, Output),
    (lambda wanted: wanted.weights or wanted.scores, Matrices),
    (lambda wanted: bool(wanted.kept_heads), KeptHeads),
    (lambda wanted: wanted.head_mean, HeadMean),
    (lambda wanted: wanted.score_moments, ScoreMoments),
    (lambda wanted: wanted.received_mass, ReceivedMass),
    (lambda wanted: wanted.pooled is not None, PooledMaps),
    (lambda wanted: wanted.patterns is not None, PatternMass),
)
