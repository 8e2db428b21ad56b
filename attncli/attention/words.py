"""Weights between words, from those between the tokens that words are cut into."""

from itertools import chain

import torch
from jaxtyping import Int
from torch import Tensor

from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tile import NUM_BUFFERS, GivenWeights, Source, blocks_of, tiles
from attncli.attention.layer import AttentionLayer


@torch.no_grad()
def merged_into_words(
    source: Source, of_queries: Int[Tensor, "text query"], of_keys: Int[Tensor, "text key"]
) -> GivenWeights:
    """W_ab = mean over queries i of word a of the sum over keys j of word b of p_ij.

    Clark et al. 2019 (1906.04341), section 4.1: a row of a word sums to what the rows of its tokens sum to on
    average. A word sees a word where some token of it sees one of its tokens. The words of each text are
    numbered from 0 without gaps, and all texts have as many. The weights between tokens are there for a tile
    at a time only.
    """
    num_texts, num_heads = source.shape[:2]
    num_words = int(of_queries.max()) + 1, int(of_keys.max()) + 1
    like = source.weights if isinstance(source, GivenWeights) else source.query
    dtype = torch.promote_types(like.dtype, torch.float32)
    merged = like.new_zeros(num_texts, num_heads, *num_words, dtype=dtype)
    of_queries, of_keys = of_queries.to(like.device), of_keys.to(like.device)
    with Scratch(source.like, NUM_BUFFERS) as scratch:
        for tile in tiles(source, chain.from_iterable(blocks_of(source)), scratch):
            heads, queries = tile.block.heads, tile.block.queries
            for text, weights in zip(range(num_texts)[tile.block.texts], tile.weights, strict=True):
                sums = weights.new_zeros(*weights.shape[:2], num_words[1])
                sums.index_add_(2, of_keys[text, tile.keys], weights)
                merged[text, heads].index_add_(1, of_queries[text, queries], sums.to(dtype))
    ones = torch.ones_like(of_queries)
    counts = ones.new_zeros(num_texts, num_words[0]).scatter_add_(1, of_queries, ones)
    merged /= counts[:, None, :, None]
    return GivenWeights(merged, _seen(source, of_queries, of_keys, num_words))


def _seen(source: Source, of_queries: Tensor, of_keys: Tensor, num_words: tuple[int, int]) -> Tensor:
    """Which words a word sees."""
    seen = source.visibility.whole(of_queries.device) if isinstance(source, AttentionLayer) else source.seen
    found = seen.new_zeros(len(of_queries), *num_words)
    for text in range(len(found)):
        queries, keys = seen[text if len(seen) > 1 else 0].nonzero(as_tuple=True)
        found[text, of_queries[text, queries], of_keys[text, keys]] = True
    return found
