"""A model's blocks: the output of each is recorded in one run, and later runs begin at any of them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

BLOCK = re.compile(r"(?:[^.\d][^.]*\.)*\d+")
"""The name of a block: `model.layers.5`, whose number is the first in it."""


@dataclass
class Blocks:
    """The blocks of a model in the order of their calls, and the output of each.

    A block that serves as several layers (ALBERT) is called several times. `running` is the index of the
    current call, None between blocks. `leave_notes`: a block writes into a dictionary or list that it is
    given, as Gemma 3n's leave keys and values for later ones, so that no block may be left out of a run.
    """

    model: nn.Module
    calls: list[nn.Module] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    running: int | None = None
    leave_notes: bool = False
    _given: list[tuple[Any, list[Any]]] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """While the model runs once, on one text."""
        with ExitStack() as hooks:
            for name, module in self.model.named_modules():
                if BLOCK.fullmatch(name):
                    hooks.enter_context(module.register_forward_pre_hook(self._begin, with_kwargs=True))
                    hooks.enter_context(module.register_forward_hook(self._end))
            yield

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.running = len(self.calls)
        self.calls.append(module)
        given = (*inputs, *named.values())
        self._given = [(one, _content(one)) for one in given if isinstance(one, Mapping | list)]

    def _end(self, module: nn.Module, inputs: object, output: Any) -> None:
        self.outputs.append(output)
        self.running = None
        self.leave_notes |= any(_differ(_content(one), before) for one, before in self._given)
        self._given = []

    @contextmanager
    def begun_at(self, first: int, num_copies: int) -> Iterator[None]:
        """While the model runs on that many copies of the text; the calls before `first` are not computed."""
        calls = iter(range(len(self.calls)))
        modules = dict.fromkeys(self.calls)
        before = {module: vars(module).get("forward") for module in modules}

        def replaced(module: nn.Module) -> Any:
            forward = module.forward

            def run(*arguments: Any, **named: Any) -> Any:
                number = next(calls)
                if number < first:
                    return copied(self.outputs[number], num_copies)
                return forward(*arguments, **named)

            return run

        for module in modules:
            module.forward = replaced(module)
        try:
            yield
        finally:
            for module, forward in before.items():
                if forward is None:
                    del module.forward
                else:
                    module.forward = forward


def _content(one: Mapping[Any, Any] | list[Any]) -> list[Any]:
    return [part for pair in one.items() for part in pair] if isinstance(one, Mapping) else list(one)


def _differ(now: list[Any], before: list[Any]) -> bool:
    """Whether these are other objects, or in another order."""
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))


def copied(output: Any, num_copies: int) -> Any:
    """The output of a block for one text, for copies of that text."""
    if isinstance(output, Tensor):
        is_of_text = output.ndim > 1 and len(output) == 1
        return torch.cat([output] * num_copies) if is_of_text else output
    if isinstance(output, Mapping):
        return type(output)({name: copied(part, num_copies) for name, part in output.items()})  # type: ignore[call-arg]
    if isinstance(output, tuple | list):
        return type(output)(copied(part, num_copies) for part in output)
    return output
