"""From a layer to one `Head` for each text and head, without a copy."""

from collections.abc import Iterator
from itertools import product

import torch

from attncli.attention.engines.tiles.intervals import KeptKeys
from attncli.attention.engines.tiles.scores import LOG2_E, Head
from attncli.attention.layer import AttentionLayer


def each_head(layer: AttentionLayer) -> Iterator[Head]:
    """One head for each text and head, in order: views of the inputs, and a bound on the scores."""
    num_texts, num_heads, num_queries, num_keys = layer.shape
    visibility, rules = layer.visibility, layer.rules
    assert rules.bias is None and visibility.rule is None, "tiles have no room for whole matrices"
    dtype = torch.promote_types(layer.key.dtype, torch.float32)
    scale = layer.scale / rules.temperature
    # Temperature divides capped scores: c tanh(s / c) / T is (c / T) tanh((s / T) / (c / T)).
    softcap = None if rules.softcap is None else rules.softcap / rules.temperature
    sink = torch.tensor([[-torch.inf]]) if rules.softmax_sink is None else rules.softmax_sink
    sink = sink.double().to(layer.key.device).expand(num_texts, num_heads)
    bits = abs(scale) * LOG2_E * layer.longest_query
    everything = torch.arange(num_keys, device=layer.key.device)
    for text, head in product(range(num_texts), range(num_heads)):
        kept = everything
        if visibility.key_mask is not None:
            mask = visibility.key_mask
            kept = mask[text if len(mask) > 1 else 0].nonzero()[:, 0]
        rows = layer.key[text, head // layer.group]
        seen = rows if len(kept) == num_keys else rows[kept]
        mean_key = seen.mean(0, dtype=dtype)
        bound = bits * (layer.longest_key + float(mean_key.norm()))
        yield Head(
            query=layer.query[text, head],
            key=rows,
            value=layer.value[text, head // layer.group],
            visibility=KeptKeys(kept, num_keys, num_queries, visibility.causal, visibility.window),
            mean_key=mean_key,
            scale=scale,
            softcap=softcap,
            sink=sink[text, head],
            bound=bound if softcap is None else 2 * softcap * LOG2_E,
        )
