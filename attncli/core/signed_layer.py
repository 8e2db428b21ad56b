"""Layers whose weights have a sign and sum to anything, as those of every layer without a softmax."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class RowCache(Protocol):
    """The state of one text that grows: the weights of its next token are computed from it."""

    def add(self, layer: Any) -> Float[Tensor, "head key"]:
        """The weights of the last of some new tokens, on all tokens so far; the layer holds the new ones."""
        ...


class SignedLayer(ABC):
    """The heads of a layer whose output is linear in its values: output_i = sum_{j <= i} w_ij v_j, any w.

    A subclass gives the weights a few rows at a time, and the sizes; all else has a default.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """Texts, heads, queries, keys."""

    @property
    @abstractmethod
    def value_dim(self) -> int:
        """The entries of each head that the output projection reads."""

    @abstractmethod
    def row_blocks(self, text: int) -> Iterator[tuple[slice, slice, Float[Tensor, "head query key"]]]:
        """Some heads, some queries, and their weights on the tokens up to the last of these queries."""

    @property
    def log_decay(self) -> Float[Tensor, "text token head"] | None:
        """ln of what is left of the state after each token; None without a decay."""
        return None

    def mixed_values(self) -> Float[Tensor, "text token head value_dim"] | None:
        """The values that the weights mix; None if the channels of a head have weights of their own."""
        return None

    def row_cache(self) -> RowCache | None:
        """A new, empty one for a text that grows; None if the rows of new tokens are not computed."""
        return None

    @property
    def cached_bytes_per_token(self) -> int:
        """The memory that the row cache takes for each token, if that counts."""
        return 0

    def weights(self) -> Float[Tensor, "text head query key"]:
        """The whole matrix, 0 after each query."""
        whole: Tensor | None = None
        for text in range(self.shape[0]):
            for heads, queries, block in self.row_blocks(text):
                whole = block.new_zeros(self.shape) if whole is None else whole
                whole[text, heads, queries, : block.shape[-1]] = block
        assert whole is not None, "a layer has heads"
        return whole

    def last_row_of(self, head: int) -> Float[Tensor, " key"]:
        """The weights of the last token of one text, of one head."""
        blocks = (
            (heads, block) for heads, _, block in self.row_blocks(0) if heads.start <= head < heads.stop
        )
        *_, (heads, block) = blocks
        return block[head - heads.start, -1]
