"""Of each layer of a model that writes the attention of its last query; all others are fused attention."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.score_rules import PLAIN
from attncli.attention.visibility import Visibility
from attncli.inputs.capture.captured_layers import CannotShow, CapturedLayer, Numbering
from attncli.inputs.capture.eager_attention import OUTPUTS, fault_of, returned_weights

MOST_MASKED = 2**24
"""Entries of a mask that fused attention may take: 4,096 queries of 4,096 keys."""


class LastRows:
    """Of each layer of the last run of a decoder the attention of its last query."""

    def __init__(self, has_two_stacks: bool) -> None:
        self.layers: list[CapturedLayer] = []
        self.last_mask: tuple[Visibility, Tensor] | None = None
        self.numbering = Numbering(has_two_stacks, None)

    def begin(self) -> None:
        """Forget the run before: of a prompt in chunks the last one counts."""
        self.layers = []
        self.last_mask = None
        self.numbering.taken.clear()

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """Keep the last row; the output by fused attention, None where that cannot compute it."""
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        if layer.stack != "encoder":
            if layer.kind == "self":
                _refuse_the_future(layer.module, attention.visibility)
            self.layers.append(replace(layer, attention=last_row(attention, is_self=layer.kind == "self")))
        return self._fused_output(attention)

    def take_returned(self, outputs: ModelOutput) -> None:
        """Keep the last rows of weights that eager attention returned."""
        for name, weights in returned_weights(outputs):
            stack, kind = OUTPUTS[name]
            if stack == "encoder":
                continue
            if fault := fault_of(weights):
                raise CannotShow(f"it returns {fault}")
            if kind == "self" and weights.shape[2] > 1 and weights[:, :, 0, -1].max() > 0:
                raise CannotShow(f"{name} looks at later tokens: it reads texts, and writes none")
            row = weights[:, :, -1:].clone()
            given = GivenWeights(row, (row > 0).any(dim=1))
            self.layers.append(self.numbering.layer(name, kind, given, stack))

    def _fused_output(self, layer: AttentionLayer) -> Tensor | None:
        """softmax(scale q k) v by torch, without a matrix of weights; None where scores have other rules."""
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
        """0 where a query sees a key, else -inf: made once for neighbouring layers that share it."""
        if self.last_mask is None or self.last_mask[0] is not layer.visibility:
            visible = layer.visibility.whole(layer.query.device).unsqueeze(1)
            mask = torch.zeros(visible.shape, dtype=layer.query.dtype, device=visible.device)
            self.last_mask = layer.visibility, mask.masked_fill_(~visible, -torch.inf)
        return self.last_mask[1]


def _refuse_the_future(module: str, visibility: Visibility) -> None:
    if visibility.num_queries == 1:
        return
    first, last = torch.tensor([0]), torch.tensor([visibility.num_keys - 1])
    if visibility.block(first, last).any():
        raise CannotShow(f"{module} looks at later tokens: it reads texts, and writes none")


def last_row(layer: AttentionLayer, *, is_self: bool) -> AttentionLayer:
    """The attention of the last query alone; in self-attention it stands at the last key.

    The query is a copy: a view would keep those of the whole prompt in memory until its token is chosen.
    """
    seen, before = layer.visibility, layer.visibility.num_queries - 1
    if not before and seen.causal == is_self:
        return layer
    rule = seen.rule
    of_row = replace(
        seen,
        num_queries=1,
        causal=is_self,
        rule=None if rule is None else lambda queries, keys: rule(queries + before, keys),
    )
    bias = layer.rules.bias
    if bias is not None and bias.shape[2] > 1:
        bias = bias[:, :, -1:].clone()
    rules = replace(layer.rules, bias=bias)
    return replace(layer, query=layer.query[:, :, -1:].clone(), visibility=of_row, rules=rules)
