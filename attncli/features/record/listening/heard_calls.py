"""One attention of a program: where it was called, and the layer of what was read of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import AttentionLayer
from attncli.core.row_tiles import GivenWeights
from attncli.features.record.listening.followed import NO_QUERIES, HandmadeAttention
from attncli.features.record.listening.heard_layers import (
    hides_rows_by_numbers,
    layer_by_hand,
    layer_of_call,
    make_heads,
)
from attncli.features.record.listening.kernels import FusedCall, NotHeard
from attncli.features.record.listening.modules import RunningModules
from attncli.features.record.listening.notes import ListenerNotes
from attncli.features.record.listening.origins import Origins

ONE_AXIS = (
    "texts and heads are one axis, and nothing says how many heads there are: its matrices are numbered "
    "0, 1, ... (--heads PATH=8 says it, in Python heads={'PATH': 8})"
)


@dataclass(frozen=True)
class HeardCall:
    """One attention of a program: where it was called, and its tensors, detached and not copied.

    `module` is the path of the module that runs, with `#2` for a second attention in one call of it; `call`
    counts its calls from 0. `function` says how it was heard. `weights` are the program's own, before
    dropout, where it computes them itself. Without `has_heads` texts and heads are one axis, here the heads.
    `outermost` is the number of the call of an outermost module that it belongs to, `first_query` the key at
    which the first query stands, where the call says so. `hides_by_numbers`: the program attends in rows that
    count as rows without keys, since a finite mask stands over all of them. `step` is how many training steps
    the program had made.
    """

    module: str
    call: int
    kind: str
    function: str
    attention: AttentionLayer | GivenWeights
    weights: Float[Tensor, "text head query key"] | None = None
    has_heads: bool = True
    outermost: int = 0
    first_query: int | None = None
    hides_by_numbers: bool = False
    step: int = 0


class CallHint(NamedTuple):
    """What a function of torch that contains the attention, or the projections before it, tell about it.

    `one_head_of`: no head lies on an axis of its own; the projection has so many times its features.
    `first_query` is the key at which the first query stands, where it is known: keys may be added behind.
    """

    num_heads: int | None = None
    is_self: bool | None = None
    one_head_of: int | None = None
    first_query: int | None = None

    def of_fused(self, origins: Origins, query: Tensor, key: Tensor) -> "CallHint":
        """Return the hint completed by what is known of a fused function's tensors."""
        hint = self
        if hint.num_heads is None:
            hint = hint._replace(num_heads=origins.num_heads(query), one_head_of=origins.one_head_of(query))
        if hint.is_self is None:
            are_as_many = query.shape[-2] == key.shape[-2]
            hint = hint._replace(is_self=origins.is_self(query, key, are_as_many=are_as_many))
        return hint

    def of_hand(self, read: HandmadeAttention) -> "CallHint":
        """Return the hint completed by what is known of an attention by hand."""
        return self._replace(
            num_heads=read.num_heads if self.num_heads is None else self.num_heads,
            is_self=self.is_self if read.is_self is None else read.is_self,
            one_head_of=read.one_head_of,
        )


@dataclass(frozen=True)
class CallReader:
    """Makes layers of what was read of a program, whose modules are `running`.

    `heads` are the numbers of heads that were asked for, by patterns of paths.
    """

    running: RunningModules
    heads: Mapping[str, int]
    notes: ListenerNotes

    def heard_call(
        self,
        path: str,
        number: int,
        function: str,
        read: HandmadeAttention | FusedCall,
        hint: CallHint,
        step: int,
    ) -> HeardCall:
        """The call `number` of a module at a training step. Raises NotHeard if it cannot be read."""
        by_hand = read if isinstance(read, HandmadeAttention) else None
        tokens = read.weights if isinstance(read, HandmadeAttention) else read.query
        if not tokens.numel():
            raise NotHeard("an attention without texts, queries or keys")
        lead = tokens.shape[:-2]
        hint = hint if by_hand is None else hint.of_hand(by_hand)
        num_heads = self._num_heads(path, lead, hint)
        if by_hand is not None and by_hand.is_guess:
            num_queries = tokens.shape[-2]
            if num_heads is None or num_heads == num_queries or num_heads not in lead:
                raise NotHeard(NO_QUERIES)
        has_heads = num_heads is not None or len(lead) > 1 or prod(lead) == 1
        if not has_heads:
            self.notes.remark(path, ONE_AXIS)
        weights: Tensor | None = None
        if isinstance(read, HandmadeAttention):
            attention, weights = layer_by_hand(read, num_heads)
        else:
            attention = layer_of_call(read, num_heads)
        num_queries, num_keys = attention.shape[2:]
        if not num_keys:
            raise NotHeard("an attention without keys")
        if by_hand is not None and by_hand.remark is not None:
            self.notes.remark(path, by_hand.remark)
        is_self = hint.is_self
        if is_self is None:
            is_self = not _names_cross(path, self.running.class_names()) and num_queries <= num_keys
        return HeardCall(
            path,
            number,
            "self" if is_self else "cross",
            function,
            attention,
            weights,
            has_heads,
            outermost=self.running.outermost(),
            first_query=hint.first_query,
            hides_by_numbers=hides_rows_by_numbers(read, attention, weights),
            step=step,
        )

    def _num_heads(self, path: str, lead: torch.Size, hint: CallHint) -> int | None:
        """The number of heads: the one asked for, that of the torch call, or that of a module."""
        for pattern, number in self.heads.items():
            if fnmatchcase(path, pattern):
                if not make_heads(lead, number):
                    axes = " x ".join(map(str, lead)) or 1
                    raise NotHeard(f"{number} heads were asked for, but texts and heads are {axes} matrices")
                return number
        if hint.num_heads is not None and make_heads(lead, hint.num_heads):
            return hint.num_heads
        if hint.one_head_of is None:
            # Where there are several axes, a module further out may mean another attention.
            return self.running.num_heads(prod(lead), nearest=None if len(lead) < 2 else 2)
        # The module itself may have put heads and texts on one axis before the projection.
        own_number = self.running.num_heads(prod(lead), nearest=1)
        return 1 if own_number is None or hint.one_head_of % own_number == 0 else own_number


def _names_cross(path: str, classes: Sequence[str]) -> bool:
    last = path.rpartition(".")[2].lower()
    words = ("cross", "encdec", "enc_dec", "encoder_attn", "multihead_attn", "attn2", "src_attn")
    return any(word in last for word in words) or "cross" in classes[0].lower() if classes else False
