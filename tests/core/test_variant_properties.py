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

from attncli.core.layer import Wanted
from attncli.core.mechanisms import (
    alibi_bias,
    alibi_slopes,
    attend_differentially,
    causal_mask,
    distance_buckets,
    full_mask,
    rms_norm,
    rotary_angles,
    rotate,
)
from tests.layers import attended, checked_layer

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


# rope


@unhurried
@given(seeds, st.integers(1, 8), st.floats(1, 1e6))
def test_rotation_multiplies_by_a_complex_number(seed: int, pairs: int, base: float) -> None:
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


def test_alibi_is_the_slope_times_the_distance() -> None:
    bias, slopes = alibi_bias(3, 7), alibi_slopes(3)
    for head in range(3):
        for i in range(7):
            for j in range(7):
                assert bias[head, i, j] == -slopes[head] * abs(i - j)


# relative bias


@unhurried
@given(st.integers(2, 40), st.integers(1, 300), st.booleans())
def test_buckets_match_t5(half: int, beyond: int, causal: bool) -> None:
    num_buckets = 2 * half
    max_distance = num_buckets // (2 if causal else 4) + beyond
    offsets = torch.arange(-400, 401)
    theirs = T5Attention._relative_position_bucket(offsets, not causal, num_buckets, max_distance)
    ours = distance_buckets(offsets, num_buckets=num_buckets, max_distance=max_distance, causal=causal)
    assert torch.equal(ours, theirs)


# temperature


@unhurried
@given(seeds, st.integers(2, 9))
def test_temperature_toward_zero_is_one_hot_and_toward_infinity_uniform(seed: int, count: int) -> None:
    scores = drawn(count, count, seed=seed)
    one_hot = torch.nn.functional.one_hot(scores.argmax(-1), count).double()
    gap = scores.topk(2).values.diff().abs().min().item()
    torch.testing.assert_close(weights_of(scores, temperature=gap / 50), one_hot, rtol=0, atol=1e-12)
    uniform = torch.full_like(scores, 1 / count)
    torch.testing.assert_close(weights_of(scores, temperature=1e12), uniform, rtol=0, atol=1e-9)


# qk_norm


@unhurried
@given(seeds, st.floats(0.01, 100))
def test_normalised_vectors_do_not_depend_on_length(seed: int, factor: float) -> None:
    vectors = drawn(2, 5, 7, seed=seed)
    normed = rms_norm(vectors, eps=1e-15)
    torch.testing.assert_close(rms_norm(factor * vectors, eps=1e-15), normed)
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(2, 5, dtype=torch.float64))
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(vectors, (7,), eps=1e-15))


# differential


@unhurried
@given(seeds, lengths, st.floats(-1, 2), st.booleans())
def test_differential_attention_matches_its_formula(
    seed: int, count: int, factor: float, causal: bool
) -> None:
    """Ye et al. 2024, equation 1, number by number."""
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
