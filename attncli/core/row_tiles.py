"""Tiles of whole rows, with every key that they may see, and the threads and buffers that compute them."""

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from threading import Lock
from types import TracebackType
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.formulas import RestOfSoftmax, Rows, Softmax
from attncli.core.layer import AttentionLayer, SeenKeys
from attncli.core.names import Ends, cache_ends
from attncli.core.runtime import tile_pass, torch_threads

Result = TypeVar("Result")


def run_jobs(jobs: Sequence[Callable[[], Result]], num_threads: int) -> Iterator[Result]:
    """Yield the results of the jobs, in order.

    Jobs run in helper threads and, between two results, in this one. Torch releases the interpreter's lock
    during each operation, so threads over blocks keep the cores busy; torch's own threads, which split every
    small operation, do not. An exception, Ctrl-C included, drops the jobs that have not begun and is raised
    once the running jobs end, within milliseconds.
    """
    num_helpers = min(num_threads, len(jobs)) - 1
    if num_helpers < 1:
        yield from (job() for job in jobs)
        return
    waiting = deque(enumerate(jobs))
    results: dict[int, Result] = {}
    is_inference = torch.is_inference_mode_enabled()  # applies per thread, like no_grad

    def run_next() -> bool:
        try:
            number, job = waiting.popleft()
        except IndexError:
            return False
        results[number] = job()
        return True

    def run_all() -> None:
        try:
            # In this order: inference_mode(False) turns gradients on.
            with torch_threads(1), torch.inference_mode(is_inference), torch.no_grad():
                while run_next():
                    pass
        except BaseException:  # whatever ends one thread, the others start no new job
            waiting.clear()
            raise

    with ThreadPoolExecutor(num_helpers) as pool:
        try:
            helpers = [pool.submit(run_all) for _ in range(num_helpers)]
            next_number = 0
            while run_next():
                while next_number in results:
                    yield results.pop(next_number)
                    next_number += 1
            for helper in helpers:
                helper.result()
        finally:
            waiting.clear()
    for number in range(next_number, len(jobs)):
        yield results.pop(number)


MAX_SPARE_BYTES = 2**24
"""The largest number of bytes kept for the next call: the three buffers of a float32 tile take 12 MB."""

_spare_buffers: list[Tensor] = []
"""The CPU buffer left by the last call, kept because small calls come by the thousand.

CUDA has its own cache.
"""
_scratch_lock = Lock()


class Scratch:
    """Tile-sized buffers, each lent to one job at a time while a call's with-block runs.

    Until the call ends, there is one buffer for each concurrent job.
    """

    def __init__(self, like: Tensor, count: int = 2) -> None:
        self._like, self._count = like, count
        self._free: list[Tensor] = []

    def __enter__(self) -> "Scratch":
        if self._like.device.type == "cpu":
            with _scratch_lock:
                self._free += _spare_buffers
                _spare_buffers.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with _scratch_lock:
            small = (
                buffer
                for buffer in (*self._free, *_spare_buffers)
                if buffer.nbytes <= MAX_SPARE_BYTES and buffer.is_cpu
            )
            _spare_buffers[:] = sorted(small, key=lambda buffer: buffer.nbytes)[-1:]

    @contextmanager
    def lent(self, size: int) -> Iterator[Float[Tensor, "count size"]]:
        """Lend buffers of this size for the duration of the with-block."""
        num_bytes = self._count * size * self._like.itemsize
        with _scratch_lock:
            buffer = self._free.pop() if self._free else None
        if buffer is None or buffer.nbytes < num_bytes:
            # A buffer created in inference mode could not be written to outside that mode.
            with torch.inference_mode(mode=False):
                buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._like.device)
        try:
            yield buffer[:num_bytes].view(self._like.dtype).view(self._count, size)
        finally:
            with _scratch_lock:
                self._free.append(buffer)


LEAST_EXPONENT = -800.0
"""exp(-800) is 0 in float64, and 0 * -800 is 0, so a hidden score (-inf) adds nothing to an entropy."""
LOG2_E = 1.4426950408889634
ROW_NUMBERS = (
    *("logsumexp", "log_total", "sum", "cross", "distance"),
    *("local", "rest_sum", "rest_log_total", "rest_cross"),
)


class RowArguments(ctypes.Structure):
    """The struct `Rows` in tile_pass.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_queries", "num_keys", "num_first", "window")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "scores",
                "weights",
                "sink",
                "blind",
                "position",
                "here",
                *ROW_NUMBERS,
                "participation",
            )
        ),
    )


def softmax_rows(
    scores: Float[Tensor, "text head query key"],
    seen: SeenKeys,
    sink: Float[Tensor, "#text #head 1"] | None,
    buffers: Float[Tensor, "2 size"],
    num_keys: int,
) -> tuple[Tensor, Float[Tensor, "text head query"], Softmax]:
    """Compute exp(score - logsumexp) in the first buffer; return it with the logsumexp and the softmax.

    Hidden scores are -inf. The sink, a score, joins only the denominator. A row without visible keys has
    weights 0. `num_keys` is the total number of keys, of which these scores may cover only some.
    """
    if scores.dtype == torch.float32 and scores.device.type == "cpu" and tile_pass() is not None:
        return _compiled(scores, seen, sink, buffers[0], cache_ends(num_keys))
    return _by_torch(scores, seen, sink, buffers)


def _compiled(
    scores: Tensor, seen: SeenKeys, sink: Tensor | None, buffer: Tensor, ends: Ends
) -> tuple[Tensor, Tensor, Softmax]:
    weights = buffer[: scores.numel()].view(scores.shape)
    numbers = scores.new_empty(len(ROW_NUMBERS), *scores.shape[:3])
    participation = scores.new_empty(scores.shape[:3], dtype=torch.float64)
    if "places" not in seen.shared:
        seen.shared["places"] = tuple(tensor.to(scores.dtype) for tensor in (seen.columns, seen.positions))
    places = (tensor.data_ptr() for tensor in seen.shared["places"])
    per_row = [
        None if tensor is None else tensor.expand(scores.shape[:3]).contiguous()
        for tensor in (sink, seen.blind)
    ]
    num_rows, start = numbers[0].numel(), numbers.data_ptr()
    arguments = RowArguments(
        *scores.shape[2:],
        *ends,
        scores.data_ptr(),
        weights.data_ptr(),
        *(None if tensor is None else tensor.data_ptr() for tensor in per_row),
        *places,
        *range(start, start + numbers.nbytes, num_rows * numbers.itemsize),
        participation.data_ptr(),
    )
    library = tile_pass()
    assert library is not None
    library.attn_softmax_rows(ctypes.byref(arguments), ctypes.c_int64(num_rows))
    logsumexp, log_totals, sums, cross, distance, local, *remaining = numbers.unbind()
    softmax = Softmax(
        log_totals,
        sums,
        cross=cross,
        participation=participation,
        distance=distance,
        local=local,
        rest=RestOfSoftmax(*remaining),
    )
    return weights, logsumexp, softmax


def _by_torch(
    scores: Tensor, seen: SeenKeys, sink: Tensor | None, buffers: Tensor
) -> tuple[Tensor, Tensor, Softmax]:
    weights, exponents = (buffer[: scores.numel()].view(scores.shape) for buffer in buffers)
    reference = scores.amax(dim=-1)
    if sink is not None:  # if all scores of a row are -inf, all its weight goes to the sink
        reference = reference.clamp(min=torch.finfo(scores.dtype).min / 2)
    if seen.blind is not None:
        reference = reference.masked_fill(seen.blind, 0.0)
    torch.sub(scores, reference.unsqueeze(-1), out=exponents)
    exponents.clamp_(min=LEAST_EXPONENT)  # hidden scores are -inf, and so are scores with a bias of -inf
    torch.mul(exponents, LOG2_E, out=weights).exp2_()  # takes a third as long as exp
    totals = weights.sum(dim=-1)
    if sink is not None:
        return _below_sink(weights, exponents, totals, reference, sink)
    if seen.blind is not None:
        totals = totals.masked_fill(seen.blind, 1.0)
    weights.mul_(totals.reciprocal().unsqueeze(-1))
    sums = torch.ones_like(totals) if seen.blind is None else (~seen.blind).to(totals).expand_as(totals)
    softmax = Softmax(totals.log(), sums, exponents=exponents)
    return weights, reference + softmax.log_totals, softmax


def _below_sink(
    weights: Tensor, exponents: Tensor, totals: Tensor, reference: Tensor, sink: Tensor
) -> tuple[Tensor, Tensor, Softmax]:
    """Add the sink to the denominator, in float64 because the sink may be far above the keys."""
    keys_log_total, above = totals.double().log(), (sink - reference).double()
    log_totals = torch.logaddexp(keys_log_total, above)
    participation = (2 * log_totals).exp() / torch.linalg.vector_norm(weights, dim=-1).double().square()
    weights.mul_((-log_totals).exp().to(weights.dtype).unsqueeze(-1))
    logsumexp = torch.logaddexp(reference + keys_log_total, sink.double())
    sums = (keys_log_total - log_totals).exp()
    softmax = Softmax(
        log_totals.to(weights.dtype),
        sums.to(weights.dtype),
        exponents=exponents,
        participation=participation,
    )
    return weights, logsumexp.to(weights.dtype), softmax


NUM_BUFFERS = 3
"""The number of buffers that `Scratch` holds for a tile: scores, weights and, for torch, exponents."""
TILE = 2**20
"""The number of scores in a tile: 4 MB for scores, 4 MB for weights and, with torch, 4 MB for exponents."""
LEAST_ROWS = 64
"""The number of rows per head in a tile.

Tiles of long rows have fewer heads instead of fewer rows, which would be slower.
"""
MOST_ROWS = 256
"""The largest number of rows per head in a tile; causal tiles with more rows would have more hidden keys."""


@dataclass(frozen=True)
class TilePlace:
    """The texts, heads and queries of a tile."""

    texts: slice
    heads: slice
    queries: slice


@dataclass(frozen=True)
class Tile:
    """The rows of a block, with the keys that any of these rows sees.

    Scores and logsumexp are present if weights were computed from scores; hidden scores are -inf, and
    `masked` is True if any score is hidden. `blind` marks queries that see no key, or is None if every query
    sees one. The next tile overwrites the tensors.
    """

    block: TilePlace
    keys: slice
    rows: Rows
    masked: bool
    blind: Bool[Tensor, "#text #head query"] | None
    scores: Float[Tensor, "text head query key"] | None = None
    raw_scores: Float[Tensor, "text head query key"] | None = None
    logsumexp: Float[Tensor, "text head query"] | None = None
    seen: Bool[Tensor, "#text query key"] | None = None

    @property
    def weights(self) -> Float[Tensor, "text head query key"]:
        """The weights of the rows."""
        return self.rows.weights

    def ranking(self) -> Float[Tensor, "text head query key"]:
        """The numbers that rank keys, -inf where hidden: scores if they are known, otherwise weights."""
        if self.scores is not None:
            return self.scores
        assert self.seen is not None
        return self.weights.masked_fill(~self.seen.unsqueeze(1), -torch.inf)


def blocks(shape: tuple[int, int, int, int], group: int = 1) -> Iterator[TilePlace]:
    """Return all rows in tiles of about TILE entries: several whole texts, or some queries of some heads.

    The `group` heads that share a key/value head stay together. Heads of the same queries are adjacent, so
    that values that depend only on positions are computed once.
    """
    num_texts, num_heads, num_queries, num_keys = shape
    if 0 in shape:
        return
    per_text = num_heads * num_queries * num_keys
    texts, heads, queries = max(1, TILE // max(1, per_text)), num_heads, num_queries
    if per_text > TILE or num_queries > MOST_ROWS:
        texts = 1
        heads = min(num_heads, max(1, TILE // (LEAST_ROWS * num_keys * group)) * group)
        queries = min(MOST_ROWS, max(1, TILE // (heads * num_keys)))
    for text in range(0, num_texts, texts):
        some_texts = slice(text, min(text + texts, num_texts))
        for query in range(0, num_queries, queries):
            some = slice(query, min(query + queries, num_queries))
            for head in range(0, num_heads, heads):
                yield TilePlace(some_texts, slice(head, min(head + heads, num_heads)), some)


@dataclass(frozen=True, repr=False)
class GivenWeights:
    """Finished weights, from a model that returns only its weights or from another tool.

    `seen` marks the entries that a query may see; weights may be negative, and rows may sum to any number.
    """

    weights: Float[Tensor, "text head query key"]
    seen: Bool[Tensor, "#text query key"]

    def __repr__(self) -> str:
        return f"<GivenWeights {' x '.join(map(str, self.shape))}>"

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of texts, heads, queries and keys."""
        num_texts, num_heads, num_queries, num_keys = self.weights.shape
        return num_texts, num_heads, num_queries, num_keys

    @cached_property
    def like(self) -> Tensor:
        """Create an empty tensor with the dtype and device of the computation."""
        return self.weights.new_empty(0, dtype=torch.promote_types(self.weights.dtype, torch.float32))


LayerOrWeights = AttentionLayer | GivenWeights


def side_by_side(sources: Sequence[LayerOrWeights]) -> LayerOrWeights:
    """Combine the heads of several layers into one layer.

    All layers must see the same keys and have plain scores.
    """
    if len(sources) == 1:
        return sources[0]
    first = sources[0]
    if isinstance(first, GivenWeights):
        weights = [source.weights for source in sources if isinstance(source, GivenWeights)]
        return GivenWeights(torch.cat(weights, dim=1), first.seen)
    layers = [source for source in sources if isinstance(source, AttentionLayer)]
    query, key, value = (
        torch.cat([getattr(layer, name) for layer in layers], dim=1) for name in ("query", "key", "value")
    )
    return replace(first, query=query, key=key, value=value)


def tile_places(source: LayerOrWeights) -> list[list[TilePlace]]:
    """Return the places of tiles that cover every row; each list has all heads of the same queries."""
    every = blocks(source.shape, 1 if isinstance(source, GivenWeights) else source.group)
    same_queries = groupby(every, lambda block: (block.texts.start, block.queries.start))
    return [list(heads) for _, heads in same_queries]


def tiles(
    source: LayerOrWeights, some: Iterable[TilePlace], scratch: Scratch, *, keep_raw: bool = False
) -> Iterator[Tile]:
    """Compute the tiles at these places and, with `keep_raw`, query . key as well."""
    if isinstance(source, GivenWeights):
        for block in some:
            yield _weights_tile(source, block)
        return
    for block in some:
        size = _count(block.texts) * _count(block.heads) * _count(block.queries) * source.shape[3]
        with scratch.lent(size) as buffers:
            yield _softmax_tile(source, block, buffers, keep_raw=keep_raw)


def select_part(tensor: Tensor, *parts: slice) -> Tensor:
    """Select these parts of the tensor's first axes; return the tensor itself if they cover it all."""
    if all(_count(part) == size for part, size in zip(parts, tensor.shape, strict=False)):
        return tensor
    return tensor[parts]


def _count(part: slice) -> int:
    return int(part.stop - part.start)


def _weights_tile(given: GivenWeights, block: TilePlace) -> Tile:
    weights = given.weights[block.texts, block.heads, block.queries]
    seen = given.seen[block.texts if len(given.seen) > 1 else slice(None), block.queries]
    positions = torch.arange(block.queries.start, block.queries.stop, device=weights.device)
    columns = torch.arange(weights.shape[-1], device=weights.device)
    visible = seen.sum(dim=-1).unsqueeze(1)
    blind = visible == 0 if (visible == 0).any() else None
    if blind is not None:  # a finite mask leaves weights on these keys; NaN stays
        weights = weights.masked_fill(blind.unsqueeze(-1) & weights.isfinite(), 0.0)
    rows = Rows(weights, visible, positions, columns)
    return Tile(block, slice(0, weights.shape[-1]), rows, not bool(seen.all()), blind, seen=seen)


def _softmax_tile(
    layer: AttentionLayer, block: TilePlace, buffers: Float[Tensor, "3 size"], *, keep_raw: bool
) -> Tile:
    """Compute scores and weights in separate buffers, with one exponential per score."""
    seen = layer.visibility.for_texts(block.texts).seen_keys(block.queries, buffers)
    shape = (_count(block.texts), _count(block.heads), _count(block.queries), len(seen.columns))
    scores = buffers[0][: shape[0] * shape[1] * shape[2] * shape[3]].view(shape)
    raw = _scaled_products(layer, block, seen.keys, scores, keep_raw=keep_raw)
    _apply_rules(layer, block, seen.keys, scores)
    if seen.hidden is not None:
        # Adding is several times as fast as filling with a mask broadcast over heads.
        scores[..., seen.masked].add_(seen.hidden)

    sink = layer.rules.softmax_sink
    if sink is not None:
        parts = zip((block.texts, block.heads), sink.shape, strict=True)
        sink = sink.to(scores)[tuple(part if size > 1 else slice(None) for part, size in parts)].unsqueeze(-1)
    weights, logsumexp, softmax = softmax_rows(scores, seen, sink, buffers[1:], layer.shape[3])
    # If the sink is far above the keys, the difference would lose all digits.
    largest = logsumexp - softmax.log_totals if sink is None else scores.amax(dim=-1)
    rows = Rows(
        weights,
        seen.visible,
        seen.positions,
        seen.columns,
        softmax,
        seen.shared,
        num_keys=layer.shape[3],
        max_scores=largest,
    )
    is_masked = seen.hidden is not None
    return Tile(block, seen.keys, rows, is_masked, seen.blind, scores, raw, logsumexp)


def _scaled_products(
    layer: AttentionLayer,
    block: TilePlace,
    keys: slice,
    into: Float[Tensor, "text head query key"],
    *,
    keep_raw: bool,
) -> Float[Tensor, "text head query key"] | None:
    """Compute scale query . key for groups of heads that share a key. With `keep_raw`, return query . key."""
    group = layer.group
    kv_heads = slice(block.heads.start // group, -(-block.heads.stop // group))
    query = select_part(layer.query, block.texts, block.heads, block.queries).to(into.dtype)
    key = select_part(layer.key, block.texts, kv_heads, keys).to(into.dtype)
    if not keep_raw:
        query = query * layer.scale
    num_texts, num_kv_heads = key.shape[:2]
    products = into.view(num_texts, num_kv_heads, -1, into.shape[-1])
    torch.matmul(query.reshape(num_texts, num_kv_heads, -1, query.shape[-1]), key.mT, out=products)
    if not keep_raw:
        return None
    raw = into.clone()
    into.mul_(layer.scale)
    return raw


def _apply_rules(
    layer: AttentionLayer, block: TilePlace, keys: slice, scores: Float[Tensor, "text head query key"]
) -> None:
    """Turn scaled scores into the input of the softmax, in place."""
    rules = layer.rules
    if rules.softcap is not None:
        scores.div_(rules.softcap).tanh_().mul_(rules.softcap)
    if rules.bias is not None:
        parts = (block.texts, block.heads, block.queries, keys)
        bias_slices = (
            part if size > 1 else slice(None) for part, size in zip(parts, rules.bias.shape, strict=True)
        )
        scores.add_(rules.bias[tuple(bias_slices)])
    if rules.temperature != 1.0:
        scores.div_(rules.temperature)
