"""The engine for long rows: online softmax over tiles, threaded, with one `ScaledHead` per text and head."""

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from threading import Lock
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.formulas import ROUNDINGS, are_equal, top_keys
from attncli.core.layer import AttentionLayer, Computed, Wanted
from attncli.core.names import ROW_STATISTICS
from attncli.core.row_tiles import LOG2_E, Scratch, run_jobs
from attncli.core.rows import PooledGrid, head_moments
from attncli.core.rows import attend as attend_by_rows
from attncli.core.runtime import tile_pass, torch_threads
from attncli.core.tile_sums import (
    LOWEST,
    SAFE_BITS,
    HeadMask,
    QueryBlock,
    RowSums,
    ScaledHead,
    TileSizes,
    no_sums,
    score_tiles,
    suits,
    sum_rows,
    tile_pass_for,
)


@dataclass(frozen=True)
class ColumnSums:
    """Sums over a head's rows: the mass of each unmasked key; the sum and maximum of each pooled block."""

    received: Float[Tensor, " kept"]
    mass: Float[Tensor, "query_block key_block"]
    largest: Float[Tensor, "query_block key_block"]


def no_column_sums(head: ScaledHead, grid: PooledGrid, like: Tensor) -> ColumnSums:
    """Create the sums before any row."""
    received = like.new_zeros(len(head.visibility.unmasked), dtype=torch.float64)
    return ColumnSums(received, like.new_zeros(grid.counts, dtype=torch.float64), like.new_zeros(grid.counts))


def sum_columns(
    head: ScaledHead,
    blocks: Iterable[QueryBlock],
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    grid: PooledGrid,
    sizes: TileSizes,
    scratch: Scratch,
    into: ColumnSums,
) -> None:
    """Add the weights 2^(score - reference) * inverse of blocks of queries, in strips of pooled rows."""
    add_columns = tile_pass_for(reference).add_columns
    height, width = grid.steps
    key_blocks = head.visibility.unmasked.div(width, rounding_mode="floor")
    for block in blocks:
        rows = block.rows
        for tile in score_tiles(head, block, sizes, scratch):
            pooled_keys = key_blocks[tile.keys]
            for row in range(rows.start // height, -(-rows.stop // height)):
                strip = slice(max(row * height, rows.start), min((row + 1) * height, rows.stop))
                tile_rows = slice(strip.start - rows.start, strip.stop - rows.start)
                mass, largest = torch.zeros(
                    2, len(pooled_keys), dtype=reference.dtype, device=reference.device
                )
                add_columns(tile, tile_rows, reference[strip], inverse[strip], mass, largest)
                received = mass.double()
                into.received[tile.keys] += received
                into.mass[row].index_add_(0, pooled_keys, received)
                into.largest[row].scatter_reduce_(0, pooled_keys, largest, "amax")


def column_statistics(
    head: ScaledHead, parts: Iterable[ColumnSums], grid: PooledGrid, num_keys: int
) -> dict[str, Tensor]:
    """The mass that each key receives, and the mean and the largest weight of each pooled block."""
    received, mass, largest = (
        [getattr(part, name) for part in parts] for name in ("received", "mass", "largest")
    )
    whole = received[0].new_zeros(num_keys)
    whole[head.visibility.unmasked] = torch.stack(received).sum(0)
    together = torch.stack(mass).sum(0)
    return {
        "received_mass": whole,
        "pooled_mean": together / grid.entries().to(together),
        "pooled_max": torch.stack(largest).amax(0),
    }


ROWS = 16
"""The largest number of whole rows searched together."""


def break_ties(
    head: ScaledHead,
    rows: slice,
    top_scores: Float[Tensor, "query more"],
    top_ranks: Int[Tensor, "query more"],
    sizes: TileSizes,
    scratch: Scratch,
) -> None:
    """Order all top scores but the last, which is one more than wanted; rows with ties are computed again.

    Tiles keep any of several equal scores. Rows with ties are rare except in texts with repeated words.
    """
    is_tied = tied_rows(top_scores)
    if is_tied is None:
        return
    scores, ranks = top_scores[:, :-1], top_ranks[:, :-1]
    num_rows = min(ROWS, sizes.queries)
    with_ties = {row // num_rows for row in is_tied.nonzero()[:, 0].tolist()}
    for start in (num_rows * strip for strip in sorted(with_ties)):
        strip = slice(start, min(start + num_rows, len(is_tied)))
        block = head.block(slice(rows.start + strip.start, rows.start + strip.stop))
        first, stop = int(block.interval.first.min()), int(block.interval.stop.max())
        whole = block.query.new_empty(len(block.query), stop - first)
        for tile in score_tiles(head, block, sizes, scratch):
            whole[:, tile.keys.start - first : tile.keys.stop - first] = tile.scores
        hidden = block.interval.hides(torch.arange(first, stop, device=whole.device))
        whole.masked_fill_(hidden, -torch.inf)
        places = top_keys(whole, scores.shape[1], unit=LOG2_E)
        tied = is_tied[strip].unsqueeze(-1)
        none, best = places < 0, whole.gather(-1, places.clamp(min=0))
        scores[strip] = torch.where(tied, best.masked_fill(none, LOWEST), scores[strip])
        ranks[strip] = torch.where(tied, places + first, ranks[strip])


def tied_rows(top_scores: Float[Tensor, "query more"]) -> Bool[Tensor, " query"] | None:
    """The rows with two scores that differ only by rounding, or None if there are no such rows."""
    if suits(top_scores):
        library, is_tied = tile_pass(), torch.empty(len(top_scores), dtype=torch.bool)
        assert library is not None
        numbers = (LOWEST, LOG2_E, ROUNDINGS * torch.finfo(top_scores.dtype).eps)
        library.attn_tied_rows.restype = ctypes.c_int64
        count = library.attn_tied_rows(
            ctypes.c_void_p(top_scores.data_ptr()),
            *map(ctypes.c_int64, top_scores.shape),
            *map(ctypes.c_float, numbers),
            ctypes.c_void_p(is_tied.data_ptr()),
        )
        return is_tied if count else None
    best, next_best = top_scores[:, :-1], top_scores[:, 1:]
    is_tied = (are_equal(next_best, best, LOG2_E) & (next_best > LOWEST)).any(dim=-1)
    return is_tied if is_tied.any() else None


LN_2 = math.log(2)

RUNNING = (
    "logsumexp",
    "sums",
    "entropy",
    "normalized_entropy",
    "max_weight",
    "sink_mass",
    "distance",
    "participation",
    "local_mass",
    "max_score",
    "previous_token",
)
"""The numbers per row that follow from the running sums."""
PER_ROW = (*RUNNING, "top_weights", "top_keys", "visible", "inverse", "output")
IN_FLOAT64 = ("participation",)
"""The numbers that may exceed float32 if a sink is strong."""


def row_statistics(head: ScaledHead, block: QueryBlock, sums: RowSums) -> dict[str, Tensor]:
    """Every number of RUNNING by name, and top keys; `inverse` turns 2^(score - reference) into a weight.

    The output sums become the output, in place.

    A sink only joins the denominator: if f is the share of the keys, p = f e / sum e, and the entropy -sum p
    ln p is f (H - ln f), where H is the entropy of e / sum e.
    """
    total = sums.total
    visible = block.interval.stop - block.interval.first
    keys_alone = sums.reference + total.log2()
    logsumexp = torch.logaddexp2(keys_alone, head.sink * LOG2_E - block.centre)
    log_share = keys_alone - logsumexp
    share = torch.exp2(log_share)
    entropy = share * (total.log2() - sums.weighted / total - log_share) * LN_2
    entropy = entropy.clamp(min=0)

    beyond = sums.top_scores[:, :-1] == LOWEST  # more keys wanted than visible
    before = block.position - 1
    no_such_key = (before < 0) | (before >= head.visibility.num_keys)
    rows = {
        "logsumexp": (logsumexp + block.centre) * LN_2,
        "sums": share,
        "entropy": entropy,
        "normalized_entropy": (entropy / visible.double().log()).masked_fill(visible < 2, torch.nan),
        "max_weight": _weight(sums.largest, logsumexp),
        "top_weights": _weight(sums.top_scores[:, :-1], logsumexp).masked_fill(beyond, torch.nan),
        "sink_mass": _weight(sums.first_key, logsumexp),
        "distance": share * sums.distance / total,
        "local_mass": share * sums.local / total,
        "participation": total.square() / sums.total_square / share.square(),
        "max_score": (sums.largest + block.centre) * LN_2,
        "previous_token": _weight(sums.previous, logsumexp).masked_fill(no_such_key, torch.nan),
    }
    is_blind = visible == 0
    if is_blind.any():
        for name, numbers in rows.items():
            unseen = is_blind.view(-1, *[1] * (numbers.ndim - 1))
            rows[name] = numbers.masked_fill(unseen, torch.nan)
    top_keys = head.visibility.unmasked[sums.top_ranks[:, :-1].masked_fill(beyond, 0)].masked_fill(beyond, -1)
    sums.output.mul_((share / total).nan_to_num(0.0)[:, None])
    inverse = torch.exp2(sums.reference - logsumexp).masked_fill(is_blind, 0.0)
    return rows | {"visible": visible, "top_keys": top_keys, "inverse": inverse}


def fill_by_torch(head: ScaledHead, block: QueryBlock, sums: RowSums, into: Mapping[str, Tensor]) -> None:
    """Compute every number of a block's rows, by name, and the moments of their scores, from the sums."""
    for name, numbers in row_statistics(head, block, sums).items():
        into[name].copy_(numbers)
    into["moments"].copy_(score_moments(block, sums))


BLOCK_FIELDS = ("here", "centre")
SUM_FIELDS = (
    *("reference", "smallest", "largest", "score", "score_square", "total", "total_square", "weighted"),
    *("distance", "local", "first_key", "previous", "top_scores", "top_ranks"),
)
FINISHED = (
    *(
        "logsumexp",
        "sums",
        "entropy",
        "normalized_entropy",
        "max_weight",
        "sink_mass",
        "distance",
        "local_mass",
    ),
    *("max_score", "previous_token", "inverse", "participation", "visible", "top_keys", "top_weights"),
    *("output", "moments"),
)


class FinishArguments(ctypes.Structure):
    """The struct `Finish` in tile_pass.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_rows", "value_dim", "num_top", "num_keys")),
        ("sink", ctypes.c_double),
        ("lowest", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("kept", "first_seen", "stop", *BLOCK_FIELDS)),
        *((f"sum_{name}", ctypes.c_void_p) for name in SUM_FIELDS),
        *((name, ctypes.c_void_p) for name in FINISHED),
    )


def fill_compiled(head: ScaledHead, block: QueryBlock, sums: RowSums, into: Mapping[str, Tensor]) -> None:
    """Like `fill_by_torch`, but write into rows of nulls and, for the output, into the sums."""
    unmasked, interval = head.visibility.unmasked, block.interval
    tensors = (
        *(unmasked, interval.first, interval.stop),
        *(getattr(block, name) for name in BLOCK_FIELDS),
        *(getattr(sums, name) for name in SUM_FIELDS),
        *(into[name] for name in FINISHED),
    )
    arguments = FinishArguments(
        *sums.output.shape,
        sums.top_scores.shape[1],
        head.visibility.num_keys,
        float(head.sink) * LOG2_E,
        LOWEST,
        *(tensor.data_ptr() for tensor in tensors),
    )
    library = tile_pass()
    assert library is not None
    library.attn_finish_rows(ctypes.byref(arguments))


def _weight(scores: Float[Tensor, "query ..."], logsumexp: Float[Tensor, " query"]) -> Tensor:
    return torch.exp2(scores - logsumexp.view(-1, *[1] * (scores.ndim - 1)))


def score_moments(block: QueryBlock, sums: RowSums) -> Float[Tensor, " 5"]:
    """The count, mean, sum of squared deviations, minimum and maximum of a block's visible scores."""
    centre = block.centre.double()
    visible = (block.interval.stop - block.interval.first).double()
    count = visible.sum()
    mean = (sums.score + visible * centre).sum() / count
    offset = centre - mean
    squares = sums.score_square + 2 * offset * sums.score + visible * offset.square()
    seen = visible > 0
    smallest = (sums.smallest + centre).where(seen, torch.inf).amin()
    largest = (sums.largest + centre).where(seen, -torch.inf).amax()
    bits = torch.stack([count, mean, squares.sum(), smallest, largest])
    return bits * bits.new_tensor([1, LN_2, LN_2**2, LN_2, LN_2])


def each_head(layer: AttentionLayer) -> Iterator[ScaledHead]:
    """Yield one head for each text and head, in order: views of the inputs, and a bound on the scores."""
    num_texts, num_heads, num_queries, num_keys = layer.shape
    visibility, rules = layer.visibility, layer.rules
    assert rules.bias is None and visibility.rule is None, "tiles do not support whole matrices"
    dtype = torch.promote_types(layer.key.dtype, torch.float32)
    scale = layer.scale / rules.temperature
    # The temperature divides capped scores: c tanh(s / c) / T is (c / T) tanh((s / T) / (c / T)).
    softcap = None if rules.softcap is None else rules.softcap / rules.temperature
    sink = torch.tensor([[-torch.inf]]) if rules.softmax_sink is None else rules.softmax_sink
    sink = sink.double().to(layer.key.device).expand(num_texts, num_heads)
    bits = abs(scale) * LOG2_E * layer.longest_query
    everything = torch.arange(num_keys, device=layer.key.device)
    for text, head in product(range(num_texts), range(num_heads)):
        unmasked = everything
        if visibility.key_mask is not None:
            mask = visibility.key_mask
            unmasked = mask[text if len(mask) > 1 else 0].nonzero()[:, 0]
        rows = layer.key[text, head // layer.group]
        seen = rows if len(unmasked) == num_keys else rows[unmasked]
        mean_key = seen.mean(0, dtype=dtype)
        bound = bits * (layer.longest_key + float(mean_key.norm()))
        yield ScaledHead(
            query=layer.query[text, head],
            key=rows,
            value=layer.value[text, head // layer.group],
            visibility=HeadMask(unmasked, num_keys, num_queries, visibility.causal, visibility.window),
            mean_key=mean_key,
            scale=scale,
            softcap=softcap,
            sink=sink[text, head],
            bound=bound if softcap is None else 2 * softcap * LOG2_E,
        )


TileJob = Callable[[], None]

ROWS_AT_ONCE = 2048
"""The number of rows whose statistics are computed together; with fewer rows, overhead would dominate."""
CHAINS = 8
"""The number of a head's column sums that are accumulated in parallel."""


@dataclass(frozen=True)
class StreamPlan:
    """Settings shared by all heads."""

    num_queries: int
    top_k: int
    sizes: TileSizes
    scratch: Scratch
    grid: PooledGrid
    like: Tensor

    def blocks(self) -> list[slice]:
        """The queries of each job, the last queries first because these take longest under a causal mask."""
        return list(slices(self.num_queries, self.sizes.queries))[::-1]


class HeadJobs:
    """Jobs that fill `into`, one head's tensors by name. A stage's jobs run after the previous stage."""

    def __init__(self, head: ScaledHead, plan: StreamPlan, into: dict[str, Tensor]) -> None:
        has_blocks = plan.num_queries > plan.sizes.queries
        self.head, self.plan, self.into = head.with_centred_keys() if has_blocks else head, plan, into
        self.block = head.block(slice(0, plan.num_queries))
        # One key more than wanted, to detect a tie with the last wanted key.
        num_top = plan.top_k + 1 if plan.top_k else 0
        self.sums = no_sums(into["output"], num_top, bounded=head.bound < SAFE_BITS)

    def rows(self) -> list[TileJob]:
        """Return jobs that sum each block of queries; the last job of a part also computes its statistics."""
        blocks = self.plan.blocks()
        self.blocks_left = Counter(part for rows in blocks for part in _part_numbers(rows))
        self.lock = Lock()
        return [partial(self._sum_block, rows) for rows in blocks]

    def _sum_block(self, rows: slice) -> None:
        plan = self.plan
        sum_rows(self.head, self.block.of(rows), self.sums.of(rows), plan.sizes, plan.scratch)
        for part in _part_numbers(rows):
            with self.lock:
                self.blocks_left[part] -= 1
                is_done = self.blocks_left[part] == 0
            if is_done:
                self._fill_part(part)

    def columns(self) -> list[TileJob]:
        """Return jobs that sum columns, each for every CHAINS-th block."""
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
        """Fill in the results that follow from the column sums."""
        num_keys = len(self.into["received_mass"])
        for name, numbers in column_statistics(self.head, self.parts, self.plan.grid, num_keys).items():
            self.into[name].copy_(numbers)

    def _fill_part(self, part: int) -> None:
        plan = self.plan
        rows = slice(part * ROWS_AT_ONCE, min((part + 1) * ROWS_AT_ONCE, plan.num_queries))
        block, sums = self.block.of(rows), self.sums.of(rows)
        if plan.top_k:
            break_ties(self.head, rows, sums.top_scores, sums.top_ranks, plan.sizes, plan.scratch)
        into = {name: numbers[rows] for name, numbers in self.into.items() if name in PER_ROW}
        into["moments"] = self.into["moments"][part]
        if suits(plan.like):
            fill_compiled(self.head, block, sums, into)
        else:
            fill_by_torch(self.head, block, sums, into)


def _part_numbers(rows: slice) -> range:
    """The numbers of the parts, each of ROWS_AT_ONCE rows, that these rows belong to."""
    return range(rows.start // ROWS_AT_ONCE, -(-rows.stop // ROWS_AT_ONCE))


def slices(count: int, size: int) -> Iterator[slice]:
    """Return slices of this size that cover `count`; the last one may be shorter."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


ROWS_TOGETHER = 65536
"""The number of rows of running sums, and of copied keys, in memory at a time, for one or several heads."""


def stream(
    layer: AttentionLayer,
    wanted: Wanted,
    sizes: TileSizes | None,
    progress: Callable[[float], None] | None,
    num_threads: int,
) -> dict[str, Tensor]:
    """Return every number by name, the heads of all texts along one axis; `moments` are still split in parts.

    The result has the same bytes for any number of threads.
    """
    heads = list(each_head(layer))
    _, _, num_queries, num_keys = layer.shape
    like = layer.query.new_empty(0, dtype=torch.promote_types(layer.query.dtype, torch.float32))
    sizes = sizes or TileSizes.suited_to(num_keys, like)
    has_columns = wanted.received_mass or wanted.pooled is not None
    grid = PooledGrid(num_queries, num_keys, wanted.pooled or 1)
    accumulators = _null_rows(len(heads), num_queries, layer.value.shape[-1], wanted.top_k, like)
    if has_columns:
        accumulators |= _null_columns(len(heads), num_keys, grid, like)
    num_rows = max(num_queries, num_keys) if num_queries > sizes.queries else num_queries
    together = min(len(heads), max(1, ROWS_TOGETHER // max(1, num_rows)))
    done, num_stages = 0.0, 1 + has_columns

    def run(stages: Iterable[list[TileJob]], share: float) -> None:
        """Run all jobs of a stage for these heads, which are `share` of the whole."""
        nonlocal done
        jobs = [job for stage in stages for job in stage]
        for count, _ in enumerate(run_jobs(jobs, num_threads), 1):
            if progress is not None:
                progress(min(1.0, done + share * count / len(jobs)))
        done += share

    with Scratch(like) as scratch:
        plan = StreamPlan(num_queries, wanted.top_k, sizes, scratch, grid, like)
        for group in slices(len(heads), together):
            some = [
                HeadJobs(heads[index], plan, {name: numbers[index] for name, numbers in accumulators.items()})
                for index in range(group.start, group.stop)
                if len(heads[index].visibility.unmasked)
            ]
            share = (group.stop - group.start) / len(heads) / num_stages
            run((head.rows() for head in some), share)
            if has_columns:
                run((head.columns() for head in some), share)
                for head in some:
                    head.fill_columns()
    return accumulators


def _null_rows(
    num_heads: int, num_queries: int, value_dim: int, top_k: int, like: Tensor
) -> dict[str, Tensor]:
    shape = num_heads, num_queries
    names = [name for name in RUNNING if name not in IN_FLOAT64]
    rows = dict(zip(names, like.new_full((len(names), *shape), torch.nan), strict=True))
    rows |= {name: like.new_full(shape, torch.nan, dtype=torch.float64) for name in IN_FLOAT64}
    return rows | {
        "top_weights": like.new_full((num_heads, num_queries, top_k), torch.nan),
        "top_keys": like.new_full((num_heads, num_queries, top_k), -1, dtype=torch.int64),
        "visible": like.new_zeros(num_heads, num_queries, dtype=torch.int64),
        "inverse": like.new_zeros(num_heads, num_queries),
        "moments": _null_moments(num_heads, max(1, -(-num_queries // ROWS_AT_ONCE)), like),
        "output": like.new_zeros(num_heads, num_queries, value_dim),
    }


def _null_moments(num_heads: int, num_parts: int, like: Tensor) -> Tensor:
    moments = like.new_zeros(num_heads, num_parts, 5, dtype=torch.float64)
    moments[..., 3], moments[..., 4] = torch.inf, -torch.inf
    return moments


def _null_columns(num_heads: int, num_keys: int, grid: PooledGrid, like: Tensor) -> dict[str, Tensor]:
    maps = {name: like.new_zeros(num_heads, *grid.counts) for name in ("pooled_mean", "pooled_max")}
    return {"received_mass": like.new_zeros(num_heads, num_keys), **maps}


def attend(
    layer: AttentionLayer,
    wanted: Wanted,
    progress: Callable[[float], None] | None = None,
    sizes: TileSizes | None = None,
) -> Computed:
    """Compute the wanted results of a layer without bias or rule. Memory is linear in the length.

    On the CPU, torch.get_num_threads() threads share the work; results do not depend on their number. Results
    that do not follow from running sums take a second pass, over whole rows.
    """
    second_pass = tuple(name for name in wanted.rows if not ROW_STATISTICS[name].running)
    second = replace(
        wanted,
        rows=second_pass,
        top_k=0,
        previous_token=False,
        output=False,
        score_moments=False,
        received_mass=False,
        pooled=None,
    )
    shares = 1.0 if second == Wanted() else 0.5
    with torch.no_grad(), torch.inference_mode(mode=False), torch_threads(1) as num_threads:
        first = None if progress is None else lambda done: progress(done * shares)
        on_cpu = layer.query.device.type == "cpu"
        numbers = stream(layer, wanted, sizes, first, num_threads if on_cpu else 1)
    tensors = {name: tensor.view(*layer.shape[:2], *tensor.shape[1:]) for name, tensor in numbers.items()}
    visible = tensors["visible"][:, 0]
    tensors["sums"] = tensors["sums"].masked_fill((visible == 0).unsqueeze(1), 0.0)
    second_results, rows = Computed(), tensors
    if shares < 1:
        last = None if progress is None else lambda done: progress(0.5 + done / 2)
        second_results = attend_by_rows(layer, second, last)
        rows = tensors | second_results.rows
    wanted_fields = {
        "sums": True,
        "logsumexp": True,
        "previous_token": wanted.previous_token,
        "top_keys": wanted.top_k > 0,
        "top_weights": wanted.top_k > 0,
        "output": wanted.output,
        "received_mass": wanted.received_mass,
        "pooled_mean": wanted.pooled is not None,
        "pooled_max": wanted.pooled is not None,
    }
    moments = head_moments(*tensors["moments"].unbind(dim=-1)) if wanted.score_moments else None
    fields: dict[str, Any] = {name: tensors[name] for name, is_wanted in wanted_fields.items() if is_wanted}
    return replace(
        second_results,
        rows={name: rows[name] for name in wanted.rows},
        visible=visible,
        moments=moments,
        **fields,
    )
