"""A program is what it is without being recorded: its modules, functions, kernels and tracing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack

from attncli.core.engines import attend
from attncli.core.layer import Wanted
from attncli.models.listening import HeardCall, Listener


def heard(program: Callable[[], Any], **settings: Any) -> tuple[Any, list[HeardCall], Listener]:
    """What a program gives, what is heard of it, and the listener."""
    calls: list[HeardCall] = []
    listener = Listener(calls.append, **{"calls": "all", **settings})
    with listener.listening():
        result = program()
    assert not _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return result, calls, listener


def weights_of(call: HeardCall) -> Tensor:
    weights = attend(call.attention, Wanted(weights=True)).weights
    assert weights is not None
    return weights


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(self.query(x), x, x)


class Pair(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.second(self.first(x))
        return mixed


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(1, 5, 6)


# Modules


@pytest.mark.parametrize("modules", [None, "*"])
def test_modules_without_a_hash_and_equal_ones_are_told_apart(modules: str | None, x: Tensor) -> None:
    class Unhashable(Attention):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Unhashable)

    class Equal(Attention):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

    for kind in (Unhashable, Equal):
        model = Pair(kind(), kind())
        plain = model(x)
        result, calls, listener = heard(partial(model, x), modules=modules)
        assert result.equal(plain) and not listener.notes()
        assert [call.module for call in calls] == ["first", "second"]


def test_a_module_that_does_not_name_its_parts_runs(x: Tensor) -> None:
    class Nameless(Attention):
        def named_modules(self, *given: Any, **named: Any) -> Any:
            raise RuntimeError("no names")

    model = Pair(Nameless(), Attention())
    _, calls, listener = heard(lambda: model(x))
    assert [call.module for call in calls] == ["first", "second"] and not listener.notes()


class Stopped(BaseException):
    """As KeyboardInterrupt, and asyncio.CancelledError."""


@pytest.mark.parametrize("modules", [None, "first", "*"])
def test_a_module_that_was_cut_off_names_no_other(modules: str | None, x: Tensor) -> None:
    class Stopping(Pair):
        def forward(self, x: Tensor) -> Tensor:
            self.first(x)
            raise Stopped

    stopping, model = Stopping(Attention(), Attention()), Pair(Attention(), Attention())

    def deeper(number: int) -> None:
        if number:
            deeper(number - 1)
        else:
            model(x)

    def program() -> None:
        with pytest.raises(Stopped):
            stopping(x)
        functional.scaled_dot_product_attention(x, x, x)
        deeper(3)
        model(x)

    _, calls, listener = heard(program, modules=modules)
    names = [call.module for call in calls if "(" not in call.module]
    wanted = ["first", "Pair.first", "second", "Pair.first", "second"]
    assert names == (["first"] if modules == "first" else wanted)
    assert not listener.running.stack or listener.running.stack[-1].has_ended()
