"""From running sums to the statistics of a block of queries, of a head's scores and of its columns."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.formulas import are_equal, top_keys
from attncli.core.row_statistics import ends_of
from attncli.core.row_tiles import Scratch
from attncli.core.rows import PooledGrid
from attncli.core.tile_scores import LOG2_E, LOWEST, Head, Interval, QueryBlock
from attncli.core.tile_sums import RowSums, TileSizes, score_tiles, tile_pass_for


@dataclass(frozen=True)
class ColumnSums:
    """Of some rows of a head: what each kept key receives; sum and largest weight of each pooled block."""

    received: Float[Tensor, " kept"]
    mass: Float[Tensor, "query_block key_block"]
    largest: Float[Tensor, "query_block key_block"]


def no_column_sums(head: Head, grid: PooledGrid, like: Tensor) -> ColumnSums:
    """The sums before any row was seen."""
    received = like.new_zeros(len(head.visibility.kept), dtype=torch.float64)
    return ColumnSums(received, like.new_zeros(grid.counts, dtype=torch.float64), like.new_zeros(grid.counts))


def sum_columns(
    head: Head,
    blocks: Iterable[QueryBlock],
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    grid: PooledGrid,
    sizes: TileSizes,
    scratch: Scratch,
    into: ColumnSums,
) -> None:
    """Adds the weights 2^(score - reference) * inverse of blocks of queries, by strips of pooled rows."""
    add_columns = tile_pass_for(reference).add_columns
    height, width = grid.steps
    block_of_key = head.visibility.kept.div(width, rounding_mode="floor")
    for block in blocks:
        rows = block.rows
        for tile in score_tiles(head, block, sizes, scratch):
            of_keys = block_of_key[tile.keys]
            for row in range(rows.start // height, -(-rows.stop // height)):
                strip = slice(max(row * height, rows.start), min((row + 1) * height, rows.stop))
                own = slice(strip.start - rows.start, strip.stop - rows.start)
                mass, largest = torch.zeros(2, len(of_keys), dtype=reference.dtype, device=reference.device)
                add_columns(tile, own, reference[strip], inverse[strip], mass, largest)
                received = mass.double()
                into.received[tile.keys] += received
                into.mass[row].index_add_(0, of_keys, received)
                into.largest[row].scatter_reduce_(0, of_keys, largest, "amax")


def column_statistics(
    head: Head, parts: Iterable[ColumnSums], grid: PooledGrid, num_keys: int
) -> dict[str, Tensor]:
    """The mass that each key receives, and mean and largest weight of each pooled block."""
    received, mass, largest = (
        [getattr(part, name) for part in parts] for name in ("received", "mass", "largest")
    )
    whole = received[0].new_zeros(num_keys)
    whole[head.visibility.kept] = torch.stack(received).sum(0)
    together = torch.stack(mass).sum(0)
    return {
        "received_mass": whole,
        "pooled_mean": together / grid.entries().to(together),
        "pooled_max": torch.stack(largest).amax(0),
    }


ROWS = 16
"""Whole rows that are searched together at most."""


def break_ties(
    head: Head,
    rows: slice,
    top_scores: Float[Tensor, "query more"],
    top_ranks: Int[Tensor, "query more"],
    sizes: TileSizes,
    scratch: Scratch,
) -> None:
    """Puts in order all but the last, which is one more than is wanted: whole rows again where two tie.

    Tiles keep any of equal scores. Such rows are few, but for texts that repeat their words.
    """
    scores, ranks = top_scores[:, :-1], top_ranks[:, :-1]
    best, next_best = scores, top_scores[:, 1:]
    is_tied = (are_equal(next_best, best, LOG2_E) & (next_best > LOWEST)).any(dim=-1)
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
        none, found = places < 0, whole.gather(-1, places.clamp(min=0))
        scores[strip] = torch.where(tied, found.masked_fill(none, LOWEST), scores[strip])
        ranks[strip] = torch.where(tied, places + first, ranks[strip])


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
"""What comes of the running sums, a number for each row."""
IN_FLOAT64 = ("participation",)
"""Those that a strong sink takes beyond float32."""


def row_statistics(
    head: Head, block: QueryBlock, sums: RowSums, scratch: Scratch, *, is_local: bool
) -> dict[str, Tensor]:
    """Every number of RUNNING by name, and top keys; `inverse` makes 2^(score - reference) a weight.

    local_mass takes scores of its own: it is there where `is_local` asks for it.

    The sums of the output become the output, in their place.

    A sink joins the denominator only: with f the share of the keys, p = f e / sum e, and the entropy
    -sum p ln p is f (H - ln f), H being the entropy of e / sum e.
    """
    total = sums.total
    visible = block.interval.stop - block.interval.first
    keys_alone = sums.reference + total.log2()
    logsumexp = torch.logaddexp2(keys_alone, head.sink * LOG2_E - block.centre)
    log_share = keys_alone - logsumexp
    share = torch.exp2(log_share)
    entropy = share * (total.log2() - sums.weighted / total - log_share) * LN_2
    entropy = entropy.clamp(min=0)

    beyond = sums.top_scores[:, :-1] == LOWEST  # more keys asked for than visible
    before = block.position - 1
    # Summed in another order than in the tiles: large scores must not be rounded above the largest.
    first, previous = (
        torch.minimum(head.score_with(block, position), sums.largest)
        for position in (torch.zeros_like(before[:1]), before)
    )
    no_such_key = (before < 0) | (before >= head.visibility.num_keys)
    rows = {
        "logsumexp": (logsumexp + block.centre) * LN_2,
        "sums": share,
        "entropy": entropy,
        "normalized_entropy": (entropy / visible.double().log()).masked_fill(visible < 2, torch.nan),
        "max_weight": _weight(sums.largest, logsumexp),
        "top_weights": _weight(sums.top_scores[:, :-1], logsumexp).masked_fill(beyond, torch.nan),
        "sink_mass": _weight(first, logsumexp),
        "distance": share * sums.distance / total,
        "participation": total.square() / sums.total_square / share.square(),
        "max_score": (sums.largest + block.centre) * LN_2,
        "previous_token": _weight(previous, logsumexp).masked_fill(no_such_key, torch.nan),
    }
    if is_local:
        rows["local_mass"] = local_mass(head, block, sums.largest, logsumexp, scratch)
    is_blind = visible == 0
    if is_blind.any():
        for name, numbers in rows.items():
            unseen = is_blind.view(-1, *[1] * (numbers.ndim - 1))
            rows[name] = numbers.masked_fill(unseen, torch.nan)
    top_keys = head.visibility.kept[sums.top_ranks[:, :-1].masked_fill(beyond, 0)].masked_fill(beyond, -1)
    sums.output.mul_((share / total).nan_to_num(0.0)[:, None])
    inverse = torch.exp2(sums.reference - logsumexp).masked_fill(is_blind, 0.0)
    return rows | {"visible": visible, "top_keys": top_keys, "inverse": inverse}


STRIP = 128
"""Queries whose weights on near keys are computed together; their band is as much wider than a window."""


def local_mass(
    head: Head,
    block: QueryBlock,
    largest: Float[Tensor, " query"],
    logsumexp: Float[Tensor, " query"],
    scratch: Scratch,
) -> Float[Tensor, " query"]:
    """sum p over the first keys and those near the query: `attncli.core.formulas.local_mass`."""
    seen, ends = head.visibility, ends_of(head.visibility.num_keys)
    num_first = int((seen.kept < ends.sink).sum())
    near = replace(seen, window=ends.window).interval(block.rows)
    first, stop = near.first.maximum(block.interval.first), near.stop.minimum(block.interval.stop)
    mass = torch.zeros_like(logsumexp)
    for start in range(0, len(mass), STRIP):
        rows = slice(start, start + STRIP)
        strip, of_window = block.of(rows), Interval(first[rows], stop[rows])
        last = int(of_window.stop.max())
        band = slice(min(int(of_window.first.min()), last), last)
        before = slice(0, min(num_first, last))
        for ranks in (band, before):
            columns = torch.arange(ranks.start, ranks.stop, device=mass.device)
            hidden = of_window.hides(columns)
            if ranks is before:  # those of the first keys that are not near
                hidden = ~hidden | strip.interval.hides(columns)
            size = len(columns) * (len(strip.query) + strip.query.shape[-1])
            with scratch.lent(size) as (buffer, _):
                scores = head.scores(strip, ranks, buffer).minimum(largest[rows, None])
            weights = _weight(scores, logsumexp[rows]).masked_fill(hidden, 0.0)
            mass[rows] += weights.sum(dim=-1)
    return mass


def _weight(scores: Float[Tensor, "query ..."], logsumexp: Float[Tensor, " query"]) -> Tensor:
    return torch.exp2(scores - logsumexp.view(-1, *[1] * (scores.ndim - 1)))


def score_moments(block: QueryBlock, sums: RowSums) -> Float[Tensor, " 5"]:
    """Count, mean, sum of squared deviations, minimum and maximum of a block's visible scores."""
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
