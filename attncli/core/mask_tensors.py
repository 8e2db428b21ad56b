"""Mask tensors, split into a visibility and numbers to add to the scores."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.layer import Visibility

HIDES = -500.0
"""Mask entries at or below this number hide keys: a dtype's minimum, -1e9, or -1,000 beside a bias."""
GAP = 100.0
"""The smallest gap between the largest entries of visible and hidden rows; in a bias, gaps are smaller."""
HIDDEN_BY_A_HEAD = -1e30
"""The number added to a score to hide an entry from only some heads."""


def split_mask(
    mask: Tensor, num_queries: int, num_keys: int
) -> tuple[Visibility, Float[Tensor, "#text #head #query #key"] | None]:
    """Split a mask (text, head, query, key), its axes of full size or 1, into visibility and numbers to add.

    In a boolean mask, True marks keys that may be attended to. Numbers are added to scores, and very small
    ones hide keys. Entries hidden from only some heads become numbers to add.
    """
    hidden = ~mask if mask.dtype == torch.bool else mask <= hiding_numbers(mask)
    bias = None if mask.dtype == torch.bool else mask.masked_fill(hidden, 0.0)
    bias = bias if bias is not None and bias.any() else None
    from_all = hidden.all(dim=1)
    by_a_head = hidden & ~from_all.unsqueeze(1)
    if by_a_head.any():
        floor = torch.zeros(hidden.shape, device=mask.device).masked_fill(by_a_head, HIDDEN_BY_A_HEAD)
        bias = floor if bias is None else bias + floor
    return seen_by_rule(~from_all.expand(-1, num_queries, num_keys)), bias


def hiding_numbers(mask: Float[Tensor, "text head query key"]) -> Float[Tensor, "text head query #key"]:
    """The number at or below which a row's entries hide keys: HIDES, or the row's largest entry plus HIDES.

    The latter applies to rows of a bias that is far below 0 everywhere, such as positions counted from the
    last.
    """
    numbers = mask.new_full((*mask.shape[:3], 1), HIDES)
    largest = mask.amax(dim=-1, keepdim=True)
    if not ((largest <= HIDES + GAP) & largest.isfinite()).any():
        return numbers
    rows = largest[largest.isfinite()].double().sort(descending=True).values
    gaps = (rows[:-1] - rows[1:] > GAP).nonzero()
    last = rows[int(gaps[0])] if len(gaps) else rows[-1]
    if rows[0] <= HIDES:  # every row is hidden
        return numbers
    return torch.where(largest >= last, (largest + HIDES).clamp(max=HIDES), numbers)


def seen_by_rule(seen: Bool[Tensor, "#text query key"]) -> Visibility:
    """The visibility given by a matrix that is True where a query sees a key."""
    num_queries, num_keys = seen.shape[1:]
    if seen.all():
        return Visibility(num_queries, num_keys)
    return Visibility(num_queries, num_keys, rule=lambda i, j: seen[:, i][:, :, j])


def recognised(seen: Bool[Tensor, "#text query key"]) -> Visibility:
    """The simplest visibility with these entries: causal, a window or padded keys, otherwise a rule."""
    num_queries, num_keys = seen.shape[1:]
    some = seen.any(dim=1)
    key_mask = None if some.all() else some
    everything = some[:, None].expand_as(seen)
    if torch.equal(seen, everything):
        return Visibility(num_queries, num_keys, key_mask=key_mask)
    shift = num_keys - num_queries
    behind = torch.arange(num_queries, device=seen.device)[:, None] + shift
    behind = behind - torch.arange(num_keys, device=seen.device)
    for causal in (True, False):
        ahead = (behind >= 0) if causal else torch.ones_like(behind, dtype=torch.bool)
        reaches = behind.abs().where((seen & ahead).any(dim=0), -1)
        for window in (None, int(reaches.max()) + 1):
            inside = ahead if window is None else ahead & (behind.abs() < window)
            if torch.equal(seen, everything & inside):
                offset = None if causal or not shift else shift
                return Visibility(num_queries, num_keys, causal, window, key_mask, offset=offset)
    return seen_by_rule(seen)
