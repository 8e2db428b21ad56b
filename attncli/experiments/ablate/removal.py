"""What replaces the output of a removed head."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.attention.engines import attend
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted
from attncli.inputs.capture.capture import check_computed_here, run_model
from attncli.inputs.capture.captured_layers import CapturedLayer
from attncli.inputs.output_projections import output_projection
from attncli.mechanisms.heads import repeat_heads


class HeadPlace(NamedTuple):
    """A head by the call of its attention, in the order of a run, and its number there."""

    call: int
    head: int


Removed = Sequence[HeadPlace]
"""The heads that are removed from one run."""


@dataclass(frozen=True)
class Removal:
    """zero: nothing, as if its columns of W_O were zero. mean: its mean output over all tokens of the texts.
    sink: the value of the first key, as if it looked there alone.

    `means` are the mean outputs (head, value_dim) of the heads of each call, whose sizes may differ.
    """

    method: Literal["zero", "mean", "sink"]
    means: Sequence[Float[Tensor, "_ _"]] = ()

    def applied(
        self, model: nn.Module, layer: CapturedLayer, call: int, removed: Sequence[Removed], hooks: ExitStack
    ) -> Float[Tensor, "text head query value_dim"]:
        """The output of a call, each text without its own removed heads."""
        output = output_of(layer)
        places = [
            (text, place.head) for text, each in enumerate(removed) for place in each if place.call == call
        ]
        if not places:
            return output
        if self.method == "zero":
            return without_columns(model, layer, output, places, hooks)
        assert isinstance(layer.attention, AttentionLayer)
        texts, heads = torch.tensor(places, device=output.device).unbind(dim=-1)
        changed = output.clone()
        changed[texts, heads] = self._replacement(layer.attention, call)[texts, heads].to(output.dtype)
        return changed

    def _replacement(self, layer: AttentionLayer, call: int) -> Float[Tensor, "text head #query value_dim"]:
        if self.method == "mean":
            means = self.means[call].unsqueeze(1)
            return means.expand(layer.shape[0], -1, -1, -1).to(layer.value.device)
        return repeat_heads(layer.value[:, :, :1], layer.num_heads)


def without_columns(
    model: nn.Module,
    layer: CapturedLayer,
    output: Float[Tensor, "text head query value_dim"],
    places: Sequence[tuple[int, int]],
    hooks: ExitStack,
) -> Float[Tensor, "text head query value_dim"]:
    """The layer's output, with the heads at `places` (text, head) zero where W_O reads them, after gates and
    norms.

    Where no W_O is found the heads themselves are zero, which is the same but for a norm between.
    """
    num_texts, num_heads, _, value_dim = output.shape
    texts, heads = torch.tensor(places, device=output.device).unbind(dim=-1)
    projection = output_projection(model, layer.module, num_heads * value_dim)
    if projection is None:
        changed = output.clone()
        changed[texts, heads] = 0
        return changed

    def zero(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hook.remove()  # the module may serve other layers, too
        read = inputs[0].clone()
        read.view(num_texts, -1, num_heads, value_dim)[texts, :, heads] = 0
        return (read, *inputs[1:])

    hook = hooks.enter_context(projection.register_forward_pre_hook(zero))
    return output


def output_of(layer: CapturedLayer) -> Float[Tensor, "text head query value_dim"]:
    """The output of a layer that is computed here."""
    assert isinstance(layer.attention, AttentionLayer)
    output = attend(layer.attention, Wanted(output=True)).output
    assert output is not None
    return output


def mean_outputs(model: PreTrainedModel, texts: Iterable[Mapping[str, Tensor]]) -> list[Float[Tensor, "_ _"]]:
    """By call, the mean output of every head over all tokens of the texts, each the inputs of a run."""
    sums: list[Tensor] = []
    counts: list[int] = []
    for inputs in texts:
        check_computed_here(model, inputs)
        calls = count()

        def add(layer: CapturedLayer, calls: Iterator[int] = calls) -> Tensor:
            output, call = output_of(layer), next(calls)
            if call == len(sums):
                sums.append(torch.zeros_like(output[0, :, 0], dtype=torch.float64))
                counts.append(0)
            sums[call] += output.double().sum(dim=(0, 2))
            counts[call] += len(output) * output.shape[2]
            return output

        run_model(model, inputs, add)
    return [total / number for total, number in zip(sums, counts, strict=True)]
