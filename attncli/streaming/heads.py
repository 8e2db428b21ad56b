"""From tensors with any leading axes to one `Head` for each leading index, without a copy."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.streaming.scores import LOG2_E, Head
from attncli.streaming.visibility import Visibility

LARGEST_BITS = 1e15
"""Scores beyond this are refused: their squares must fit float32, and hidden entries are marked by -1e30."""


@dataclass(frozen=True)
class Options:
    """How scores are made and masked; see `attention_statistics`."""

    causal: bool
    window: int | None
    softcap: float | None
    scale: float | None
    top_k: int
    keys: bool
    pooled: int | None

    @property
    def second_pass(self) -> bool:
        """Whether figures of keys are asked for."""
        return self.keys or self.pooled is not None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1 (got {self.window})")
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise ValueError(f"softcap must be positive and finite (got {self.softcap})")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale must be finite (got {self.scale})")
        if self.top_k < 0:
            raise ValueError(f"top_k must not be negative (got {self.top_k})")
        if self.pooled is not None and self.pooled < 1:
            raise ValueError(f"pooled must be at least 1 (got {self.pooled})")


def batch_shape(query: Tensor, key: Tensor, value: Tensor) -> torch.Size:
    """The leading axes of the result: equal or broadcast from 1; key heads divide query heads."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 2 or tensor.ndim != query.ndim:
            raise ValueError(f"{name} has {tensor.ndim} axes, query has {query.ndim}: equal, and at least 2")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has type {tensor.dtype}: it must be a floating-point type")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}, query is {query.dtype} on {query.device}: "
                "they must be equal"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has dim {key.shape[-1]}, query has dim {query.shape[-1]}: they must be equal")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value has {value.shape[-2]} rows, key has {key.shape[-2]} keys: they must be equal"
        )
    if value.shape[:-2] != key.shape[:-2]:
        raise ValueError(
            f"value has leading axes {tuple(value.shape[:-2])}, key has {tuple(key.shape[:-2])}: "
            "they must be equal"
        )
    return _joined(query.shape[:-2], key.shape[:-2])


def _joined(query: torch.Size, key: torch.Size) -> torch.Size:
    """Broadcast two leading shapes; the last axis of key may be a divisor of that of query."""
    grouped = len(query) > 0 and key[-1] > 0 and query[-1] % key[-1] == 0
    fits = [1 in (q, k) or q == k for q, k in zip(query, key, strict=True)]
    if not all(fits[:-1] if grouped else fits):
        raise ValueError(
            f"key has leading axes {tuple(key)}, query has {tuple(query)}: they must be equal or 1, or "
            "the last of them, the number of key heads, must divide the number of query heads"
        )
    return torch.Size(k if q == 1 else q for q, k in zip(query, key, strict=True))


def each_head(
    query: Float[Tensor, "*batch query dim"],
    key: Float[Tensor, "*kv_batch key dim"],
    value: Float[Tensor, "*kv_batch key value_dim"],
    key_mask: Bool[Tensor, "*mask_batch key"] | None,
    sink: Float[Tensor, "*sink_batch"] | None,
    batch: torch.Size,
    options: Options,
) -> Iterator[Head]:
    """One head for each leading index, in order: views of the inputs, and a bound on the scores."""
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    dtype = torch.promote_types(key.dtype, torch.float32)
    query_length, key_length, _ = (
        _longest_row(*named) for named in (("query", query), ("key", key), ("value", value))
    )
    scale = 1 / math.sqrt(query.shape[-1]) if options.scale is None else options.scale
    bits = abs(scale) * LOG2_E * query_length
    if 2 * bits * key_length > LARGEST_BITS:
        raise ValueError(f"scores may reach {bits * key_length:.0e}, far beyond what weights can show")
    everything = torch.arange(num_keys, device=key.device)
    mask = None if key_mask is None else _expanded("key_mask", key_mask, torch.Size([*batch, num_keys]))
    logits = _expanded("sink", key.new_tensor(-math.inf) if sink is None else sink, batch).double()
    if not (logits < math.inf).all():
        raise ValueError("sink has NaN or infinite entries: a logit is finite, or -inf for none")
    for index in product(*map(range, batch)):
        kept = everything if mask is None else mask[index].nonzero()[:, 0]
        rows = _at(key, index, batch)
        mean_key = (rows if mask is None else rows[kept]).mean(0, dtype=dtype)
        bound = bits * (key_length + float(mean_key.norm()))
        yield Head(
            query=_at(query, index, batch),
            key=rows,
            value=_at(value, index, batch),
            visibility=Visibility(kept, num_keys, num_queries, options.causal, options.window),
            mean_key=mean_key,
            scale=scale,
            softcap=options.softcap,
            sink=logits[index],
            bound=bound if options.softcap is None else 2 * options.softcap * LOG2_E,
        )


def _longest_row(name: str, rows: Float[Tensor, "*batch row dim"]) -> float:
    """The largest Euclidean length of a row: bounds the scores, and betrays whatever is not finite."""
    lengths = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.promote_types(rows.dtype, torch.float32))
    longest = float(lengths.max()) if lengths.numel() else 0.0
    if not math.isfinite(longest):
        raise ValueError(f"{name} has entries that are NaN, infinite or too large to square")
    return longest


def _expanded(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: it must broadcast to {tuple(shape)}"
        ) from None


def _at(tensor: Tensor, index: tuple[int, ...], batch: torch.Size) -> Tensor:
    """The matrix of `tensor` for this index of the result: shared along broadcast and grouped axes."""
    own = (i * size // full for i, size, full in zip(index, tensor.shape, batch, strict=False))
    return tensor[tuple(own)]
