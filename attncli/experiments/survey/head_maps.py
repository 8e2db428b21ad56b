"""What every head of a model looks at: whole weights of short texts, else maps of blocks of weights."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from torch import Tensor

from attncli.attention.results import MAP_SIZE, Computed, Wanted
from attncli.errors import UserError
from attncli.experiments.reading.text_words import texts_of_stack
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.models.pretrained import Reading
from attncli.memory import refuse_bytes
from attncli.report import NamedTensor, whole_head_name
from attncli.spec.models.heads import HeadsSpec

WHOLE_TOKENS = 128
BYTES_PER_KEPT_WEIGHT = 16


class HeadMaps:
    """Takes the layers as the model hands them over, and keeps the maps of those of the chosen stack.

    Every head's weights where neither text has more than 128 tokens; else `pooled_mean` and `pooled_max` of
    every head, and the whole weights of the heads asked for.
    """

    def __init__(self, spec: HeadsSpec, reading: Reading) -> None:
        self.spec = spec
        self.query, self.key = texts_of_stack(reading, spec.maps)
        num_queries, num_keys = len(self.query.ids), len(self.key.ids)
        self.is_whole = max(num_queries, num_keys) <= WHOLE_TOKENS
        self.asked = [tuple(map(int, name.split(":"))) for name in spec.full]
        self.maps: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        self.full: dict[tuple[int, ...], Tensor] = {}
        size = len(self.asked) * num_queries * num_keys * BYTES_PER_KEPT_WEIGHT
        refuse_bytes(spec.experiment, size, "fewer heads in full, or fewer tokens")

    def wanted(self, layer: CapturedLayer, wanted: Wanted) -> Wanted:
        """The same with what is to be kept of this layer."""
        if not self._is_asked_for(layer):
            return wanted
        if self.is_whole:
            return replace(wanted, weights=True)
        return replace(wanted, pooled=MAP_SIZE, kept_heads=self._heads_in_full(layer))

    def take(self, layer: CapturedLayer, found: Computed, text: int) -> None:
        """Keep what is asked for of one layer, of one text."""
        if not self._is_asked_for(layer):
            return
        for name in ("weights",) if self.is_whole else ("pooled_mean", "pooled_max"):
            self.maps[name][layer.layer] = getattr(found, name)[text].float().cpu()
        if found.kept_weights is not None:
            for head, weights in zip(self._heads_in_full(layer), found.kept_weights[text], strict=True):
                self.full[layer.layer, head] = weights.float().cpu()

    def _heads_in_full(self, layer: CapturedLayer) -> tuple[int, ...]:
        num_heads = layer.attention.shape[1]
        return tuple(head for number, head in self.asked if number == layer.layer and head < num_heads)

    def _is_asked_for(self, layer: CapturedLayer) -> bool:
        return self.spec.maps == ("encoder" if layer.stack == "encoder" else layer.kind)

    def tensors(self) -> dict[str, NamedTensor]:
        """The maps by layer and head; UserError for a head in `full` that the model does not have."""
        self._check_heads()
        axes = ("query", "key") if self.is_whole else ("query_block", "key_block")
        found = {name: _by_layer(layers, axes) for name, layers in self.maps.items()}
        return found | {
            whole_head_name(*place): NamedTensor(("query", "key"), self.full[place].numpy())
            for place in self.asked
            if place in self.full
        }

    def _check_heads(self) -> None:
        kept = next(iter(self.maps.values()), {})
        if not kept:
            raise UserError(f"maps: the model has no {self.spec.maps}-attention")
        for layer, head in self.asked:
            if layer not in kept:
                raise UserError(f"full: layer must be one of {min(kept)} to {max(kept)} (got {layer}:{head})")
            if head >= len(kept[layer]):
                raise UserError(f"full: head must be below {len(kept[layer])} (got {layer}:{head})")


def _by_layer(layers: dict[int, Tensor], axes: tuple[str, str]) -> NamedTensor:
    """The maps of all layers as one tensor; NaN where a layer has no attention or fewer heads."""
    num_heads = max(map(len, layers.values()))
    shape = next(iter(layers.values())).shape[1:]
    stacked = np.full((max(layers) + 1, num_heads, *shape), np.nan, dtype=np.float32)
    for layer, maps in layers.items():
        stacked[layer, : len(maps)] = maps.numpy()
    return NamedTensor(("layer", "head", *axes), stacked)
