"""The output alone, where nothing else of a layer is wanted."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines.rows import attend
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted


def layer_output(layer: AttentionLayer) -> Float[Tensor, "text head query value_dim"]:
    """weights @ value, by torch's fused attention where that can."""
    visibility, rules = layer.visibility, layer.rules
    is_square = visibility.num_queries == visibility.num_keys
    is_unmasked = visibility.window is None and visibility.rule is None and visibility.key_mask is None
    is_plain = rules.is_plain and rules.sink is None and rules.temperature == 1
    if is_plain and is_unmasked and (is_square or not visibility.causal):
        return F.scaled_dot_product_attention(
            layer.query,
            layer.key,
            layer.value,
            is_causal=visibility.causal,
            scale=layer.scale,
            enable_gqa=layer.group > 1,
        )
    output = attend(layer, Wanted(output=True)).output
    assert output is not None
    return output
