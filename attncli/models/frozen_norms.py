"""Norms as linear maps of vectors, with their scales from one run."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

ROUNDING = 1e-4
"""Largest difference allowed between two vectors, relative to the largest entry: far above rounding."""


class FrozenNorm(NamedTuple):
    """x gain s + shift, with the scales s from a run; the mean of x is subtracted if the norm centres.

    RMSNorm (Zhang & Sennrich 2019, 1910.07467), LayerNorm (Ba et al. 2016, 1607.06450).
    """

    gain: Tensor
    scale: Tensor
    shift: Tensor | None
    is_centred: bool

    def of(self, vectors: Tensor) -> Tensor:
        """Apply the norm to other vectors at the run's positions, for several texts."""
        centred = vectors - vectors.mean(dim=-1, keepdim=True) if self.is_centred else vectors
        num_texts = len(vectors) // len(self.scale)
        normed = centred * self.gain * self.scale.repeat(num_texts, *[1] * (self.scale.ndim - 1))
        return normed if self.shift is None else normed + self.shift


def frozen_norm(module: nn.Module, read: Tensor, gave: Tensor) -> FrozenNorm | None:
    """Return the norm that a module's call computed, or None if the call did not compute a norm."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    size = read.shape[-1:]
    # Some norms have a gain for each head (Cohere).
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
        for actual_gain in (gain, 1 + gain):  # Gemma stores the gain minus one
            unscaled = (centred * actual_gain).double()
            length = unscaled.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
            scale = (unscaled * unshifted).sum(dim=-1, keepdim=True) / length
            if is_close(unscaled * scale, unshifted):
                error = float((unscaled * scale - unshifted).abs().max())
                norms.append((error, FrozenNorm(actual_gain, scale.to(read.dtype), shift, is_centred)))
    # If the mean is near 0, both norms fit, and the closer one is used.
    return min(norms, key=lambda parameter: parameter[0])[1] if norms else None


def is_close(a: Tensor, b: Tensor, size: Tensor | None = None) -> bool:
    """Return True if the vectors are equal up to rounding, relative to the largest numbers in `size`."""
    largest = (b if size is None else size).abs().amax(dim=-1)
    return a.shape == b.shape and bool(((a - b).abs().amax(dim=-1) <= ROUNDING * largest).all())


def in_turn(frozen: Sequence[FrozenNorm]) -> Callable[[Tensor], Tensor]:
    """Return a forward that applies the first norm at its first call, the second at the next, and so on."""
    turns = iter(frozen)
    return lambda vectors: next(turns).of(vectors)
