"""Layers of short texts, whose attention is measured after the model has run."""

from dataclasses import replace

import torch
from torch import Tensor

from attncli.attention.fused import FusedAttention
from attncli.attention.layer import AttentionLayer
from attncli.inputs.capture.captured_layers import CapturedLayer, Consumer

SHORT = 2**16
"""Weights of all heads up to which a layer waits: 12 heads on 73 tokens.

There the many small steps of its statistics take longer than its products, and several times as long amid
those of the model, whose parameters pass through the caches meanwhile.
"""


class DeferredLayers:
    """Takes the layers before `consume`, which gets the short ones, in their order, from `finish`.

    Until then the model continues with fused attention. Only queries and keys of a waiting layer are kept.
    """

    def __init__(self, consume: Consumer) -> None:
        self.consume = consume
        self.waiting: list[CapturedLayer] = []
        self.fused = FusedAttention()

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """The output of a layer, where attn computes it."""
        attention = layer.attention
        num_texts, num_heads, num_queries, num_keys = attention.shape
        if isinstance(attention, AttentionLayer) and num_texts * num_heads * num_queries * num_keys <= SHORT:
            # The engines define the output of a query that sees no key.
            output = self.fused.output(attention) if attention.visibility.is_seeing else None
            if output is not None:
                # Copies: some models reuse the memory.
                query, key = attention.query.clone(), attention.key.clone()
                waiting = replace(attention, query=query, key=key, value=key[..., :0])
                self.waiting.append(replace(layer, attention=waiting))
                return output
        self.finish()
        return self.consume(layer)

    @torch.no_grad()
    def finish(self) -> None:
        """Hand over the waiting layers."""
        waiting, self.waiting = self.waiting, []
        for layer in waiting:
            self.consume(layer)
