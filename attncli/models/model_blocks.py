"""Calls of a model's blocks: runs that begin at a later block, and replaced forwards."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attncli.models.architectures import BLOCK, block_list
from attncli.models.layers import count_as_run, layers_so_far

Container = Mapping[object, object] | list[object]
"""Objects in which a block may leave results for later blocks."""


@runtime_checkable
class Forward(Protocol):
    """A module's function of its inputs."""

    def __call__(self, *arguments: object, **named: object) -> object: ...


@dataclass
class ModelBlocks:
    """The blocks of a model, in the order of their calls, and the output of each call.

    A block that serves as several layers (ALBERT) is called several times. `running` is the index of the
    current call, or None between blocks. `leave_notes` is True if a block writes into a dictionary or list
    that is passed to it, as Gemma 3n's blocks leave keys and values for later blocks, so that no block may be
    skipped. Outputs are stored from `first_token` on. If `part` is set, only the blocks of that module count.
    """

    model: nn.Module
    calls: list[nn.Module] = field(default_factory=list)
    layers: list[frozenset[tuple[str, str, int]]] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)
    running: int | None = None
    leave_notes: bool = False
    first_token: int = 0
    part: str = ""
    _containers: list[tuple[Container, list[object]]] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the calls while the model runs once, on one text."""
        with ExitStack() as hooks:
            for name, module in self.model.named_modules():
                if name.startswith(self.part) and BLOCK.fullmatch(name):
                    hooks.enter_context(module.register_forward_pre_hook(self._begin, with_kwargs=True))
                    hooks.enter_context(module.register_forward_hook(self._end))
            yield

    def _begin(self, module: nn.Module, inputs: tuple[object, ...], named: Mapping[str, object]) -> None:
        self.running = len(self.calls)
        self.calls.append(module)
        self.layers.append(layers_so_far())
        arguments = (*inputs, *named.values())
        self._containers = [(part, _content(part)) for part in arguments if isinstance(part, Mapping | list)]

    def _end(self, module: nn.Module, inputs: object, output: object) -> None:
        self.outputs.append(after(self.first_token, output) if self.first_token else output)
        self.running = None
        self.leave_notes |= any(_differ(_content(part), before) for part, before in self._containers)
        self._containers = []

    def keep_lists(self, lists: Collection[str]) -> None:
        """Drop the calls of modules outside these lists, such as rotary embeddings, which are not blocks."""
        names = {module: name for name, module in self.model.named_modules()}
        is_block = [block_list(names[module]) in lists for module in self.calls]
        self.calls = [*compress(self.calls, is_block)]
        self.layers = [*compress(self.layers, is_block)]
        self.outputs = [*compress(self.outputs, is_block)]

    @contextmanager
    def begun_at(self, first: int, num_copies: int, stream: Tensor | None = None) -> Iterator[None]:
        """Skip the calls before `first` while the model runs on `num_copies` copies of the text.

        Skipped blocks return copies of their recorded output, with `stream` in place of its vectors if
        passed.
        """
        calls = iter(range(len(self.calls)))

        def replaced(module: nn.Module) -> Forward:
            forward: Forward = module.forward

            def run(*arguments: object, **named: object) -> object:
                number = next(calls)
                if number == first:
                    count_as_run(self.layers[number])
                if number < first:
                    output = self.outputs[number]
                    if stream is None or not isinstance(output, Tensor | tuple | list):
                        return copied(output, num_copies)
                    if isinstance(output, Tensor):
                        return stream
                    return type(output)((stream, *(copied(part, num_copies) for part in output[1:])))
                return forward(*arguments, **named)

            return run

        with forwards_replaced({module: replaced(module) for module in self.calls}):
            yield


@contextmanager
def forwards_replaced(forwards: Mapping[nn.Module, Forward | Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the forwards of modules inside the block. An instance's own forward is restored afterwards."""
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module, former in before.items():
            if former is None:
                del module.forward
            else:
                module.forward = former


def _content(given: Container) -> list[object]:
    return [part for pair in given.items() for part in pair] if isinstance(given, Mapping) else list(given)


def _differ(now: list[object], before: list[object]) -> bool:
    """Return True if the objects or their order differ."""
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))


def after(start: int, output: object) -> object:
    """Return a block's output for the tokens from `start` on."""
    if isinstance(output, Tensor):
        return output[:, start:].clone() if output.ndim == 3 else output
    return type(output)(after(start, part) for part in output) if isinstance(output, tuple) else output


def copied(output: object, num_copies: int) -> object:
    """Return a block's output for one text, repeated for the copies of that text."""
    if isinstance(output, Tensor):
        is_one_text = output.ndim > 1 and len(output) == 1
        return torch.cat([output] * num_copies) if is_one_text else output
    if isinstance(output, Mapping):
        # transformers' outputs can be built from a mapping, which the type Mapping does not declare.
        return type(output)({name: copied(part, num_copies) for name, part in output.items()})  # type: ignore[call-arg]
    if isinstance(output, tuple | list):
        return type(output)(copied(part, num_copies) for part in output)
    return output
