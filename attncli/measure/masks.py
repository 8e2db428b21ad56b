"""The masks and scales of layers, which are part of a report's tensors."""

from collections.abc import Mapping

import numpy as np

from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.row_tiles import LayerOrWeights
from attncli.core.rows import PooledGrid
from attncli.records.values import Mask, later_keys


def is_by_rule(seen: Visibility) -> bool:
    """True if `causal` and `window` describe the visibility completely."""
    return seen.key_mask is None and seen.rule is None and seen.offset is None


def layer_mask(attention: LayerOrWeights, text: int = 0) -> Mask | None:
    """The mask of a text: the keys that each query sees.

    A model that returns only weights does not expose its mask: the mask counts as causal if no weight is on a
    later key, and as unmasked if all weights are positive; in all other cases it is None.
    """
    if isinstance(attention, AttentionLayer):
        seen = attention.visibility
        if is_by_rule(seen):
            return Mask(seen.causal, seen.window)
        visible = seen.whole(attention.query.device)
        return Mask.of(visible[text if len(visible) > 1 else 0].numpy(force=True))
    seen_keys = attention.seen[text if len(attention.seen) > 1 else 0].numpy(force=True)
    num_queries, num_keys = seen_keys.shape
    if seen_keys.all():
        return Mask()
    is_causal = num_queries == num_keys and not seen_keys[later_keys(num_queries, num_keys)].any()
    return Mask(causal=True) if is_causal else None


def block_mask(attention: LayerOrWeights, num_blocks: int) -> Mask | None:
    """The mask of a pooled map: a block is hidden if none of its queries sees any of its keys.

    Between blocks of s tokens, d apart, the nearest tokens are (d - 1) s + 1 apart. Returns None if the mask
    is neither causal nor a window, or if the blocks of queries and keys differ.
    """
    if isinstance(attention, AttentionLayer) and not is_by_rule(attention.visibility):
        return None
    mask = layer_mask(attention)
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


def joint_mask(masks: Mapping[int, Mask | None], num_queries: int, num_keys: int) -> Mask | None:
    """The joint mask of maps (layer, head, query, key) whose layers may differ.

    Returns None if any layer's mask is unknown. In missing layers, nothing is visible.
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


def joint_rollout_mask(masks: list[Mask | None]) -> Mask | None:
    """The mask of attention rollout, which is causal if every layer is causal."""
    if all(mask is not None and mask.causal for mask in masks):
        return Mask(causal=True)
    return Mask() if all(mask == Mask() for mask in masks) else None


def scale_of(layer: AttentionLayer) -> float | None:
    """The factor applied to query · key before the softmax, or None if scores also change in other ways."""
    return layer.scale / layer.rules.temperature if layer.rules.is_plain else None
