"""The attention of each layer of a transformers model, handed over while the model runs.

An attention function registered with transformers' AttentionInterface hands the layer's query, key, value and
mask to a consumer, which computes the output along with whatever it wants, so that the model goes on. One
layer is alive at a time. Models that do not use the interface run with eager attention, whose weights (dense)
are handed over instead.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from attncli.attention.engines import attend
from attncli.attention.engines.tile import GivenWeights
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted
from attncli.attention.score_rules import ScoreRules
from attncli.attention.visibility import Visibility
from attncli.errors import UserError
from attncli.inputs.mask_rules import visibility_of_mask

NAME = "attncli"
CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)


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


class Enough(Exception):
    """Raised by a consumer that needs no further layer."""


@cache
def layer_number(module: str) -> int:
    """The first number in a module's qualified name: 1 in `decoder.block.1.layer.0.SelfAttention`."""
    number = re.search(r"(?<![A-Za-z0-9])\d+", module)
    return int(number[0]) if number else 0


@cache
def layer_kind(module: str) -> str:
    """`cross` where the last parts of a module's qualified name say so, else `self`."""
    return "cross" if CROSS.search(".".join(module.split(".")[-2:])) else "self"


@dataclass
class Numbering:
    """Names for the layers of one run of a model, in the order of their calls.

    A layer has the number in its module's name, but where one module serves several layers (ALBERT), each
    call is a layer of its own, and gets the next number.
    """

    has_two_stacks: bool
    taken: defaultdict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))

    def layer(self, module: str, kind: str, attention: AttentionLayer | GivenWeights) -> CapturedLayer:
        """The layer that this call of a module is."""
        part = module.split(".")[0]
        stack = part if self.has_two_stacks and part in ("encoder", "decoder") else ""
        taken = self.taken[stack, kind]
        number = layer_number(module)
        if number in taken:
            number = max(taken) + 1
        taken.add(number)
        return CapturedLayer(module, stack, kind, number, attention)


@dataclass(frozen=True)
class _Receiver:
    """Who gets the layers of the model that runs now, and what its modules are called."""

    consume: Consumer
    names: Mapping[nn.Module, str]
    numbering: Numbering


_receiver: ContextVar[_Receiver] = ContextVar("receiver")
_names: MutableMapping[nn.Module, Mapping[nn.Module, str]] = WeakKeyDictionary()


def _attend_and_hand_over(
    module: nn.Module,
    query: Float[Tensor, "text head query dim"],
    key: Float[Tensor, "text kv_head key dim"],
    value: Float[Tensor, "text kv_head key value_dim"],
    attention_mask: Visibility | Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " head"] | None = None,
    position_bias: Float[Tensor, "#text #head query key"] | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "text query head value_dim"], None]:
    """An attention function as transformers wants it: the output, and no weights."""
    receiver = _receiver.get()
    name = receiver.names[module]
    num_queries, num_keys = query.shape[2], key.shape[2]
    bias = position_bias
    if isinstance(attention_mask, Visibility):
        visibility = attention_mask
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and num_queries > 1 and attention_mask is None
        visibility = Visibility(num_queries, num_keys, causal=causal)
        if attention_mask is not None:
            visibility, added = _parts_of_mask(attention_mask, num_queries, num_keys)
            bias = added if bias is None or added is None else bias + added
    layer = AttentionLayer(
        query,
        key,
        value,
        visibility,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        ScoreRules(softcap=softcap, bias=bias, sink=None if s_aux is None else s_aux.unsqueeze(0)),
    )
    output = receiver.consume(receiver.numbering.layer(name, layer_kind(name), layer))
    if output is None:
        output = attend(layer, Wanted(output=True)).output
        assert output is not None
    return output.transpose(1, 2).contiguous(), None


def _parts_of_mask(mask: Tensor, num_queries: int, num_keys: int) -> tuple[Visibility, Tensor | None]:
    """A mask that a model made by itself: what it hides from all heads alike, and the numbers to add."""
    hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
    bias = None if mask.dtype == torch.bool else mask.masked_fill(hidden, 0.0)
    bias = bias if bias is not None and bias.any() else None
    if hidden.shape[1] > 1:
        floor = torch.zeros(hidden.shape, device=mask.device).masked_fill(hidden, HIDDEN_BY_A_HEAD)
        return Visibility(num_queries, num_keys), floor if bias is None else bias + floor
    seen = ~hidden[:, 0].expand(-1, num_queries, num_keys)
    if seen.all():
        return Visibility(num_queries, num_keys), bias
    return Visibility(num_queries, num_keys, rule=lambda i, j: seen[:, i][:, :, j]), bias


HIDDEN_BY_A_HEAD = -1e30
"""What hides an entry from some heads alone, as a number to add to its score."""

AttentionInterface.register(NAME, _attend_and_hand_over)
AttentionMaskInterface.register(NAME, visibility_of_mask)


def _by_interface(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Consumer, numbering: Numbering
) -> None:
    model.set_attn_implementation(NAME)
    if model not in _names:
        _names[model] = WeakKeyDictionary({module: name for name, module in model.named_modules()})
    token = _receiver.set(_Receiver(consume, _names[model], numbering))
    try:
        model(**inputs)
    finally:
        _receiver.reset(token)


def _by_eager(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], numbering: Numbering
) -> Iterator[CapturedLayer]:
    """The weights that eager attention returns, each with the name of the module that made it."""
    model.set_attn_implementation("eager")
    # By identity and weakly: the number of a tensor that is gone would name another one.
    sources: MutableMapping[Tensor, str] = WeakIdKeyDictionary()

    def note(name: str, output: Any) -> None:
        for tensor in output if isinstance(output, tuple) else ():
            if isinstance(tensor, Tensor) and tensor.ndim == 4 and tensor not in sources:
                sources[tensor] = name

    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: note(name, output))
        for name, module in model.named_modules()
    ]
    outputs = model(**inputs, output_attentions=True)
    for hook in hooks:
        hook.remove()
    for output, values in outputs.items():
        for weights in values if output.endswith("attentions") and values is not None else ():
            if isinstance(weights, Tensor) and weights.ndim == 4:
                name = sources.get(weights, output)
                kind = "cross" if output == "cross_attentions" else "self"
                given = GivenWeights(weights, (weights > 0).any(dim=1))
                yield numbering.layer(name, kind, given)


@torch.inference_mode()
def capture(model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Consumer) -> str:
    """Run the model on texts of one length; each layer's attention goes to `consume`. `interface` or `eager`:
    which way.

    UserError where the model yields neither: it has no attention weights.
    """
    how = ""

    def noted(layer: CapturedLayer) -> Tensor | None:
        nonlocal how
        how = "interface" if isinstance(layer.attention, AttentionLayer) else "eager"
        return consume(layer)

    model.config.use_cache = False
    has_two_stacks = bool(model.config.is_encoder_decoder)
    with suppress(Enough):
        _by_interface(model, inputs, noted, Numbering(has_two_stacks))
        if not how:
            for layer in _by_eager(model, inputs, Numbering(has_two_stacks)):
                noted(layer)
    if not how:
        kind = model.config.model_type
        raise UserError(f"model: {kind} gives no attention weights: it has none, or transformers hides them")
    return how
