"""The output of attention by whole matrices, through which gradients flow: engines keep none."""

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.layer import AttentionLayer


def attend(layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """softmax(score) value, with the scores as the layer makes them; memory is the square of the length."""
    rules, (num_texts, num_heads, num_queries, _) = layer.rules, layer.shape
    key, value = layer.expanded()
    scores = layer.query @ key.mT * layer.scale
    if rules.softcap is not None:
        scores = rules.softcap * (scores / rules.softcap).tanh()
    if rules.bias is not None:
        scores = scores + rules.bias
    seen = layer.visibility.whole(scores.device).unsqueeze(1)
    # A finite number, so that a query that sees no key has no gradient of infinities.
    scores = (scores / rules.temperature).masked_fill(~seen, torch.finfo(scores.dtype).min)
    if rules.softmax_sink is not None:
        outside = rules.softmax_sink.to(scores)[..., None, None].expand(num_texts, num_heads, num_queries, 1)
        scores = torch.cat([scores, outside], dim=-1)
    weights = scores.softmax(dim=-1)[..., : layer.shape[3]]
    return weights.masked_fill(~seen, 0.0) @ value
