"""A model that computes its attention itself: the weights that it returns, checked, as dense matrices."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedConfig, PreTrainedModel
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


@contextmanager
def with_eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """While it is open, the model itself, hooks, adapters and all, computes by its eager attention.

    Afterwards it is as it was: some models replace parts of themselves by what they read (BigBird).
    """
    with unchanged(model), torch.compiler.set_stance("force_eager"):
        for config in configs_of(model):
            # set_attn_implementation leaves out models (Falcon) that heed their config all the same.
            config._attn_implementation_internal = "eager"
        yield


@contextmanager
def unchanged(model: PreTrainedModel) -> Iterator[None]:
    """Whatever happens to attributes, parts, hooks and configs of a model inside, they are then as before."""
    before = [(vars(module), {**vars(module)}) for module in model.modules()]
    before += [(vars(config), {**vars(config)}) for config in configs_of(model)]
    # torch keeps parts, parameters and hooks in dicts of their own, which handles of hooks refer to.
    before += [
        (table, table.copy()) for _, parts in before for table in parts.values() if isinstance(table, dict)
    ]
    try:
        yield
    finally:
        for now, then in before:
            now.clear()
            now.update(then)


def configs_of(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every config in the model once: parts of a model may have, or share, their own."""
    found: dict[int, PreTrainedConfig] = {}
    waiting = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if id(config) not in found:
            found[id(config)] = config
            parts = (getattr(config, name, None) for name in config.sub_configs)
            waiting += [part for part in parts if part is not None]
    return list(found.values())


def returned_weights(outputs: ModelOutput | tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The weights of each layer, and the name of the output that holds them; none of a tuple."""
    for name, values in outputs.items() if isinstance(outputs, ModelOutput) else ():
        for weights in values if name in OUTPUTS and isinstance(values, tuple | list) else ():
            if weights is not None:
                yield name, weights


@contextmanager
def sources_of_weights(model: PreTrainedModel) -> Iterator[MutableMapping[Tensor, str]]:
    """While it is open, the name of the module that first gave each tensor that may be weights."""
    # By identity and weakly: the id of a freed tensor could belong to another one.
    sources: MutableMapping[Tensor, str] = WeakIdKeyDictionary()

    def note(name: str, output: Any) -> None:
        for tensor in output if isinstance(output, tuple | list) else ():
            if isinstance(tensor, Tensor) and tensor.ndim == 4 and tensor not in sources:
                sources[tensor] = name

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hook = module.register_forward_hook(
                lambda _module, _inputs, output, name=name: note(name, output)
            )
            hooks.enter_context(hook)
        yield sources


def run_eagerly(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], numbering: Numbering
) -> list[CapturedLayer]:
    """The weights that a model with eager attention returns, each with the name of the module that made it.

    CannotShow where these are not weights of the tokens.
    """
    modules = dict(model.named_modules())
    with sources_of_weights(model) as sources:
        outputs = model(**inputs, output_attentions=True)
    layers: list[CapturedLayer] = []
    known: MutableMapping[Tensor, None] = WeakIdKeyDictionary()
    for output, weights in returned_weights(outputs):
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
