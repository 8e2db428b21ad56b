"""The short convolutions of LFM2: y_i = C_i sum_j k_(i-j) B_j x_j for each channel."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attncli.core.signed_layer import SignedLayer
from attncli.models.layer_sources import CapturedMixer, Mixer, MixerConsumer
from attncli.models.side_by_side import of_this_run


class ShortConvolution(SignedLayer):
    """One head with the mean over channels as weights: w_ij = C_i k_(i-j) B_j."""

    def __init__(
        self,
        read: Float[Tensor, "text token channel"],
        write: Float[Tensor, "text token channel"],
        taps: Float[Tensor, "channel tap"],
    ) -> None:
        self.read, self.write, self.taps = read, write, taps

    @property
    def shape(self) -> tuple[int, int, int, int]:
        num_texts, num_tokens, _ = self.read.shape
        return num_texts, 1, num_tokens, num_tokens

    @property
    def value_dim(self) -> int:
        return self.read.shape[-1]

    def row_blocks(self, text: int) -> Iterator[tuple[slice, slice, Float[Tensor, "head query key"]]]:
        read, write, num_tokens = self.read[text], self.write[text], self.shape[2]
        weights = read.new_zeros(1, num_tokens, num_tokens)
        for distance in range(min(num_tokens, self.taps.shape[-1])):
            products = read[distance:] * self.taps[:, -1 - distance] * write[: num_tokens - distance]
            weights[0].diagonal(-distance).copy_(products.mean(dim=-1))
        yield slice(0, 1), slice(0, num_tokens), weights


@contextmanager
def capture(mixers: Mapping[str, Mixer], consume: MixerConsumer) -> Iterator[None]:
    """Pass the layer of each convolution to `consume` after it has run."""

    def after(name: str, module: Any, inputs: tuple[Any, ...], named: dict[str, Any], _output: Any) -> None:
        states = inputs[0] if inputs else named["hidden_states"]
        with torch.no_grad():
            projected = nn.functional.linear(states, module.in_proj.weight, module.in_proj.bias)
            write, read, _ = projected.float().chunk(3, dim=-1)
        layer = ShortConvolution(read, write, module.conv.weight.detach().squeeze(1).float())
        consume(CapturedMixer(name, mixers[name].kind, layer, projected="short convolution, all channels"))

    with ExitStack() as hooks:
        for name, mixer in mixers.items():
            if hasattr(mixer.module, "in_proj"):  # Inkling's convolutions are part of its attention
                hook = of_this_run(partial(after, name))
                hooks.enter_context(mixer.module.register_forward_hook(hook, with_kwargs=True))
        yield
