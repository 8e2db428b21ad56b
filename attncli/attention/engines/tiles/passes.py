"""The passes over the tiles of all heads: one for the rows, and one for the columns where they are wanted."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from attncli.attention.engines.jobs import run_jobs
from attncli.attention.engines.matrices import PooledGrid
from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tiles.each_head import each_head
from attncli.attention.engines.tiles.head_jobs import ROWS_AT_ONCE, HeadJobs, Job, Plan, slices
from attncli.attention.engines.tiles.rows import IN_FLOAT64, RUNNING
from attncli.attention.engines.tiles.tiles import TileSizes
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted

ROWS_TOGETHER = 65536
"""Rows whose running sums are kept at a time: those of some heads, or of one."""


def stream(
    layer: AttentionLayer,
    wanted: Wanted,
    sizes: TileSizes | None,
    progress: Callable[[float], None] | None,
    num_threads: int,
) -> dict[str, Tensor]:
    """Every number by its name, the heads of all texts along one axis; `moments` are still those of parts.

    The result has the same bytes on any number of threads.
    """
    heads = list(each_head(layer))
    _, _, num_queries, num_keys = layer.shape
    like = layer.query.new_empty(0, dtype=torch.promote_types(layer.query.dtype, torch.float32))
    sizes = sizes or TileSizes.suited_to(num_keys, like)
    has_columns = wanted.received_mass or wanted.pooled is not None
    grid = PooledGrid(num_queries, num_keys, wanted.pooled or 1)
    found = _null_rows(len(heads), num_queries, layer.value.shape[-1], wanted.top_k, like)
    if has_columns:
        found |= _null_columns(len(heads), num_keys, grid, like)
    together = min(len(heads), max(1, ROWS_TOGETHER // max(1, num_queries)))
    done, num_stages = 0.0, 1 + has_columns

    def run(stages: Iterable[list[Job]], share: float) -> None:
        """All jobs of a stage of these heads, which is that share of the whole."""
        nonlocal done
        jobs = [job for stage in stages for job in stage]
        for count, _ in enumerate(run_jobs(jobs, num_threads), 1):
            if progress is not None:
                progress(min(1.0, done + share * count / len(jobs)))
        done += share

    with Scratch(like) as scratch:
        plan = Plan(num_queries, wanted.top_k, sizes, scratch, grid, like)
        for group in slices(len(heads), together):
            some = [
                HeadJobs(heads[index], plan, {name: numbers[index] for name, numbers in found.items()})
                for index in range(group.start, group.stop)
                if len(heads[index].visibility.kept)
            ]
            share = (group.stop - group.start) / len(heads) / num_stages
            run((head.rows() for head in some), share)
            if has_columns:
                run((head.columns() for head in some), share)
                for head in some:
                    head.fill_columns()
    return found


def _null_rows(
    num_heads: int, num_queries: int, value_dim: int, top_k: int, like: Tensor
) -> dict[str, Tensor]:
    rows = {
        name: like.new_full(
            (num_heads, num_queries), torch.nan, dtype=torch.float64 if name in IN_FLOAT64 else like.dtype
        )
        for name in RUNNING
    }
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
