"""What stands in the place of the output of a head that is taken out."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.attention.layer import AttentionLayer
from attncli.experiments.ablate.zeroed_columns import output_of, without_columns
from attncli.inputs.capture.capture import CapturedLayer, Consumer
from attncli.mechanisms.heads import repeat_heads

Method = Literal["zero", "mean", "sink"]


class HeadPlace(NamedTuple):
    """A head by the call of its attention, in the order of a run, and its number there."""

    call: int
    head: int


Removed = Sequence[HeadPlace]
"""The heads that are taken out of one run."""


@dataclass(frozen=True)
class Removal:
    """zero: nothing, as if its columns of W_O were zero. mean: its mean output over all tokens of the texts.
    sink: the value of the first key, as if it looked there alone.

    `means` are the mean outputs of the heads of each call.
    """

    method: Method
    means: Sequence[Float[Tensor, "head value_dim"]] = ()

    def applied(
        self,
        model: nn.Module,
        layer: CapturedLayer,
        call: int,
        removed: Sequence[Removed],
        hooks: ExitStack,
    ) -> Float[Tensor, "text head query value_dim"]:
        """The output of a call without the heads that each of the texts is without."""
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
        changed[texts, heads] = self._instead(layer.attention, call)[texts, heads].to(output.dtype)
        return changed

    def _instead(self, layer: AttentionLayer, call: int) -> Float[Tensor, "text head #query value_dim"]:
        """What stands for every head of a call."""
        if self.method == "mean":
            means = self.means[call].unsqueeze(1)
            return means.expand(layer.shape[0], -1, -1, -1).to(layer.value.device)
        return repeat_heads(layer.value[:, :, :1], layer.num_heads)


class MeanOutputs:
    """The mean output of every head over all tokens of some texts, added up while the texts run."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._counts: list[int] = []

    def of_text(self) -> Consumer:
        """Takes the layers of one text, in the order of their calls."""
        calls = count()

        def add(layer: CapturedLayer) -> Tensor:
            output, call = output_of(layer), next(calls)
            if call == len(self._sums):
                self._sums.append(torch.zeros_like(output[0, :, 0], dtype=torch.float64))
                self._counts.append(0)
            self._sums[call] += output.double().sum(dim=(0, 2))
            self._counts[call] += len(output) * output.shape[2]
            return output

        return add

    def means(self) -> list[Float[Tensor, "head value_dim"]]:
        """By call."""
        return [total / number for total, number in zip(self._sums, self._counts, strict=True)]
