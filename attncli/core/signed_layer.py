"""Layers whose weights may have either sign and any sum, as in every layer without a softmax."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class RowCache(Protocol):
    """The state of one growing text, from which the weights of its next token are computed."""

    def add(self, layer: Any) -> Float[Tensor, "head key"]:
        """Return the weights of the last new token on all tokens so far; the layer holds the new tokens."""
        ...


class SignedLayer(ABC):
    """The heads of a layer whose output is linear in its values: output_i = sum_{j <= i} w_ij v_j, for any w.

    A subclass provides the sizes, and yields the weights a few rows at a time; everything else has a default.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of texts, heads, queries and keys."""

    @property
    @abstractmethod
    def value_dim(self) -> int:
        """The number of entries of each head that the output projection reads."""

    @abstractmethod
    def row_blocks(self, text: int) -> Iterator[tuple[slice, slice, Float[Tensor, "head query key"]]]:
        """Yield slices of heads and queries, with their weights on tokens up to the last of these queries."""

    @property
    def log_decay(self) -> Float[Tensor, "text token head"] | None:
        """The logarithm of the share of the state that remains after each token; None without a decay."""
        return None

    def mixed_values(self) -> Float[Tensor, "text token head value_dim"] | None:
        """The values that the weights mix, or None if each channel of a head has its own weights."""
        return None

    def row_cache(self) -> RowCache | None:
        """Return a new, empty cache for a growing text; None if the rows of new tokens are not computed."""
        return None

    @property
    def cached_bytes_per_token(self) -> int:
        """The number of bytes that the row cache takes per token, or 0 if negligible."""
        return 0

    def weights(self) -> Float[Tensor, "text head query key"]:
        """The whole matrix, with 0 for keys after each query."""
        whole: Tensor | None = None
        for text in range(self.shape[0]):
            for heads, queries, block in self.row_blocks(text):
                whole = block.new_zeros(self.shape) if whole is None else whole
                whole[text, heads, queries, : block.shape[-1]] = block
        assert whole is not None, "a layer has heads"
        return whole

    def last_row(self, head: int) -> Float[Tensor, " key"]:
        """One head's weights for the last token of one text."""
        blocks = (
            (heads, block) for heads, _, block in self.row_blocks(0) if heads.start <= head < heads.stop
        )
        *_, (heads, block) = blocks
        return block[head - heads.start, -1]
