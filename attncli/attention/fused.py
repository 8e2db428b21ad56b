"""The output of attention by torch's fused kernel, of which no weights are made."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.attention.layer import AttentionLayer
from attncli.attention.score_rules import PLAIN
from attncli.attention.visibility import Visibility

MOST_MASKED = 2**24
"""Entries of a mask that fused attention may take: 4,096 queries of 4,096 keys."""


class FusedAttention:
    """softmax(scale q k) v by torch, without a matrix of weights; None where scores have other rules.

    The mask of the last layer is kept, since its neighbours share it.
    """

    def __init__(self) -> None:
        self._last_mask: tuple[Visibility, Tensor] | None = None

    def forget(self) -> None:
        """The mask of a run that is over."""
        self._last_mask = None

    def output(self, layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"] | None:
        """The output of a layer."""
        seen = layer.visibility
        is_whole = seen.window is None and seen.key_mask is None and seen.rule is None
        is_square = seen.causal and seen.num_queries == seen.num_keys > 1
        sees_all = is_whole and (not seen.causal or seen.num_queries == 1)
        needs_mask = not sees_all and not (is_whole and is_square)
        if layer.rules != PLAIN or (needs_mask and seen.num_queries * seen.num_keys > MOST_MASKED):
            return None
        mask = self._mask(layer) if needs_mask else None
        # With a mask and shared keys torch is fused on the CPU alone.
        shares = layer.group > 1 and (mask is None or layer.query.device.type == "cpu")
        key, value = (layer.key, layer.value) if shares or layer.group == 1 else layer.expanded()
        output: Tensor = nn.functional.scaled_dot_product_attention(
            layer.query,
            key,
            value,
            attn_mask=mask,
            is_causal=is_whole and is_square,
            scale=layer.scale,
            enable_gqa=shares,
        )
        return output

    def _mask(self, layer: AttentionLayer) -> Float[Tensor, "#text 1 query key"]:
        """0 where a query sees a key, else -inf."""
        if self._last_mask is None or self._last_mask[0] is not layer.visibility:
            visible = layer.visibility.whole(layer.query.device).unsqueeze(1)
            mask = torch.zeros(visible.shape, dtype=layer.query.dtype, device=visible.device)
            self._last_mask = layer.visibility, mask.masked_fill_(~visible, -torch.inf)
        return self._last_mask[1]
