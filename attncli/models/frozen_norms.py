"""Norms as linear maps: what each made of a vector, its scale kept as it was in a run."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

ROUNDING = 1e-4
"""By how much two vectors may differ, relative to the largest entry: float32 is far below it."""


class FrozenNorm(NamedTuple):
    """x gain s + shift, of x less its mean where the norm centres; s of each vector as it was in the run.

    RMSNorm (Zhang & Sennrich 2019, 1910.07467), LayerNorm (Ba et al. 2016, 1607.06450).
    """

    gain: Tensor
    scale: Tensor
    shift: Tensor | None
    is_centred: bool

    def of(self, vectors: Tensor) -> Tensor:
        """What the norm makes of other vectors in the places of those of the run, for several texts."""
        centred = vectors - vectors.mean(dim=-1, keepdim=True) if self.is_centred else vectors
        num_texts = len(vectors) // len(self.scale)
        normed = centred * self.gain * self.scale.repeat(num_texts, *[1] * (self.scale.ndim - 1))
        return normed if self.shift is None else normed + self.shift


def frozen_norm(module: nn.Module, read: Tensor, gave: Tensor) -> FrozenNorm | None:
    """The norm that a call of a module was; None where it was none."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    size = read.shape[-1:]
    # Some have a gain for each head (Cohere).
    if read.shape != gave.shape or any(
        isinstance(parameter, Tensor)
        and (not parameter.ndim or parameter.shape != read.shape[-parameter.ndim :])
        for parameter in (weight, bias)
    ):
        return None
    gain = weight.detach() if isinstance(weight, Tensor) else read.new_ones(size)
    shift = bias.detach() if isinstance(bias, Tensor) else None
    unshifted = (gave if shift is None else gave - shift).double()
    norms: list[tuple[float, FrozenNorm]] = []
    for is_centred in (False, True):
        centred = read - read.mean(dim=-1, keepdim=True) if is_centred else read
        for own_gain in (gain, 1 + gain):  # Gemma keeps the gain less one
            unscaled = (centred * own_gain).double()
            length = unscaled.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
            scale = (unscaled * unshifted).sum(dim=-1, keepdim=True) / length
            if is_close(unscaled * scale, unshifted):
                error = float((unscaled * scale - unshifted).abs().max())
                norms.append((error, FrozenNorm(own_gain, scale.to(read.dtype), shift, is_centred)))
    # A vector whose mean is next to nothing is nearly the same with and without it: the nearest one counts.
    return min(norms, key=lambda parameter: parameter[0])[1] if norms else None


def is_close(a: Tensor, b: Tensor, size: Tensor | None = None) -> bool:
    """Whether all vectors are the same but for rounding, of numbers as large as in those of `size`."""
    largest = (b if size is None else size).abs().amax(dim=-1)
    return a.shape == b.shape and bool(((a - b).abs().amax(dim=-1) <= ROUNDING * largest).all())


def in_turn(frozen: Sequence[FrozenNorm]) -> Callable[[Tensor], Tensor]:
    """A forward that is the first of these norms at its first call, then the next."""
    turns = iter(frozen)
    return lambda vectors: next(turns).of(vectors)
