"""Layers that are linear in their values: the signed matrix that mixes tokens, computed row by row.

output_i = sum_{j <= i} w_ij v_j without a softmax: w may be negative, and a row may have any sum (Ali et al.
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
"""Tokens per chunk, and rows per block."""
MOST_ENTRIES = 2**19
"""Maximum number of entries of the tensors in one call of a kernel."""
MOST_FACTORS = 2**24
"""Maximum number of entries of the factors of a group of heads: 64 MB."""
FLOAT_BYTES = 4
NOTHING = 1e-20
"""Smaller numbers are set to 0, since products with subnormal numbers take ten times as long."""

Inputs = Mapping[str, Tensor]
ValueChannels = Float[Tensor, "batch token head channel"]
State = Float[Tensor, "batch head dim channel"]
Kernel = Callable[[Inputs, Inputs, ValueChannels, State | None], tuple[ValueChannels, State]]
"""Returns the output and the final state, from inputs per token, fixed inputs, values and the initial state;
linear in values and state together."""


@dataclass(frozen=True)
class LinearLayer(SignedLayer):
    """The heads of a layer whose state is a matrix: gated delta nets, Mamba-2, lightning attention.

    - `inputs`: tensors per token (text, token, head, ...); if there are fewer heads than value heads, each
    head serves several consecutive value heads.
    - `fixed`: tensors (head, ...) that are the same for all tokens.
    - `kernel`: the model's kernel; its output for the identity as values is the matrix.
    - `log_decay`: the log of the share of the state that remains after each token, averaged over its
      channels.
    - `work_dim`: the number of entries per token and head that the kernel needs besides its channels.
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
        """The numbers of texts, heads, queries and keys."""
        num_texts, num_tokens, num_heads, _ = self.values.shape
        return num_texts, num_heads, num_tokens, num_tokens

    def row_blocks(self, text: int) -> Iterator[tuple[slice, slice, Float[Tensor, "head query key"]]]:
        """Yield heads, queries, and the queries' weights on all tokens up to the last of these queries."""
        num_tokens = self.shape[2]
        size = min(CHUNK, num_tokens)
        entries = num_tokens * (2 * self.state_dim + size) + (num_tokens // size) * self.state_dim**2
        for heads in self._head_groups(max(1, MOST_FACTORS // entries)):
            for queries, weights in self._row_blocks(text, heads, size):
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
        return SignedLayer.last_row(self.with_heads(slice(head, head + 1)), 0)

    def output(self) -> ValueChannels:
        """Return the output of the heads, from one call of the kernel."""
        with _no_autocast(self.values):
            return self.kernel(self.inputs, self.fixed, self.values, None)[0]

    def _head_groups(self, most: int) -> Iterator[slice]:
        """Yield groups of at most `most` heads that share no inputs with heads in another group."""
        num_heads = self.shape[1]
        groups = {num_heads // tensor.shape[2] for tensor in self.inputs.values()}
        (group,) = groups - {1} or {1}
        if most >= group:
            step = most // group * group
        else:
            step = max(size for size in range(1, most + 1) if group % size == 0)
        for start in range(0, num_heads, step):
            yield slice(start, min(start + step, num_heads))

    def with_heads(self, heads: slice) -> "LinearLayer":
        """Return the layer with some of its heads, as in `row_blocks`."""
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

    def with_tokens(self, tokens: slice) -> "LinearLayer":
        """Return the layer with some of its tokens."""
        return replace(
            self,
            values=self.values[:, tokens],
            inputs={name: tensor[:, tokens] for name, tensor in self.inputs.items()},
            log_decay=None if self.log_decay is None else self.log_decay[:, tokens],
        )

    def _row_blocks(self, text: int, heads: slice, size: int) -> Iterator[tuple[slice, Tensor]]:
        part, num_tokens = self.with_heads(heads), self.shape[2]
        inputs = {name: _in_chunks(tensor[text], size) for name, tensor in part.inputs.items()}
        factors = part._factors(inputs, -(-num_tokens // size), size)
        for number, within in enumerate(factors.within):
            queries = slice(number * size, min((number + 1) * size, num_tokens))
            count = queries.stop - queries.start
            weights = within.new_zeros(within.shape[0], count, queries.stop)
            weights[:, :, queries] = within[:, :count, :count]
            factors.carry_back(factors.read[number][:, :count], weights, number)
            yield queries, weights

    def state_by_token(self) -> Float[Tensor, "head dim key"]:
        """Return the final state of a single text as a linear function of each token's value.

        The number of tokens must be a multiple of CHUNK, because padding may let the state decay.
        """
        num_heads, num_tokens = self.shape[1:3]
        assert num_tokens % CHUNK == 0
        state = self.values.new_zeros(num_heads, self.state_dim, num_tokens, dtype=torch.float32)
        num_chunks = num_tokens // CHUNK
        entries = num_chunks * (CHUNK + self.state_dim) * (CHUNK + 2 * self.state_dim)
        for heads in self._head_groups(max(1, MOST_FACTORS // max(1, entries))) if num_chunks else ():
            part = self.with_heads(heads)
            inputs = {name: _in_chunks(tensor[0], CHUNK) for name, tensor in part.inputs.items()}
            factors = part._factors(inputs, num_chunks, CHUNK, with_state=True)
            whole = torch.eye(self.state_dim, device=state.device).expand(state[heads].shape[0], -1, -1)
            factors.carry_back(whole, state[heads], num_chunks)
        return state

    def _factors(self, inputs: Inputs, num_chunks: int, size: int, *, with_state: bool = False) -> "_Factors":
        """Return the kernel's output for the identity, as values and as the state before each chunk."""
        num_heads, dim = self.values.shape[2], self.state_dim if num_chunks > 1 or with_state else 0
        device = self.values.device
        channels = torch.eye(size + dim, device=device)
        factors = _Factors(
            torch.empty(num_chunks, num_heads, size, size, device=device),
            torch.empty(num_chunks, num_heads, size, dim, device=device),
            torch.empty(num_chunks, num_heads, dim, size + dim, device=device),
        )
        entries = size * num_heads * (size + dim + self.work_dim)
        step = max(1, MOST_ENTRIES // entries)
        for start in range(0, num_chunks, step):
            chunks = slice(start, min(start + step, num_chunks))
            some = {name: tensor[chunks] for name, tensor in inputs.items()}
            count = chunks.stop - start
            values = channels[:size, None].expand(count, size, num_heads, size + dim)
            state = channels[size:].expand(count, num_heads, dim, size + dim) if dim else None
            with _no_autocast(values):
                output, after = self.kernel(some, self.fixed, values, state)
            factors.within[chunks] = output[..., :size].transpose(1, 2)
            factors.read[chunks] = output[..., size:].transpose(1, 2)
            if dim:
                factors.after[chunks] = hardshrink(after, NOTHING)
        return factors


@dataclass(frozen=True)
class _Factors:
    """Factors of the weights: `within` for keys in the same chunk, and `read` @ `after` for earlier keys.

    The last columns of `after` carry `read` back to the chunk before.
    """

    within: Float[Tensor, "chunk head query key"]
    read: Float[Tensor, "chunk head query dim"]
    after: Float[Tensor, "chunk head dim key+dim"]

    def carry_back(self, left: Float[Tensor, "head query dim"], weights: Tensor, number: int) -> None:
        """Fill in the weights (head, query, key) on keys of all chunks before chunk `number`.

        `left` is the read of the state before that chunk.
        """
        size = self.within.shape[-1]
        for before in range(number - 1, -1, -1):
            earlier = left @ self.after[before]
            weights[:, :, before * size : (before + 1) * size] = earlier[..., :size]
            left = hardshrink(earlier[..., size:], NOTHING)
            if not left.any():
                break


class LinearCache:
    """The state of a growing text as a linear function of each token's value.

    New tokens are added as separate layers. The cache takes 4 bytes per head, state dimension and token.
    """

    def __init__(self) -> None:
        self.state: Float[Tensor, "head dim key"] | None = None

    def add(self, layer: LinearLayer) -> Float[Tensor, "head key"]:
        """Add new tokens. Returns the weights of the last one on all tokens so far."""
        num_tokens = layer.shape[2]
        whole = (num_tokens - 1) // CHUNK * CHUNK if self.state is None else 0
        before = layer.with_tokens(slice(0, whole)).state_by_token() if self.state is None else self.state
        last_tokens = layer.with_tokens(slice(whole, num_tokens))
        num_heads, (count, num_before) = layer.shape[1], (num_tokens - whole, before.shape[-1])
        num_keys = num_before + count
        row = before.new_empty(num_heads, num_keys)
        self.state = before.new_empty(num_heads, layer.state_dim, num_keys)
        values = before.new_zeros(1, count, 1, num_keys)
        values[0, :, 0, num_before:] = torch.eye(count, device=before.device)
        entries = num_keys * (count + layer.state_dim)
        for heads in layer._head_groups(max(1, MOST_FACTORS // entries)):
            some = last_tokens.with_heads(heads)
            state = torch.nn.functional.pad(before[heads], (0, count)).unsqueeze(0)
            with _no_autocast(before):
                output, after = layer.kernel(
                    some.inputs, some.fixed, values.expand(-1, -1, len(state[0]), -1), state
                )
            row[heads] = output[0, -1]
            self.state[heads] = hardshrink(after[0], NOTHING)
        return row


def _in_chunks(tensor: Float[Tensor, "token ..."], size: int) -> Float[Tensor, "chunk size ..."]:
    """Return the tokens in chunks, with the last chunk padded with zeros."""
    missing = -len(tensor) % size
    if missing:
        tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
    return tensor.reshape(-1, size, *tensor.shape[1:])


def _no_autocast(like: Tensor) -> torch.autocast:
    """Disable autocast, so that the tensors keep their precision."""
    return torch.autocast(like.device.type, enabled=False)
