"""What transformers' own eager attention gives: the oracle for whatever is captured."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attncli.inputs.capture import CapturedLayer, WeightsOfLayer, capture

STACKS = {"attentions": "decoder", "encoder_attentions": "encoder", "decoder_attentions": "decoder"}


@torch.no_grad()
def eager_weights(model: Any, inputs: Mapping[str, Tensor]) -> dict[tuple[str, str, int], Tensor]:
    """The weights (head, query, key) of each layer, by stack, kind and number; a lone stack is a decoder."""
    model.config.use_cache = False
    model.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    found = {}
    for name, values in outputs.items():
        if name.endswith("attentions") and values:
            kind = "cross" if name.startswith("cross") else "self"
            for number, weights in enumerate(values):
                found[STACKS.get(name, "decoder"), kind, number] = weights[0]
    return found


def captured_layers(
    model: Any, inputs: Mapping[str, Tensor]
) -> tuple[str, dict[tuple[str, str, int], CapturedLayer]]:
    """How they were captured, and each layer by the same keys."""
    layers: dict[tuple[str, str, int], CapturedLayer] = {}

    def keep(layer: CapturedLayer) -> None:
        in_encoder = model.config.is_encoder_decoder and layer.module.startswith("encoder")
        place = ("encoder" if in_encoder else "decoder", layer.kind, layer.layer)
        assert place not in layers
        layers[place] = layer

    return capture(model, inputs, keep), layers


def whole_weights(layer: CapturedLayer) -> Tensor:
    """The matrix that a captured layer stands for."""
    if isinstance(layer, WeightsOfLayer):
        return layer.weights
    return layer.weights(torch.arange(layer.query.shape[1]))
