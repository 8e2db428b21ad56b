"""Attention against torch's scaled_dot_product_attention, closed forms and a naive loop."""

import math
from typing import Any

import pytest
import torch

from attncli.core.mechanisms import attend_by_loop, causal_mask, full_mask
from attncli.features.attention.question import attention_parts
from attncli.settings import SPECS
from attncli.settings.fields import Given, build_spec
from attncli.toys.sampling import Draws
from tests.conftest import in_pairs
from tests.layers import attended, visible_keys


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spec_of(**settings: object) -> Any:
    return build_spec(SPECS["self"], {key: Given(value, key) for key, value in settings.items()})


@pytest.mark.parametrize(
    ("batch", "causal", "scale"),
    in_pairs([(), (2,), (2, 3)], [False, True], ["sqrt", "fourth-root", "none", 0.37]),
)
def test_output_matches_torch(batch: tuple[int, ...], causal: bool, scale: str | float) -> None:
    query, key, value = (
        drawn(*batch, 5, 7, seed=1),
        drawn(*batch, 11, 7, seed=2),
        drawn(*batch, 11, 3, seed=3),
    )
    mask = causal_mask(5, 11) if causal else full_mask(5, 11)
    factor = {"sqrt": 7**-0.5, "fourth-root": 7**-0.5, "none": 1.0}.get(str(scale), scale)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=float(factor)
    )
    attention = attended(query, key, value, causal=causal, scale=scale)
    torch.testing.assert_close(attention.output, expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(attention.weights.sum(dim=-1), torch.ones(*batch, 5))
    assert (attention.weights[..., ~mask] == 0).all()
    assert attention.raw_scores[..., ~mask].isneginf().all()
    assert attention.scores[..., ~mask].isneginf().all()
    products = query @ key.mT
    torch.testing.assert_close(attention.raw_scores[..., mask], products[..., mask])
    torch.testing.assert_close(attention.scores[..., mask], (products * float(factor))[..., mask])


def test_causal_mask_is_aligned_to_the_last_key() -> None:
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert causal_mask(3, 3).tolist() == torch.ones(3, 3).tril().bool().tolist()
    for counts in ((2, 4), (3, 3), (4, 2), (1, 1)):
        assert torch.equal(visible_keys(*counts, causal=True), causal_mask(*counts))


def test_without_softmax_the_weights_are_the_scaled_scores() -> None:
    vectors = drawn(3, 2)
    spec = spec_of(scale=0.5, softmax=False, causal=True, projection="none", embed_dim=2)
    attention = attention_parts(
        spec, dict.fromkeys(("query", "key", "value"), vectors), Draws(torch.Generator())
    )
    expected = (vectors @ vectors.T * 0.5).tril()
    torch.testing.assert_close(torch.from_numpy(attention.tensors["weights"].values), expected)
    torch.testing.assert_close(attention.output, expected @ vectors)


@pytest.mark.parametrize(
    ("softmax", "causal", "shape"), in_pairs([True, False], [True, False], [(5, 3), (2, 5, 3), (1, 1)])
)
def test_loop_and_matrix_form_agree(shape: tuple[int, ...], causal: bool, softmax: bool) -> None:
    vectors = drawn(*shape).double()
    mask = (causal_mask if causal else full_mask)(shape[-2], shape[-2])
    for scale in ("sqrt", "fourth-root", "none", 2.0):
        looped = attend_by_loop(vectors, mask, scale=scale, softmax=softmax)
        spec = spec_of(scale=scale, softmax=softmax, causal=causal, projection="none", embed_dim=shape[-1])
        same = dict.fromkeys(("query", "key", "value"), vectors)
        whole = attention_parts(spec, same, Draws(torch.Generator())).output
        torch.testing.assert_close(looped, whole, atol=1e-13, rtol=1e-12)


def test_two_logits_in_closed_form() -> None:
    query, key = torch.tensor([[1.0]]), torch.tensor([[0.0], [math.log(3)]])
    weights = attended(query, key, torch.eye(2), scale="none").weights
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75]]))
