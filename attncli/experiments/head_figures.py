"""Every statistic of a layer's heads, a number a head."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.experiments.head_rows import ROW_FIGURES, HeadRows
from attncli.experiments.head_weights import HeadWeights
from attncli.mechanisms.visibility import ROWS
from attncli.statistics.head_scores import (
    induction_stripe,
    mul_score,
    pattern_score,
    repeated_positions,
)

FIRST_KEYS = 4
OFFSETS = {"previous_token": -1, "current_token": 0}
KEYS_AFTER = {"duplicate_token": 0, "induction": 1}


class PatternMass(NamedTuple):
    """The weight of each row that falls on a pattern, and in which rows the pattern is not empty."""

    mass: Float[Tensor, "head query"]
    has_pattern: Bool[Tensor, " query"]


def _along_diagonal(rows: HeadRows, offset: int, first_key: int) -> PatternMass:
    num_heads, num_queries = rows.row_sums.shape
    queries = torch.arange(first_key - offset, num_queries, device=rows.row_sums.device)
    mass = rows.row_sums.new_zeros(num_heads, num_queries)
    has_pattern = torch.zeros(num_queries, dtype=torch.bool, device=mass.device)
    mass[:, queries] = rows.weights.pairs(queries, queries + offset).to(mass.dtype)
    has_pattern[queries] = True
    return PatternMass(mass, has_pattern)


def _among_copies(rows: HeadRows, copies: list[Int[Tensor, " _"]], after: int, first_key: int) -> PatternMass:
    """The weight of query i on j = a + after, over the earlier positions a of the same token.

    A token's positions are a small matrix of their own: the work is that of the pairs, memory that of some
    rows.
    """
    num_heads, num_queries = rows.row_sums.shape
    mass = rows.row_sums.new_zeros(num_heads, num_queries)
    has_pattern = torch.zeros(num_queries, dtype=torch.bool, device=mass.device)
    for positions in copies:
        earlier = positions[:-1]
        earlier = earlier[earlier + after >= first_key]
        for start in range(1, len(positions), ROWS):
            queries = positions[start : start + ROWS]
            before = earlier < queries.unsqueeze(-1)
            weights = rows.weights.block(queries, earlier + after)
            mass[:, queries] = (weights * before).sum(dim=-1).to(mass.dtype)
            has_pattern[queries] = before.any(dim=-1)
    return PatternMass(mass, has_pattern)


def _stripe(weights: HeadWeights, num_tokens: int, length: int) -> Float[Tensor, "head query"]:
    queries = torch.arange(num_tokens - length, num_tokens)
    return weights.pairs(queries, queries + 1 - length)


def head_figures(
    rows: HeadRows,
    *,
    ids: Int[Tensor, " token"] | None,
    first_key: int = 0,
    repeat: int | None = None,
) -> dict[str, Float[Tensor, " head"]]:
    """Means over rows of the row statistics, and how much weight falls on each detection pattern.

    `ids` are the tokens, on both sides; None in cross-attention, where positions on the two sides do not
    compare. The first keys are out. `repeat` is |r| on the repeated probe.
    """
    figures = {name: figure.nanmean(dim=-1) for name, figure in rows.figures.items()}
    num_heads, num_queries = rows.row_sums.shape
    everyone = torch.arange(num_queries, device=rows.row_sums.device)
    first_keys = torch.arange(min(FIRST_KEYS, rows.weights.num_keys), device=everyone.device)
    first = rows.weights.block(everyone, first_keys)
    seeing = ~rows.figures["entropy"][0].isnan()
    figures["sink_mass"] = pattern_score(first[..., 0], seeing)
    figures["sink_mass_4"] = pattern_score(first.sum(dim=-1), seeing)
    if ids is None:
        nothing = torch.full((num_heads,), torch.nan)
        figures["distance"] = nothing
        return figures | dict.fromkeys(PATTERN_FIGURES, nothing)
    copies = repeated_positions(ids)
    masses = {name: _along_diagonal(rows, offset, first_key) for name, offset in OFFSETS.items()}
    masses |= {name: _among_copies(rows, copies, after, first_key) for name, after in KEYS_AFTER.items()}
    figures |= {name: pattern_score(*mass) for name, mass in masses.items()}
    figures |= {f"{name}_mul": mul_score(mass.mass, rows.row_sums) for name, mass in masses.items()}
    if repeat is not None:
        figures["induction_stripe"] = induction_stripe(_stripe(rows.weights, num_queries, repeat))
    return figures


PATTERN_FIGURES = (*OFFSETS, *KEYS_AFTER, *(f"{name}_mul" for name in (*OFFSETS, *KEYS_AFTER)))
HEAD_FIGURES = (*ROW_FIGURES, "sink_mass", "sink_mass_4", *PATTERN_FIGURES)
