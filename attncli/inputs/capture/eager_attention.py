"""A model that computes its attention itself: the weights that it returns, checked, as dense matrices."""

from collections.abc import Iterator, Mapping, MutableMapping
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from attncli.attention.engines.tile import GivenWeights
from attncli.inputs.capture.captured_layers import CannotShow, CapturedLayer, Numbering

OUTPUTS = {
    "attentions": (None, "self"),
    "encoder_attentions": ("encoder", "self"),
    "decoder_attentions": ("decoder", "self"),
    "cross_attentions": ("decoder", "cross"),
}
"""Stack and kind of the weights that a model returns, by the names of its outputs."""

ROUNDING = 1e-3
"""By how much a row may sum to more than 1, or a weight be in the future."""


def eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A new model with eager attention, on the same parameters.

    Attention is not switched in the existing model: some choose masks and modules as they are built, and some
    (Falcon) ignore a switch in a part of them.
    """
    with torch.device("meta"):  # as from_pretrained builds it: no memory is taken, nothing initialised
        # transformers leaves this without types.
        copy: PreTrainedModel = type(model)._from_config(  # type: ignore[no-untyped-call]
            deepcopy(model.config), attn_implementation="eager", dtype=model.dtype
        )
    parts = dict(model.named_modules(remove_duplicate=False))
    for name, part in copy.named_modules(remove_duplicate=False):
        own = parts[name]
        for key, tensor in chain(own.named_parameters(recurse=False), own.named_buffers(recurse=False)):
            setattr(part, key, tensor)
    copy.train(False)
    return copy


def returned_weights(outputs: ModelOutput) -> Iterator[tuple[str, Any]]:
    """The weights of each layer, and the name of the output that holds them."""
    for name, values in outputs.items():
        for weights in values if name in OUTPUTS and isinstance(values, tuple | list) else ():
            if weights is not None:
                yield name, weights


def run_eagerly(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], numbering: Numbering
) -> list[CapturedLayer]:
    """The weights that eager attention returns, each with the name of the module that made it.

    CannotShow where these are not weights of the tokens.
    """
    # By identity and weakly: the id of a freed tensor could belong to another one.
    sources: MutableMapping[Tensor, str] = WeakIdKeyDictionary()

    def note(name: str, output: Any) -> None:
        for tensor in output if isinstance(output, tuple | list) else ():
            if isinstance(tensor, Tensor) and tensor.ndim == 4 and tensor not in sources:
                sources[tensor] = name

    modules = dict(model.named_modules())
    for name, module in modules.items():
        module.register_forward_hook(lambda _module, _inputs, output, name=name: note(name, output))
    layers: list[CapturedLayer] = []
    known: MutableMapping[Tensor, None] = WeakIdKeyDictionary()
    for output, weights in returned_weights(model(**inputs, output_attentions=True)):
        stack, kind = OUTPUTS[output]
        name = sources.get(weights, output) if isinstance(weights, Tensor) else output
        fault = fault_of(weights)
        if not fault and weights in known:
            fault = "the same weights twice"
        if fault:
            raise CannotShow(f"{name} returns {fault}")
        known[weights] = None
        given = GivenWeights(weights, (weights > 0).any(dim=1))
        layer = numbering.layer(name, kind, given, stack)
        may_be_causal = kind == "self" and layer.stack != "encoder"
        is_causal = may_be_causal and getattr(modules.get(name), "is_causal", False)
        if is_causal and not torch.triu(weights, diagonal=1).max() <= ROUNDING:
            raise CannotShow(f"{name} is causal, and returns weights that look into the future")
        layers.append(layer)
    return layers


def fault_of(weights: Any) -> str:
    """What these are instead of distributions over keys; empty where they are such."""
    if not isinstance(weights, Tensor) or weights.ndim != 4:
        return "no weights of text, head, query and key"
    least, sums = weights.min(), weights.sum(dim=-1)
    if least.isnan():
        return "weights that are NaN"
    if least < 0:
        return f"negative weights, as {least:.3g}: scores, perhaps"
    if not sums.max() <= 1 + ROUNDING + torch.finfo(weights.dtype).eps:
        return f"rows that sum to more than 1, as {sums.max():.4g}"
    return ""
