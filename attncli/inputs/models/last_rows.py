"""The attention of the last query in each layer of a model that writes; all else is fused attention."""

from dataclasses import replace

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from attncli.attention.engines.tile import GivenWeights
from attncli.attention.fused import FusedAttention
from attncli.attention.layer import AttentionLayer
from attncli.attention.visibility import Visibility
from attncli.inputs.capture.captured_layers import CannotShow, CapturedLayer, Numbering
from attncli.inputs.capture.eager_attention import OUTPUTS, fault_of, returned_weights


class LastRows:
    """The attention of the last query in each layer of a decoder's last run."""

    def __init__(self, has_two_stacks: bool) -> None:
        self.layers: list[CapturedLayer] = []
        self.fused = FusedAttention()
        self.numbering = Numbering(has_two_stacks, None)

    def begin(self) -> None:
        """Forget the run before: of a prompt in chunks the last one counts."""
        self.layers = []
        self.fused.forget()
        self.numbering.taken.clear()

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """Keep the last row; gives the output by fused attention, None where that cannot compute it."""
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        if layer.stack != "encoder":
            if layer.kind == "self":
                _refuse_the_future(layer.module, attention.visibility)
            self.layers.append(replace(layer, attention=last_row(attention, is_self=layer.kind == "self")))
        return self.fused.output(attention)

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
