"""`attention_statistics`: exact statistics of attention in memory linear in its length."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.attention.arguments import layer_of
from attncli.attention.engines import attend
from attncli.attention.result import AttentionStatistics
from attncli.attention.results import Computed, Wanted
from attncli.row_statistics import ROW_STATISTICS


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
    also be a divisor (grouped-query attention: query head h uses key head h * num_kv_heads // num_heads)
    and is not expanded. What the numbers mean is said in `AttentionStatistics`.

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
    torch.get_num_threads() threads share the work; results do not depend on how many they are, and
    other threads keep theirs.

    Raises ValueError, naming the argument, for shapes that do not fit, NaN or infinite entries, and
    settings out of range. Sources: Rabe and Staats, arXiv:2112.05682; FlashAttention, arXiv:2205.14135.
    """
    settings = {"causal": causal, "window": window, "softcap": softcap, "scale": scale}
    return computed_statistics(
        query,
        key,
        value,
        key_mask,
        sink,
        top_k=top_k,
        keys=keys,
        pooled=pooled,
        engine=lambda layer, wanted: attend(layer, wanted, progress),
        **settings,
    )


def computed_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    key_mask: Tensor | None,
    sink: Tensor | None,
    *,
    top_k: int,
    keys: bool,
    pooled: int | None,
    engine: Callable[..., Computed],
    **settings: Any,
) -> AttentionStatistics:
    """`attention_statistics` by one engine, so that tests can hold each to the reference."""
    for name, least, number in (("top_k", 0, top_k), ("pooled", 1, pooled)):
        if number is not None and number < least:
            raise ValueError(f"{name} must be at least {least} (got {number})")
    query, key = query.detach(), key.detach()
    values = key[..., :0] if value is None else value.detach()
    wanted = Wanted(
        rows=tuple(ROW_STATISTICS),
        top_k=top_k,
        previous_token=True,
        output=True,
        score_moments=True,
        received_mass=keys,
        pooled=pooled,
    )
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        layer, batch = layer_of(query, key, values, key_mask, sink, **settings)
        found = engine(layer, wanted)

    def shaped(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.reshape((*batch, *tensor.shape[2:]))

    assert found.visible is not None and found.moments is not None and found.output is not None
    num_texts, num_heads, num_queries, _ = rows = layer.shape
    no_keys = torch.empty(*rows[:3], 0, dtype=torch.int64, device=query.device)
    return AttentionStatistics(
        output=None if value is None else shaped(found.output),
        logsumexp=shaped(found.logsumexp),
        rows={name: shaped(row) for name, row in found.rows.items()},
        top_keys=shaped(no_keys if found.top_keys is None else found.top_keys),
        top_weights=shaped(no_keys.to(found.output) if found.top_weights is None else found.top_weights),
        previous_token=shaped(found.previous_token),
        visible=shaped(found.visible.unsqueeze(1).expand(num_texts, num_heads, num_queries)),
        score_mean=shaped(found.moments.mean.to(found.output)),
        score_variance=shaped(found.moments.variance.to(found.output)),
        score_min=shaped(found.moments.smallest.to(found.output)),
        score_max=shaped(found.moments.largest.to(found.output)),
        received_mass=shaped(found.received_mass),
        pooled_mean=shaped(found.pooled_mean),
        pooled_max=shaped(found.pooled_max),
    )
