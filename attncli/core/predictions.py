"""Losses of distributions over tokens, and divergences between such distributions."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

NUMBERS_AT_ONCE = 2**21
"""The number of logits converted to float64 at a time: 16 MB."""
NUMBERS_IN_CACHE = 2**18
"""The number of logits compared at a time by a torch thread: two buffers of 2 MB fit in the CPU's cache."""


def wide_log_softmax(
    logits: Float[Tensor, "place token"],
) -> Iterator[tuple[slice, Float[Tensor, "some token"]]]:
    """Yield ln p in float64, for some places at a time.

    In float32, the logsumexp, and therefore every ln p, is off by 1e-6 if logits are about 20.
    """
    size = max(1, NUMBERS_AT_ONCE // logits.shape[-1])
    for start in range(0, len(logits), size):
        rows = slice(start, min(start + size, len(logits)))
        yield rows, logits[rows].double().log_softmax(dim=-1)


def token_losses(
    logits: Float[Tensor, "place token"], targets: Int[Tensor, " place"]
) -> Float[Tensor, " place"]:
    """-ln p(target), in nats, at each place, in float64; their mean is the cross-entropy of one text."""
    return torch.cat([_losses(logs, targets[rows]) for rows, logs in wide_log_softmax(logits)])


def _losses(logs: Float[Tensor, "place token"], targets: Int[Tensor, " place"]) -> Float[Tensor, " place"]:
    return -logs.gather(-1, targets.to(logs.device).unsqueeze(-1)).squeeze(-1)


class Compared(NamedTuple):
    """-ln q(target) and sum p ln(p / q) at each place; in nats, in float64."""

    losses: Float[Tensor, " place"]
    divergences: Float[Tensor, " place"]


class Predictions:
    """Distributions p over tokens, one per place, to compare other distributions with.

    p is rounded to the dtype of the logits, which changes a divergence by less than 1e-7 of its value; every
    logarithm and sum is computed in float64. Kullback & Leibler 1951, 10.1214/aoms/1177729694.
    """

    def __init__(self, logits: Float[Tensor, "place token"], targets: Int[Tensor, " place"]) -> None:
        self.targets = targets.to(logits.device)
        self._p = torch.empty_like(logits, dtype=torch.promote_types(logits.dtype, torch.float32))
        losses, negative_entropy = [], []
        for rows, logs in wide_log_softmax(logits):
            losses.append(_losses(logs, self.targets[rows]))
            self._p[rows] = logs.exp()
            negative_entropy.append(_expected(self._p[rows], logs))
        self.losses = torch.cat(losses)
        self._negative_entropy = torch.cat(negative_entropy)

    def compared(self, logits: Float[Tensor, "place token"], first: int = 0) -> Compared:
        """Compare p with the distributions q of these logits, which belong to the places from `first` on."""
        size = self._places_at_once(logits)
        wide = logits.new_empty(2, min(size, len(logits)), logits.shape[-1], dtype=torch.float64)
        losses, divergences = [], []
        for start in range(0, len(logits), size):
            rows = slice(start, min(start + size, len(logits)))
            compared_places = slice(first + rows.start, first + rows.stop)
            copied, logs = wide[:, : rows.stop - rows.start]
            torch.log_softmax(copied.copy_(logits[rows]), dim=-1, out=logs)
            losses.append(_losses(logs, self.targets[compared_places]))
            divergences.append(
                self._negative_entropy[compared_places]
                - _expected(copied.copy_(self._p[compared_places]), logs)
            )
        return Compared(torch.cat(losses), torch.cat(divergences).clamp(min=0))

    def _places_at_once(self, logits: Float[Tensor, "place token"]) -> int:
        """The number of places per step: many on an accelerator; on the CPU only as many as fit in its cache.

        On the CPU, allocating memory for each step would otherwise take longer than computing it.
        """
        numbers = (
            NUMBERS_IN_CACHE * torch.get_num_threads() if logits.device.type == "cpu" else NUMBERS_AT_ONCE
        )
        return max(1, numbers // logits.shape[-1])


def _expected(p: Float[Tensor, "place token"], logs: Float[Tensor, "place token"]) -> Float[Tensor, " place"]:
    """sum p ln q; ln 0 counts as 0 where p is 0."""
    expected: Tensor = torch.linalg.vecdot(p.to(logs.dtype), logs)
    if expected.isfinite().all():
        return expected
    least = torch.finfo(logs.dtype).min
    limited: Tensor = torch.linalg.vecdot(p.to(logs.dtype), logs.clamp(min=least))
    return limited
