"""Mamba-1: each channel of a layer has a matrix; a head's matrix is their mean, computed row by row."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.signed_layer import SignedLayer
from attncli.features.linear.linear_layer import CHUNK

LEAF = 16
"""Size of the blocks on the diagonal whose weights are computed entry by entry."""
FORGOTTEN = -18.0
"""A state that decayed below exp(FORGOTTEN) = 1.5e-8 is lost in a float32 sum over channels."""
FEW = 0.7
"""If less than this share of the states is alive, only living states are computed."""
MOST_ENTRIES = 2**22
"""Maximum number of entries of the factors of a block of rows or keys."""


@dataclass(frozen=True)
class ChannelLayer(SignedLayer):
    """A state space with a decay per channel and state (Mamba, Gu & Dao 2023, 2312.00752).

    w_ij of channel d is sum_n C_in exp(A_dn (s_d(j+1) + ... + s_di)) B_jn s_dj, with `step` s, `read` C and
    `write` B; `skip` is added for j = i. The matrix of a head is the mean over its channels (Ali et al.
    2024, 2403.01590, section 3.2).
    """

    step: Float[Tensor, "text head token channel"]
    decay: Float[Tensor, "head channel state"]
    write: Float[Tensor, "text head token state"]
    read: Float[Tensor, "text head token state"]
    skip: Float[Tensor, "head channel"]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of texts, heads, queries and keys."""
        num_texts, num_heads, num_tokens, _ = self.step.shape
        return num_texts, num_heads, num_tokens, num_tokens

    @property
    def value_dim(self) -> int:
        return self.step.shape[-1]

    def row_cache(self) -> "ChannelCache":
        return ChannelCache()

    @property
    def log_decay(self) -> Float[Tensor, "text token head"]:
        """The log of the state's share that remains after each token, averaged over channels and states."""
        mean = self.step * self.decay.mean(dim=-1).unsqueeze(1)
        return mean.mean(dim=-1).transpose(1, 2)

    def row_blocks(self, text: int) -> Iterator[tuple[slice, slice, Float[Tensor, "head query key"]]]:
        """Yield heads, queries, and the queries' weights on all tokens up to the last of these queries."""
        num_heads, num_tokens = self.shape[1], self.shape[2]
        for head in range(num_heads):
            single = self._head(text, head)
            for start in range(0, num_tokens, CHUNK):
                queries = slice(start, min(start + CHUNK, num_tokens))
                weights = self.step.new_zeros(queries.stop - start, queries.stop)
                single.fill(weights, queries)
                weights[:, start:].diagonal().add_(self.skip[head].mean())
                yield slice(head, head + 1), queries, weights.unsqueeze(0)

    def last_rows(self) -> Float[Tensor, "head key"]:
        """Return the weights of the last token in a single text."""
        num_heads, last = self.shape[1], self.shape[2] - 1
        row = self.step.new_zeros(num_heads, last + 1)
        for head in range(num_heads):
            single = self._head(0, head)
            single.fill(row[head : head + 1], slice(last, last + 1))
            row[head, last] += self.skip[head].mean()
        return row

    def _head(self, text: int, head: int) -> "_SingleHead":
        step = self.step[text, head]
        return _SingleHead(
            step,
            step.cumsum(dim=0, dtype=torch.float64),
            self.decay[head],
            self.write[text, head],
            self.read[text, head],
        )


class ChannelCache:
    """The steps, writes and reads of a growing text.

    A row is computed from all tokens, because every channel decays differently.
    """

    def __init__(self) -> None:
        self.layer: ChannelLayer | None = None

    def add(self, layer: ChannelLayer) -> Float[Tensor, "head key"]:
        """Add new tokens. Returns the weights of the last one on all tokens so far."""
        before = self.layer
        if before is not None:
            step, write, read = (
                torch.cat([getattr(part, name) for part in (before, layer)], dim=2)
                for name in ("step", "write", "read")
            )
            layer = replace(layer, step=step, write=write, read=read)
        self.layer = layer
        return layer.last_rows()


@dataclass(frozen=True)
class _SingleHead:
    """One head on one text; `time` is the cumulative step.

    `time` is float64 because, in a long text, a fast decay amplifies small differences between times.
    """

    step: Float[Tensor, "token channel"]
    time: Float[Tensor, "token channel"]
    decay: Float[Tensor, "channel state"]
    write: Float[Tensor, "token state"]
    read: Float[Tensor, "token state"]

    def fill(self, weights: Float[Tensor, "query key"], queries: slice) -> None:
        """Write to `weights` the mean over channels of these queries' weights."""
        rows = slice(0, queries.stop - queries.start)
        for keys in reversed([*_parts(0, queries.start, self._most())]):
            left = self.decay * self._passed(queries.start - 1, keys.stop - 1).unsqueeze(-1)
            alive = left > FORGOTTEN
            if not alive.any():
                break
            if alive.float().mean() < FEW:
                weights[rows, keys] = self._between_some(queries, keys, alive)
            else:
                weights[rows, keys] = self._between(queries, keys)
        self._fill_triangle(weights, queries, queries.start)

    def _passed(self, tokens: slice | int, origin: int) -> Float[Tensor, "*token channel"]:
        """Return the time at each token, minus the time at `origin`."""
        return (self.time[tokens] - self.time[origin]).to(self.step.dtype)

    def _most(self) -> int:
        return max(1, MOST_ENTRIES // self.decay.numel())

    def _fill_triangle(self, weights: Tensor, part: slice, first: int) -> None:
        """Fill in the weights of queries on each other, using matrix products between halves."""
        size = part.stop - part.start
        rows = slice(part.start - first, part.stop - first)
        if size <= LEAF:
            weights[rows, part] = self._within(part)
            return
        middle = part.start + size // 2
        before, after = slice(part.start, middle), slice(middle, part.stop)
        weights[middle - first : part.stop - first, before] = self._between(after, before)
        self._fill_triangle(weights, before, first)
        self._fill_triangle(weights, after, first)

    def _between(self, queries: slice, keys: slice) -> Float[Tensor, "query key"]:
        """Return weights on keys before all queries; exponents are relative to the first query and <= 0."""
        num_channels = self.decay.shape[0]
        origin = queries.start - 1
        total = self.step.new_zeros(queries.stop - queries.start, keys.stop - keys.start)
        count = max(queries.stop - queries.start, keys.stop - keys.start)
        channel_entries = count * self.decay.shape[1]
        for channels in _parts(0, num_channels, max(1, MOST_ENTRIES // channel_entries)):
            decay = self.decay[channels]
            left = (decay * self._passed(queries, origin)[:, channels, None]).exp_()
            right = (decay * -self._passed(keys, origin)[:, channels, None]).exp_()
            left *= self.read[queries].unsqueeze(1)
            right *= self.write[keys].unsqueeze(1) * self.step[keys, channels, None]
            total += left.flatten(1) @ right.flatten(1).mT
        return total / num_channels

    def _between_some(
        self, queries: slice, keys: slice, alive: Bool[Tensor, "channel state"]
    ) -> Float[Tensor, "query key"]:
        """Return weights as in `_between`, computed only for the states that are still alive."""
        channels, states = alive.nonzero(as_tuple=True)
        origin = queries.start - 1
        since, until = self._passed(queries, origin), -self._passed(keys, origin)
        total = self.step.new_zeros(queries.stop - queries.start, keys.stop - keys.start)
        count = max(total.shape)
        for some in _parts(0, len(channels), max(1, MOST_ENTRIES // count)):
            channel, state = channels[some], states[some]
            decay = self.decay[channel, state]
            left = (since[:, channel] * decay).exp_() * self.read[queries][:, state]
            right = (until[:, channel] * decay).exp_()
            right *= self.write[keys][:, state] * self.step[keys][:, channel]
            total += left @ right.mT
        return total / self.decay.shape[0]

    def _within(self, part: slice) -> Float[Tensor, "query key"]:
        """Return the weights of a few tokens on each other and on themselves."""
        num_channels, count = self.decay.shape[0], part.stop - part.start
        total = self.step.new_zeros(count, count)
        channel_entries = count * count * self.decay.shape[1]
        for channels in _parts(0, num_channels, max(1, MOST_ENTRIES // channel_entries)):
            time = self.time[part, channels]
            passed = (time.unsqueeze(1) - time).clamp(min=0).to(self.step.dtype).unsqueeze(-1)
            left = (self.decay[channels] * passed).exp_() * self.read[part, None, None]
            right = self.write[part].unsqueeze(1) * self.step[part, channels, None]
            total += torch.einsum("ijdn,jdn->ij", left, right)
        return total.tril() / num_channels


def _parts(start: int, stop: int, size: int) -> Iterator[slice]:
    for begin in range(start, stop, size):
        yield slice(begin, min(begin + size, stop))
