"""Follows tensors from queries and keys to values, and reports handmade attention."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from attncli.features.record.listening.axis_labels import Labelled
from attncli.features.record.listening.followed import NO_QUERIES, HandmadeAttention, Weights, read_attention
from attncli.features.record.listening.kernels import NotHeard
from attncli.features.record.listening.origins import Origins
from attncli.features.record.listening.torch_calls import unseen


class Follower(Origins):
    """Tracks tensors, and reports each product of weights and values.

    `heard` is called with a function that reads the attention; that function must be called at once, and
    raises NotHeard if the attention cannot be read. `unclear` is called with the reason if an attention is
    not recorded. Facts about a tensor are dropped when the tensor is freed.
    """

    def __init__(
        self,
        heard: Callable[[Callable[[], HandmadeAttention]], None],
        unclear: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._heard, self.unclear = heard, unclear

    def reach(self, facts: Weights, weights: Tensor, query: int | None, value: Labelled | None) -> None:
        """Report that weights were multiplied by their values."""
        softmax = facts.softmax
        if softmax.is_heard:
            return
        softmax.is_heard = True
        if facts.unread:
            self.unclear(facts.unread)
        else:
            self._heard(partial(_read, facts, weights, query, value))
        softmax.forget()


def _read(facts: Weights, weights: Tensor, query: int | None, value: Labelled | None) -> HandmadeAttention:
    with unseen():
        attention = read_attention(facts, weights.detach(), query, value)
    if attention is None:
        raise NotHeard(NO_QUERIES)
    return attention
