"""Properties of each variant for any numbers: closed forms and naive loops in float64."""

import cmath
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

from attncli.core.engines import attend
from attncli.core.layer import Wanted, merge_heads, split_heads
from attncli.core.mechanisms import (
    alibi_bias,
    alibi_slopes,
    attend_differentially,
    causal_mask,
    differential_lambda,
    distance_buckets,
    full_mask,
    relative_bias,
    rms_norm,
    rotary_angles,
    rotate,
)
from tests.layers import attended, checked_layer, visible_keys

seeds = st.integers(0, 2**32)
lengths = st.integers(1, 11)
unhurried = settings(deadline=None, max_examples=50)
"""The naive loops take what a busy machine needs."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_hot_keys(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with given scores: the query is the scores, the keys are unit vectors."""
    keys = torch.eye(scores.shape[-1], dtype=torch.float64).expand(*scores.shape[:-2], -1, -1)
    return scores, keys, keys


def weights_of(scores: Tensor, **rules: Any) -> Tensor:
    """Weights for given scores."""
    return attended(*one_hot_keys(scores), scale="none", **rules).weights


def softcapped(scores: Tensor, cap: float) -> Tensor:
    """Numbers after a soft cap."""
    return attended(*one_hot_keys(scores.view(1, -1)), scale="none", softcap=cap).scores.view(scores.shape)


# rope


@unhurried
@given(seeds, st.integers(1, 8), st.floats(1, 1e6), st.integers(2, 40))
def test_rotary_scores_depend_on_distance_alone(seed: int, pairs: int, base: float, count: int) -> None:
    query, key = drawn(2, 2 * pairs, seed=seed)
    scores = rotate(query.expand(count, -1), base=base) @ rotate(key.expand(count, -1), base=base).T
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=0, atol=1e-11)


@unhurried
@given(seeds, st.integers(1, 8), st.floats(1, 1e6))
def test_rotation_is_multiplication_by_a_complex_number(seed: int, pairs: int, base: float) -> None:
    vectors = drawn(3, 5, 2 * pairs, seed=seed)
    points = torch.complex(vectors[..., :pairs], vectors[..., pairs:])
    for t in range(5):
        for n in range(pairs):
            points[:, t, n] *= cmath.exp(1j * t * base ** (-2 * n / (2 * pairs)))
    turned = rotate(vectors, base=base)
    torch.testing.assert_close(turned, torch.cat([points.real, points.imag], dim=-1))
    torch.testing.assert_close(turned.norm(dim=-1), vectors.norm(dim=-1))
    assert torch.equal(turned[:, 0], vectors[:, 0]), "the first position is not turned"


def test_angles_stay_exact_far_out() -> None:
    angles = rotary_angles(100_001, 4, base=10000.0)
    assert angles[100_000].tolist() == [100_000.0, 1000.0]
    far = rotate(torch.ones(100_001, 2), base=10000.0)[-1]
    expected = [math.cos(1e5) - math.sin(1e5), math.cos(1e5) + math.sin(1e5)]
    torch.testing.assert_close(far, torch.tensor(expected), rtol=0, atol=1e-6)


# alibi


@pytest.mark.parametrize("exponent", range(8))
def test_slopes_of_a_power_of_two_are_geometric(exponent: int) -> None:
    count = 2**exponent
    expected = [2 ** (-8 * (h + 1) / count) for h in range(count)]
    torch.testing.assert_close(alibi_slopes(count), torch.tensor(expected, dtype=torch.float64))


@unhurried
@given(st.integers(1, 100))
def test_slopes_of_any_count_are_distinct_and_begin_with_those_below(count: int) -> None:
    slopes = alibi_slopes(count)
    assert len(slopes.unique()) == len(slopes) == count
    assert (slopes > 0).all() and (slopes < 1).all()
    below = alibi_slopes(2 ** math.floor(math.log2(count)))
    assert torch.equal(slopes[: len(below)], below)


def test_alibi_is_the_slope_times_the_distance() -> None:
    bias, slopes = alibi_bias(3, 7), alibi_slopes(3)
    for head in range(3):
        for i in range(7):
            for j in range(7):
                assert bias[head, i, j] == -slopes[head] * abs(i - j)


# relative bias


@unhurried
@given(st.integers(2, 40), st.integers(1, 300), st.booleans())
def test_buckets_are_those_of_t5(half: int, beyond: int, causal: bool) -> None:
    num_buckets = 2 * half
    max_distance = num_buckets // (2 if causal else 4) + beyond
    offsets = torch.arange(-400, 401)
    theirs = T5Attention._relative_position_bucket(offsets, not causal, num_buckets, max_distance)
    ours = distance_buckets(offsets, num_buckets=num_buckets, max_distance=max_distance, causal=causal)
    assert torch.equal(ours, theirs)


def test_near_keys_have_a_bucket_each_and_far_ones_share() -> None:
    offsets = torch.tensor([0, -1, -2, -3, -8, -16, -1000, 1, 2, 1000])
    buckets = distance_buckets(offsets, num_buckets=8, max_distance=16, causal=False)
    assert buckets.tolist() == [0, 1, 2, 2, 3, 3, 3, 5, 6, 7]
    assert distance_buckets(offsets[-3:], num_buckets=8, max_distance=16, causal=True).tolist() == [0, 0, 0]


def test_relative_bias_looks_up_each_head() -> None:
    table = drawn(3, 8)
    bias = relative_bias(table, 5, max_distance=9, causal=False)
    for i in range(5):
        for j in range(5):
            bucket = distance_buckets(
                torch.tensor([j - i]), num_buckets=8, max_distance=9, causal=False
            ).item()
            assert torch.equal(bias[:, i, j], table[:, int(bucket)])


# window


@unhurried
@given(lengths, st.integers(1, 30), st.booleans())
def test_a_window_hides_what_is_too_far(count: int, window: int, causal: bool) -> None:
    visible = visible_keys(count, count, causal=causal, window=window)
    for i in range(count):
        for j in range(count):
            assert visible[i, j] == (abs(i - j) < window and (j <= i or not causal))


@unhurried
@given(lengths, lengths, st.integers(0, 30), st.booleans())
def test_a_window_that_covers_all_is_no_window(queries: int, keys: int, beyond: int, causal: bool) -> None:
    without = (causal_mask if causal else full_mask)(queries, keys)
    if not causal or queries <= keys:
        wide = visible_keys(queries, keys, causal=causal, window=queries + keys + beyond)
        assert torch.equal(wide, without)
    assert torch.equal(visible_keys(queries, keys, causal=causal), without)


def test_a_window_of_one_passes_values_on() -> None:
    value = drawn(5, 3)
    assert torch.equal(attended(drawn(5, 2), drawn(5, 2), value, window=1).output, value)


# softcap, temperature, sink


@unhurried
@given(seeds, st.floats(0.01, 100))
def test_softcapped_scores_stay_below_the_cap_and_in_order(seed: int, cap: float) -> None:
    scores = drawn(50, seed=seed).mul(10).sort().values
    capped = softcapped(scores, cap)
    assert (capped.abs() <= cap).all() and (capped.diff() >= 0).all()
    torch.testing.assert_close(softcapped(scores, 1e9), scores)
    at_the_cap = softcapped(torch.tensor([cap], dtype=torch.float64), cap).item()
    assert at_the_cap == pytest.approx(cap * math.tanh(1))


@unhurried
@given(seeds, st.integers(2, 9))
def test_temperature_toward_zero_is_one_hot_and_toward_infinity_uniform(seed: int, count: int) -> None:
    scores = drawn(count, count, seed=seed)
    one_hot = torch.nn.functional.one_hot(scores.argmax(-1), count).double()
    gap = scores.topk(2).values.diff().abs().min().item()
    torch.testing.assert_close(weights_of(scores, temperature=gap / 50), one_hot, rtol=0, atol=1e-12)
    uniform = torch.full_like(scores, 1 / count)
    torch.testing.assert_close(weights_of(scores, temperature=1e12), uniform, rtol=0, atol=1e-9)


@unhurried
@given(seeds, st.floats(0.1, 10))
def test_temperature_divides_everything_that_the_softmax_takes(seed: int, temperature: float) -> None:
    scores, bias = drawn(2, 5, 5, seed=seed)
    finished = 2.0 * (scores / 2.0).tanh() + bias
    rules = {"softcap": 2.0, "bias": bias.view(1, 1, 5, 5), "temperature": temperature}
    ours = weights_of(scores, **rules)
    torch.testing.assert_close(ours, (finished / temperature).softmax(-1))
    sink = torch.tensor([[0.7]], dtype=torch.float64)
    whole = torch.cat([finished, sink.expand(5, 1)], dim=-1).div(temperature).softmax(-1)
    with_sink = weights_of(scores, sink=sink, **rules)
    torch.testing.assert_close(with_sink, whole[:, :-1])


@unhurried
@given(seeds, st.floats(-20, 20))
def test_a_sink_is_one_more_column_that_is_cut_off(seed: int, logit: float) -> None:
    scores, sink = drawn(2, 5, 7, seed=seed), torch.tensor([logit, -logit], dtype=torch.float64)
    column = sink.view(2, 1, 1).expand(2, 5, 1)
    expected = torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]
    layer = checked_layer(*one_hot_keys(scores), scale="none", sink=sink.unsqueeze(0))
    found = attend(layer, Wanted(weights=True))
    assert found.weights is not None and found.logsumexp is not None
    torch.testing.assert_close(found.weights[0], expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        found.logsumexp[0], torch.cat([scores, column], dim=-1).logsumexp(-1), rtol=1e-12, atol=0
    )


def test_a_sink_far_below_is_none_and_far_above_takes_all() -> None:
    scores = drawn(5, 5)
    below, above = (weights_of(scores, sink=torch.tensor([[s]], dtype=torch.float64)) for s in (-1e4, 1e4))
    torch.testing.assert_close(below, scores.softmax(-1))
    assert above.sum() == 0


# qk_norm


@unhurried
@given(seeds, st.floats(0.01, 100))
def test_normalised_vectors_forget_their_lengths(seed: int, factor: float) -> None:
    vectors = drawn(2, 5, 7, seed=seed)
    normed = rms_norm(vectors, eps=1e-15)
    torch.testing.assert_close(rms_norm(factor * vectors, eps=1e-15), normed)
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(2, 5, dtype=torch.float64))
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(vectors, (7,), eps=1e-15))


# differential


@unhurried
@given(seeds, lengths, st.floats(-1, 2), st.booleans())
def test_differential_attention_is_its_formula(seed: int, count: int, factor: float, causal: bool) -> None:
    """Ye et al. 2024, equation 1, one number after the other."""
    half = 3
    query, key, value = drawn(3, count, 2 * half, seed=seed)
    mask = (causal_mask if causal else full_mask)(count, count)
    layer = checked_layer(query, key, value, causal=causal, scale=half**-0.5)
    *_, difference = attend_differentially(layer, factor, Wanted())
    assert difference.weights is not None and difference.output is not None
    weights, output = difference.weights[0, 0], difference.output[0, 0]
    for i in range(count):
        seen = [j for j in range(count) if mask[i, j]]
        exponentials = [
            {j: math.exp(float(query[i, part] @ key[j, part]) / math.sqrt(half)) for j in seen}
            for part in (slice(0, half), slice(half, 2 * half))
        ]
        expected = torch.zeros(2 * half, dtype=torch.float64)
        for j in seen:
            first, second = (row[j] / sum(row.values()) for row in exponentials)
            assert weights[i, j].item() == pytest.approx(first - factor * second, abs=1e-12)
            expected += (first - factor * second) * value[j]
        torch.testing.assert_close(output[i], expected)
    torch.testing.assert_close(weights.sum(-1), torch.full((count,), 1 - factor, dtype=torch.float64))
    assert (weights[~mask] == 0).all()


def test_lambda_of_equal_vectors_is_its_start() -> None:
    vectors = drawn(1, 5).expand(4, 5)
    assert differential_lambda(vectors, 0.8) == pytest.approx(0.8)
    one = torch.tensor([[1.0], [2.0], [0.0], [5.0]])
    assert differential_lambda(one, 0.2) == pytest.approx(math.exp(2) - 1 + 0.2)


def test_halves_are_those_of_each_vector() -> None:
    vectors = drawn(2, 5, 6)
    halves = split_heads(vectors, 2)
    assert halves.shape == (2, 2, 5, 3)
    assert torch.equal(halves[1, 0], vectors[1, :, :3]) and torch.equal(halves[1, 1], vectors[1, :, 3:])
    assert torch.equal(merge_heads(halves), vectors)
