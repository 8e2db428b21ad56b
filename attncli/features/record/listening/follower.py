"""A follower of attention by hand: it knows the tensors on the way, and whom to tell."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from attncli.features.record.listening.axis_labels import Labelled
from attncli.features.record.listening.followed import NO_QUERIES, HandmadeAttention, Weights, read_attention
from attncli.features.record.listening.kernels import NotHeard
from attncli.features.record.listening.origins import Origins
from attncli.features.record.listening.torch_calls import unseen


class Follower(Origins):
    """What is known of tensors; `heard` is given how to read each attention that weights make with values.

    That is to be done at once, if at all, and raises NotHeard for one that cannot be read; `unclear` is given
    the reason why another is not heard. What is known of a tensor is forgotten with it.
    """

    def __init__(
        self,
        heard: Callable[[Callable[[], HandmadeAttention]], None],
        unclear: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._heard, self.unclear = heard, unclear

    def reach(self, known: Weights, weights: Tensor, query: int | None, value: Labelled | None) -> None:
        """Weights met their value."""
        softmax = known.softmax
        if softmax.is_heard:
            return
        softmax.is_heard = True
        if known.unread:
            self.unclear(known.unread)
        else:
            self._heard(partial(_attention_of, known, weights, query, value))
        softmax.forget()


def _attention_of(
    known: Weights, weights: Tensor, query: int | None, value: Labelled | None
) -> HandmadeAttention:
    with unseen():
        heard = read_attention(known, weights.detach(), query, value)
    if heard is None:
        raise NotHeard(NO_QUERIES)
    return heard
