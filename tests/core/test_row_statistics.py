"""Statistics against scipy, autograd and written-out sums."""

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from attncli.core.formulas import (
    KEYS_PER_RANK,
    Rows,
    load_formula,
    received_mass,
    softmax_gradient_norm,
    top_keys,
)
from attncli.core.mechanisms import causal_mask, full_mask
from attncli.core.names import ROW_STATISTICS, WEIGHT_STATISTICS, cache_ends
from attncli.core.row_tiles import NUM_BUFFERS, Scratch, tile_places, tiles
from attncli.core.summaries import moments
from tests.conftest import in_pairs, in_turn
from tests.layers import checked_layer


def scores_of(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given_rows(weights: torch.Tensor, visible: torch.Tensor) -> Rows:
    """Given rows, of queries and keys from the first ones on."""
    return Rows(weights, visible.sum(-1), *(torch.arange(count) for count in weights.shape[-2:]))


def statistic_of_scores(name: str, scores: torch.Tensor, **settings: Any) -> torch.Tensor:
    """The same from an engine, which also has the scores."""
    keys = torch.eye(scores.shape[-1], dtype=scores.dtype).expand(*scores.shape[:-2], -1, -1)
    layer = checked_layer(scores, keys, keys, scale="none", **settings)
    scratch = Scratch(layer.like, NUM_BUFFERS)
    (found,) = [
        statistic(name, tile.rows) for some in tile_places(layer) for tile in tiles(layer, some, scratch)
    ]
    return found.reshape(scores.shape[:-1])


def statistic(name: str, rows: Rows) -> torch.Tensor:
    found: torch.Tensor = load_formula(ROW_STATISTICS[name].formula)(rows)
    return found


NAIVE = {
    "entropy": lambda p, i, seen: scipy.stats.entropy(p),
    "normalized_entropy": lambda p, i, seen: scipy.stats.entropy(p) / np.log(seen) if seen > 1 else np.nan,
    "max_weight": lambda p, i, seen: max(p),
    "sink_mass": lambda p, i, seen: p[0],
    "distance": lambda p, i, seen: sum(p[j] * abs(i - j) for j in range(len(p))),
    "participation": lambda p, i, seen: 1 / sum(x * x for x in p),
    "local_mass": lambda p, i, seen: sum(
        x for j, x in enumerate(p) if j < np.ceil(len(p) / 128) or abs(i - j) < np.ceil(len(p) / 8)
    ),
}


def naive_rows(name: str, weights: torch.Tensor, visible: torch.Tensor, first_query: int = 0) -> np.ndarray:
    matrices = weights.reshape(-1, *weights.shape[-2:])
    return np.array(
        [
            [
                NAIVE[name](p.numpy(), i, int(seen.sum()))
                for i, (p, seen) in enumerate(zip(matrix, visible, strict=True), first_query)
            ]
            for matrix in matrices
        ]
    )


@pytest.mark.parametrize(
    ("name", "causal", "shape"),
    in_pairs(WEIGHT_STATISTICS, [True, False], [(5, 5), (3, 7, 7), (1, 1), (2, 3, 5, 5)]),
)
def test_every_row_statistic_is_its_formula(name: str, causal: bool, shape: tuple[int, ...]) -> None:
    visible = (causal_mask if causal else full_mask)(shape[-2], shape[-1])
    scores = scores_of(*shape)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    expected = naive_rows(name, weights, visible)
    for result in (
        statistic(name, given_rows(weights, visible)),
        statistic_of_scores(name, scores, causal=causal),
    ):
        np.testing.assert_allclose(result.reshape(-1, shape[-2]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "sink"),
    in_turn([name for name in WEIGHT_STATISTICS if "entropy" not in name], [-3.0, 0.5, 40.0]),
)
def test_rows_beside_a_sink_sum_to_less_than_one(name: str, sink: float) -> None:
    visible = full_mask(5, 7)
    scores = scores_of(3, 5, 7, seed=4)
    column = torch.full((3, 5, 1), sink, dtype=torch.float64)
    weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
    result = statistic_of_scores(name, scores, sink=torch.tensor([[sink]]))
    np.testing.assert_allclose(result, naive_rows(name, weights, visible), rtol=1e-12, atol=0)


@pytest.mark.parametrize("sink", [-3.0, 0.5, 40.0])
def test_the_entropy_beside_a_sink_is_that_of_the_keys(sink: float) -> None:
    """scipy would scale the rows to a sum of 1."""
    visible, scores = full_mask(5, 7), scores_of(3, 5, 7, seed=4)
    column = torch.full((3, 5, 1), sink, dtype=torch.float64)
    weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1].numpy()
    entropy = scipy.special.entr(weights).sum(axis=-1)
    given = given_rows(torch.from_numpy(weights), visible)
    for name, expected in (("entropy", entropy), ("normalized_entropy", entropy / np.log(7))):
        ours = statistic_of_scores(name, scores, sink=torch.tensor([[sink]]))
        for result in (statistic(name, given), ours):
            np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", WEIGHT_STATISTICS)
def test_rows_may_leave_out_keys_that_have_no_weight(name: str) -> None:
    """A tile of a causal layer or of a window has only the keys that some of its queries see."""
    scores = scores_of(3, 5, 11, seed=5)
    visible = torch.zeros(5, 11, dtype=torch.bool)
    visible[:, 4:9] = torch.ones(5, 5, dtype=torch.bool).tril()
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    part = Rows(weights[..., 4:9], visible.sum(-1), torch.arange(4, 9), torch.arange(4, 9), num_keys=11)
    expected = naive_rows(name, weights, visible, first_query=4)
    np.testing.assert_allclose(statistic(name, part), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sink", [None, -3.0, 1e4])
def test_max_score_is_the_largest_that_the_row_sees(causal: bool, sink: float | None) -> None:
    scores = scores_of(3, 5, 5, seed=6)
    visible = (causal_mask if causal else full_mask)(5, 5)
    settings = {} if sink is None else {"sink": torch.tensor([[sink]])}
    found = statistic_of_scores("max_score", scores, causal=causal, **settings)
    torch.testing.assert_close(found, scores.masked_fill(~visible, -torch.inf).amax(dim=-1))
    assert statistic("max_score", given_rows(scores.softmax(dim=-1), visible)).isnan().all()


def test_local_mass_is_that_of_four_keys_and_sixty_four_of_a_long_row() -> None:
    assert [cache_ends(count) for count in (0, 1, 9, 128, 129, 511, 512, 16384)] == [
        (0, 0), (1, 1), (1, 2), (1, 16), (2, 17), (4, 64), (4, 64), (4, 64)
    ]  # fmt: skip
    visible = causal_mask(600, 600)
    weights = scores_of(1, 600, 600, seed=7).masked_fill(~visible, -torch.inf).softmax(dim=-1)
    found = statistic("local_mass", given_rows(weights, visible))[0]
    torch.testing.assert_close(found[500], weights[0, 500, :4].sum() + weights[0, 500, 437:].sum())
    torch.testing.assert_close(found[:68], torch.ones(68, dtype=torch.float64))


def test_uniform_and_one_hot_rows() -> None:
    visible = full_mask(1, 7)
    uniform, one_hot = torch.full((1, 7), 1 / 7, dtype=torch.float64), torch.eye(7, dtype=torch.float64)[2:3]
    figures = {
        name: tuple(statistic(name, given_rows(weights, visible)).item() for weights in (uniform, one_hot))
        for name in ROW_STATISTICS
    }
    assert figures["entropy"] == pytest.approx((np.log(7), 0))
    assert figures["normalized_entropy"] == pytest.approx((1, 0))
    assert figures["participation"] == pytest.approx((7, 1))


def test_top_keys_name_the_earlier_of_equals_first_and_nothing_hidden() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.4, 0.4, 0], [0.1, 0.2, 0.3, 0.4]])
    ranking = weights.masked_fill(~causal_mask(4, 4), -torch.inf)
    keys = top_keys(ranking, 3, unit=0.0)
    assert keys.tolist() == [[0, -1, -1], [0, 1, -1], [1, 2, 0], [3, 2, 1]]
    assert torch.equal(ranking, weights.masked_fill(~causal_mask(4, 4), -torch.inf)), "left as it was"
    beyond = top_keys(ranking, 9, unit=0.0)
    assert beyond.shape == (4, 9) and (beyond[:, 4:] == -1).all()
    assert beyond[:, :4].tolist() == [[0, -1, -1, -1], [0, 1, -1, -1], [1, 2, 0, -1], [3, 2, 1, 0]]


@pytest.mark.parametrize(
    ("k", "num_keys", "levels", "last_bits"),
    in_pairs([1, 3], [5, KEYS_PER_RANK, 3 * KEYS_PER_RANK, 500], [1, 2, 4, 10**6], [0, 8]),
)
def test_top_keys_are_those_of_a_stable_sort(k: int, num_keys: int, levels: int, last_bits: int) -> None:
    """Both ways of finding them, with many equal entries and with none, and with rows that see little.

    What rounding adds in the last bits changes nothing.
    """
    generator = torch.Generator().manual_seed(levels)
    ranking = torch.randint(0, levels, (2, 31, num_keys), generator=generator).double()
    hidden = torch.rand(2, 31, num_keys, generator=generator) < 0.5
    ranking[0] = ranking[0].masked_fill(hidden[0], -torch.inf)
    ranking[1, 0], ranking[1, 1, 1:] = -torch.inf, -torch.inf
    noise = last_bits * (torch.rand(ranking.shape, generator=generator, dtype=torch.float64) - 0.5)
    found = top_keys(ranking * (1 + noise * torch.finfo(torch.float64).eps), k, unit=0.0).numpy()
    order = np.argsort(-ranking.numpy(), axis=-1, kind="stable")[..., :k]
    values = np.take_along_axis(ranking.numpy(), order, axis=-1)
    np.testing.assert_array_equal(found, np.where(values == -np.inf, -1, order))


def test_received_mass_is_the_column_sum() -> None:
    weights = scores_of(3, 5).softmax(dim=-1)
    np.testing.assert_allclose(received_mass(weights), weights.numpy().sum(axis=0))


def test_moments_are_scipys() -> None:
    numbers = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    described = scipy.stats.describe(numbers.double().numpy(), axis=None)
    assert moments(numbers) == pytest.approx(
        {
            "mean": described.mean,
            "variance": described.variance,
            "min": described.minmax[0],
            "max": described.minmax[1],
        }
    )
    assert np.isnan(moments(torch.ones(1))["variance"])


@pytest.mark.parametrize("factor", [0.1, 1.0, 8.0, 30.0])
def test_gradient_norm_is_that_of_autograds_jacobian(factor: float) -> None:
    logits = factor * torch.tensor([0.1, -0.2, 0.3, -0.2, 0.5], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(dim=-1), logits)
    ours = softmax_gradient_norm(logits.softmax(dim=-1)).item()
    assert ours == pytest.approx(torch.linalg.norm(jacobian).item(), rel=1e-9)
