"""The weights of one query in every layer, of several layers at once where they are alike."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.attention.engines import attend
from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted

MOST_STACKED = 2**21
"""Numbers in the keys of layers that are computed together: they are copied for it."""

RowOfWeights = tuple[Float[Tensor, "head key"], Bool[Tensor, " key"]]
"""A row of weights of each head, and the keys that it sees."""


def weights_of(layers: Sequence[AttentionLayer | GivenWeights]) -> list[RowOfWeights]:
    """The rows of the one query of each layer, of one text."""
    found: dict[int, RowOfWeights] = {}
    alike: defaultdict[Hashable, dict[int, AttentionLayer]] = defaultdict(dict)
    for number, layer in enumerate(layers):
        if isinstance(layer, GivenWeights):
            found[number] = layer.weights[0, :, 0].float(), layer.seen[0, 0]
        else:
            alike[_likeness(layer)][number] = layer
    for together in alike.values():
        found |= zip(together, _rows([*together.values()]), strict=True)
    return [found[number] for number in range(len(layers))]


def _likeness(layer: AttentionLayer) -> Hashable:
    """Equal for layers that may be computed together; what a mask or bias of its own rules is alone."""
    seen, rules = layer.visibility, layer.rules
    if seen.key_mask is not None or seen.rule is not None or rules.bias is not None:
        return id(layer)
    sink = None if rules.sink is None else rules.sink.shape
    shapes = layer.query.shape, layer.key.shape, layer.query.device
    return (*shapes, layer.scale, seen.causal, seen.window, rules.softcap, sink)


def _rows(layers: Sequence[AttentionLayer]) -> Iterator[RowOfWeights]:
    """Layers that are alike, as many at a time as are copied in little memory."""
    seen = layers[0].visibility.whole(layers[0].query.device)[0, 0]
    at_once = max(1, MOST_STACKED // layers[0].key.numel())
    for start in range(0, len(layers), at_once):
        weights = attend(_stacked(layers[start : start + at_once]), Wanted(weights=True)).weights
        assert weights is not None
        for row in weights[:, :, 0]:
            yield row, seen


def _stacked(layers: Sequence[AttentionLayer]) -> AttentionLayer:
    """As the texts of one layer, without values: its weights alone are wanted."""
    first = layers[0]
    if len(layers) == 1:
        return first
    key = torch.cat([layer.key for layer in layers])
    sinks = [layer.rules.sink for layer in layers if layer.rules.sink is not None]
    rules = replace(first.rules, sink=torch.cat(sinks)) if sinks else first.rules
    query = torch.cat([layer.query for layer in layers])
    return replace(first, query=query, key=key, value=key[..., :0], rules=rules)
