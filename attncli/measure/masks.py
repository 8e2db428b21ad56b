"""The mask and the scale of a layer as facts that its tensors carry."""

from collections.abc import Mapping

import numpy as np

from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.row_tiles import LayerOrWeights
from attncli.core.rows import PooledGrid
from attncli.records.values import Mask, later_keys


def is_by_rule(seen: Visibility) -> bool:
    """Whether causal and window say all."""
    return seen.key_mask is None and seen.rule is None and seen.offset is None


def mask_of(attention: LayerOrWeights, text: int = 0) -> Mask | None:
    """Which keys each query of a text sees.

    A model that gives its weights alone says nothing of its mask: it counts as causal where no weight is on a
    later key, and as one that hides nothing where all weights are positive; None elsewhere.
    """
    if isinstance(attention, AttentionLayer):
        seen = attention.visibility
        if is_by_rule(seen):
            return Mask(seen.causal, seen.window)
        visible = seen.whole(attention.query.device)
        return Mask.of(visible[text if len(visible) > 1 else 0].numpy(force=True))
    given = attention.seen[text if len(attention.seen) > 1 else 0].numpy(force=True)
    num_queries, num_keys = given.shape
    if given.all():
        return Mask()
    is_causal = num_queries == num_keys and not given[later_keys(num_queries, num_keys)].any()
    return Mask(causal=True) if is_causal else None


def mask_of_blocks(attention: LayerOrWeights, num_blocks: int) -> Mask | None:
    """The mask of a pooled map: a block is hidden where none of its queries sees any of its keys.

    Between blocks of s tokens, d apart, the nearest tokens are (d - 1) s + 1 apart. None where the mask is
    neither causal nor a window, and where the blocks of queries and of keys differ.
    """
    if isinstance(attention, AttentionLayer) and not is_by_rule(attention.visibility):
        return None
    mask = mask_of(attention)
    num_queries, num_keys = attention.shape[2:]
    if mask is None:
        return None
    if mask == Mask():
        return mask
    if num_queries != num_keys:
        return None
    size, _ = PooledGrid(num_queries, num_keys, num_blocks).steps
    window = None if mask.window is None else -(-(mask.window - 1) // size) + 1
    return Mask(mask.causal, window)


def mask_of_layers(masks: Mapping[int, Mask | None], num_queries: int, num_keys: int) -> Mask | None:
    """The mask of the maps (layer, head, query, key) of layers that may differ; None where one is not known.

    Nothing is visible where there is no layer.
    """
    first = next(iter(masks.values()))
    if first is None or all(mask == first for mask in masks.values()):
        return first
    visible = np.zeros((max(masks) + 1, 1, num_queries, num_keys), dtype=np.uint8)
    for layer, mask in masks.items():
        if mask is None:
            return None
        hidden = mask.hidden(num_queries, num_keys)
        visible[layer, 0] = 1 if hidden is None else ~hidden
    return Mask(all(mask is not None and mask.causal for mask in masks.values()), visible=visible)


def mask_of_rollout(masks: list[Mask | None]) -> Mask | None:
    """Which tokens may reach each one through all the layers: the earlier ones where each layer is causal."""
    if all(mask is not None and mask.causal for mask in masks):
        return Mask(causal=True)
    return Mask() if all(mask == Mask() for mask in masks) else None


def scale_of(layer: AttentionLayer) -> float | None:
    """The factor between query · key and what the softmax takes, where that is all that happens to it."""
    return layer.scale / layer.rules.temperature if layer.rules.is_plain else None
