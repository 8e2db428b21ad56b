"""One attention in a program: the module that called it, and its layer."""

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
    fused_layer,
    hides_rows_by_numbers,
    layer_by_hand,
    make_heads,
)
from attncli.features.record.listening.kernels import FusedCall, NotHeard
from attncli.features.record.listening.modules import RunningModules
from attncli.features.record.listening.notes import ListenerNotes
from attncli.features.record.listening.origins import Origins

ONE_AXIS = (
    "texts and heads share one axis and the number of heads is unknown, so matrices are numbered 0, 1, ... "
    "(set the number with --heads PATH=8, or in Python with heads={'PATH': 8})"
)


@dataclass(frozen=True)
class HeardCall:
    """One attention in a program: its module, and its tensors, which are detached but not copied.

    - `module`: the path of the running module, with `#2` for the second attention in one call of the module.
    - `call`: the number of the module's call, from 0. `function`: the function that computed the attention.
    - `weights`: the program's weights before dropout, if the program computes them itself.
    - `has_heads`: False if texts and heads share one axis, which is then the head axis.
    - `outermost`: the outermost module's call number. `step`: the number of earlier training steps.
    - `first_query`: the position of the first query among the keys, if known.
    - `hides_by_numbers`: a finite mask covers whole rows, which count as rows without keys although the
      program computes attention in them.
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
    """Facts about an attention from the torch function around it, or from the projections before it.

    `feature_ratio`: if there is no head axis, the projection's width divided by the query's width.
    `first_query`: the position of the first query among the keys, if known: 0 if torch appends keys.
    """

    num_heads: int | None = None
    is_self: bool | None = None
    feature_ratio: int | None = None
    first_query: int | None = None

    def completed_by_origins(self, origins: Origins, query: Tensor, key: Tensor) -> "CallHint":
        """Return the hint, completed from the origins of a fused function's tensors."""
        hint = self
        if hint.num_heads is None:
            hint = hint._replace(
                num_heads=origins.num_heads(query), feature_ratio=origins.feature_ratio(query)
            )
        if hint.is_self is None:
            same_length = query.shape[-2] == key.shape[-2]
            hint = hint._replace(is_self=origins.is_self(query, key, same_length=same_length))
        return hint

    def completed_by_hand(self, read: HandmadeAttention) -> "CallHint":
        """Return the hint, completed from a handmade attention."""
        return self._replace(
            num_heads=read.num_heads if self.num_heads is None else self.num_heads,
            is_self=self.is_self if read.is_self is None else read.is_self,
            feature_ratio=read.feature_ratio,
        )


@dataclass(frozen=True)
class CallReader:
    """Builds layers from the attention of a program whose modules are in `running`.

    `heads` are the numbers of heads that the user set, by path pattern.
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
        """Return a module's call `number` at a training step. Raises NotHeard for an unreadable call."""
        by_hand = read if isinstance(read, HandmadeAttention) else None
        tokens = read.weights if isinstance(read, HandmadeAttention) else read.query
        if not tokens.numel():
            raise NotHeard("the attention has no texts, queries or keys")
        lead = tokens.shape[:-2]
        hint = hint if by_hand is None else hint.completed_by_hand(by_hand)
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
            attention = fused_layer(read, num_heads)
        num_queries, num_keys = attention.shape[2:]
        if not num_keys:
            raise NotHeard("the attention has no keys")
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
        """Return the number of heads: as set by the user, else from the torch call, else from a module."""
        for pattern, number in self.heads.items():
            if fnmatchcase(path, pattern):
                if not make_heads(lead, number):
                    axes = " x ".join(map(str, lead)) or 1
                    raise NotHeard(f"`heads` ({number}) does not match the axes of texts and heads ({axes})")
                return number
        if hint.num_heads is not None and make_heads(lead, hint.num_heads):
            return hint.num_heads
        if hint.feature_ratio is None:
            # With several axes, a module further out may describe a different attention.
            return self.running.num_heads(prod(lead), nearest=None if len(lead) < 2 else 2)
        # The module itself may have merged heads and texts into one axis before the projection.
        module_heads = self.running.num_heads(prod(lead), nearest=1)
        return 1 if module_heads is None or hint.feature_ratio % module_heads == 0 else module_heads


def _names_cross(path: str, classes: Sequence[str]) -> bool:
    last = path.rpartition(".")[2].lower()
    words = ("cross", "encdec", "enc_dec", "encoder_attn", "multihead_attn", "attn2", "src_attn")
    return any(word in last for word in words) or "cross" in classes[0].lower() if classes else False
