"""The default engine: whole rows in tiles of about a million scores, every result from each tile at once."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.formulas import Rows, Softmax, load_formula, received_mass, top_keys
from attncli.core.layer import AttentionLayer, Computed, Moments, Wanted
from attncli.core.names import ROW_STATISTICS
from attncli.core.row_tiles import (
    NUM_BUFFERS,
    GivenWeights,
    LayerOrWeights,
    Scratch,
    Tile,
    TilePlace,
    run_jobs,
    select_part,
    tile_places,
    tiles,
)
from attncli.core.runtime import torch_threads
from attncli.core.summaries import merged_moments


class Collector(Protocol):
    """Takes in every tile and returns part of the result at the end."""

    def add(self, tile: Tile) -> Callable[[], None] | None:
        """Take in a tile, without holding on to its tensors. Tiles of different queries arrive concurrently.

        Sums over queries are returned as functions, which are called in one order for any number of threads.
        """
        ...

    def result(self) -> dict[str, Any]:
        """Return fields of `Computed`."""
        ...


def tile_slices(tile: Tile) -> tuple[slice, slice, slice]:
    """The slices of texts, heads and queries that a tile covers."""
    return tile.block.texts, tile.block.heads, tile.block.queries


class FilledTensor:
    """A tensor that tiles fill; if one tile covers it, that tile's result becomes the tensor."""

    def __init__(self, shape: Sequence[int], like: Tensor) -> None:
        self.shape, self.like = torch.Size(shape), like
        self.tensor: Tensor | None = None
        self.lock = Lock()

    def put(self, tile: Tile, place: tuple[slice, ...], part: Tensor) -> None:
        """Fill in a part. The part is copied if it shares the tile's buffers, which will be overwritten."""
        with self.lock:
            if self.tensor is None:
                buffers = tile.weights.untyped_storage().data_ptr()
                if part.shape == self.shape and part.untyped_storage().data_ptr() != buffers:
                    self.tensor = part
                    return
                self.tensor = torch.empty(self.shape, dtype=part.dtype, device=self.like.device)
        self.tensor[place] = part


class RowStatistics:
    """The statistics of each row, with the row's sum, logsumexp and number of visible keys."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        num_texts, num_heads, num_queries, _ = source.shape
        shape, like = (num_texts, num_heads, num_queries), source.like
        self.plane = wanted.plane
        self.formulas = {name: load_formula(ROW_STATISTICS[name].formula) for name in wanted.rows}
        self.rows = {name: FilledTensor(shape, like) for name in wanted.rows}
        self.sums, self.logsumexp = FilledTensor(shape, like), FilledTensor(shape, like)
        self.visible = FilledTensor((num_texts, num_queries), like)

    def add(self, tile: Tile) -> None:
        place = tile_slices(tile)
        rows = tile.rows if self.plane is None else replace(tile.rows, plane=self.plane)
        computed = [(self.rows[name], formula(rows)) for name, formula in self.formulas.items()]
        if tile.logsumexp is not None:
            computed.append((self.logsumexp, tile.logsumexp))
        for whole, row in computed:
            whole.put(tile, place, row if tile.blind is None else row.masked_fill(tile.blind, torch.nan))
        self.sums.put(tile, place, tile.rows.sums)
        num_texts = place[0].stop - place[0].start
        self.visible.put(tile, (place[0], place[2]), tile.rows.visible[:, 0].expand(num_texts, -1))

    def result(self) -> dict[str, Any]:
        rows = {name: whole.tensor for name, whole in self.rows.items()}
        shared = {"sums": self.sums.tensor, "logsumexp": self.logsumexp.tensor}
        return {"rows": rows, "visible": self.visible.tensor, **shared}


class PreviousToken:
    """The weight on the key before each query; NaN if there is no such key."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        *rows, self.num_keys = source.shape
        self.weights = source.like.new_empty(rows)

    def add(self, tile: Tile) -> None:
        before = tile.rows.queries - 1
        column = (before - tile.keys.start).clamp(0, tile.weights.shape[-1] - 1)
        weights = tile.weights.gather(-1, column.unsqueeze(-1).expand(*tile.weights.shape[:-1], 1)).squeeze(
            -1
        )
        weights = weights.masked_fill((before < tile.keys.start) | (before >= tile.keys.stop), 0.0)
        no_such_key = (before < 0) | (before >= self.num_keys)
        no_such_key = no_such_key if tile.blind is None else no_such_key | tile.blind
        self.weights[tile_slices(tile)] = weights.masked_fill(no_such_key, torch.nan)

    def result(self) -> dict[str, Any]:
        return {"previous_token": self.weights}


class TopKeys:
    """The keys with the largest weights of each row."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        *rows, _ = source.shape
        self.keys = torch.empty(*rows, wanted.top_k, dtype=torch.int64, device=source.like.device)
        self.weights = source.like.new_empty(*rows, wanted.top_k)

    def add(self, tile: Tile) -> None:
        place = tile_slices(tile)
        # Weights have no unit; a difference of 1 between scores is a factor of e between weights.
        unit = 0.0 if tile.scores is None else 1.0
        best = top_keys(tile.ranking(), self.keys.shape[-1], unit=unit)
        weights = tile.weights.gather(-1, best.clamp(min=0))
        self.weights[place] = weights.masked_fill(best < 0, torch.nan)
        self.keys[place] = torch.where(best < 0, -1, best + tile.keys.start)

    def result(self) -> dict[str, Any]:
        return {"top_keys": self.keys, "top_weights": self.weights}


class Output:
    """weights @ value."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        assert isinstance(source, AttentionLayer), "weights from elsewhere have no values"
        self.layer = source
        self.output = FilledTensor((*source.shape[:3], source.value.shape[-1]), source.like)

    def add(self, tile: Tile) -> None:
        texts, heads, _ = tile_slices(tile)
        group = self.layer.group
        kv_heads = slice(heads.start // group, -(-heads.stop // group))
        weights = tile.weights
        value = select_part(self.layer.value, texts, kv_heads, tile.keys).to(weights.dtype)
        shared = weights.view(*value.shape[:2], -1, weights.shape[-1]) @ value
        self.output.put(tile, tile_slices(tile), shared.view(*weights.shape[:3], -1))

    def result(self) -> dict[str, Any]:
        return {"output": self.output.tensor}


class FinishedScores:
    """Moments of the finished scores, measured about each row's own mean and merged in float64.

    Chan, Golub and LeVeque 1979.
    """

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
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
        moments = (count.expand_as(mean), mean, squares, lowest, tile.scores.amax(dim=-1))
        for numbers, new in zip(self.numbers, moments, strict=True):
            numbers[tile_slices(tile)] = new.double()

    def result(self) -> dict[str, Any]:
        return {"moments": head_moments(*self.numbers)}


def head_moments(count: Tensor, *blocks: Tensor) -> Moments:
    """Merge the counts, means, squared deviations and ranges of blocks into each head's moments."""
    merged = merged_moments(count.long(), *blocks)
    return Moments(*(merged[name] for name in ("mean", "variance", "min", "max")))


class Matrices:
    """Whole matrices: the weights and, if wanted, the scores; hidden scores are -inf."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        like = source.like
        self.weights = like.new_zeros(source.shape)
        self.scores = {
            name: like.new_full(source.shape, -torch.inf)
            for name in ("scores", "raw_scores")
            if wanted.scores
        }

    def add(self, tile: Tile) -> None:
        place = (*tile_slices(tile), tile.keys)
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

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        num_texts, _, num_queries, num_keys = source.shape
        self.heads = wanted.kept_heads
        self.weights = source.like.new_zeros(num_texts, len(self.heads), num_queries, num_keys)

    def add(self, tile: Tile) -> None:
        texts, heads, queries = tile_slices(tile)
        for number, head in enumerate(self.heads):
            if heads.start <= head < heads.stop:
                self.weights[texts, number, queries, tile.keys] = tile.weights[:, head - heads.start]

    def result(self) -> dict[str, Any]:
        return {"kept_weights": self.weights}


class HeadMean:
    """The mean of the weights over all heads."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        num_texts, self.num_heads, num_queries, num_keys = source.shape
        self.mean = source.like.new_zeros(num_texts, num_queries, num_keys)

    def add(self, tile: Tile) -> None:
        texts, _, queries = tile_slices(tile)
        self.mean[texts, queries, tile.keys] += tile.weights.sum(dim=1) / self.num_heads

    def result(self) -> dict[str, Any]:
        return {"head_mean": self.mean}


class ReceivedMass:
    """The sum, over queries, of the weights on each key."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        num_texts, num_heads, _, num_keys = source.shape
        self.shape, self.like = (num_texts, num_heads, num_keys), source.like
        self.mass: Tensor | None = None

    def add(self, tile: Tile) -> Callable[[], None]:
        texts, heads, _ = tile_slices(tile)
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
    """Blocks of ceil(length / pooled) queries and keys; the last blocks may be shorter."""

    def __init__(self, num_queries: int, num_keys: int, pooled: int) -> None:
        self.sizes = (num_queries, num_keys)
        self.steps = [max(1, -(-size // pooled)) for size in self.sizes]
        self.counts = [-(-size // step) for size, step in zip(self.sizes, self.steps, strict=True)]

    def entries(self) -> Tensor:
        """The number of entries in each block."""
        numbers = [
            (size - torch.arange(0, size, step)).clamp(max=step)
            for size, step in zip(self.sizes, self.steps, strict=True)
        ]
        return numbers[0].unsqueeze(-1) * numbers[1]


def _whole_blocks(
    weights: Float[Tensor, "text head query key"], start: int, height: int
) -> Iterator[Float[Tensor, "text head block query key"]]:
    """Split queries into blocks: the end of an earlier block, whole blocks, and the beginning of the next."""
    num_queries = weights.shape[2]
    first = min(-start % height, num_queries)
    last = num_queries - (num_queries - first) % height
    if first:
        yield weights[:, :, None, :first]
    if last > first:
        whole = weights[:, :, first:last]
        yield whole.reshape(*whole.shape[:2], -1, height, whole.shape[-1])
    if last < num_queries:
        yield weights[:, :, None, last:]


class PooledMaps:
    """The mean and the largest weight of blocks of queries and keys."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        assert wanted.pooled is not None
        num_texts, num_heads, num_queries, num_keys = source.shape
        self.grid = PooledGrid(num_queries, num_keys, wanted.pooled)
        self.mass = source.like.new_zeros(num_texts, num_heads, *self.grid.counts)
        self.largest = torch.zeros_like(self.mass)

    def add(self, tile: Tile) -> Callable[[], None]:
        texts, heads, queries = tile_slices(tile)
        height, width = self.grid.steps
        before, first = tile.keys.start % width, tile.keys.start // width
        num_columns = -(-(before + tile.weights.shape[-1]) // width)
        after = num_columns * width - before - tile.weights.shape[-1]
        num_rows = -(-queries.stop // height) - queries.start // height
        rows = slice(queries.start // height, queries.start // height + num_rows)

        def pooled(reduce: Callable[..., Tensor]) -> Tensor:
            # Rows first, because their entries are adjacent in memory and little remains to be padded.
            row_blocks = torch.cat(
                [reduce(part, dim=-2) for part in _whole_blocks(tile.weights, queries.start, height)], dim=2
            )
            if before or after:
                row_blocks = torch.nn.functional.pad(row_blocks, (before, after))
            return reduce(row_blocks.view(*row_blocks.shape[:-1], num_columns, width), dim=-1)

        place = texts, heads, rows, slice(first, first + num_columns)
        return partial(self._sum, place, pooled(torch.sum), pooled(torch.amax))

    def _sum(self, place: tuple[slice, ...], mass: Tensor, largest: Tensor) -> None:
        self.mass[place] += mass
        here = self.largest[place]
        torch.maximum(here, largest, out=here)

    def result(self) -> dict[str, Any]:
        return {"pooled_mean": self.mass / self.grid.entries().to(self.mass), "pooled_max": self.largest}


class PatternMass:
    """Each head's weight on each pattern, computed as a matrix product, because the sum is linear."""

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        assert wanted.patterns is not None
        self.patterns = wanted.patterns
        num_texts, num_heads, *_ = source.shape
        self.shape = (num_texts, num_heads, len(self.patterns.names))
        self.dtype = source.like.dtype
        self.mass: Tensor | None = None

    def add(self, tile: Tile) -> Callable[[], None]:
        texts, heads, queries = tile_slices(tile)
        mass = self.patterns.mass(tile.weights, texts, queries, tile.keys)
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


SPARE_BITS = 46
"""The weights beside the first key must sum to 2**SPARE_BITS times the smallest normal number or more."""


class RestOfRows:
    """The wanted results for rows without their first key, p_j / sum_{j > 0} p_j. Destroys the scores.

    Results are null if the sum in the denominator is so small that its terms may have been rounded to 0.
    """

    def __init__(self, source: LayerOrWeights, wanted: Wanted) -> None:
        assert wanted.rest is not None
        self.source = source
        self.parts: list[Collector] = [make(source, wanted.rest) for asks, make in PARTS if asks(wanted.rest)]
        self.nothing_left = torch.zeros(source.shape[:3], dtype=torch.bool, device=source.like.device)
        self.least = torch.finfo(source.like.dtype).tiny * 2**SPARE_BITS

    def add(self, tile: Tile) -> Callable[[], None]:
        remaining = self._without_first(tile)
        added = [add for part in self.parts if (add := part.add(remaining)) is not None]

        def add_all() -> None:
            for add in added:
                add()

        return add_all

    def _without_first(self, tile: Tile) -> Tile:
        rows, has_first = tile.rows, tile.keys.start == 0
        visible = rows.visible - self._sees_first(tile)
        softmax = None
        if rows.softmax is None:
            sums = rows.weights[..., int(has_first) :].sum(dim=-1)
        else:
            sums, log_totals, cross = rows.softmax.normalised(rows.weights, has_first=has_first)
        is_left = sums > self.least
        if rows.softmax is not None:
            softmax = Softmax(log_totals, is_left.to(sums.dtype), cross=cross)
        self.nothing_left[tile_slices(tile)] = (visible > 0) & ~is_left
        shares = sums.reciprocal().masked_fill(~is_left, 0.0)
        weights = torch.mul(rows.weights, shares.unsqueeze(-1), out=tile.scores)
        if has_first:
            weights[..., 0] = 0.0
        shared = rows.shared.setdefault("rest", {})
        left = Rows(
            weights,
            visible,
            rows.queries,
            rows.keys,
            softmax,
            shared,
            num_keys=rows.num_keys,
            plane=rows.plane,
        )
        return Tile(tile.block, tile.keys, left, tile.masked, ~is_left, seen=tile.seen)

    def _sees_first(self, tile: Tile) -> Tensor:
        """1 where a query sees the first key, as (#text, 1, query)."""
        if isinstance(self.source, GivenWeights):
            assert tile.seen is not None
            return tile.seen[..., 0].unsqueeze(1).to(torch.int64)
        shared = tile.rows.shared
        if "sees_first" not in shared:
            visibility = self.source.visibility.for_texts(tile.block.texts)
            queries = tile.rows.queries - visibility.shift
            shared["sees_first"] = visibility.block(queries, torch.zeros_like(queries[:1])).mT.to(torch.int64)
        sees_first: Tensor = shared["sees_first"]
        return sees_first

    def result(self) -> dict[str, Any]:
        remaining = Computed(**{name: value for part in self.parts for name, value in part.result().items()})
        nothing_left = self.nothing_left if bool(self.nothing_left.any()) else None
        return {"rest": replace(remaining, nothing_left=nothing_left)}


LEAST_FOR_JOBS = 2**24
"""The number of scores in a layer (1,182 tokens, 12 heads) beyond which attn's threads outpace torch's."""

# For each part, its condition and the class that computes it.
PARTS: tuple[tuple[Callable[[Wanted], bool], Callable[[LayerOrWeights, Wanted], Collector]], ...] = (
    (lambda wanted: True, RowStatistics),
    (lambda wanted: wanted.top_k > 0, TopKeys),
    (lambda wanted: wanted.previous_token, PreviousToken),
    (lambda wanted: wanted.output, Output),
    (lambda wanted: wanted.weights or wanted.scores, Matrices),
    (lambda wanted: bool(wanted.kept_heads), KeptHeads),
    (lambda wanted: wanted.head_mean, HeadMean),
    (lambda wanted: wanted.score_moments, FinishedScores),
    (lambda wanted: wanted.received_mass, ReceivedMass),
    (lambda wanted: wanted.pooled is not None, PooledMaps),
    (lambda wanted: wanted.patterns is not None, PatternMass),
    (lambda wanted: wanted.rest is not None, RestOfRows),  # last, because it overwrites the scores
)


def attend(
    source: LayerOrWeights, wanted: Wanted, progress: Callable[[float], None] | None = None
) -> Computed:
    """Compute the wanted results: scores are computed once, and memory is linear in the length.

    `progress` is called with the share of rows that are done.
    """
    with torch.no_grad(), Scratch(source.like, NUM_BUFFERS) as scratch:
        parts: list[Collector] = [make(source, wanted) for asks, make in PARTS if asks(wanted)]

        def take(some: list[TilePlace]) -> list[Callable[[], None]]:
            """Compute all results of some queries; return functions to be called in order."""
            added = [
                part.add(tile)
                for tile in tiles(source, some, scratch, keep_raw=wanted.scores)
                for part in parts
            ]
            return [add for add in added if add is not None]

        jobs = [partial(take, some) for some in tile_places(source)]
        is_long = (
            len(jobs) > 1 and source.like.device.type == "cpu" and math.prod(source.shape) >= LEAST_FOR_JOBS
        )
        with torch_threads(1) if is_long else nullcontext(1) as num_threads:
            for number, added in enumerate(run_jobs(jobs, num_threads), 1):
                for add in added:
                    add()
                if progress is not None:
                    progress(number / len(jobs))
        return Computed(**{name: value for part in parts for name, value in part.result().items()})


@torch.no_grad()
def merged_into_words(
    source: LayerOrWeights, query_words: Int[Tensor, "text query"], key_words: Int[Tensor, "text key"]
) -> GivenWeights:
    """W_ab = mean over queries i of word a of the sum over keys j of word b of p_ij.

    Clark et al. 2019 (1906.04341), section 4.1: a word's row sums to the mean of the sums of its tokens'
    rows. A word sees another if one of its tokens sees a token of the other. The words of each text are
    numbered from 0 without gaps, and all texts have the same number of words. The weights between tokens are
    computed one tile at a time.
    """
    num_texts, num_heads = source.shape[:2]
    num_words = int(query_words.max()) + 1, int(key_words.max()) + 1
    like = source.weights if isinstance(source, GivenWeights) else source.query
    dtype = torch.promote_types(like.dtype, torch.float32)
    merged = like.new_zeros(num_texts, num_heads, *num_words, dtype=dtype)
    query_words, key_words = query_words.to(like.device), key_words.to(like.device)
    with Scratch(source.like, NUM_BUFFERS) as scratch:
        for tile in tiles(source, chain.from_iterable(tile_places(source)), scratch):
            heads, queries = tile.block.heads, tile.block.queries
            for text, weights in zip(range(num_texts)[tile.block.texts], tile.weights, strict=True):
                sums = weights.new_zeros(*weights.shape[:2], num_words[1])
                sums.index_add_(2, key_words[text, tile.keys], weights)
                merged[text, heads].index_add_(1, query_words[text, queries], sums.to(dtype))
    ones = torch.ones_like(query_words)
    counts = ones.new_zeros(num_texts, num_words[0]).scatter_add_(1, query_words, ones)
    merged /= counts[:, None, :, None]
    return GivenWeights(merged, _seen(source, query_words, key_words, num_words))


def _seen(
    source: LayerOrWeights, query_words: Tensor, key_words: Tensor, num_words: tuple[int, int]
) -> Tensor:
    """Return the words that each word sees."""
    seen = source.visibility.whole(query_words.device) if isinstance(source, AttentionLayer) else source.seen
    words_seen = seen.new_zeros(len(query_words), *num_words)
    for text in range(len(words_seen)):
        queries, keys = seen[text if len(seen) > 1 else 0].nonzero(as_tuple=True)
        words_seen[text, query_words[text, queries], key_words[text, keys]] = True
    return words_seen
