"""The functions of packages for GPUs, by stand-ins of their signatures that compute by torch."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attncli.features.record.listening.heard_calls import HeardCall
from tests.features.record.heard import heard, output_of

CLOSE = 1e-5


def naive(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scale: float, added: Any = 0.0) -> Tensor:
    """softmax(scale q k + added) v, where `seen`; 0 for a query that sees no key."""
    group = query.shape[-3] // key.shape[-3]
    key, value = (part.repeat_interleave(group, dim=-3) for part in (key, value))
    scores = scale * query @ key.mT + added
    return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num(0.0) @ value


def seen_by_flash(num_queries: int, num_keys: int, causal: bool, window: tuple[int, int]) -> Tensor:
    """The rule of flash_attn's documentation, entry by entry."""
    seen = torch.zeros(num_queries, num_keys, dtype=torch.bool)
    for i in range(num_queries):
        for j in range(num_keys):
            place = i + num_keys - num_queries
            inside = (window[0] < 0 or j >= place - window[0]) and (window[1] < 0 or j <= place + window[1])
            seen[i, j] = inside and (not causal or j <= place)
    return seen


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that has imported the functions by name, and the packages."""

    def flash_attn_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        seen = seen_by_flash(q.shape[2], k.shape[2], causal, window_size)
        places = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
        added = 0.0 if alibi_slopes is None else -alibi_slopes[:, None, None] * places.abs()
        scale = softmax_scale or q.shape[-1] ** -0.5
        return naive(q, k, v, seen, scale, added).transpose(1, 2)

    def flash_attn_qkvpacked_func(qkv: Tensor, **named: Any) -> Tensor:
        return flash_attn_func(*qkv.unbind(2), **named)

    def flash_attn_varlen_func(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *most: int, **named: Any
    ) -> Tensor:
        parts = [
            flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], **named)[0]
            for a, b, c, d in zip(
                cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:], strict=True
            )
        ]
        return torch.cat(parts)

    def memory_efficient_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_bias: Any = None,
        p: float = 0.0,
        scale: float | None = None,
    ) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if attn_bias is not None and not isinstance(attn_bias, Tensor):
            attn_bias = attn_bias.materialize((*query.shape[:3], key.shape[2]))
        output = scaled_dot_product_attention(query, key, value, attn_mask=attn_bias, scale=scale)
        return output.transpose(1, 2)

    def sageattn(
        q: Tensor, k: Tensor, v: Tensor, tensor_layout: str = "HND", is_causal: bool = False, **named: Any
    ) -> Tensor:
        if tensor_layout == "NHD":
            return sageattn(*(part.transpose(1, 2) for part in (q, k, v)), is_causal=is_causal).transpose(
                1, 2
            )
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    module = ModuleType("a_program")
    packages = {
        "flash_attn": (flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func),
        "xformers": (),
        "xformers.ops": (memory_efficient_attention,),
        "sageattention": (sageattn,),
    }
    for name, functions in packages.items():
        package = ModuleType(name)
        package.__spec__ = sys.__spec__
        for function in functions:
            setattr(package, function.__name__, function)
            setattr(module, function.__name__, function)
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setitem(sys.modules, "a_program", module)
    yield module


def the_call(run: Any) -> tuple[Tensor, HeardCall]:
    """Return the result and the only call, which leaves no note."""
    result, (call,), listener = heard(run)
    assert listener.notes() == []
    return result, call


def output_by_token(call: HeardCall) -> Tensor:
    return output_of(call).transpose(1, 2)


ALIBI = torch.tensor([0.5, 0.25, 0.1, 0.05])


@pytest.mark.parametrize(
    ("lengths", "more"),
    [
        ((5, 5), {}),
        ((5, 5), {"window_size": (2, 2)}),
        ((5, 5), {"alibi_slopes": ALIBI}),
        ((7, 7), {"causal": True, "window_size": (2, 0)}),
        ((7, 7), {"softmax_scale": 0.2, "causal": True}),
        ((3, 7), {"causal": True}),
        ((3, 7), {"causal": True, "window_size": (2, 0)}),
        ((3, 7), {"window_size": (1, 3)}),
        ((3, 7), {"window_size": (-1, 1)}),
        ((3, 7), {"alibi_slopes": ALIBI}),
    ],
)
def test_flash_attention_is_recorded(
    program: ModuleType, lengths: tuple[int, int], more: dict[str, Any]
) -> None:
    query = torch.randn(2, lengths[0], 4, 6)
    key, value = torch.randn(2, lengths[1], 2, 6), torch.randn(2, lengths[1], 2, 6)
    result, call = the_call(lambda: program.flash_attn_func(query, key, value, **more))
    assert call.function == "flash_attn_func"
    assert (output_by_token(call) - result).abs().max() < CLOSE


def test_packed_tensors_are_recorded(program: ModuleType) -> None:
    qkv = torch.randn(2, 5, 3, 4, 6)
    result, call = the_call(lambda: program.flash_attn_qkvpacked_func(qkv, causal=True))
    assert (output_by_token(call) - result).abs().max() < CLOSE


@pytest.mark.parametrize("more", [{}, {"causal": True}, {"causal": True, "window_size": (1, 0)}])
def test_concatenated_texts_are_recorded_separately(program: ModuleType, more: dict[str, Any]) -> None:
    ends_q, ends_k = torch.tensor([0, 3, 4, 9]), torch.tensor([0, 5, 6, 11])
    query, key, value = torch.randn(9, 4, 6), torch.randn(11, 4, 6), torch.randn(11, 4, 6)
    result, call = the_call(
        lambda: program.flash_attn_varlen_func(query, key, value, ends_q, ends_k, 5, 5, **more)
    )
    assert call.attention.shape == (3, 4, 5, 5)
    ours = output_by_token(call)
    texts = zip(ours, result.tensor_split(ends_q[1:-1]), strict=True)
    assert all((text[: len(truth)] - truth).abs().max() < CLOSE for text, truth in texts)


class LowerTriangle:
    """As xformers' LowerTriangularMask."""

    def materialize(self, shape: tuple[int, ...], dtype: Any = None, device: Any = None) -> Tensor:
        return torch.full(shape, -torch.inf).triu(1)


@pytest.mark.parametrize("bias", [None, LowerTriangle(), torch.randn(2, 4, 5, 5)])
def test_xformers_is_recorded(program: ModuleType, bias: Any) -> None:
    query = torch.randn(2, 5, 4, 6)
    result, call = the_call(lambda: program.memory_efficient_attention(query, query, query, attn_bias=bias))
    assert call.function == "memory_efficient_attention"
    assert (output_by_token(call) - result).abs().max() < CLOSE


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_sageattention_is_recorded(program: ModuleType, layout: str) -> None:
    shape = (2, 4, 5, 6) if layout == "HND" else (2, 5, 4, 6)
    query = torch.randn(shape)
    result, call = the_call(
        lambda: program.sageattn(query, query, query, tensor_layout=layout, is_causal=True)
    )
    ours = output_by_token(call)
    assert ((ours.transpose(1, 2) if layout == "HND" else ours) - result).abs().max() < CLOSE


def test_the_functions_are_the_program_s_own_afterwards(program: ModuleType) -> None:
    before = program.flash_attn_func, sys.modules["flash_attn"].flash_attn_func
    the_call(lambda: program.sageattn(*[torch.randn(1, 2, 3, 4)] * 3))
    assert (program.flash_attn_func, sys.modules["flash_attn"].flash_attn_func) == before
