"""The two passes over all heads: rows first, then, where asked for, columns."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from attncli.streaming.heads import Options
from attncli.streaming.received import ColumnFigures, Grid, fill_columns
from attncli.streaming.rows import merge_moments, row_statistics, score_moments
from attncli.streaming.scores import Head
from attncli.streaming.scratch import Scratch
from attncli.streaming.tiles import TileSizes, sum_rows
from attncli.streaming.workers import Job, run_jobs

ROW_FIGURES = (
    "logsumexp",
    "entropy",
    "normalized_entropy",
    "max_weight",
    "sink_mass",
    "distance",
    "participation",
    "previous_token",
)


def stream(
    heads: Sequence[Head],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: Options,
    sizes: TileSizes,
    progress: Callable[[float], None] | None,
) -> dict[str, Tensor]:
    """The figures of every head, by the names of `AttentionStatistics`, the heads along one axis.

    Jobs are blocks of queries, then runs of keys; each owns what it fills, so the result has the same
    bytes on any number of threads. The last queries come first: under a causal mask they take longest.
    """
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    like = query.new_empty(0, dtype=torch.promote_types(query.dtype, torch.float32))
    starts = range(0, num_queries, sizes.queries)
    rows = _null_rows(len(heads), num_queries, value.shape[-1], options.top_k, like)
    moments = like.new_zeros(len(heads), max(1, len(starts)), 5, dtype=torch.float64)
    moments[..., 3], moments[..., 4] = torch.inf, -torch.inf
    grid = Grid.of(num_queries, num_keys, options.pooled, sizes)
    columns = _zero_columns(len(heads), num_keys, grid, like) if options.second_pass else {}
    num_threads = torch.get_num_threads() if query.device.type == "cpu" else 1
    tile_keys = min(sizes.keys, num_keys)
    scratch = Scratch((min(sizes.queries, num_queries) + key.shape[-1]) * tile_keys, like)
    first: list[Job] = []
    second: list[Job] = []
    for index, head in enumerate(heads):
        if len(head.visibility.kept) == 0:
            continue
        own_rows = {name: figures[index] for name, figures in rows.items()}
        for block, start in reversed(list(enumerate(starts))):
            block_rows = slice(start, min(start + sizes.queries, num_queries))
            first.append(
                partial(
                    _fill_rows,
                    head,
                    block_rows,
                    options.top_k,
                    sizes,
                    scratch,
                    own_rows,
                    moments[index, block],
                )
            )
        if columns:
            own = ColumnFigures(**{name: figures[index] for name, figures in columns.items()})
            for start in range(0, num_keys, grid.run):
                second.append(
                    partial(fill_columns, head, own_rows["logsumexp"], start, grid, sizes, scratch, own)
                )
    _run_passes([first, second], num_threads, progress)
    scores = {name: figures.to(like.dtype) for name, figures in merge_moments(moments).items()}
    return rows | scores | columns


def _fill_rows(
    head: Head,
    rows: slice,
    top_k: int,
    sizes: TileSizes,
    scratch: Scratch,
    into: dict[str, Tensor],
    moments: Tensor,
) -> None:
    sums = sum_rows(head, rows, top_k, sizes, scratch)
    for name, figures in row_statistics(head, sums).items():
        into[name][rows] = figures
    moments.copy_(score_moments(sums))


def _null_rows(
    num_heads: int, num_queries: int, value_dim: int, top_k: int, like: Tensor
) -> dict[str, Tensor]:
    rows = {name: like.new_full((num_heads, num_queries), torch.nan) for name in ROW_FIGURES}
    return rows | {
        "top_weights": like.new_full((num_heads, num_queries, top_k), torch.nan),
        "top_keys": like.new_full((num_heads, num_queries, top_k), -1, dtype=torch.int64),
        "visible": like.new_zeros(num_heads, num_queries, dtype=torch.int64),
        "output": like.new_zeros(num_heads, num_queries, value_dim),
    }


def _zero_columns(num_heads: int, num_keys: int, grid: Grid, like: Tensor) -> dict[str, Tensor]:
    return {
        "received_mass": like.new_zeros(num_heads, num_keys),
        "pooled_mean": like.new_zeros(num_heads, *grid.shape),
        "pooled_max": like.new_zeros(num_heads, *grid.shape),
    }


def _run_passes(
    passes: Sequence[Sequence[Job]], num_threads: int, progress: Callable[[float], None] | None
) -> None:
    total, done = sum(map(len, passes)), 0

    def finished() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done / total)

    for jobs in passes:
        run_jobs(jobs, num_threads, finished)
