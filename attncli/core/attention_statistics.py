"""`attention_statistics`: exact statistics of attention, with memory linear in the sequence length."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Computed, ScoreRules, Visibility, Wanted, longest_row
from attncli.core.names import ROW_STATISTICS
from attncli.core.runtime import torch_threads

LARGEST_SCORE = 6.9e14
"""The largest accepted score.

The squares of larger scores overflow float32, and weights cannot show their differences.
"""
SOFTCAPS = (1e-30, 1e30)


def checked_layer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    sink: Tensor | None,
    *,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
) -> tuple[AttentionLayer, torch.Size]:
    """Return the layer and the leading axes of the result. Raises ValueError, naming the bad argument."""
    batch = batch_shape(query, key, value)
    (num_queries, dim), num_keys = query.shape[-2:], key.shape[-2]
    if dim == 0:
        raise ValueError("the dim of query must be at least 1 (got 0)")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 (got {window})")
    if softcap is not None and not SOFTCAPS[0] <= softcap <= SOFTCAPS[1]:
        raise ValueError(f"softcap must be between {SOFTCAPS[0]:g} and {SOFTCAPS[1]:g} (got {softcap})")
    scale = 1 / math.sqrt(dim) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite (got {scale})")
    if key_mask is not None and key_mask.dtype != torch.bool:
        raise ValueError(
            f"key_mask has type {key_mask.dtype}: it must be bool, True for keys that may be attended to"
        )

    num_heads, lead = (batch[-1], batch[:-1]) if batch else (1, batch)
    kv_heads = key.shape[-3] if batch else 1
    num_texts = math.prod(lead)
    query = query.expand(*batch, num_queries, dim).reshape(num_texts, num_heads, num_queries, dim)
    key, value = (
        shared.expand(*lead, *shared.shape[-3:] if batch else shared.shape).reshape(
            num_texts, kv_heads, *shared.shape[-2:]
        )
        for shared in (key, value)
    )
    logits = masks = None
    if sink is not None:
        logits = _expanded("sink", sink.detach(), batch).reshape(num_texts, num_heads).double()
        if not (logits < math.inf).all():
            raise ValueError(
                "sink has entries that are NaN or +inf: they must be finite, or -inf for no sink"
            )
    if key_mask is not None:
        masks = _expanded("key_mask", key_mask, torch.Size([*batch, num_keys])).reshape(
            num_texts, num_heads, num_keys
        )
        if key_mask.ndim > 1 and key_mask.shape[-2] > 1:  # heads have different masks: treat each as a text
            key, value = (shared.repeat_interleave(num_heads // kv_heads, dim=1) for shared in (key, value))
            query, key, value = (tensor.flatten(0, 1).unsqueeze(1) for tensor in (query, key, value))
            logits = None if logits is None else logits.reshape(-1, 1)
            masks = masks.flatten(0, 1)
        else:
            masks = masks[:, 0]
    visibility = Visibility(num_queries, num_keys, causal=causal, window=window, key_mask=masks)
    layer = AttentionLayer(query, key, value, visibility, scale, ScoreRules(softcap=softcap, sink=logits))
    _refuse_large_numbers(layer)
    return layer, batch


def _refuse_large_numbers(layer: AttentionLayer) -> None:
    """Raise ValueError for numbers that are not finite and for scores that may overflow."""
    with torch_threads(1):
        lengths = {
            "query": layer.longest_query,
            "key": layer.longest_key,
            "value": longest_row(layer.value),
        }
    for name, length in lengths.items():
        if not math.isfinite(length):
            raise ValueError(f"{name} has entries that are NaN, infinite or too large to square")
    reach = abs(layer.scale) * layer.longest_query * layer.longest_key
    if reach > LARGEST_SCORE:
        raise ValueError(
            f"scores may reach {reach:.0e}, more than {LARGEST_SCORE:.1e}: scale down query or key"
        )


def batch_shape(query: Tensor, key: Tensor, value: Tensor) -> torch.Size:
    """Return the leading axes of the result.

    The inputs' axes are equal or broadcast from 1; the number of key heads divides the number of query heads.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 2 or tensor.ndim != query.ndim:
            raise ValueError(
                f"{name} has {tensor.ndim} axes, query has {query.ndim}: "
                "both must have the same number, at least 2"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has type {tensor.dtype}: it must be a floating-point type")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}, query is {query.dtype} on {query.device}: "
                "the types and devices must be equal"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has dim {key.shape[-1]}, query has dim {query.shape[-1]}: both must be equal")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value has {value.shape[-2]} rows, key has {key.shape[-2]}: both must have the same number"
        )
    if value.shape[:-2] != key.shape[:-2]:
        raise ValueError(
            f"value has leading axes {tuple(value.shape[:-2])}, key has {tuple(key.shape[:-2])}: "
            "the axes must be equal"
        )
    return _joined(query.shape[:-2], key.shape[:-2])


def _joined(query: torch.Size, key: torch.Size) -> torch.Size:
    """Broadcast two leading shapes; the key's last axis may divide the query's."""
    grouped = len(query) > 0 and key[-1] > 0 and query[-1] % key[-1] == 0
    fits = [1 in (q, k) or q == k for q, k in zip(query, key, strict=True)]
    if not all(fits[:-1] if grouped else fits):
        raise ValueError(
            f"key has leading axes {tuple(key)}, query has {tuple(query)}: the axes must be equal or 1, "
            "except that the number of key heads, the last axis, may divide the number of query heads"
        )
    return torch.Size(k if q == 1 else q for q, k in zip(query, key, strict=True))


def _expanded(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: it must broadcast to {tuple(shape)}"
        ) from None


@dataclass(frozen=True, repr=False)
class AttentionStatistics:
    """Statistics of the weights p = exp(score - logsumexp), with one row of weights per query.

    `rows` holds every statistic in ROW_STATISTICS; each is also available as an attribute:

    - entropy: -sum_j p_j ln p_j over the keys (the sink does not count as a key)
    - normalized_entropy: entropy / ln visible; null if only one key is visible
    - max_weight: max_j p_j
    - sink_mass: the weight on the first key; 0 if that key is hidden
    - distance: sum_j p_j |position - j|
    - participation: 1 / sum_j p_j^2, the number of keys that share the weight, in float64; it exceeds
    `visible` if a sink takes most of the weight

    Logarithms are natural (nats); distances are in tokens. `position` is the query's place among the keys:
    its index or, if causal, its index + num_keys - num_queries, so that the last query stands at the last
    key. "Visible" entries are unmasked; hidden entries have weight 0.

    Null is NaN in float tensors and -1 in `top_keys`. A query that sees no key has null row statistics,
    `visible` 0 and an output of zeros, and is left out of every other result. Inputs in half precision give
    float32 results.
    """

    output: Float[Tensor, "*batch query value_dim"] | None
    """sum_j p_j value_j, or None if there are no values."""
    logsumexp: Float[Tensor, "*batch query"]
    """ln sum_j exp(score_j) over the visible keys and the sink."""
    rows: Mapping[str, Float[Tensor, "*batch query"]]
    """Every row statistic, by name."""
    top_keys: Int[Tensor, "*batch query top_k"]
    """The keys with the largest weights, largest first; ties are in order of position.

    Null beyond `visible`.
    """
    top_weights: Float[Tensor, "*batch query top_k"]
    """The weights of `top_keys`; null beyond `visible`."""
    previous_token: Float[Tensor, "*batch query"]
    """The weight on the key at position - 1; 0 if that key is hidden, null if there is no such key."""
    visible: Int[Tensor, "*batch query"]
    """The number of keys that each query may see."""
    score_mean: Float[Tensor, "*batch"]
    """The mean of the (scaled, capped) scores over the visible entries of a head; null if none is visible."""
    score_variance: Float[Tensor, "*batch"]
    """The unbiased variance of these scores; null for fewer than two scores."""
    score_min: Float[Tensor, "*batch"]
    """The smallest of these scores."""
    score_max: Float[Tensor, "*batch"]
    """The largest of these scores."""
    received_mass: Float[Tensor, "*batch key"] | None
    """sum_i p_ij over the queries i; None unless requested with `keys`."""
    pooled_mean: Float[Tensor, "*batch pooled_query pooled_key"] | None
    """The mean weight in blocks of ceil(length / pooled) queries and keys; the last blocks may be shorter."""
    pooled_max: Float[Tensor, "*batch pooled_query pooled_key"] | None
    """The largest weight in each block of `pooled_mean`."""

    def __getattr__(self, name: str) -> Float[Tensor, "*batch query"]:
        """Return a row statistic."""
        rows = vars(self).get("rows", {})  # not set yet during copying or unpickling
        if name not in rows:
            names = ", ".join(rows)
            raise AttributeError(
                f"AttentionStatistics has no attribute {name!r}; its row statistics are {names}"
            )
        row: Tensor = rows[name]
        return row

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.rows]

    def __repr__(self) -> str:
        """Show the mean, minimum and maximum of each row statistic, then the names of the other fields."""
        shape = " x ".join(map(str, self.logsumexp.shape))
        rows = {**self.rows, "previous_token": self.previous_token, "visible": self.visible}
        width = max(map(len, rows))
        lines = [f"{'':{width}}{'mean':>10}{'min':>10}{'max':>10}"]
        for name, row in rows.items():
            finite = row[~row.isnan()].double()
            numbers = (finite.mean(), finite.min(), finite.max()) if finite.numel() else ()
            lines.append(f"{name:>{width}}" + "".join(f"{float(number):>10.3g}" for number in numbers))
        parts = [f".{name}" for name, value in vars(self).items() if value is not None and name != "rows"]
        about = f"AttentionStatistics of {shape} rows, in .rows"
        return "\n".join([about, *lines, f"also {', '.join(parts)}"])


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
    """See `attncli.measure.own_tensors.attention_statistics`, which documents each argument.

    Raises ValueError, naming the argument, for shapes that do not fit, NaN or infinite entries, and settings
    out of range.
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
    """Compute `attention_statistics` with one engine, so that tests can compare it with the reference."""
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
        layer, batch = checked_layer(query, key, values, key_mask, sink, **settings)
        computed = engine(layer, wanted)

    def shaped(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.reshape((*batch, *tensor.shape[2:]))

    assert computed.visible is not None and computed.moments is not None and computed.output is not None
    num_texts, num_heads, num_queries, _ = rows = layer.shape
    no_keys = torch.empty(*rows[:3], 0, dtype=torch.int64, device=query.device)
    return AttentionStatistics(
        output=None if value is None else shaped(computed.output),
        logsumexp=shaped(computed.logsumexp),
        rows={name: shaped(row) for name, row in computed.rows.items()},
        top_keys=shaped(no_keys if computed.top_keys is None else computed.top_keys),
        top_weights=shaped(
            no_keys.to(computed.output) if computed.top_weights is None else computed.top_weights
        ),
        previous_token=shaped(computed.previous_token),
        visible=shaped(computed.visible.unsqueeze(1).expand(num_texts, num_heads, num_queries)),
        score_mean=shaped(computed.moments.mean.to(computed.output)),
        score_variance=shaped(computed.moments.variance.to(computed.output)),
        score_min=shaped(computed.moments.smallest.to(computed.output)),
        score_max=shaped(computed.moments.largest.to(computed.output)),
        received_mass=shaped(computed.received_mass),
        pooled_mean=shaped(computed.pooled_mean),
        pooled_max=shaped(computed.pooled_max),
    )
