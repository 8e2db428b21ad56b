"""The pass over the tiles of all heads."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tiles.each_head import each_head
from attncli.attention.engines.tiles.rows import RUNNING, row_statistics, score_moments
from attncli.attention.engines.tiles.scores import Head
from attncli.attention.engines.tiles.tiles import TileSizes, sum_rows
from attncli.attention.engines.tiles.workers import Job, run_jobs
from attncli.attention.layer import AttentionLayer


def stream(
    layer: AttentionLayer, top_k: int, sizes: TileSizes, progress: Callable[[float], None] | None
) -> dict[str, Tensor]:
    """Every number by its name, the heads of all texts along one axis; `moments` are still those of blocks.

    Jobs are blocks of queries; each owns what it fills, so the result has the same bytes on any number of
    threads. The last queries come first: under a causal mask they take longest.
    """
    heads = list(each_head(layer))
    _, _, num_queries, num_keys = layer.shape
    like = layer.query.new_empty(0, dtype=torch.promote_types(layer.query.dtype, torch.float32))
    starts = range(0, num_queries, sizes.queries)
    rows = _null_rows(len(heads), num_queries, layer.value.shape[-1], top_k, like)
    moments = like.new_zeros(len(heads), max(1, len(starts)), 5, dtype=torch.float64)
    moments[..., 3], moments[..., 4] = torch.inf, -torch.inf
    num_threads = torch.get_num_threads() if layer.query.device.type == "cpu" else 1
    tile_keys = min(sizes.keys, num_keys)
    scratch = Scratch((min(sizes.queries, num_queries) + layer.key.shape[-1]) * tile_keys, like)
    jobs: list[Job] = []
    for index, head in enumerate(heads):
        own = {name: numbers[index] for name, numbers in rows.items()}
        for block, start in reversed(list(enumerate(starts))):
            if len(head.visibility.kept):
                block_rows = slice(start, min(start + sizes.queries, num_queries))
                into = (own, moments[index, block])
                jobs.append(partial(_fill_rows, head, block_rows, top_k, sizes, scratch, *into))
    done = 0

    def finished() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done / len(jobs))

    run_jobs(jobs, num_threads, finished)
    return rows | {"moments": moments}


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
    for name, numbers in row_statistics(head, sums).items():
        into[name][rows] = numbers
    moments.copy_(score_moments(sums))


def _null_rows(
    num_heads: int, num_queries: int, value_dim: int, top_k: int, like: Tensor
) -> dict[str, Tensor]:
    rows = {name: like.new_full((num_heads, num_queries), torch.nan) for name in RUNNING}
    return rows | {
        "top_weights": like.new_full((num_heads, num_queries, top_k), torch.nan),
        "top_keys": like.new_full((num_heads, num_queries, top_k), -1, dtype=torch.int64),
        "visible": like.new_zeros(num_heads, num_queries, dtype=torch.int64),
        "output": like.new_zeros(num_heads, num_queries, value_dim),
    }
