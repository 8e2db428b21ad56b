"""Tiles cover every visible key, mark where a mask is needed, and leave out keys that no query sees."""

import pytest
import torch

from attncli.core.tile_sums import ALIGNMENT, HeadMask
from tests.conftest import in_pairs
from tests.layers import visible_keys


@pytest.mark.parametrize(
    ("causal", "window", "sizes"),
    in_pairs([True, False], [None, 1, 13, 60], [(97, 97), (31, 101), (101, 31)]),
)
def test_tiles_cover_the_visible_entries_once(
    causal: bool, window: int | None, sizes: tuple[int, int]
) -> None:
    num_queries, num_keys = sizes
    kept = torch.rand(num_keys, generator=torch.Generator().manual_seed(num_keys)) < 0.8
    seen = visible_keys(num_queries, num_keys, causal=causal, window=window)[:, kept]
    visibility = HeadMask(kept.nonzero()[:, 0], num_keys, num_queries, causal, window)
    covered = torch.zeros_like(seen)
    for start in range(0, num_queries, 11):
        rows = slice(start, min(start + 11, num_queries))
        interval = visibility.interval(rows)
        for keys, seen_by_all in interval.tiles(17):
            hidden = interval.hides(torch.arange(keys.start, keys.stop))
            assert not (seen_by_all and hidden.any())
            assert not covered[rows, keys].any()
            covered[rows, keys] |= ~hidden
    assert torch.equal(covered, seen)


def test_the_work_of_a_window_does_not_grow_with_the_keys() -> None:
    visibility = HeadMask(torch.arange(10**6), 10**6, 10**6, True, 1000)
    interval = visibility.interval(slice(700_000, 700_512))
    computed = sum(keys.stop - keys.start for keys, _ in interval.tiles(2048))
    assert 1000 + 511 <= computed <= 1000 + 512 + 2 * ALIGNMENT
