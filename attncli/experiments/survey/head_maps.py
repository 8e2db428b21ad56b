"""What every head of a model looks at: whole weights of short texts, else maps of blocks of weights."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from attncli.attention.results import MAP_SIZE, Computed, Wanted
from attncli.errors import UserError
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import ModelText, Reading
from attncli.memory import refuse_bytes
from attncli.report import NamedTensor, whole_head_name
from attncli.spec.models.heads import HeadsSpec

WHOLE_TOKENS = 128
BYTES_PER_KEPT_WEIGHT = 16


def sides(spec: HeadsSpec, reading: Reading) -> tuple[ModelText, ModelText]:
    """What stands at the queries and at the keys of the maps; an encoder reads the context."""
    text, encoded = reading.text, reading.context or reading.text
    return {"self": (text, text), "cross": (text, encoded), "encoder": (encoded, encoded)}[spec.maps]


class HeadMaps:
    """Takes the layers as the model hands them over, and keeps the maps of those of the chosen stack.

    Every head's weights where no side has more than 128 tokens; else `pooled_mean` and `pooled_max` of
    every head, and the whole weights of the heads asked for.
    """

    def __init__(self, spec: HeadsSpec, query: ModelText, key: ModelText) -> None:
        self.spec = spec
        self.counts = len(query.ids), len(key.ids)
        self.is_whole = max(self.counts) <= WHOLE_TOKENS
        self.asked = [tuple(map(int, name.split(":"))) for name in spec.full]
        self.maps: dict[str, dict[int, Tensor]] = {}
        self.full: dict[tuple[int, ...], Tensor] = {}
        size = len(self.asked) * len(query.ids) * len(key.ids) * BYTES_PER_KEPT_WEIGHT
        refuse_bytes(spec.experiment, size, "fewer heads in full, or fewer tokens")

    def wanted(self, layer: CapturedLayer, wanted: Wanted) -> Wanted:
        """The same with what is to be kept of this layer."""
        if not self._is_asked_for(layer):
            return wanted
        if self.is_whole:
            return replace(wanted, weights=True)
        num_heads = layer.attention.shape[1]
        heads = tuple(head for number, head in self.asked if number == layer.layer and head < num_heads)
        return replace(wanted, pooled=MAP_SIZE, kept_heads=heads)

    def take(self, layer: CapturedLayer, found: Computed, text: int) -> None:
        """Keep what is asked for of one layer, of one text."""
        if not self._is_asked_for(layer):
            return
        if self.is_whole:
            assert found.weights is not None
            self.maps.setdefault("weights", {})[layer.layer] = found.weights[text].float().cpu()
            return
        for name, pooled in (("pooled_mean", found.pooled_mean), ("pooled_max", found.pooled_max)):
            assert pooled is not None
            self.maps.setdefault(name, {})[layer.layer] = pooled[text].float().cpu()
        if found.kept_weights is not None:
            asked = (
                place
                for place in self.asked
                if place[0] == layer.layer and place[1] < layer.attention.shape[1]
            )
            for place, weights in zip(asked, found.kept_weights[text], strict=True):
                self.full[place] = weights.float().cpu()

    def _is_asked_for(self, layer: CapturedLayer) -> bool:
        return self.spec.maps == ("encoder" if layer.stack == "encoder" else layer.kind)

    def tensors(self) -> dict[str, NamedTensor]:
        """The maps by layer and head; UserError for a head in `full` that is not there."""
        self._refuse_heads_that_are_not_there()
        ends = ("query", "key") if self.is_whole else ("query_block", "key_block")
        found = {name: _by_layer(layers, ends) for name, layers in self.maps.items()}
        for layer, head in self.asked:
            if (layer, head) in self.full:
                weights = self.full[layer, head].numpy()
                found[whole_head_name(layer, head)] = NamedTensor(("query", "key"), weights)
        return found

    def _refuse_heads_that_are_not_there(self) -> None:
        kept = next(iter(self.maps.values()), {})
        if not kept:
            raise UserError(f"maps: the model has no {self.spec.maps}-attention")
        for layer, head in self.asked:
            if layer not in kept:
                raise UserError(f"full: layer must be one of {min(kept)} to {max(kept)} (got {layer}:{head})")
            if head >= len(kept[layer]):
                raise UserError(f"full: head must be below {len(kept[layer])} (got {layer}:{head})")


def _by_layer(layers: dict[int, Tensor], ends: tuple[str, str]) -> NamedTensor:
    """The maps of all layers as one tensor; NaN where a layer has no attention or fewer heads."""
    num_heads = max(map(len, layers.values()))
    shape = next(iter(layers.values())).shape[1:]
    stacked = np.full((max(layers) + 1, num_heads, *shape), np.nan, dtype=np.float32)
    for layer, maps in layers.items():
        stacked[layer, : len(maps)] = maps.numpy()
    return NamedTensor(("layer", "head", *ends), stacked)
