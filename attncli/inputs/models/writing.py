"""A model writes, by transformers' own generate; the rows of attention that chose each token are handed over.

The prompt goes through fused attention, of which no weights are made; of each layer the last query is kept
until its token is chosen. What a model computes with its own eager attention alone gives its weights (dense).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from attncli.inputs.capture.attention_interface import handing_over
from attncli.inputs.capture.capture import Way, guarded, model_errors, way_of
from attncli.inputs.capture.captured_layers import CannotShow, CapturedLayer
from attncli.inputs.capture.eager_attention import eager_copy
from attncli.inputs.models.last_rows import LastRows
from attncli.inputs.models.pretrained import decoder_start

LONG_CHUNK = 512
"""Tokens of a long prompt at a time: what its layers compute then takes a few MB."""

Chosen = Callable[[int, Sequence[CapturedLayer]], None]
"""Takes each new token and, of every layer, the attention of the one query that chose it."""


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen: the likeliest, or sampled from a seed at a temperature among the likeliest."""

    max_new_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int = 0
    prefill_chunk: int | None = None

    def options(self) -> dict[str, Any]:
        """The arguments of transformers' generate; the rest is as the model's own file has it."""
        options: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "num_beams": 1, "do_sample": False}
        if self.temperature is not None or self.top_p is not None:
            sampled = {"temperature": self.temperature or 1.0, "top_p": self.top_p or 1.0, "top_k": 0}
            options |= {"do_sample": True, **sampled}
        return options


@torch.no_grad()
def write(model: PreTrainedModel, inputs: Mapping[str, Tensor], manner: Decoding, chosen: Chosen) -> Way:
    """The model writes on from one text; `chosen` gets every token as it comes. How attention came.

    UserError where the model yields no weights of its tokens, or is none that writes; MemoryError.
    """
    model.config.use_cache = True
    with model_errors(model.config.model_type), ExitStack() as afterwards:
        if not model.can_generate():
            raise CannotShow("it has no head that writes")
        way = way_of(model, {**inputs, **_first_of_decoder(model, inputs)})
        afterwards.enter_context(torch.random.fork_rng())
        torch.manual_seed(manner.seed)
        rows = LastRows(bool(model.config.is_encoder_decoder))
        if way == "eager":
            model = _eager_writer(model)
        afterwards.enter_context((_handed_over if way == "interface" else _returned)(model, rows))
        chunk = manner.prefill_chunk or _chunk_of_long(model, inputs["input_ids"].shape[1])
        options = (
            manner.options() | _full_cache(model) | ({} if chunk is None else {"prefill_chunk_size": chunk})
        )
        stops = StoppingCriteriaList([_Told(rows, chosen)])
        generate: Any = model.generate  # transformers leaves it without types
        generate(**inputs, **options, stopping_criteria=stops)
    return way


def _first_of_decoder(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A decoder's first token, where there are two stacks: what attention is tried on."""
    if not model.config.is_encoder_decoder:
        return {}
    return {"decoder_input_ids": torch.full((1, 1), start_token(model), device=inputs["input_ids"].device)}


def start_token(model: PreTrainedModel) -> int:
    """What a decoder reads before it has written anything."""
    start = decoder_start(model.generation_config, model.config)
    if start is None:
        raise CannotShow("neither of its configs has a decoder_start_token_id")
    return start


def _full_cache(model: PreTrainedModel) -> dict[str, DynamicCache]:
    """A cache that keeps what is beyond a sliding window, so that every key has its place."""
    is_windowed = DynamicSlidingWindowLayer in _kinds_of_cache(model)
    return {"past_key_values": DynamicCache()} if is_windowed else {}


def _kinds_of_cache(model: PreTrainedModel) -> set[type]:
    """Of each layer, where the cache is one of keys and values alone; else empty."""
    supports: Any = model._supports_default_dynamic_cache
    if model.config.is_encoder_decoder or not supports():
        return set()
    kinds = {type(layer) for layer in DynamicCache(config=model.config.get_text_config(decoder=True)).layers}
    return kinds if kinds <= {DynamicLayer, DynamicSlidingWindowLayer} else set()


def _chunk_of_long(model: PreTrainedModel, num_tokens: int) -> int | None:
    """A long prompt goes in pieces where that changes nothing.

    A state that is no cache of keys may not go on from a piece; rotations that depend on the length of what
    is read (dynamic, longrope) would be those of the piece.
    """
    if num_tokens <= LONG_CHUNK or not _kinds_of_cache(model):
        return None
    rope: Any = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {one.get("rope_type") for one in rope.values() if isinstance(one, dict)}
    return None if kinds & {"dynamic", "longrope"} else LONG_CHUNK


def _eager_writer(model: PreTrainedModel) -> PreTrainedModel:
    copy = eager_copy(model)
    copy.generation_config = model.generation_config
    return copy


@contextmanager
def _handed_over(model: PreTrainedModel, rows: LastRows) -> Iterator[None]:
    """Layers go to the rows by transformers' AttentionInterface."""
    hook = model.register_forward_pre_hook(lambda _module, _inputs: rows.begin())
    try:
        with handing_over(model, guarded(rows.take), rows.numbering):
            yield
    finally:
        hook.remove()


@contextmanager
def _returned(model: PreTrainedModel, rows: LastRows) -> Iterator[None]:
    """The model is asked for its weights at each run."""

    def ask(_module: nn.Module, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        rows.begin()
        return inputs, named | {"output_attentions": True}

    hooks = [
        model.register_forward_pre_hook(ask, with_kwargs=True),
        model.register_forward_hook(lambda _module, _inputs, outputs: rows.take_returned(outputs)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Told(StoppingCriteria):
    """Not a reason to stop: it is called when a token has been chosen."""

    def __init__(self, rows: LastRows, chosen: Chosen) -> None:
        self.rows, self.chosen = rows, chosen

    def __call__(self, input_ids: Tensor, scores: Any, **others: Any) -> Tensor:
        if not self.rows.layers:
            raise CannotShow("it gives no attention weights: it has none, or transformers hides them")
        self.chosen(int(input_ids[0, -1]), self.rows.layers)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
