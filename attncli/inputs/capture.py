"""The attention of each layer of a transformers model, handed over while the model runs.

An attention function registered with transformers' AttentionInterface computes the output, so that the
model goes on, and hands the layer's query, key, value and mask to a consumer. One layer is alive at a
time. Models that do not use the interface run with eager attention, whose weights (dense) are handed over
instead.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from attncli.errors import UserError
from attncli.inputs.mask_rules import visibility_of_mask
from attncli.mechanisms.attention_layer import AttentionLayer
from attncli.mechanisms.visibility import Visibility

NAME = "attncli"
CROSS = re.compile(r"cross|encoder_attn|encdec|encoder_decoder", re.IGNORECASE)


@dataclass(frozen=True)
class WeightsOfLayer:
    """The dense weights of one layer, from a model that hands over nothing else."""

    module: str
    layer: int
    kind: str
    weights: Float[Tensor, "head query key"]


CapturedLayer = AttentionLayer | WeightsOfLayer


def layer_number(module: str) -> int:
    """The first number in a module's qualified name: 1 in `decoder.block.1.layer.0.SelfAttention`."""
    number = re.search(r"(?<![A-Za-z0-9])\d+", module)
    return int(number[0]) if number else 0


def layer_kind(module: str) -> str:
    """`cross` where the last parts of a module's qualified name say so, else `self`."""
    return "cross" if CROSS.search(".".join(module.split(".")[-2:])) else "self"


@dataclass(frozen=True)
class _Receiver:
    """Who gets the layers of the model that runs now, and what its modules are called."""

    consume: Callable[[AttentionLayer], None]
    names: Mapping[nn.Module, str]


_receiver: ContextVar[_Receiver] = ContextVar("receiver")


def _attend_and_hand_over(
    module: nn.Module,
    query: Float[Tensor, "1 head query dim"],
    key: Float[Tensor, "1 kv_head key dim"],
    value: Float[Tensor, "1 kv_head key value_dim"],
    attention_mask: Visibility | Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " head"] | None = None,
    position_bias: Float[Tensor, "1 #head query key"] | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "1 query head value_dim"], None]:
    """An attention function as transformers wants it: the output, and no weights."""
    receiver = _receiver.get()
    name = receiver.names[module]
    num_queries, num_keys = query.shape[2], key.shape[2]
    bias = None if position_bias is None else position_bias[0]
    if isinstance(attention_mask, Visibility):
        visibility = attention_mask
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and num_queries > 1 and attention_mask is None
        visibility = Visibility(num_queries, num_keys, causal=causal)
        if attention_mask is not None:
            bias = _additive(attention_mask) if bias is None else bias + _additive(attention_mask)
    layer = AttentionLayer(
        module=name,
        layer=layer_number(name),
        kind=layer_kind(name),
        query=query[0],
        key=key[0],
        value=value[0],
        visibility=visibility,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        sink=s_aux,
        bias=bias,
    )
    receiver.consume(layer)
    return layer.output().transpose(0, 1).unsqueeze(0).contiguous(), None


def _additive(mask: Tensor) -> Float[Tensor, "#head query key"]:
    """A mask that a model made by itself, as numbers to add: hidden is -inf."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape[1:]).masked_fill(~mask[0], -torch.inf)
    return mask[0].masked_fill(mask[0] <= torch.finfo(mask.dtype).min / 2, -torch.inf)


AttentionInterface.register(NAME, _attend_and_hand_over)
AttentionMaskInterface.register(NAME, visibility_of_mask)


def _by_interface(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Callable[[AttentionLayer], None]
) -> None:
    model.set_attn_implementation(NAME)
    token = _receiver.set(_Receiver(consume, {module: name for name, module in model.named_modules()}))
    try:
        model(**inputs)
    finally:
        _receiver.reset(token)


def _by_eager(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Iterator[WeightsOfLayer]:
    """The weights that eager attention returns, each with the name of the module that made it."""
    model.set_attn_implementation("eager")
    sources: dict[int, str] = {}

    def note(name: str, output: Any) -> None:
        for tensor in output if isinstance(output, tuple) else ():
            if isinstance(tensor, Tensor):
                sources.setdefault(id(tensor), name)

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
                name = sources.get(id(weights), output)
                kind = "cross" if output == "cross_attentions" else "self"
                yield WeightsOfLayer(name, layer_number(name), kind, weights[0])


@torch.no_grad()
def capture(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Callable[[CapturedLayer], None]
) -> str:
    """Run the model on one sequence; each layer's attention goes to `consume`. `interface` or `eager`:
    which way.

    UserError where the model yields neither: it has no attention weights.
    """
    captured = 0

    def counted(layer: CapturedLayer) -> None:
        nonlocal captured
        captured += 1
        consume(layer)

    model.config.use_cache = False
    _by_interface(model, inputs, counted)
    if captured:
        return "interface"
    for layer in _by_eager(model, inputs):
        counted(layer)
    if not captured:
        kind = model.config.model_type
        raise UserError(f"model: {kind} gives no attention weights: it has none, or transformers hides them")
    return "eager"
