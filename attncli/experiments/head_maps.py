"""What every head of a model looks at: whole weights of short texts, else maps of blocks of weights."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.errors import UserError
from attncli.experiments.memory import refuse_bytes
from attncli.inputs.capture import CapturedLayer, WeightsOfLayer
from attncli.inputs.pretrained import ModelText
from attncli.report import NamedTensor
from attncli.spec.heads import HeadsSpec

WHOLE_TOKENS = 128
MAP_SIZE = 64
BYTES_PER_KEPT_WEIGHT = 16


def sides(spec: HeadsSpec, text: ModelText, context: ModelText | None) -> tuple[ModelText, ModelText]:
    """What stands at the queries and at the keys of the maps; `context` is what an encoder reads."""
    encoded = text if context is None else context
    return {"self": (text, text), "cross": (text, encoded), "encoder": (encoded, encoded)}[spec.maps]


def _rows(layer: CapturedLayer, queries: Int[Tensor, " query"]) -> Float[Tensor, "head query key"]:
    return layer.weights[:, queries] if isinstance(layer, WeightsOfLayer) else layer.weights(queries)


def _pooled(
    layer: CapturedLayer, num_queries: int, num_keys: int
) -> tuple[Float[Tensor, "head query_block key_block"], Float[Tensor, "head query_block key_block"]]:
    """Mean and largest weight of blocks of ceil(length / 64) queries and keys; the last ones are shorter."""
    height, width = (max(1, -(-count // MAP_SIZE)) for count in (num_queries, num_keys))
    starts = torch.arange(0, num_keys, width)
    widths = torch.cat([starts[1:], torch.tensor([num_keys])]) - starts
    means, largest = [], []
    for first in range(0, num_queries, height):
        queries = torch.arange(first, min(first + height, num_queries))
        weights = _rows(layer, queries).float().cpu()
        padded = torch.nn.functional.pad(weights, (0, len(starts) * width - num_keys))
        blocks = padded.view(*weights.shape[:2], len(starts), width)
        means.append(blocks.sum(dim=(1, 3)) / (len(queries) * widths))
        largest.append(blocks.amax(dim=(1, 3)))
    return torch.stack(means, dim=1), torch.stack(largest, dim=1)


class HeadMaps:
    """Takes the layers as the model hands them over, and keeps the maps of those of the chosen stack.

    Every head's weights where no side has more than 128 tokens; else `pooled_mean` and `pooled_max` of
    every head, and the whole weights of the heads asked for. `two_stacks`: the model has a decoder and an
    encoder, which `maps` tells apart.
    """

    def __init__(self, spec: HeadsSpec, query: ModelText, key: ModelText, *, two_stacks: bool) -> None:
        self.spec = spec
        self.two_stacks = two_stacks
        self.counts = len(query.ids), len(key.ids)
        self.is_whole = max(self.counts) <= WHOLE_TOKENS
        self.asked = [tuple(map(int, name.split(":"))) for name in spec.full]
        self.maps: dict[str, dict[int, Tensor]] = {}
        self.full: dict[tuple[int, ...], Tensor] = {}
        size = len(self.asked) * len(query.ids) * len(key.ids) * BYTES_PER_KEPT_WEIGHT
        refuse_bytes(spec, size, "fewer heads in full, or fewer tokens")

    def take(self, layer: CapturedLayer) -> None:
        """Keep what is asked for of one layer, in float32."""
        if self._stack(layer) != self.spec.maps:
            return
        if self.is_whole:
            weights = _rows(layer, torch.arange(self.counts[0]))
            self.maps.setdefault("weights", {})[layer.layer] = weights.float().cpu()
            return
        for name, pooled in zip(("pooled_mean", "pooled_max"), _pooled(layer, *self.counts), strict=True):
            self.maps.setdefault(name, {})[layer.layer] = pooled
        for place in self.asked:
            if place[0] == layer.layer and place[1] < self.maps["pooled_mean"][layer.layer].shape[0]:
                weights = _rows(layer, torch.arange(self.counts[0]))[place[1]]
                self.full[place] = weights.float().cpu()

    def _stack(self, layer: CapturedLayer) -> str:
        in_encoder = self.two_stacks and layer.module.startswith("encoder")
        return "encoder" if in_encoder else layer.kind

    def tensors(self) -> dict[str, NamedTensor]:
        """The maps by layer and head; UserError for a head in `full` that is not there."""
        self._refuse_heads_that_are_not_there()
        ends = ("query", "key") if self.is_whole else ("query_block", "key_block")
        found = {name: _by_layer(layers, ends) for name, layers in self.maps.items()}
        for layer, head in self.asked:
            if (layer, head) in self.full:
                weights = self.full[layer, head].numpy()
                found[f"weights_{layer}_{head}"] = NamedTensor(("query", "key"), weights)
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
