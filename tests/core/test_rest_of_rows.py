"""Rows without their first key, from one pass, against a second attention without that key."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attncli.core import engines, row_tiles, rows
from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Computed, Marks, Wanted
from attncli.core.row_tiles import GivenWeights
from attncli.measure.heads import without_first_keys
from attncli.measure.patterns import head_scores, one_key, wanted_scores, without_first_key
from tests.conftest import in_turn
from tests.layers import checked_layer

TEXTS, HEADS, KV_HEADS, DIM = 2, 6, 3, 5
SETTINGS = {
    "causal": {"causal": True},
    "both ways": {},
    "window": {"causal": True, "window": 7},
    "padding": {"padded": True},
    "causal padding": {"causal": True, "padded": True},
    "sink": {"causal": True, "sink": True},
    "softcap": {"causal": True, "softcap": 3.0},
    "bias": {"causal": True, "bias": True},
}
BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}


def drawn(
    dtype: torch.dtype, tokens: int, *, first: float = 0.0, seed: int = 3, **settings: object
) -> AttentionLayer:
    """A layer of grouped heads; `first` is added to the scores of the first key."""
    generator = torch.Generator().manual_seed(seed)
    query = 2 * torch.randn(TEXTS, HEADS, tokens, DIM, generator=generator, dtype=dtype)
    key, value = torch.randn(2, TEXTS, KV_HEADS, tokens, DIM, generator=generator, dtype=dtype)
    if settings.pop("padded", False):
        settings["key_mask"] = torch.arange(tokens) < torch.tensor([[tokens], [tokens - tokens // 3]])
    if settings.pop("sink", False):
        settings["sink"] = torch.randn(1, HEADS, generator=generator).double()
    if settings.pop("bias", False) or first:
        settings["bias"] = torch.zeros(1, HEADS, 1, tokens, dtype=dtype)
        settings["bias"] += torch.randn(settings["bias"].shape, generator=generator, dtype=dtype)
        settings["bias"][..., 0] += first
    return checked_layer(query, key, value, **settings)


def wanted_of(layer: AttentionLayer | GivenWeights) -> Wanted:
    num_texts, _, tokens, _ = layer.shape
    ids = torch.randint(0, 6, (num_texts, tokens), generator=torch.Generator().manual_seed(9))
    return wanted_scores(ids, Marks(*torch.zeros(3, num_texts, tokens, dtype=torch.bool)))


def named_by(found: Computed, wanted: Wanted) -> dict[str, Tensor]:
    mass, key = one_key([found], wanted)
    return head_scores([found], wanted) | {"one_key_mass": mass, "key": key}


def both(source: AttentionLayer | GivenWeights) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Statistics of rows without their first key, from one pass and from a second attention."""
    wanted = wanted_of(source)
    of_rest = without_first_key(wanted)
    found = attend(source, replace(wanted, rest=of_rest)).rest
    assert found is not None
    return named_by(found, of_rest), named_by(attend(without_first_keys(source, 1), of_rest), of_rest)


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(row_tiles, "tile_pass", lambda: None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("name", "dtype", "first"),
    in_turn(SETTINGS, [(dtype, first) for dtype in BOUNDS for first in (0.0, 12.0)]),
    ids=str,
)
def test_rest_from_one_pass_matches_a_second_attention(
    name: str, first: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tokens, tile in ((1, 2**20), (23, 300)):
        monkeypatch.setattr(row_tiles, "TILE", tile)
        monkeypatch.setattr(row_tiles, "LEAST_ROWS", 3)
        ours, expected = both(drawn(dtype, tokens, first=first, **SETTINGS[name]))
        assert ours.keys() == expected.keys()
        for statistic, numbers in ours.items():
            torch.testing.assert_close(
                numbers,
                expected[statistic],
                rtol=BOUNDS[dtype],
                atol=BOUNDS[dtype],
                equal_nan=True,
                msg=statistic,
            )


def test_the_rest_of_given_weights_matches() -> None:
    layer = drawn(torch.float64, 23, causal=True)
    weights = attend(layer, Wanted(weights=True)).weights
    assert weights is not None
    ours, _ = both(GivenWeights(weights, layer.visibility.whole(weights.device).expand(TEXTS, -1, -1)))
    expected, _ = both(layer)
    for statistic, numbers in ours.items():
        torch.testing.assert_close(numbers, expected[statistic], rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.usefixtures("way")
def test_a_first_key_of_weight_1_leaves_nothing() -> None:
    layer = drawn(torch.float32, 11, causal=True, first=0.0)
    bias = torch.zeros(1, HEADS, 11, 11)
    bias[0, 1, :, 0] = 900.0  # a whole head
    bias[0, 2, 7, 0] = 900.0  # one row
    whole = replace(layer, rules=replace(layer.rules, bias=bias))
    wanted = wanted_of(layer)
    of_rest = without_first_key(wanted)
    found, expected = (attend(some, replace(wanted, rest=of_rest)).rest for some in (whole, layer))
    assert found is not None and expected is not None and found.nothing_left is not None
    assert found.nothing_left[:, 1, 1:].all() and found.nothing_left[:, 2].nonzero()[:, 1].tolist() == [7, 7]
    assert found.nothing_left.sum() == TEXTS * (10 + 1)
    named, plain = named_by(found, of_rest), named_by(expected, of_rest)
    assert named["normalized_entropy"][:, :, 1].isnan().all()
    assert named["previous_token"][:, :, 1].isnan().all() and named["one_key_mass"][:, :, 1].isnan().all()
    others = [0, 3, 4, 5]
    for statistic, numbers in named.items():
        torch.testing.assert_close(numbers[..., others], plain[statistic][..., others], equal_nan=True)
    # The mean over the rows that have weight left.
    entropies = expected.rows["normalized_entropy"][:, 2].clone()
    entropies[:, 7] = torch.nan
    torch.testing.assert_close(named["normalized_entropy"][0, :, 2], entropies.nanmean(dim=-1))
    weights = attend(without_first_keys(layer, 1), Wanted(weights=True)).weights
    assert weights is not None
    previous = weights[:, 2].diagonal(offset=-1, dim1=-2, dim2=-1)  # of the rows from 1
    kept = [row for row in range(1, 10) if row != 6]  # row 1 sees the first key alone before it
    torch.testing.assert_close(named["previous_token"][0, :, 2], previous[:, kept].mean(dim=-1))


def test_the_rest_is_computed_for_an_engine_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = drawn(torch.float32, 11, causal=True)
    wanted = wanted_of(layer)
    wanted = replace(wanted, rest=without_first_key(wanted))
    expected = attend(layer, wanted).rest

    def without_rest(source: Any, wanted: Wanted, progress: Any) -> Computed:
        return rows.attend(source, replace(wanted, rest=None), progress)

    monkeypatch.setitem(engines.ENGINES, "rows", engines.Engine(without_rest, lambda source, wanted: True))
    engines.engines.cache_clear()
    try:
        rest = attend(layer, wanted).rest
    finally:
        engines.engines.cache_clear()
    assert rest is not None and expected is not None and rest.pattern_mass is not None
    torch.testing.assert_close(rest.pattern_mass, expected.pattern_mass)


def test_scores_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[object] = []
    softmax_rows = row_tiles.softmax_rows

    def counted(*given: Any) -> Any:
        passes.append(given)
        return softmax_rows(*given)

    monkeypatch.setattr(row_tiles, "softmax_rows", counted)
    layer = drawn(torch.float32, 11, causal=True)
    wanted = wanted_of(layer)
    attend(layer, replace(wanted, rest=without_first_key(wanted)))
    assert len(passes) == 1
