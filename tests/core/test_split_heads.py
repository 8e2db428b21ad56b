"""Splitting and merging heads against index arithmetic, and grouped queries against repeated keys."""

import torch

from attncli.core.layer import merge_heads, repeat_heads, split_heads


def test_split_moves_each_slice_of_a_token_to_its_head() -> None:
    vectors = torch.arange(2 * 5 * 21.0).reshape(2, 5, 21)
    heads = split_heads(vectors, 3)
    assert heads.shape == (2, 3, 5, 7)
    for head in range(3):
        assert torch.equal(heads[:, head], vectors[:, :, 7 * head : 7 * (head + 1)])


def test_merge_undoes_split_and_is_not_a_plain_view() -> None:
    vectors = torch.arange(5 * 21.0).reshape(5, 21)
    heads = split_heads(vectors, 3)
    assert torch.equal(merge_heads(heads), vectors)
    assert not torch.equal(heads.contiguous().view(5, 21), vectors)


def test_repeated_heads_are_adjacent() -> None:
    kv_heads = torch.arange(2.0).reshape(2, 1, 1)
    assert repeat_heads(kv_heads, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]
