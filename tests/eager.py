"""What transformers' own eager attention gives: the oracle for whatever is captured."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import Wanted
from attncli.core.row_tiles import GivenWeights
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer

STACKS = {"attentions": "decoder", "encoder_attentions": "encoder", "decoder_attentions": "decoder"}

Places = dict[tuple[str, str, int], Any]
"""By stack, kind and number of a layer; a lone stack is a decoder."""


@torch.no_grad()
def eager_weights_of_texts(model: Any, inputs: Mapping[str, Tensor]) -> Places:
    """The weights (text, head, query, key) of each layer."""
    model.config.use_cache = False
    model.set_attn_implementation("eager")
    model(**inputs)  # BigBird replaces its attention by a kind that returns weights
    outputs = model(**inputs, output_attentions=True)
    found = {}
    for name, values in outputs.items():
        if name.endswith("attentions") and values:
            kind = "cross" if name.startswith("cross") else "self"
            for number, weights in enumerate(values):
                found[STACKS.get(name, "decoder"), kind, number] = weights
    return found


def eager_weights(model: Any, inputs: Mapping[str, Tensor]) -> Places:
    """The weights (head, query, key) of each layer, of the first text."""
    return {place: weights[0] for place, weights in eager_weights_of_texts(model, inputs).items()}


def captured_layers(
    model: Any, inputs: Mapping[str, Tensor], *, with_output: bool = False
) -> tuple[str, dict[tuple[str, str, int], CapturedLayer]]:
    """How they were captured, and each layer by the same keys.

    The model goes on by itself, or with the output that is handed back.
    """
    layers: dict[tuple[str, str, int], CapturedLayer] = {}

    def keep(layer: CapturedLayer) -> Tensor | None:
        has_two_stacks = model.config.is_encoder_decoder
        assert layer.stack == (layer.module.split(".")[0] if has_two_stacks else "")
        place = (layer.stack or "decoder", layer.kind, layer.layer)
        assert place not in layers
        layers[place] = layer
        if not with_output or isinstance(layer.attention, GivenWeights):
            return None
        return attend(layer.attention, Wanted(output=True)).output

    return capture(model, inputs, keep).kind, layers


def whole_weights_of_texts(layer: CapturedLayer) -> Tensor:
    """The matrices (text, head, query, key) that a captured layer stands for."""
    weights = attend(layer.attention, Wanted(weights=True)).weights
    assert weights is not None
    return weights


def whole_weights(layer: CapturedLayer) -> Tensor:
    """The matrices (head, query, key) of the first text."""
    return whole_weights_of_texts(layer)[0]
