"""Mask tensors are recognised by their hidden keys, and hide them."""

import pytest
import torch

from attncli.core.mask_tensors import recognised
from tests.conftest import in_pairs


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "shift", "kind"),
    in_pairs([1, 2, 3, 5], [1, 2, 3, 5, 7], [-3, -2, -1, 0, 1, 2, 4], ["causal", "window", "both", "ahead"]),
)
def test_a_recognised_mask_hides_the_same_keys(
    num_queries: int, num_keys: int, shift: int, kind: str
) -> None:
    behind = torch.arange(num_queries)[:, None] + shift - torch.arange(num_keys)
    of_kind = {
        "causal": behind >= 0,
        "window": behind.abs() < 2,
        "both": (behind >= 0) & (behind < 3),
        "ahead": behind <= 0,
    }
    seen = of_kind[kind][None].clone()
    visible = recognised(seen).whole(seen.device).expand_as(seen)
    assert torch.equal(visible, seen)
