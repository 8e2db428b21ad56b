"""A model whose attention is computed here: each layer's query, key, value and mask, from transformers.

An attention function registered with transformers' AttentionInterface hands the layer to a consumer, which
computes the output along with whatever it wants, so that the model continues. One layer is alive at a time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.utils.generic import ModelOutput

from attncli.attention.engines import attend
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Wanted
from attncli.attention.score_rules import ScoreRules
from attncli.attention.visibility import Visibility
from attncli.inputs.capture.captured_layers import CannotShow, Consumer, Numbering, layer_kind
from attncli.inputs.capture.mask_rules import visibility_of_mask

NAME = "attncli"
WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "dropout",
        "input_ids",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)
"""Arguments that no weight depends on: masks and positions are already in the layer."""


@dataclass(frozen=True)
class _Receiver:
    """Who gets the layers of the running model, and the names of its modules."""

    consume: Consumer
    names: Mapping[nn.Module, str]
    numbering: Numbering


_receiver: ContextVar[_Receiver] = ContextVar("receiver")


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
    for argument, given in others.items():
        if given is not None and argument not in WITHOUT_EFFECT:
            raise CannotShow(f"{name} passes {argument} to its attention, which attn does not know")
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
    # Half precision is computed in float32; the model continues in its own type.
    return output.transpose(1, 2).to(query.dtype).contiguous(), None


def _parts_of_mask(mask: Tensor, num_queries: int, num_keys: int) -> tuple[Visibility, Tensor | None]:
    """A model's own mask, split into what it hides from all heads alike and the numbers to add."""
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


def run_by_interface(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], consume: Consumer, numbering: Numbering
) -> ModelOutput | tuple[Any, ...]:
    """The model's outputs, in a few models without names (DPR); each layer goes to `consume`.

    CannotShow for arguments that attn does not know, and for queries and keys that are not the tokens.
    """
    with handing_over(model, consume, numbering):
        outputs: ModelOutput | tuple[Any, ...] = model(**inputs)
    return outputs


@contextmanager
def handing_over(model: PreTrainedModel, consume: Consumer, numbering: Numbering) -> Iterator[None]:
    """While it is open, each layer of the model goes to `consume`, whatever runs the model."""
    model.set_attn_implementation(NAME)
    names = {module: name for name, module in model.named_modules()}
    token = _receiver.set(_Receiver(consume, names, numbering))
    try:
        # What a user has compiled runs as it was written: it would not call the attention function.
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _receiver.reset(token)
