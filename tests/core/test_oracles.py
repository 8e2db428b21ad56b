"""`attention_statistics` as users call it, against torch's attention, scipy, and closed forms."""

import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor

from attncli.core.attention_statistics import attention_statistics


def qkv(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(*shape, generator=generator, dtype=dtype) for _ in range(3))
    return query, key, value


@pytest.mark.parametrize(
    ("num_tokens", "causal"),
    [
        *((num_tokens, causal) for num_tokens in (1, 17, 509) for causal in (True, False)),
        (2503, True),
        pytest.param(5000, False, marks=pytest.mark.nightly),
    ],
)
def test_output_matches_torch_and_rows_match_scipy(causal: bool, num_tokens: int) -> None:
    query, key, value = qkv(num_tokens, 64, seed=num_tokens)
    found = attention_statistics(query, key, value, causal=causal, top_k=5, keys=True)
    assert found.output is not None and found.received_mass is not None
    expected = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=causal)[0]
    assert (found.output - expected).norm() <= 4e-6 * expected.norm()
    received = np.zeros(num_tokens)
    for start in range(0, num_tokens, 500):  # the matrix, some rows at a time
        rows = np.arange(start, min(start + 500, num_tokens))
        scores = query[rows].double().numpy() @ key.double().numpy().T / 8
        if causal:
            scores[np.arange(num_tokens) > rows[:, None]] = -np.inf
        weights = scipy.special.softmax(scores, axis=-1)
        received += weights.sum(0)
        bound = 8 * 2.0**-23 * (np.abs(scores[np.isfinite(scores)]).max() + math.log(num_tokens))
        for name, reference in (
            ("logsumexp", scipy.special.logsumexp(scores, axis=-1)),
            ("entropy", scipy.stats.entropy(weights, axis=-1)),
        ):
            assert np.abs(getattr(found, name)[rows].numpy() - reference).max() <= bound
        np.testing.assert_allclose(found.max_weight[rows], weights.max(-1), rtol=1e-5)
        np.testing.assert_allclose(found.participation[rows], 1 / (weights**2).sum(-1), rtol=1e-5)
        distance = (weights * np.abs(rows[:, None] - np.arange(num_tokens))).sum(-1)
        np.testing.assert_allclose(found.distance[rows], distance, rtol=1e-5)
        top = -np.sort(-weights, axis=-1)[:, :5]
        named = found.top_weights[rows].numpy()[:, : top.shape[1]]
        np.testing.assert_allclose(np.where(np.isnan(named), 0, named), top, rtol=1e-5, atol=1e-37)
    np.testing.assert_allclose(found.received_mass, received, rtol=1e-5)


def test_moments_match_numpy_when_the_mean_is_far_from_zero() -> None:
    query, key, _ = qkv(300, 8, seed=3)
    found = attention_statistics(query * 0.1 + 5, key * 0.1 + 5)
    scores = ((query * 0.1 + 5).double() @ (key * 0.1 + 5).double().T).numpy() / math.sqrt(8)
    assert scores.mean() ** 2 > 9e3 * scores.var()
    np.testing.assert_allclose(found.score_mean, scores.mean(), rtol=1e-6)
    np.testing.assert_allclose(found.score_variance, scores.var(ddof=1), rtol=1e-5)


def test_a_batch_matches_calls_on_single_heads() -> None:
    """Heads that share keys, padded texts, and a sink per head."""
    query, (key, value) = torch.randn(2, 6, 19, 5), torch.randn(2, 2, 3, 19, 5)
    mask, sink = torch.arange(19) < torch.tensor([[[19]], [[13]]]), torch.randn(6)
    found = attention_statistics(query, key, value, key_mask=mask, sink=sink, top_k=2, keys=True)
    for text, head in np.ndindex(2, 6):
        vectors = query[text, head], key[text, head // 2], value[text, head // 2]
        alone = attention_statistics(*vectors, key_mask=mask[text, 0], sink=sink[head], top_k=2, keys=True)
        for name in ("output", "logsumexp", "top_keys", "received_mass", "score_mean", *alone.rows):
            ours, theirs = (getattr(each, name) for each in (found, alone))
            # Numbers in float64 are computed from scores in float32.
            tolerance = {"rtol": 1.3e-6, "atol": 0.0} if theirs.dtype == torch.float64 else {}
            torch.testing.assert_close(ours[text, head], theirs, equal_nan=True, msg=name, **tolerance)


def test_equal_scores_are_spread_evenly() -> None:
    zeros = torch.zeros(1, 101, 4)
    found = attention_statistics(zeros, zeros, top_k=3)
    for figure, expected in (
        (found.entropy, math.log(101)),
        (found.normalized_entropy, 1.0),
        (found.participation, 101.0),
        (found.max_weight, 1 / 101),
        (found.score_variance, 0.0),
    ):
        torch.testing.assert_close(figure, torch.full_like(figure, expected))
    assert (found.top_keys[..., 0] != found.top_keys[..., 1]).all()


def test_one_key_takes_all_at_scores_of_ten_thousand() -> None:
    rows = torch.eye(7, dtype=torch.float32) * 100
    found = attention_statistics(rows, rows, rows, scale=1.0, top_k=1)
    assert found.output is not None
    torch.testing.assert_close(found.output, rows)
    torch.testing.assert_close(found.logsumexp, torch.full((7,), 1e4))
    assert found.top_keys[:, 0].tolist() == list(range(7))
    assert found.entropy.abs().max() == 0 and found.distance.abs().max() == 0


@pytest.mark.nightly
def test_importing_the_package_leaves_torch_alone() -> None:
    code = "import sys, attncli; assert 'torch' not in sys.modules; from attncli import attention_statistics"
    subprocess.run([sys.executable, "-c", code], check=True)
