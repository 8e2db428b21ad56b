"""A model's blocks, whose outputs one run records so that later runs begin at any; and each layer's W_O."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

CHILDREN = ("o_proj", "out_proj", "c_proj", "out_lin", "Wo", "o", "dense", "proj", "wo")
SIBLINGS = ("output.dense",)
"""Its names in an attention module, and beside one: `attention.output.dense` in BERT."""


def output_projection(model: nn.Module, module: str, in_dim: int) -> nn.Module | None:
    """The layer that projects the merged heads of an attention module; None where it is not found."""
    parent, _, _ = module.rpartition(".")
    names = [f"{module}.{child}" for child in CHILDREN] + [f"{parent}.{sibling}" for sibling in SIBLINGS]
    modules = dict(model.named_modules())
    for name in names:
        layer = modules.get(name)
        if isinstance(layer, nn.Linear | Conv1D) and _matrix(layer).shape[1] == in_dim:
            return layer
    return None


def _matrix(layer: nn.Module) -> Float[Tensor, "out in"]:
    assert isinstance(layer.weight, Tensor)
    return layer.weight.mT if isinstance(layer, Conv1D) else layer.weight


def matrix_and_bias(layer: nn.Module) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]:
    """What W_O multiplies by, and adds."""
    assert layer.bias is None or isinstance(layer.bias, Tensor)
    return _matrix(layer), layer.bias


def projection_of_heads(layer: nn.Module, num_heads: int) -> Float[Tensor, "head out value_dim"]:
    """The columns of W_O that belong to each head."""
    matrix = _matrix(layer).detach()
    return matrix.reshape(len(matrix), num_heads, -1).transpose(0, 1)


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
