"""The attention functions of flash_attn, xformers and sageattention, if a program has imported them.

Each function is replaced in all modules by a wrapper that calls the function and reads its attention.
"""

import sys
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attncli.core.layer import PLAIN, ScoreRules, Visibility

MOST_BIAS = 2**24
"""Maximum number of entries of a computed position bias."""


class FusedCall(NamedTuple):
    """The arguments of a fused function: query, key and value (..., token, dim), which may share key heads.

    `visibility` does not include the `mask`, which holds Booleans (True: may attend) or numbers to add.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    visibility: Visibility
    scale: float
    mask: Tensor | None = None
    rules: ScoreRules = PLAIN


class NotHeard(Exception):
    """Raised if an attention cannot be read, for the reason in the message."""


def readable(tensor: Tensor) -> Tensor:
    """Return a plain tensor without its gradient. Raises NotHeard for a tensor that cannot be read."""
    if tensor.is_nested or tensor.is_meta or tensor.layout != torch.strided:
        raise NotHeard("nested tensors and tensors without data cannot be read")
    if type(tensor) not in (Tensor, nn.Parameter):
        raise NotHeard(f"tensors of the class {type(tensor).__name__} cannot be read")
    return tensor.detach()


def readable_call(call: FusedCall) -> FusedCall:
    """Return the call with readable tensors."""
    return call._replace(query=readable(call.query), key=readable(call.key), value=readable(call.value))


def readable_mask(mask: Tensor, device: torch.device) -> Tensor:
    """Return a mask as a plain tensor; torch's causal biases are materialised.

    Raises NotHeard for a tensor class that overrides torch functions.
    """
    from torch.nn.attention.bias import CausalBias

    if isinstance(mask, CausalBias):
        materialised: Tensor = mask._materialize(device)
        return materialised
    overrides = [getattr(type(mask), name) for name in ("__torch_function__", "__torch_dispatch__")]
    if [getattr(function, "__func__", function) for function in overrides] == TORCH_OVERRIDES:
        with torch._C.DisableTorchFunctionSubclass():
            mask = mask.as_subclass(Tensor)
    return readable(mask)


TORCH_OVERRIDES = [Tensor.__torch_function__.__func__, Tensor.__torch_dispatch__]  # type: ignore[attr-defined]
"""The methods of a tensor class that overrides no torch functions."""


KernelReader = Callable[..., FusedCall]


def _seen_in_window(num_queries: int, num_keys: int, window: tuple[int, int], *, causal: bool) -> Visibility:
    """Return the visibility of a window, with the last query at the last key.

    The window is the number of keys before and after; -1 means all.
    """
    left, right = window[0], 0 if causal else window[1]
    shift = num_keys - num_queries
    if left < 0 and right < 0:
        return Visibility(num_queries, num_keys)
    if right == 0:
        return Visibility(num_queries, num_keys, causal=True, window=left + 1 if left >= 0 else None)

    def rule(queries: Tensor, keys: Tensor) -> Tensor:
        behind = queries.unsqueeze(-1) + shift - keys
        seen = torch.ones_like(behind, dtype=torch.bool)
        seen = seen & (behind <= left) if left >= 0 else seen
        return (seen & (-behind <= right) if right >= 0 else seen).unsqueeze(0)

    return Visibility(num_queries, num_keys, rule=rule)


def _bias_by_distance(slopes: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """Return -slope |i + num_keys - num_queries - j|, Press et al. 2021 (2108.12409)."""
    if slopes.numel() * num_queries * num_keys > MOST_BIAS:
        raise ValueError("the texts are too long to compute their distance bias")
    places = torch.arange(num_queries, device=slopes.device).unsqueeze(-1) + num_keys - num_queries
    behind = (places - torch.arange(num_keys, device=slopes.device)).abs()
    return -slopes.reshape(-1, slopes.shape[-1], 1, 1) * behind


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    *others: object,
    **named: object,
) -> FusedCall:
    """Read flash_attn_func: tensors (text, token, head, dim)."""
    query, key, value = (part.detach().transpose(1, 2) for part in (q, k, v))
    num_queries, num_keys = query.shape[2], key.shape[2]
    rules = ScoreRules(
        softcap=softcap or None,
        bias=None if alibi_slopes is None else _bias_by_distance(alibi_slopes, num_queries, num_keys),
    )
    visibility = _seen_in_window(num_queries, num_keys, window_size, causal=causal)
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    return FusedCall(query, key, value, visibility, scale, rules=rules)


def _flash_packed(qkv: Tensor, *others: Any, **named: Any) -> FusedCall:
    """Read flash_attn_qkvpacked_func: (text, token, 3, head, dim)."""
    parts: tuple[Any, ...] = qkv.unbind(dim=2)
    return _flash(*parts, *others, **named)


def _flash_pairs(q: Tensor, kv: Tensor, *others: Any, **named: Any) -> FusedCall:
    """Read flash_attn_kvpacked_func: key and value in one tensor (text, token, 2, head, dim)."""
    parts: tuple[Any, ...] = kv.unbind(dim=2)
    return _flash(q, *parts, *others, **named)


def _flash_lengths(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *others: Any,
    **named: Any,
) -> FusedCall:
    """Read flash_attn_varlen_func: concatenated texts (token, head, dim), which are padded here.

    Padding queries see no key; the last query of each text is at the text's last key.
    """
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    query, key, value = (_padded(part, ends) for part, ends in ((q, ends_q), (k, ends_k), (v, ends_k)))
    whole = _flash(query, key, value, *others, **named)
    counts = (torch.tensor(ends, device=q.device).diff() for ends in (ends_q, ends_k))
    query_counts, key_counts = (each.view(-1, 1, 1) for each in counts)
    num_queries, num_keys = whole.query.shape[2], whole.key.shape[2]
    settings = (
        dict(zip(("dropout_p", "softmax_scale", "causal", "window_size"), others, strict=False)) | named
    )
    left, right = settings.get("window_size", (-1, -1))
    right = 0 if settings.get("causal", False) else right

    def rule(queries: Tensor, keys: Tensor) -> Tensor:
        behind = queries.unsqueeze(-1) + key_counts - query_counts - keys
        seen = (queries.unsqueeze(-1) < query_counts) & (keys < key_counts)
        seen = seen & (behind <= left) if left >= 0 else seen
        return seen & (-behind <= right) if right >= 0 else seen

    if whole.rules.bias is not None and len({*(key_counts - query_counts).flatten().tolist()}) > 1:
        raise ValueError("a distance bias cannot be read for texts of different lengths")
    return whole._replace(visibility=Visibility(num_queries, num_keys, rule=rule))


def _padded(tokens: Tensor, ends: list[int]) -> Tensor:
    """Return concatenated texts as padded rows."""
    texts = [tokens.detach()[start:end] for start, end in pairwise(ends)]
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)


def _flash_lengths_packed(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *others: Any, **named: Any
) -> FusedCall:
    """Read flash_attn_varlen_qkvpacked_func: (token, 3, head, dim)."""
    parts: tuple[Any, ...] = (*qkv.unbind(dim=1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _flash_lengths(*parts, *others, **named)


def _flash_lengths_pairs(q: Tensor, kv: Tensor, *others: Any, **named: Any) -> FusedCall:
    """Read flash_attn_varlen_kvpacked_func: key and value in one tensor (token, 2, head, dim)."""
    parts: tuple[Any, ...] = kv.unbind(dim=1)
    return _flash_lengths(q, *parts, *others, **named)


def _xformers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **named: object,
) -> FusedCall:
    """Read memory_efficient_attention: (text, head, token, dim) or without heads; a bias may be an object."""
    if query.ndim not in (3, 4):
        raise ValueError(f"xformers cannot be read with tensors of {query.ndim} axes")
    query, key, value = (
        (part if part.ndim == 4 else part.unsqueeze(2)).detach().transpose(1, 2)
        for part in (query, key, value)
    )
    shape = (*query.shape[:3], key.shape[2])
    if attn_bias is not None and hasattr(attn_bias, "materialize"):  # some of these are tensors
        attn_bias = attn_bias.materialize(shape, device=query.device)
    if attn_bias is not None and attn_bias.ndim == 3:
        attn_bias = attn_bias.reshape(-1, 1, *attn_bias.shape[1:])
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return FusedCall(query, key, value, Visibility(*shape[2:]), factor, attn_bias)


def _sage(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    *others: object,
    **named: object,
) -> FusedCall:
    """Read sageattn: (text, head, token, dim), or (text, token, head, dim) in the NHD layout."""
    query, key, value = (
        (part if tensor_layout == "HND" else part.transpose(1, 2)).detach() for part in (q, k, v)
    )
    visibility = Visibility(query.shape[2], key.shape[2], causal=is_causal)
    scale = query.shape[-1] ** -0.5 if sm_scale is None else float(sm_scale)
    return FusedCall(query, key, value, visibility, scale)


_FLASH_READERS: dict[str, KernelReader] = {
    "flash_attn_func": _flash,
    "flash_attn_qkvpacked_func": _flash_packed,
    "flash_attn_kvpacked_func": _flash_pairs,
    "flash_attn_varlen_func": _flash_lengths,
    "flash_attn_varlen_qkvpacked_func": _flash_lengths_packed,
    "flash_attn_varlen_kvpacked_func": _flash_lengths_pairs,
}
KERNELS: dict[str, dict[str, KernelReader]] = {
    "flash_attn": _FLASH_READERS,
    "flash_attn_interface": {
        name: _FLASH_READERS[name] for name in ("flash_attn_func", "flash_attn_varlen_func")
    },
    "xformers.ops": {"memory_efficient_attention": _xformers},
    "sageattention": {"sageattn": _sage},
}
"""The functions of each package, with the readers of their arguments."""

Hear = Callable[[str, Callable[[], FusedCall], Callable[[], Any]], Any]
"""Receives a function's name, a reader of its arguments, and the call; returns the call's result."""


class Kernels:
    """Replaces the functions of imported packages until `restore` is called."""

    def __init__(self, hear: Hear) -> None:
        self._hear, self._is_closed = hear, False
        self._replaced: list[tuple[Any, Any]] = []
        self._packages: set[str] = set()

    def replace(self) -> None:
        """Replace the functions of packages imported since the last call."""
        for package, functions in KERNELS.items():
            module = sys.modules.get(package)
            if package in self._packages or module is None or getattr(module, "__spec__", None) is None:
                continue
            self._packages.add(package)
            for name, read in functions.items():
                if (function := getattr(module, name, None)) is not None:
                    replacement = self._heard(name, function, read)
                    _put(function, replacement)
                    self._replaced.append((function, replacement))

    def restore(self) -> None:
        """Restore the original functions; wrappers put around attn's functions then call the originals."""
        self._is_closed = True
        for function, replacement in self._replaced:
            _put(replacement, function)
        self._replaced.clear()
        self._packages.clear()

    def _heard(self, name: str, function: Callable[..., Any], read: KernelReader) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_closed:
                return function(*arguments, **named)
            return self._hear(name, lambda: read(*arguments, **named), lambda: function(*arguments, **named))

        return call


def _put(old: object, new: object) -> None:
    """Replace `old` with `new` in all modules, under any name."""
    for module in [*sys.modules.values()]:
        if isinstance(module, ModuleType):
            for name, value in [*vars(module).items()]:
                if value is old:
                    setattr(module, name, new)
