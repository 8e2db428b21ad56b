"""`attention_statistics`: exact figures of attention in memory linear in its length."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.streaming.heads import Options, batch_shape, each_head
from attncli.streaming.passes import stream
from attncli.streaming.result import AttentionStatistics
from attncli.streaming.tiles import TileSizes


def attention_statistics(
    query: Float[Tensor, "*batch query dim"],
    key: Float[Tensor, "*kv_batch key dim"],
    value: Float[Tensor, "*kv_batch key value_dim"] | None = None,
    *,
    causal: bool = False,
    key_mask: Bool[Tensor, "*mask_batch key"] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sink: Float[Tensor, "*sink_batch"] | None = None,
    scale: float | None = None,
    top_k: int = 0,
    keys: bool = False,
    pooled: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> AttentionStatistics:
    """softmax(scale query key^T) value, and what its weights are like, without the matrix of weights.

    The leading axes of key and value equal those of query or are 1; the last of them, the heads, may
    also be a divisor (grouped-query attention: query head h uses key head h * num_kv_heads // num_heads).
    Nothing is expanded or copied as a whole. What the figures mean is said in `AttentionStatistics`.

    Query i stands at position t = i. With causal it stands at t = i + num_keys - num_queries: with more keys
    than queries the last query stands at the last key, with fewer the first ones stand before all keys.

    - causal: a query sees keys j <= t.
    - window: a query sees keys with |t - j| < window, so with causal the last `window` keys (Mistral).
    - key_mask: True = may be attended; of shape (key,) or any that broadcasts to (*batch, key), as
      (batch, 1, key) does for padding.
    - softcap: scores become softcap tanh(score / softcap) (Gemma 2, arXiv:2408.00118).
    - sink: a logit that joins the denominator alone, so rows sum to less than one (GPT-OSS); of any
      shape that broadcasts to the batch, as (head,) does.
    - scale: 1/sqrt(dim) by default.
    - top_k: how many of the largest weights to name for each query.
    - keys: also the mass that each key receives; pooled: also maps of at most pooled x pooled blocks.
      Either needs a second pass.
    - progress: called in this thread with the fraction of the blocks that are done.

    float64 is computed as float64, all else as float32 with sums across tiles in float64. On the CPU,
    torch.get_num_threads() threads share the work; results do not depend on how many they are.

    Raises ValueError, naming the argument, for shapes that do not fit, NaN or infinite entries, and
    settings out of range. Sources: Rabe and Staats, arXiv:2112.05682; FlashAttention, arXiv:2205.14135.
    """
    options = Options(causal, window, softcap, scale, top_k, keys, pooled)
    return tiled_statistics(query, key, value, key_mask, sink, options, None, progress)


def tiled_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    key_mask: Tensor | None,
    sink: Tensor | None,
    options: Options,
    sizes: TileSizes | None,
    progress: Callable[[float], None] | None,
) -> AttentionStatistics:
    """`attention_statistics` with the tile sizes as an argument, so that tests can vary them."""
    query, key = query.detach(), key.detach()
    values = key[..., :0] if value is None else value.detach()
    batch = batch_shape(query, key, values)
    sizes = sizes or TileSizes.suited_to(key.shape[-2])
    with torch.autocast(query.device.type, enabled=False):
        heads = list(each_head(query, key, values, key_mask, sink, batch, options))
        figures = stream(heads, query, key, values, options, sizes, progress)
    shaped = {name: tensor.reshape(batch + tensor.shape[1:]) for name, tensor in figures.items()}
    output, received = shaped.pop("output"), shaped.pop("received_mass", None)
    pooled_mean, pooled_max = shaped.pop("pooled_mean", None), shaped.pop("pooled_max", None)
    return AttentionStatistics(
        output=None if value is None else output,
        received_mass=received if options.keys else None,
        pooled_mean=None if options.pooled is None else pooled_mean,
        pooled_max=None if options.pooled is None else pooled_max,
        **shaped,
    )
