"""Splitting vectors into heads, sharing key and value heads, and merging the heads again."""

from jaxtyping import Float
from torch import Tensor


def split_heads(
    vectors: Float[Tensor, "*batch token embed"], num_heads: int
) -> Float[Tensor, "*batch head token dim"]:
    """embed = head * dim, cut into heads, the head axis before the tokens (a view: only strides change)."""
    *batch, embed_dim = vectors.shape
    return vectors.view(*batch, num_heads, embed_dim // num_heads).transpose(-2, -3)


def merge_heads(heads: Float[Tensor, "*batch head token dim"]) -> Float[Tensor, "*batch token embed"]:
    """The heads side by side for each token; the head axis first moves back behind the tokens.

    Flattening (head, token, dim) directly has the right shape and mixes the tokens.
    """
    return heads.transpose(-2, -3).flatten(-2)


def repeat_heads(
    kv_heads: Float[Tensor, "*batch kv_head token dim"], num_heads: int
) -> Float[Tensor, "*batch head token dim"]:
    """Each key/value head serves num_heads / kv_heads query heads in a row.

    Grouped-query attention, Ainslie et al. 2023 (2305.13245); with one key/value head multi-query, Shazeer
    2019 (1911.02150).
    """
    return kv_heads.repeat_interleave(num_heads // kv_heads.shape[-3], dim=-3)
