"""Text generation with transformers' generate, with the attention rows of the query that chose each token.

The prompt is read with fused attention, which computes no weights; each layer's last query is kept until its
token is chosen. A model that runs only with its own eager attention returns dense weights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
)
from transformers.utils.generic import ModelOutput

from attncli.core.engines import FusedAttention
from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.row_tiles import GivenWeights
from attncli.errors import UserError, one_line_reason
from attncli.models.architectures import ROTATIONS_BY_LENGTH, WEIGHTS, decoder_start
from attncli.models.capture import (
    GIVES_NAN,
    NO_WEIGHTS,
    Way,
    capture_way,
    guarded,
    model_errors,
    returned_weights,
    weight_modules,
    weights_fault,
    with_eager_attention,
)
from attncli.models.child import made_in_child
from attncli.models.in_turn import random_state_restored
from attncli.models.layers import CannotShow, CapturedLayer, Numbering, ProcessedInputs, handing_over
from attncli.models.pretrained import Pretrained

LONG_CHUNK = 512
"""The number of tokens per chunk of a long prompt; a layer's intermediate results then take a few MB."""

APPLIED_SETTINGS = frozenset(
    {
        *("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id"),
        *("remove_invalid_values", "renormalize_logits"),
    }
)
"""Settings in a model's generation_config.json that apply here, too, without changing the likeliest token."""
SETTINGS_THAT_CHOOSE: Mapping[str, Any] = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "sequence_bias": None,
    "suppress_tokens": None,
    "watermarking_config": None,
}
"""Settings that apply and may change the likeliest token, each with the value that has no effect."""
SETTINGS_LEFT_OUT: Mapping[str, Any] = {
    "constraints": None,
    "dola_layers": None,
    "force_words_ids": None,
    "guidance_scale": 1.0,
    "max_time": None,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "token_healing": False,
}
"""Settings that would choose other tokens and are ignored, since one run of the model chooses one token here.

The caller decides how to sample; caches, candidates of drafts and the like do not change any token.
"""
LONGEST_SETTING = 24

OnToken = Callable[[int, Sequence[CapturedLayer]], None]
"""A function that receives each new token and, for every layer, the attention of the query that chose it."""


class TextPieces:
    """The text of tokens, passed on as they are generated, but only in whole characters."""

    def __init__(self, text_of: Callable[[list[int]], str], on_text: Callable[[str], None]) -> None:
        self._text_of, self._on_text = text_of, on_text
        self._num_handed_over = 0

    def take(self, ids: list[int]) -> None:
        """Take all tokens that have been generated so far."""
        text = self._text_of(ids)
        if not text.endswith("\ufffd"):
            self._on_text(text[self._num_handed_over :])
            self._num_handed_over = len(text)


def prompt_inputs(pretrained: Pretrained, ids: Int[Tensor, " token"]) -> dict[str, Tensor]:
    """Return the inputs of a model for a text that the model continues."""
    prompt = ids.unsqueeze(0).to(pretrained.device)
    return {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}


class LastRows:
    """The attention of the last `count` queries in each layer, from a decoder's last run."""

    def __init__(
        self, has_two_stacks: bool, count: int = 1, *, processed: ProcessedInputs | None = None
    ) -> None:
        self.count = count
        self.layers: list[CapturedLayer] = []
        self.fused = FusedAttention()
        origin = None if processed is None else processed.origin
        self.may_look_ahead = origin is not None and origin.kind.on_grid
        self.numbering = Numbering(has_two_stacks, None, part="" if processed is None else processed.part)

    def begin(self) -> None:
        """Forget the previous run. If a prompt is read in chunks, the last chunk counts."""
        self.layers = []
        self.fused.forget()
        self.numbering.taken.clear()

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """Keep the last rows.

        Return the output of fused attention, or None for replaced weights and for attention that fused
        attention cannot compute.
        """
        attention = layer.attention
        if isinstance(attention, GivenWeights):  # the caller replaced the weights, together with the output
            if layer.stack != "encoder":
                rows = GivenWeights(attention.weights[:, :, -self.count :], attention.seen[:, -self.count :])
                self.layers.append(replace(layer, attention=rows))
            return None
        if layer.stack != "encoder":
            is_self, num_queries = layer.kind == "self", attention.shape[2]
            if is_self and not self.may_look_ahead:  # tokens on a grid, by contrast, may see each other
                _refuse_the_future(layer.module, attention.visibility)
            last = query_rows(attention, max(0, num_queries - self.count), num_queries, is_self=is_self)
            self.layers.append(replace(layer, attention=last))
        return self.fused.output(attention)

    def take_returned(self, outputs: ModelOutput, sources: Mapping[Tensor, str]) -> None:
        """Keep the last rows of weights that eager attention returned, with the names of their modules."""
        for output, weights in returned_weights(outputs):
            stack, kind = WEIGHTS[output]
            name = sources.get(weights, output) if isinstance(weights, Tensor) else output
            if stack == "encoder":
                continue
            if fault := weights_fault(weights):
                raise CannotShow(f"it returns {fault}")
            sees_later = kind == "self" and weights.shape[2] > 1 and weights[:, :, 0, -1].max() > 0
            if sees_later and not self.may_look_ahead:
                raise CannotShow(f"{name} looks at later tokens: it can read text but not generate it")
            row = weights[:, :, -self.count :].clone()
            attention = GivenWeights(row, (row > 0).any(dim=1))
            self.layers.append(self.numbering.layer(name, kind, attention, stack))


def _refuse_the_future(module: str, visibility: Visibility) -> None:
    if visibility.num_queries == 1:
        return
    first, last = torch.tensor([0]), torch.tensor([visibility.num_keys - 1])
    if visibility.block(first, last).any():
        raise CannotShow(f"{module} looks at later tokens: it can read text but not generate it")


def query_rows(layer: AttentionLayer, first: int, stop: int, *, is_self: bool) -> AttentionLayer:
    """Return the attention of consecutive queries; in self-attention, only up to the last query's own key.

    The query is copied, because a view would keep the queries of the whole prompt in memory until a token is
    chosen.
    """
    seen = layer.visibility
    if not first and stop == seen.num_queries and seen.causal == is_self:
        return layer
    num_keys = seen.num_keys - (seen.num_queries - stop) * is_self
    rule, mask, bias = seen.rule, seen.key_mask, layer.rules.bias
    visibility = replace(
        seen,
        num_queries=stop - first,
        num_keys=num_keys,
        causal=is_self,
        key_mask=None if mask is None else mask[:, :num_keys],
        rule=None if rule is None else lambda queries, keys: rule(queries + first, keys),
        offset=None,
    )
    if bias is not None and bias.shape[2] > 1:
        bias = bias[:, :, first:stop, :num_keys].clone()
    return replace(
        layer,
        query=layer.query[:, :, first:stop].clone(),
        key=layer.key[:, :, :num_keys],
        value=layer.value[:, :, :num_keys],
        visibility=visibility,
        rules=replace(layer.rules, bias=bias),
    )


@dataclass(frozen=True)
class Decoding:
    """The choice of tokens: the likeliest, or one sampled from the likeliest with a seed and a temperature.

    Without `max_new_tokens`, the model's generation_config.json sets the limit.
    """

    max_new_tokens: int | None
    temperature: float | None = None
    top_p: float | None = None
    seed: int = 0
    prefill_chunk: int | None = None

    def config(self, of_model: GenerationConfig) -> GenerationConfig:
        """Return the config for transformers, from these settings and those of the model that apply."""
        config: Any = deepcopy(of_model)
        for name in vars(GenerationConfig()):  # type: ignore[no-untyped-call] # transformers does not annotate it
            if not name.startswith("_") and name not in APPLIED_SETTINGS and name not in SETTINGS_THAT_CHOOSE:
                setattr(config, name, None)
        config.max_new_tokens, config.num_beams, config.use_cache = self.max_new_tokens, 1, True
        if self.max_new_tokens is None:
            config.max_length = of_model.max_length
        if hasattr(of_model, "return_timestamps"):  # Whisper has these tokens; they would be words
            config.return_timestamps = False
        config.do_sample = self.temperature is not None or self.top_p is not None
        if config.do_sample:
            config.temperature, config.top_p, config.top_k = self.temperature or 1.0, self.top_p or 1.0, 0
        decoding: GenerationConfig = config
        return decoding


def settings_notes(config: GenerationConfig) -> list[str]:
    """Return notes on the settings in a model's generation_config.json that change tokens or are ignored."""
    notes = []
    if chooses := _settings(config, SETTINGS_THAT_CHOOSE):
        notes.append(f"The model's generation_config.json affects the choice of tokens: {chooses}.")
    if left_out := _settings(config, SETTINGS_LEFT_OUT):
        notes.append(f"These settings in the model's generation_config.json are ignored: {left_out}.")
    return notes


def _settings(config: GenerationConfig, neutral: Mapping[str, Any]) -> str:
    """Return the settings that have an effect, without long values:

    `repetition_penalty 1.2, suppress_tokens`.
    """
    values = {name: getattr(config, name, None) for name in neutral}
    texts = {name: str(value) for name, value in values.items() if value not in (None, neutral[name])}
    return ", ".join(
        f"{name} {text}" if len(text) <= LONGEST_SETTING else name for name, text in texts.items()
    )


class Writer(NamedTuple):
    """The module that runs for each new token (the model or a part of it), with its name."""

    model: PreTrainedModel
    part: str = ""


def generating_part(model: PreTrainedModel) -> Writer:
    """Return the model, or the part to which its generate delegates (BLIP)."""
    if isinstance(model, GenerationMixin) and type(model).generate is GenerationMixin.generate:
        return Writer(model)
    parts = [
        Writer(module, f"{name}.")
        for name, module in model.named_modules()
        if name and isinstance(module, PreTrainedModel) and module.can_generate()
    ]
    return parts[0] if len(parts) == 1 else Writer(model)


@torch.no_grad()
def write(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    decoding: Decoding,
    on_token: OnToken,
    tokenizer: PreTrainedTokenizerBase | None = None,
    cache: DynamicCache | None = None,
    meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Way:
    """Let the model continue one text; `on_token` receives every token. Returns the way of capture.

    The tokenizer is needed for models that stop at a string rather than a token. Afterwards, a `cache` from
    `whole_cache` holds the keys of the prompt and the generated tokens. `meanwhile` is open while the model
    generates. Raises UserError if the model returns no weights for its tokens or cannot generate, and
    MemoryError if memory runs out.
    """
    model.config.use_cache = True
    kind = model.config.model_type
    with ExitStack() as cleanup:
        with model_errors(kind):
            if not model.can_generate():
                raise CannotShow("it has no language-modelling head, so it cannot generate text")
            writer, way = generating_part(model).model, Way("eager")
            if writer is model:
                way = capture_way(model, _first_inputs(model, inputs))
        cleanup.enter_context(model_errors(kind, "continue a text with transformers' generate"))
        cleanup.enter_context(random_state_restored())
        torch.manual_seed(decoding.seed)
        stop_strings = writer.generation_config.stop_strings or ()
        stop_strings = (stop_strings,) if isinstance(stop_strings, str) else stop_strings
        cleanup.enter_context(_generating_by(writer, decoding.config(writer.generation_config)))
        processed = inputs if isinstance(inputs, ProcessedInputs) else None
        rows = LastRows(bool(model.config.is_encoder_decoder), processed=processed)
        if way.kind == "interface":
            hook = writer.register_forward_pre_hook(lambda _module, _inputs: rows.begin())
            cleanup.enter_context(hook)
            cleanup.enter_context(handing_over(model, guarded(rows.take), rows.numbering))
        else:
            cleanup.enter_context(with_eager_attention(model))
            cleanup.enter_context(handing_over_weights(writer, rows))
        # Processed inputs are not split: their numbers may belong to tokens of two chunks.
        num_tokens = 0 if processed is not None else inputs["input_ids"].shape[1]
        options = _cache_options(writer, num_tokens, decoding.prefill_chunk, cache)
        options |= _own_options(model, writer.generation_config)
        watcher = _TokenWatcher(rows, on_token)
        watchers = StoppingCriteriaList([watcher])
        if stop_strings:
            if tokenizer is None:
                raise UserError(
                    "tokenizer: is required, since the model stops at certain strings (stop_strings)"
                )
            watchers.append(_EndOfText(tokenizer, stop_strings))
        generate: Any = model.generate  # transformers does not annotate it
        with meanwhile():
            generate(
                **inputs,
                **options,
                stopping_criteria=watchers,
                logits_processor=LogitsProcessorList([_check_numbers]),
            )
        if not watcher.num_tokens:
            raise CannotShow("its own generate does not report when it has generated a token")
    return way


def _own_options(model: PreTrainedModel, config: GenerationConfig) -> dict[str, Any]:
    """Return options that a model's own generate (Whisper's) takes only as arguments, not from a config."""
    kind: Any = type(model)  # transformers does not annotate generate
    taken = signature(kind.generate).parameters
    return {"temperature": config.temperature} if config.do_sample and "temperature" in taken else {}


def _first_inputs(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a model's inputs before it generates, such as a decoder's start token."""
    if not model.config.is_encoder_decoder:
        return inputs
    device = next(iter(inputs.values())).device
    start = {"decoder_input_ids": torch.full((1, 1), start_token(model), device=device)}
    if not isinstance(inputs, ProcessedInputs):
        return {**inputs, **start}
    return ProcessedInputs({**inputs, **start}, num_tokens=(1, inputs.num_tokens[1]))


@contextmanager
def _generating_by(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Inside the block, let the model generate with this config.

    Passing the config does not suffice: where the config has a None, generate uses the model's config.
    """
    before, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = before


def start_token(model: PreTrainedModel) -> int:
    """Return the token that a decoder reads first."""
    start = decoder_start(model.generation_config, model.config)
    if (
        start is None and not model.config.is_encoder_decoder
    ):  # this is a decoder part that reads another part's output
        start = getattr(model.config, "bos_token_id", None)
    if start is None:
        raise CannotShow("neither of its configs has a decoder_start_token_id")
    return start


@contextmanager
def handing_over_weights(model: PreTrainedModel, rows: LastRows) -> Iterator[None]:
    """Inside the block, pass the weights of the model's eager attention to `rows` in each run."""

    def ask_for_weights(_module: nn.Module, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        rows.begin()
        return inputs, named | {"output_attentions": True}

    with weight_modules(model) as sources, ExitStack() as hooks:
        hooks.enter_context(model.register_forward_pre_hook(ask_for_weights, with_kwargs=True))
        take = model.register_forward_hook(lambda _m, _inputs, outputs: rows.take_returned(outputs, sources))
        hooks.enter_context(take)
        yield


class WholeCache(NamedTuple):
    """A cache that keeps keys beyond a sliding window, so that every key has its position.

    `is_changed` is True if the model's default cache would drop keys. `may_be_cut` is True if a text may
    continue from a part of the cache; this excludes states other than keys and values, and rotations that
    depend on the length of the text (dynamic, longrope).
    """

    cache: DynamicCache
    is_changed: bool
    may_be_cut: bool


def whole_cache(model: PreTrainedModel) -> WholeCache | None:
    """Return an empty cache for a decoder, or None for a model without such a cache."""
    if not model.can_generate():  # only models that generate text declare their cache
        return None
    supports: Any = model._supports_default_dynamic_cache
    if not supports():
        return None
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    whole = [_without_window(layer) for layer in cache.layers]
    is_changed = whole != cache.layers
    if is_changed:
        cache.layers = whole
    rope: Any = getattr(config, "rope_parameters", None) or {}
    rope_types = {
        settings.get("rope_type") for settings in (rope, *rope.values()) if isinstance(settings, dict)
    }
    has_only_keys = {type(layer) for layer in whole} <= {DynamicLayer, DummyLayer}
    may_be_cut = (
        has_only_keys and not model.config.is_encoder_decoder and not rope_types & ROTATIONS_BY_LENGTH
    )
    return WholeCache(cache, is_changed, may_be_cut)


def _cache_options(
    model: PreTrainedModel, num_tokens: int, prefill_chunk: int | None, cache: DynamicCache | None
) -> dict[str, Any]:
    """Return options for the cache and for reading a long prompt in chunks.

    The cache is the caller's, or a `WholeCache` if the model's own cache would drop keys. A long prompt is
    read in chunks if that changes no result. Raises UserError if `prefill_chunk` is passed for a model whose
    results may change.
    """
    whole = whole_cache(model)
    options: dict[str, Any] = {} if cache is None else {"past_key_values": cache}
    if whole is not None and whole.is_changed and cache is None:
        is_pair = bool(model.config.is_encoder_decoder)
        options["past_key_values"] = (
            EncoderDecoderCache(whole.cache, DynamicCache()) if is_pair else whole.cache
        )
    may_be_cut = whole is not None and whole.may_be_cut
    if prefill_chunk is not None and not may_be_cut:
        kind = model.config.model_type
        raise UserError(
            f"prefill_chunk: {kind} may give different results if it reads in chunks: omit `prefill_chunk`"
        )
    if prefill_chunk is None and num_tokens > LONG_CHUNK and may_be_cut:
        prefill_chunk = LONG_CHUNK
    return options if prefill_chunk is None else options | {"prefill_chunk_size": prefill_chunk}


def _without_window(layer: Any) -> Any:
    """Return a cache layer that keeps all keys, in place of one that keeps only a window."""
    if type(layer) is DynamicSlidingWindowLayer:
        return DynamicLayer()  # type: ignore[no-untyped-call] # transformers does not annotate it
    if type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
        return LinearAttentionAndFullAttentionLayer(number_of_states=layer.number_of_states)
    return layer


def _check_numbers(input_ids: Tensor, scores: Tensor) -> Tensor:
    """Return the scores of the next token.

    Raises CannotShow for NaN, which transformers turns into token 0.
    """
    if bool(scores.isnan().any()):
        raise CannotShow(f"it {GIVES_NAN}")
    return scores


class _TokenWatcher(StoppingCriteria):
    """A stopping criterion that never stops: transformers calls it whenever a token has been chosen."""

    def __init__(self, rows: LastRows, on_token: OnToken) -> None:
        self.rows, self.on_token = rows, on_token
        self.num_tokens = 0

    def __call__(self, input_ids: Tensor, scores: Any, **others: Any) -> Tensor:
        if not self.rows.layers:
            raise CannotShow(NO_WEIGHTS)
        self.num_tokens += 1
        self.on_token(int(input_ids[0, -1]), self.rows.layers)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class _EndOfText(StoppingCriteria):
    """Stops when the new text contains one of these strings; transformers' class fails on word tokenizers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: Sequence[str]) -> None:
        self.tokenizer, self.strings = tokenizer, strings
        self.written: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Any, **others: Any) -> Tensor:
        self.written.append(int(input_ids[0, -1]))
        text = str(self.tokenizer.decode(self.written))
        is_over = any(string in text for string in self.strings)
        return torch.full((len(input_ids),), is_over, device=input_ids.device)


MOST_REASON = 300
MOST_COPIES, MOST_WRITTEN = 4, 10**6
"""The number of times that a template may repeat the text, and the number of characters that it may add."""


Messages = str | Sequence[Mapping[str, Any]]
"""A user's message, or several messages, each with its role and content."""


def in_chat_template(
    messages: Messages, pretrained: Pretrained, tools: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return messages in the model's chat template.

    A template is a program: a separate process renders it, and is stopped if it takes too much time or
    memory. Raises UserError for any failure there.
    """
    if not pretrained.tokenizer.chat_template:
        raise UserError(f"chat: {pretrained.name} has no chat template: omit `chat`")
    try:
        return made_in_child(lambda: _rendered(messages, tools, pretrained))
    except ValueError as error:
        raise UserError(f"chat: the chat template of {pretrained.name} fails: {error}") from None


def _rendered(messages: Messages, tools: Sequence[Mapping[str, Any]], pretrained: Pretrained) -> str:
    """Return the whole prompt. Raises ValueError with a one-line message if the template fails."""
    chat: list[Any] = [{"role": "user", "content": messages}] if isinstance(messages, str) else [*messages]
    length = sum(len(str(message.get("content"))) for message in chat) + sum(len(str(tool)) for tool in tools)
    try:
        whole = pretrained.tokenizer.apply_chat_template(
            chat, tools=list[Any](tools) or None, tokenize=False, add_generation_prompt=True
        )
    except MemoryError:
        raise
    except Exception as error:  # third-party code may fail in any way
        raise ValueError(one_line_reason(error)[:MOST_REASON]) from None
    assert isinstance(whole, str)
    if len(whole) > length * MOST_COPIES + MOST_WRITTEN:
        raise ValueError(f"it turns {length:,} characters into {len(whole):,}")
    return whole
