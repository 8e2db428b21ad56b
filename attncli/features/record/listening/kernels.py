"""The attention functions of flash_attn, xformers and sageattention, where a program has imported them.

Each is replaced, wherever a module holds it by name, by one that calls it and tells what it attends to.
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
"""Entries of a bias by position that is worked out."""


class FusedCall(NamedTuple):
    """What a fused function was given: query, key and value (..., token, dim), with fewer heads or as many.

    `visibility` says who sees whom but for a `mask`, of booleans, True may attend, or of numbers to add.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    visibility: Visibility
    scale: float
    mask: Tensor | None = None
    rules: ScoreRules = PLAIN


class NotHeard(Exception):
    """An attention that cannot be read; the message says why."""


def readable(tensor: Tensor) -> Tensor:
    """The tensor without its gradient; NotHeard for one whose numbers are not there as torch's own."""
    if tensor.is_nested or tensor.is_meta or tensor.layout != torch.strided:
        raise NotHeard("nested tensors, and tensors without numbers, are not read")
    if type(tensor) not in (Tensor, nn.Parameter):
        raise NotHeard(f"tensors of the class {type(tensor).__name__} are not read")
    return tensor.detach()


def readable_call(call: FusedCall) -> FusedCall:
    """The call with readable tensors."""
    return call._replace(query=readable(call.query), key=readable(call.key), value=readable(call.value))


def readable_mask(mask: Tensor, device: torch.device) -> Tensor:
    """A mask as a plain tensor: what torch's causal biases mean, which have no numbers of their own.

    NotHeard for a class of tensors that says itself what functions of it give.
    """
    from torch.nn.attention.bias import CausalBias

    if isinstance(mask, CausalBias):
        meaning: Tensor = mask._materialize(device)
        return meaning
    own = [getattr(type(mask), name) for name in ("__torch_function__", "__torch_dispatch__")]
    if [getattr(function, "__func__", function) for function in own] == SAYS_NOTHING:
        with torch._C.DisableTorchFunctionSubclass():
            mask = mask.as_subclass(Tensor)
    return readable(mask)


SAYS_NOTHING = [Tensor.__torch_function__.__func__, Tensor.__torch_dispatch__]  # type: ignore[attr-defined]
"""What a class of tensors has that is torch's in all but its name."""


KernelReader = Callable[..., FusedCall]


def _seen_in_window(num_queries: int, num_keys: int, window: tuple[int, int], *, causal: bool) -> Visibility:
    """The last query stands at the last key, and sees so many keys before it and behind it; -1 is all."""
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
    """-slope |i + num_keys - num_queries - j|, Press et al. 2021 (2108.12409)."""
    if slopes.numel() * num_queries * num_keys > MOST_BIAS:
        raise ValueError("a bias by distance is worked out for shorter texts alone")
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
    """flash_attn_func: tensors (text, token, head, dim)."""
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
    """flash_attn_qkvpacked_func: (text, token, 3, head, dim)."""
    parts: tuple[Any, ...] = qkv.unbind(dim=2)
    return _flash(*parts, *others, **named)


def _flash_pairs(q: Tensor, kv: Tensor, *others: Any, **named: Any) -> FusedCall:
    """flash_attn_kvpacked_func: key and value in one tensor (text, token, 2, head, dim)."""
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
    """flash_attn_varlen_func: texts one after the other, (token, head, dim), padded here.

    Queries of the padding see no key; the last query of each text stands at its last key.
    """
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    query, key, value = (_padded(part, ends) for part, ends in ((q, ends_q), (k, ends_k), (v, ends_k)))
    whole = _flash(query, key, value, *others, **named)
    counts = (torch.tensor(ends, device=q.device).diff() for ends in (ends_q, ends_k))
    query_rows, of_keys = (each.view(-1, 1, 1) for each in counts)
    num_queries, num_keys = whole.query.shape[2], whole.key.shape[2]
    given = dict(zip(("dropout_p", "softmax_scale", "causal", "window_size"), others, strict=False)) | named
    left, right = given.get("window_size", (-1, -1))
    right = 0 if given.get("causal", False) else right

    def rule(queries: Tensor, keys: Tensor) -> Tensor:
        behind = queries.unsqueeze(-1) + of_keys - query_rows - keys
        seen = (queries.unsqueeze(-1) < query_rows) & (keys < of_keys)
        seen = seen & (behind <= left) if left >= 0 else seen
        return seen & (-behind <= right) if right >= 0 else seen

    if whole.rules.bias is not None and len({*(of_keys - query_rows).flatten().tolist()}) > 1:
        raise ValueError("a bias by distance of texts of several lengths is not read")
    return whole._replace(visibility=Visibility(num_queries, num_keys, rule=rule))


def _padded(tokens: Tensor, ends: list[int]) -> Tensor:
    """Texts that stand one after the other, each on a row of its own."""
    texts = [tokens.detach()[start:end] for start, end in pairwise(ends)]
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)


def _flash_lengths_packed(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *others: Any, **named: Any
) -> FusedCall:
    """flash_attn_varlen_qkvpacked_func: (token, 3, head, dim)."""
    of_both = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    parts: tuple[Any, ...] = (*qkv.unbind(dim=1), *of_both)
    return _flash_lengths(*parts, *others, **named)


def _flash_lengths_pairs(q: Tensor, kv: Tensor, *others: Any, **named: Any) -> FusedCall:
    """flash_attn_varlen_kvpacked_func: key and value in one tensor (token, 2, head, dim)."""
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
    """memory_efficient_attention: (text, token, head, dim), or without heads; a bias may be an object."""
    if query.ndim not in (3, 4):
        raise ValueError(f"xformers with tensors of {query.ndim} axes is not read")
    query, key, value = (
        (part if part.ndim == 4 else part.unsqueeze(2)).detach().transpose(1, 2)
        for part in (query, key, value)
    )
    shape = (*query.shape[:3], key.shape[2])
    if attn_bias is not None and hasattr(attn_bias, "materialize"):  # some are classes of tensors
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
    """sageattn: (text, head, token, dim), or with the layout NHD (text, token, head, dim)."""
    query, key, value = (
        (part if tensor_layout == "HND" else part.transpose(1, 2)).detach() for part in (q, k, v)
    )
    visibility = Visibility(query.shape[2], key.shape[2], causal=is_causal)
    scale = query.shape[-1] ** -0.5 if sm_scale is None else float(sm_scale)
    return FusedCall(query, key, value, visibility, scale)


_OF_FLASH: dict[str, KernelReader] = {
    "flash_attn_func": _flash,
    "flash_attn_qkvpacked_func": _flash_packed,
    "flash_attn_kvpacked_func": _flash_pairs,
    "flash_attn_varlen_func": _flash_lengths,
    "flash_attn_varlen_qkvpacked_func": _flash_lengths_packed,
    "flash_attn_varlen_kvpacked_func": _flash_lengths_pairs,
}
KERNELS: dict[str, dict[str, KernelReader]] = {
    "flash_attn": _OF_FLASH,
    "flash_attn_interface": {name: _OF_FLASH[name] for name in ("flash_attn_func", "flash_attn_varlen_func")},
    "xformers.ops": {"memory_efficient_attention": _xformers},
    "sageattention": {"sageattn": _sage},
}
"""The functions of a module, and what reads their arguments."""

Hear = Callable[[str, Callable[[], FusedCall], Callable[[], Any]], Any]
"""Takes the name of a function, what it attends to, and the call of it; gives what the call gives."""


class Kernels:
    """Replaces the functions of the packages that are imported, until `restore`."""

    def __init__(self, hear: Hear) -> None:
        self._hear, self._is_closed = hear, False
        self._replaced: list[tuple[Any, Any]] = []
        self._known: set[str] = set()

    def replace(self) -> None:
        """Those that have been imported since the last time."""
        for package, functions in KERNELS.items():
            module = sys.modules.get(package)
            if package in self._known or module is None or getattr(module, "__spec__", None) is None:
                continue
            self._known.add(package)
            for name, read in functions.items():
                if (function := getattr(module, name, None)) is not None:
                    replacement = self._heard(name, function, read)
                    _put(function, replacement)
                    self._replaced.append((function, replacement))

    def restore(self) -> None:
        """Every module has its own functions again; what others have put around ours calls these."""
        self._is_closed = True
        for function, replacement in self._replaced:
            _put(replacement, function)
        self._replaced.clear()
        self._known.clear()

    def _heard(self, name: str, function: Callable[..., Any], read: KernelReader) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_closed:
                return function(*arguments, **named)
            return self._hear(name, lambda: read(*arguments, **named), lambda: function(*arguments, **named))

        return call


def _put(old: object, new: object) -> None:
    """Put `new` wherever a module holds `old`, under whatever name."""
    for module in [*sys.modules.values()]:
        if isinstance(module, ModuleType):
            for name, value in [*vars(module).items()]:
                if value is old:
                    setattr(module, name, new)
