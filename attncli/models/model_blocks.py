"""The blocks of a model as they are called: runs that begin at a later one, replaced forwards."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attncli.models.architectures import BLOCK, list_of_block
from attncli.models.layers import count_as_run, layers_so_far

Container = Mapping[object, object] | list[object]
"""What a block may leave something in."""


@runtime_checkable
class Forward(Protocol):
    """What a module computes, of whatever it is given."""

    def __call__(self, *arguments: object, **named: object) -> object: ...


@dataclass
class ModelBlocks:
    """The blocks of a model in the order of their calls, and the output of each.

    A block that serves as several layers (ALBERT) is called several times. `running` is the index of the
    current call, None between blocks. `leave_notes`: a block writes into a dictionary or list that it is
    given, as Gemma 3n's leave keys and values for later ones, so that no block may be left out of a run.
    Outputs are kept from `first_token` on. Those of the module `part` alone are blocks, where it is named.
    """

    model: nn.Module
    calls: list[nn.Module] = field(default_factory=list)
    layers: list[frozenset[tuple[str, str, int]]] = field(default_factory=list)
    outputs: list[object] = field(default_factory=list)
    running: int | None = None
    leave_notes: bool = False
    first_token: int = 0
    part: str = ""
    _given: list[tuple[Container, list[object]]] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """While the model runs once, on one text."""
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
        given = (*inputs, *named.values())
        self._given = [(part, _content(part)) for part in given if isinstance(part, Mapping | list)]

    def _end(self, module: nn.Module, inputs: object, output: object) -> None:
        self.outputs.append(after(self.first_token, output) if self.first_token else output)
        self.running = None
        self.leave_notes |= any(_differ(_content(part), before) for part, before in self._given)
        self._given = []

    def keep_lists(self, lists: Collection[str]) -> None:
        """Forget the calls of modules in other lists than these, which are no blocks: rotary embeddings."""
        names = {module: name for name, module in self.model.named_modules()}
        kept = [list_of_block(names[module]) in lists for module in self.calls]
        self.calls = [*compress(self.calls, kept)]
        self.layers = [*compress(self.layers, kept)]
        self.outputs = [*compress(self.outputs, kept)]

    @contextmanager
    def begun_at(self, first: int, num_copies: int, stream: Tensor | None = None) -> Iterator[None]:
        """While the model runs on that many copies of the text; the calls before `first` are not computed.

        They give what they gave, or in its place a `stream` of as many texts.
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
    """While it is open, modules compute these instead; a forward of an instance's own (hooks) comes back."""
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
    """Whether these are other objects, or in another order."""
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))


def after(start: int, output: object) -> object:
    """What a block gave for the tokens from `start` on, and no more of it."""
    if isinstance(output, Tensor):
        return output[:, start:].clone() if output.ndim == 3 else output
    return type(output)(after(start, part) for part in output) if isinstance(output, tuple) else output


def copied(output: object, num_copies: int) -> object:
    """The output of a block for one text, for copies of that text."""
    if isinstance(output, Tensor):
        is_of_text = output.ndim > 1 and len(output) == 1
        return torch.cat([output] * num_copies) if is_of_text else output
    if isinstance(output, Mapping):
        # A mapping is made from a mapping, as transformers' outputs are: Mapping itself does not say so.
        return type(output)({name: copied(part, num_copies) for name, part in output.items()})  # type: ignore[call-arg]
    if isinstance(output, tuple | list):
        return type(output)(copied(part, num_copies) for part in output)
    return output
