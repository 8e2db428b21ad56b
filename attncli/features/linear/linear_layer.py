"""Layers that are linear in their values: the signed matrix by which they mix tokens, a few rows at a time.

output_i = sum_{j <= i} w_ij v_j without a softmax: w may be negative, and a row sums to anything (Ali et al.
2024, 2403.01590; Zimerman et al. 2024, 2405.16504).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import hardshrink

from attncli.core.signed_layer import SignedLayer

CHUNK = 128
"""Tokens of a chunk, and rows that come at a time."""
MOST_ENTRIES = 2**19
"""Entries of the tensors that a kernel works on at a time."""
MOST_FACTORS = 2**24
"""Entries of the factors of some heads: 64 MB."""
FLOAT_BYTES = 4
NOTHING = 1e-20
"""What is taken for 0: products of numbers below float32's smallest normal one take ten times as long."""

Inputs = Mapping[str, Tensor]
ValueChannels = Float[Tensor, "batch token head channel"]
State = Float[Tensor, "batch head dim channel"]
Kernel = Callable[[Inputs, Inputs, ValueChannels, State | None], tuple[ValueChannels, State]]
"""The output and the state after the last token, from what differs by token, what does not, values and the
state before the first token; linear in values and state together."""


@dataclass(frozen=True)
class LinearLayer(SignedLayer):
    """The heads of a layer whose state is a matrix: gated delta nets, Mamba-2, lightning attention.

    `inputs` differ by token: (text, token, head, ...), with as many heads as the values, or fewer that each
    serve several in a row; `fixed` do not: (head, ...). `kernel` is that of the model: what it makes of the
    identity in place of the values is the matrix. `log_decay` is ln of what is left of the state after each
    token, mean over its channels. `work_dim` are entries for a token and head that the kernel needs beside
    its channels.
    """

    values: Float[Tensor, "text token head value_dim"]
    inputs: Inputs
    fixed: Inputs
    kernel: Kernel
    state_dim: int
    log_decay: Float[Tensor, "text token head"] | None = None
    work_dim: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Texts, heads, queries, keys."""
        num_texts, num_tokens, num_heads, _ = self.values.shape
        return num_texts, num_heads, num_tokens, num_tokens

    def row_blocks(self, text: int) -> Iterator[tuple[slice, slice, Float[Tensor, "head query key"]]]:
        """Some heads, some queries, and their weights on the tokens up to the last of these queries."""
        num_tokens = self.shape[2]
        size = min(CHUNK, num_tokens)
        of_head = num_tokens * (2 * self.state_dim + size) + (num_tokens // size) * self.state_dim**2
        for heads in self._parts_of_heads(max(1, MOST_FACTORS // of_head)):
            for queries, weights in self._of_heads(text, heads, size):
                yield heads, queries, weights

    @property
    def value_dim(self) -> int:
        return self.values.shape[-1]

    def mixed_values(self) -> Float[Tensor, "text token head value_dim"]:
        return self.values

    def row_cache(self) -> "LinearCache":
        return LinearCache()

    @property
    def cached_bytes_per_token(self) -> int:
        return FLOAT_BYTES * self.shape[1] * self.state_dim

    def last_row(self, head: int) -> Float[Tensor, " key"]:
        return SignedLayer.last_row(self.of_heads(slice(head, head + 1)), 0)

    def output(self) -> ValueChannels:
        """What the heads give, by one run of the kernel."""
        with _by_hand(self.values):
            return self.kernel(self.inputs, self.fixed, self.values, None)[0]

    def _parts_of_heads(self, most: int) -> Iterator[slice]:
        """The heads, at most so many at a time, such that none shares a part of the inputs with others."""
        num_heads = self.shape[1]
        groups = {num_heads // tensor.shape[2] for tensor in self.inputs.values()}
        (group,) = groups - {1} or {1}
        if most >= group:
            step = most // group * group
        else:
            step = max(size for size in range(1, most + 1) if group % size == 0)
        for start in range(0, num_heads, step):
            yield slice(start, min(start + step, num_heads))

    def of_heads(self, heads: slice) -> "LinearLayer":
        """The same with some of the heads, as `row_blocks` gives them."""
        num_heads = self.shape[1]

        def some(tensor: Tensor) -> Tensor:
            group = num_heads // tensor.shape[2]
            return tensor[:, :, heads.start // group : -(-heads.stop // group)]

        return replace(
            self,
            values=self.values[:, :, heads],
            inputs={name: some(tensor) for name, tensor in self.inputs.items()},
            fixed={name: tensor[heads] for name, tensor in self.fixed.items()},
            log_decay=None if self.log_decay is None else self.log_decay[:, :, heads],
        )

    def of_tokens(self, tokens: slice) -> "LinearLayer":
        """The same with some of the tokens."""
        return replace(
            self,
            values=self.values[:, tokens],
            inputs={name: tensor[:, tokens] for name, tensor in self.inputs.items()},
            log_decay=None if self.log_decay is None else self.log_decay[:, tokens],
        )

    def _of_heads(self, text: int, heads: slice, size: int) -> Iterator[tuple[slice, Tensor]]:
        part, num_tokens = self.of_heads(heads), self.shape[2]
        inputs = {name: _in_chunks(tensor[text], size) for name, tensor in part.inputs.items()}
        factors = part._factors(inputs, -(-num_tokens // size), size)
        for number, within in enumerate(factors.within):
            queries = slice(number * size, min((number + 1) * size, num_tokens))
            count = queries.stop - queries.start
            weights = within.new_zeros(within.shape[0], count, queries.stop)
            weights[:, :, queries] = within[:, :count, :count]
            factors.carry_back(factors.read[number][:, :count], weights, number)
            yield queries, weights

    def state_of_tokens(self) -> Float[Tensor, "head dim key"]:
        """Of one text: what the state after its last token holds of the value of each token.

        The tokens are whole chunks, since those that fill one up may let the state decay.
        """
        num_heads, num_tokens = self.shape[1:3]
        assert num_tokens % CHUNK == 0
        state = self.values.new_zeros(num_heads, self.state_dim, num_tokens, dtype=torch.float32)
        num_chunks = num_tokens // CHUNK
        of_head = num_chunks * (CHUNK + self.state_dim) * (CHUNK + 2 * self.state_dim)
        for heads in self._parts_of_heads(max(1, MOST_FACTORS // max(1, of_head))) if num_chunks else ():
            part = self.of_heads(heads)
            inputs = {name: _in_chunks(tensor[0], CHUNK) for name, tensor in part.inputs.items()}
            factors = part._factors(inputs, num_chunks, CHUNK, with_state=True)
            whole = torch.eye(self.state_dim, device=state.device).expand(state[heads].shape[0], -1, -1)
            factors.carry_back(whole, state[heads], num_chunks)
        return state

    def _factors(self, inputs: Inputs, num_chunks: int, size: int, *, with_state: bool = False) -> "_Factors":
        """What the kernel makes of the identity, as values and as the state before each chunk."""
        num_heads, dim = self.values.shape[2], self.state_dim if num_chunks > 1 or with_state else 0
        device = self.values.device
        channels = torch.eye(size + dim, device=device)
        factors = _Factors(
            torch.empty(num_chunks, num_heads, size, size, device=device),
            torch.empty(num_chunks, num_heads, size, dim, device=device),
            torch.empty(num_chunks, num_heads, dim, size + dim, device=device),
        )
        of_chunk = size * num_heads * (size + dim + self.work_dim)
        step = max(1, MOST_ENTRIES // of_chunk)
        for start in range(0, num_chunks, step):
            chunks = slice(start, min(start + step, num_chunks))
            some = {name: tensor[chunks] for name, tensor in inputs.items()}
            count = chunks.stop - start
            values = channels[:size, None].expand(count, size, num_heads, size + dim)
            state = channels[size:].expand(count, num_heads, dim, size + dim) if dim else None
            with _by_hand(values):
                output, after = self.kernel(some, self.fixed, values, state)
            factors.within[chunks] = output[..., :size].transpose(1, 2)
            factors.read[chunks] = output[..., size:].transpose(1, 2)
            if dim:
                factors.after[chunks] = hardshrink(after, NOTHING)
        return factors


@dataclass(frozen=True)
class _Factors:
    """Weights on keys of the same chunk are `within`, those on an earlier one `read` times what is `after` it
    of each key; the other columns of that carry `read` on to the chunk before.
    """

    within: Float[Tensor, "chunk head query key"]
    read: Float[Tensor, "chunk head query dim"]
    after: Float[Tensor, "chunk head dim key+dim"]

    def carry_back(self, left: Float[Tensor, "head query dim"], weights: Tensor, number: int) -> None:
        """Fill in the weights (head, query, key) on the keys of the chunks before one, `left` of whose state
        is read.
        """
        size = self.within.shape[-1]
        for before in range(number - 1, -1, -1):
            earlier = left @ self.after[before]
            weights[:, :, before * size : (before + 1) * size] = earlier[..., :size]
            left = hardshrink(earlier[..., size:], NOTHING)
            if not left.any():
                break


class LinearCache:
    """Of one text that grows: what the state holds of the value of each token so far.

    Its new tokens come as layers of their own. It takes 4 bytes for each head, dimension of the state and
    token.
    """

    def __init__(self) -> None:
        self.state: Float[Tensor, "head dim key"] | None = None

    def add(self, layer: LinearLayer) -> Float[Tensor, "head key"]:
        """The weights of the last of some tokens that come after those so far, on all of them."""
        num_tokens = layer.shape[2]
        whole = (num_tokens - 1) // CHUNK * CHUNK if self.state is None else 0
        before = layer.of_tokens(slice(0, whole)).state_of_tokens() if self.state is None else self.state
        rest = layer.of_tokens(slice(whole, num_tokens))
        num_heads, (count, num_before) = layer.shape[1], (num_tokens - whole, before.shape[-1])
        num_keys = num_before + count
        row = before.new_empty(num_heads, num_keys)
        self.state = before.new_empty(num_heads, layer.state_dim, num_keys)
        values = before.new_zeros(1, count, 1, num_keys)
        values[0, :, 0, num_before:] = torch.eye(count, device=before.device)
        of_head = num_keys * (count + layer.state_dim)
        for heads in layer._parts_of_heads(max(1, MOST_FACTORS // of_head)):
            some = rest.of_heads(heads)
            state = torch.nn.functional.pad(before[heads], (0, count)).unsqueeze(0)
            with _by_hand(before):
                output, after = layer.kernel(
                    some.inputs, some.fixed, values.expand(-1, -1, len(state[0]), -1), state
                )
            row[heads] = output[0, -1]
            self.state[heads] = hardshrink(after[0], NOTHING)
        return row


def _in_chunks(tensor: Float[Tensor, "token ..."], size: int) -> Float[Tensor, "chunk size ..."]:
    """Tokens in chunks, the last one filled with zeros, which come after all tokens."""
    missing = -len(tensor) % size
    if missing:
        tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
    return tensor.reshape(-1, size, *tensor.shape[1:])


def _by_hand(like: Tensor) -> torch.autocast:
    """No precision but that of the tensors."""
    return torch.autocast(like.device.type, enabled=False)
