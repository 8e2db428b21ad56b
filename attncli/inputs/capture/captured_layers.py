"""What a running model hands over: one layer's attention at a time, with its name."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer

CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)
STACK = re.compile(r"(?:^|\.)\w*?(encoder|decoder)(?:_attentions|\.|$)")


class CannotShow(Exception):
    """What a model computes is no attention that attn can show; the message says where and why."""


class StopCapture(Exception):
    """Raised by a consumer that needs no further layer."""


@dataclass(frozen=True)
class CapturedLayer:
    """One call of an attention module: its attention, or its weights where the model gives nothing else.

    `module` is the qualified name in the model, `kind` self or cross. `stack` is encoder or decoder where the
    model has both, else empty. `layer` counts within a stack and kind.
    """

    module: str
    stack: str
    kind: str
    layer: int
    attention: AttentionLayer | GivenWeights

    @property
    def stack_name(self) -> str:
        """encoder, decoder or cross; self in a model of one stack."""
        return self.kind if self.kind == "cross" or not self.stack else self.stack


Consumer = Callable[[CapturedLayer], Float[Tensor, "text head query value_dim"] | None]
"""Takes a layer and gives its output, or None where it has not computed it."""


@cache
def layer_number(module: str) -> int:
    """The first number in a module's qualified name: 1 in `decoder.block.1.layer.0.SelfAttention`."""
    number = re.search(r"(?<![A-Za-z0-9])\d+", module)
    return int(number[0]) if number else 0


@cache
def layer_kind(module: str) -> str:
    """`cross` where the last parts of a module's qualified name say so, else `self`."""
    return "cross" if CROSS.search(".".join(module.split(".")[-2:])) else "self"


@cache
def layer_stack(module: str) -> str:
    """`encoder` or `decoder`, by the first part of a module's name that ends so; empty where none does.

    Weights whose module is not known have the name of the output that holds them: `encoder_attentions`.
    """
    part = STACK.search(module)
    return part[1] if part else ""


@dataclass
class Numbering:
    """Names for the layers of one run of a model, in the order of their calls.

    A layer has the number in its module's name, but where one module serves several layers (ALBERT), each
    call is a layer of its own, and gets the next number. CannotShow where queries and keys are not the
    `num_tokens` of the text and of its context (the text itself where there is none).
    """

    has_two_stacks: bool
    num_tokens: tuple[int, int] | None
    taken: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))

    def layer(
        self, module: str, kind: str, attention: AttentionLayer | GivenWeights, stack: str | None = None
    ) -> CapturedLayer:
        """The layer that this call of a module is; its stack, where none is given, by the module's name."""
        if stack is None:
            stack = layer_stack(module) if self.has_two_stacks else ""
        if self.num_tokens is not None:
            self._check_counts(module, stack, kind, attention.shape[2:], self.num_tokens)
        taken = self.taken[stack, kind]
        number = layer_number(module)
        if number in taken:
            number = max(taken) + 1
        taken.add(number)
        return CapturedLayer(module, stack, kind, number, attention)

    def _check_counts(
        self, module: str, stack: str, kind: str, got: tuple[int, ...], num_tokens: tuple[int, int]
    ) -> None:
        text, context = num_tokens
        queries = context if stack == "encoder" else text
        keys = context if kind == "cross" else queries
        if got != (queries, keys):
            raise CannotShow(
                f"{module} has {got[0]} queries and {got[1]} keys where the texts have {queries} and {keys} "
                "tokens"
            )
