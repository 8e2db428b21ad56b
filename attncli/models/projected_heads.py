"""The heads of layers without a softmax as the output projection reads them, after gate and norm.

A head adds to the model its columns of W_O times the values that W_O reads from the head. A norm over several
heads (as in some Mamba-2 models) is already applied to all heads; a Mamba-1 head consists of all channels
of its layer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.layer import merge_heads
from attncli.models.architectures import mixer_name, output_projection
from attncli.models.frozen_norms import is_close
from attncli.models.layer_sources import CapturedMixer, capturing_mixers
from attncli.models.patched_heads import LayerChange, Patches, RunningLayer, patches_open, reading_changed
from attncli.models.side_by_side import of_this_run

LINEAR: Final = "linear"
"""The kind of these heads, which is also the name of their stack in a model that has both kinds of heads."""


@dataclass(frozen=True)
class ProjectedHeads:
    """The heads of one layer, and the module that reads the concatenated heads."""

    captured: CapturedMixer
    projection: nn.Module
    num_heads: int
    value_dim: int

    @property
    def module(self) -> str:
        """The name of the module that mixes the tokens."""
        return self.captured.module

    @property
    def mixer(self) -> str:
        """The name of the mechanism that mixes the tokens, as W_O reads it."""
        return self.captured.projected or self.captured.mixer

    def by_head(
        self, read: Float[Tensor, "text token dim"], num_texts: int = 1
    ) -> Float[Tensor, "text head token value_dim"]:
        """The input of W_O, split into heads."""
        return read.reshape(num_texts, -1, self.num_heads, self.value_dim).transpose(1, 2)

    def changed(
        self,
        num_texts: int,
        change: Callable[[Float[Tensor, "text head token value_dim"]], Float[Tensor, "text head token _"]],
    ) -> AbstractContextManager[object]:
        """Inside the block, let W_O read the heads after `change` in this thread's runs."""
        return reading_changed(self.projection, (num_texts, self.num_heads, self.value_dim), change)


Consume = Callable[[ProjectedHeads, Float[Tensor, "text token dim"]], None]


@contextmanager
def hearing_projected_heads(model: nn.Module, consume: Consume) -> Iterator[None]:
    """Inside the block, pass the heads of layers without a softmax, with the input of W_O, to `consume`.

    Layers without a known W_O, or whose W_O reads a different input, are left out.
    """
    reads: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], _output: object) -> None:
        reads[module] = inputs[0]  # the hooks run after every change to the heads

    def take(layer: CapturedMixer) -> None:
        num_heads, value_dim = layer.heads.shape[1], layer.heads.value_dim
        projection = output_projection(model, layer.module, num_heads * value_dim)
        read = None if projection is None else reads.get(projection)
        reads.clear()
        if projection is not None and read is not None:
            consume(ProjectedHeads(layer, projection, num_heads, value_dim), read)

    mixers = [module for module in model.modules() if mixer_name(type(module).__name__) is not None]
    if not mixers:
        yield
        return
    with ExitStack() as hooks:
        for part in {part for mixer in mixers for part in mixer.modules() if isinstance(part, nn.Linear)}:
            hooks.enter_context(part.register_forward_hook(of_this_run(note)))
        hooks.enter_context(capturing_mixers(model, take))
        yield


def replaced_heads(
    places: Sequence[tuple[int, int, int | None]],
    replacement: Float[Tensor, "#text head #token value_dim"] | None,
    heads: Float[Tensor, "text head token value_dim"],
) -> Float[Tensor, "text head token value_dim"]:
    """Return the heads, replacing those at `places` (text, head, one token or all), by default with 0."""
    changed = heads.clone()
    new = torch.zeros(1, 1, 1, 1) if replacement is None else replacement
    if new.device != changed.device:
        new = new.to(changed.device)
    for text, head, token in places:
        tokens = slice(None) if token is None else slice(token, token + 1)
        head_output = new[text if len(new) > 1 else 0, head if new.shape[1] > 1 else 0]
        changed[text, head, tokens] = head_output if len(head_output) == 1 else head_output[tokens]
    return changed


def gated_heads(
    gates: Float[Tensor, " head"], heads: Float[Tensor, "text head token value_dim"]
) -> Float[Tensor, "text head token value_dim"]:
    """Multiply each head by its gate."""
    return heads * gates.view(1, -1, 1, 1)


class GatedHeads:
    """Attention heads that gates or a norm change before W_O reads them (Qwen3-Next).

    The output of such a head is then its part of the input of W_O. A run without every second head checks
    this: the input must be zero for the removed heads and unchanged for the other heads, up to a factor from
    a norm over all heads.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.reads: dict[nn.Module, Tensor] = {}
        self.modules: dict[nn.Module, tuple[str, int]] = {}

    def note(self, module: str, output: Float[Tensor, "1 head token value_dim"], hooks: ExitStack) -> None:
        """Store the input of W_O if it differs from these heads."""
        merged = merge_heads(output)
        projection = output_projection(self.model, module, merged.shape[-1])
        if projection is None:
            return

        def compare(_module: nn.Module, inputs: tuple[Tensor, ...], _output: object) -> None:
            hook.remove()  # the module may serve other layers, too
            read = inputs[0].reshape(merged.shape)
            if not is_close(read, merged):
                self.reads[projection] = inputs[0].clone()
                self.modules[projection] = module, output.shape[1]

        hook = hooks.enter_context(projection.register_forward_hook(of_this_run(compare)))

    def last_read(
        self, projection: nn.Module, heads: Float[Tensor, "head value_dim"]
    ) -> Float[Tensor, "head value_dim"]:
        """Return the input of W_O from these heads at the last token, after any gates or norms."""
        if projection not in self.reads:
            return heads
        return self.reads[projection].reshape(-1, heads.numel())[-1].view_as(heads).to(heads)

    def mixed(self, run: Callable[[], object]) -> str:
        """Return the name of the module whose W_O does not read concatenated heads, or "" if there is none.

        `run` runs the model again.
        """
        if not self.reads:
            return ""
        again: dict[nn.Module, Tensor] = {}
        modules = {module for module, _ in self.modules.values()}

        def put_back(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            again[module] = given[0]
            return self.reads[module], *given[1:]

        def without_every_second(layer: RunningLayer) -> Sequence[LayerChange]:
            heads = [*range(1, layer.attention.num_heads, 2)]
            nothing = LayerChange("output", lambda layer: torch.zeros_like(layer.output[:, heads]), heads)
            return [nothing] if layer.module in modules else []

        patches = Patches(frozenset(self.model.modules()), without_every_second)
        with ExitStack() as hooks, patches_open(patches, beneath=True):
            for projection in self.reads:
                hooks.enter_context(projection.register_forward_pre_hook(of_this_run(put_back)))
            run()
        for projection, read in self.reads.items():
            module, num_heads = self.modules[projection]
            whole, without = (
                each.double().reshape(-1, num_heads, each.shape[-1] // num_heads)
                for each in (read, again[projection])
            )
            remains = whole.any(dim=2).any(dim=0)  # for removed heads, W_O reads zeros
            remains[1::2] = False
            before, now = whole[:, remains].flatten(1), without[:, remains].flatten(1)
            length = before.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
            factor = (before * now).sum(dim=-1, keepdim=True) / length
            if not is_close(now, factor * before, whole.flatten(1)) or without[:, 1::2].any():
                return module
        return ""


def projected_heads(model: nn.Module, run: Callable[[], object]) -> list[ProjectedHeads]:
    """Return the projected heads of a run's layers, in the order of the layers."""
    layers: list[ProjectedHeads] = []
    with hearing_projected_heads(model, lambda heads, _: layers.append(heads)):
        run()
    return layers
