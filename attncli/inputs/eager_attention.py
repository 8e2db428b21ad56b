"""A model that computes its attention itself: the weights that it returns, checked, as dense matrices."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel

from attncli.attention.engines.tile import GivenWeights
from attncli.inputs.captured_layers import CannotShow, CapturedLayer, Numbering

OUTPUTS = {
    "attentions": (None, "self"),
    "encoder_attentions": ("encoder", "self"),
    "decoder_attentions": ("decoder", "self"),
    "cross_attentions": ("decoder", "cross"),
}
"""Stack and kind of the weights that a model returns, by the names of its outputs."""

ROUNDING = 1e-3
"""By how much a row may sum to more than 1, or a weight be in the future."""


def run_eagerly(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], numbering: Numbering
) -> list[CapturedLayer]:
    """The weights that eager attention returns, each with the name of the module that made it.

    The model must have been loaded with eager attention. CannotShow where these are no weights of the tokens.
    """
    # By identity and weakly: the number of a tensor that is gone would name another one.
    sources: MutableMapping[Tensor, str] = WeakIdKeyDictionary()

    def note(name: str, output: Any) -> None:
        for tensor in output if isinstance(output, tuple | list) else ():
            if isinstance(tensor, Tensor) and tensor.ndim == 4 and tensor not in sources:
                sources[tensor] = name

    modules = dict(model.named_modules())
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: note(name, output))
        for name, module in modules.items()
    ]
    try:
        outputs = model(**inputs, output_attentions=True)
    finally:
        for hook in hooks:
            hook.remove()
    layers = []
    for output, values in outputs.items():
        stack, kind = OUTPUTS.get(output, (None, ""))
        for weights in values if kind and isinstance(values, tuple | list) else ():
            if weights is None:
                continue
            if not isinstance(weights, Tensor) or weights.ndim != 4:
                raise CannotShow(f"{output} holds no weights of text, head, query and key")
            name = sources.get(weights, output)
            given = GivenWeights(weights, (weights > 0).any(dim=1))
            layer = numbering.layer(name, kind, given, stack)
            _check(layer, weights, modules.get(name))
            layers.append(layer)
    return layers


def _check(layer: CapturedLayer, weights: Tensor, module: nn.Module | None) -> None:
    least, sums = weights.min(), weights.sum(dim=-1)
    if not least >= 0:
        raise CannotShow(f"{layer.module} returns negative weights, as {least:.3g}: scores, perhaps")
    if not sums.max() <= 1 + ROUNDING:
        raise CannotShow(f"{layer.module} returns rows that sum to more than 1, as {sums.max():.4g}")
    if layer.kind == "self" and layer.stack != "encoder" and getattr(module, "is_causal", False):
        future = torch.triu(weights[0], diagonal=1)
        if not future.max() <= ROUNDING:
            raise CannotShow(f"{layer.module} is causal, and returns weights that look into the future")
