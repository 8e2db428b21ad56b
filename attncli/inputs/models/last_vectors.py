"""The vectors of the last token while a model runs: what goes into each module, and what comes out."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from attncli.inputs.models.blocks import BLOCK


@dataclass
class Call:
    """What one call of a module read and gave, at the last token of a text, in float64."""

    read: Float[Tensor, " dim"]
    gave: Float[Tensor, " embed"]


@dataclass
class LastVectors:
    """The calls of the modules of a model that read and give a vector for each token, by their names."""

    model: nn.Module
    num_tokens: int
    calls: dict[str, list[Call]] = field(default_factory=dict)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """While the model runs on one text."""
        with ExitStack() as hooks:
            for name, module in self.model.named_modules():
                hooks.enter_context(module.register_forward_hook(self._hook(name), with_kwargs=True))
            yield

    def _hook(self, name: str) -> Any:
        def note(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            read = self._last(inputs[0] if inputs else named.get("hidden_states"))
            gave = self._last(output[0] if isinstance(output, tuple | list) and output else output)
            if read is not None and gave is not None:
                self.calls.setdefault(name, []).append(Call(read, gave))

        return note

    def _last(self, tensor: Any) -> Tensor | None:
        """The last token's vector, copied: some models go on in the same memory."""
        is_of_tokens = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.ndim > 1
        if not is_of_tokens or tensor.numel() != self.num_tokens * tensor.shape[-1]:
            return None
        last: Tensor = tensor.reshape(self.num_tokens, -1)[-1].detach().double().clone()
        return last

    def blocks(self) -> list[str]:
        """The names of the blocks, in the order of their calls."""
        return [name for name in self.calls if BLOCK.fullmatch(name)]

    def inside(self, block: str) -> dict[str, Call]:
        """The only calls of the modules in a block."""
        return {
            name: calls[0]
            for name, calls in self.calls.items()
            if name.startswith(f"{block}.") and len(calls) == 1
        }
