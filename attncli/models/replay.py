"""Replay of a given answer (teacher forcing): where the model looks, and how likely the answer is.

Prompts that begin alike share a cache if the model's cache may be cut. Many such prompts are read together.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from attncli.core.layer import AttentionLayer
from attncli.core.predictions import token_losses
from attncli.core.row_tiles import GivenWeights
from attncli.errors import refuse_bytes
from attncli.models.architectures import LOGITS_TO_KEEP
from attncli.models.capture import (
    NO_WEIGHTS,
    Way,
    capture_way,
    guarded,
    model_errors,
    with_eager_attention,
)
from attncli.models.layers import CannotShow, CapturedLayer, Numbering, handing_over
from attncli.models.packed_prompts import Pack, PackedAttention, num_alike, packs, select_keys
from attncli.models.targets import Target
from attncli.models.writing import (
    LONG_CHUNK,
    LastRows,
    handing_over_weights,
    query_rows,
    start_token,
    whole_cache,
)

BYTES_PER_LOGIT = 12
"""Bytes of an answer's logits in float32 and some of its log-probabilities in float64."""
LEAST_PACKED = 8
"""The fewest prompts that are read together. One of these is also read alone, to compare the two results.
"""
SAME_NATS = 1e-3
"""Largest difference allowed between these results, per token of the answer: far above rounding."""
POSITIONS = "position_ids"


class Replay:
    """A model that reads a prompt followed by an answer; an encoder, if there is one, reads the prompt.

    The target's cache comes from `whole_cache`. Raises UserError for a model that cannot generate, and
    MemoryError if memory runs out.
    """

    def __init__(self, model: PreTrainedModel, prompt: Int[Tensor, " token"], target: Target) -> None:
        self.model, self.prompt, self.answer = model, prompt, torch.tensor(target.ids)
        self.is_pair = bool(model.config.is_encoder_decoder)
        model.config.use_cache = True
        vocabulary = model.config.get_text_config().vocab_size
        refuse_bytes("answer", len(self.answer) * vocabulary * BYTES_PER_LOGIT, "a shorter answer")
        kind = model.config.model_type
        with torch.no_grad(), model_errors(kind):
            if not model.can_generate():
                raise CannotShow("it has no language-modelling head, so it cannot generate text")
            self.way: Way = capture_way(model, self._inputs(prompt))
        self._keeps_logits = LOGITS_TO_KEEP in inspect.signature(model.forward).parameters
        empty = whole_cache(model)
        self._empty = empty.cache if empty is not None and empty.may_be_cut else None
        self._read: dict[str, tuple[Tensor, DynamicCache]] = {}
        self._may_pack = self._empty is not None and self.way.kind == "interface"
        self._is_checked = False
        self._may_pack = self._may_pack and POSITIONS in inspect.signature(model.forward).parameters
        if target.cache is not None and self._empty is not None:
            self._read["whole"] = self._ids(prompt)[: target.cache.get_seq_length()], target.cache

    @property
    def shares_prompts(self) -> bool:
        """True if prompts that begin alike share a cache."""
        return self._empty is not None

    @property
    def is_read(self) -> bool:
        """True if the prompt was already read by the model that generated the answer."""
        return bool(self._read)

    def layers(self) -> tuple[list[CapturedLayer], Float[Tensor, " new"]]:
        """Return the attention of the queries that chose the answer's tokens, and their log-probabilities."""
        rows = LastRows(self.is_pair, len(self.answer))
        log_probabilities = self._log_probabilities(self.prompt, rows, "whole")
        kind = "cross" if self.is_pair else "self"
        return [layer for layer in rows.layers if layer.kind == kind], log_probabilities

    def log_probabilities(self, prompt: Int[Tensor, " token"]) -> Float[Tensor, " new"]:
        """Return ln p of each token of the answer after another prompt, in float64."""
        return self._log_probabilities(prompt, LastRows(self.is_pair), "last")

    def each_log_probabilities(self, prompts: Sequence[Tensor]) -> Iterator[Float[Tensor, " new"]]:
        """Yield the log-probabilities after each of several prompts (token) in turn.

        Neighbouring prompts share their common beginning. Many prompts are read together, provided that one
        of the prompts then has the same result as when it is read alone.
        """
        texts = [_placed(self._ids(prompt)) for prompt in prompts]
        return self._each(texts, lambda number: self.log_probabilities(prompts[number]))

    def each_hiding(self, hidden: Bool[Tensor, "run token"]) -> Iterator[Float[Tensor, " new"]]:
        """Yield the log-probabilities after the prompt with some tokens hidden from all others."""
        seen = torch.nn.functional.pad(~hidden, (0, len(self.answer) - 1), value=True)
        whole = _placed(self._ids(self.prompt))
        texts = [] if self.is_pair else [whole[:, visible] for visible in seen]
        return self._each(texts, lambda number: self._hiding(hidden[number]), len(hidden))

    def _each(
        self, texts: Sequence[Tensor], alone: Callable[[int], Tensor], num_texts: int | None = None
    ) -> Iterator[Float[Tensor, " new"]]:
        """Yield the results for texts (2, token), computed together or one by one."""
        num_texts = len(texts) if num_texts is None else num_texts
        longest = max((text.shape[1] for text in texts), default=0)
        may_pack = self._may_pack and "whole" in self._read
        if num_texts < LEAST_PACKED or not may_pack or longest > LONG_CHUNK:
            yield from map(alone, range(num_texts))
            return
        count = 0
        for rows in self._packed(texts):
            if not self._is_checked:
                checked = alone(count + len(rows) - 1)
                if not ((rows[-1] - checked).abs() <= SAME_NATS * checked.abs().clamp(min=1)).all():
                    break
                self._is_checked = True
            yield from rows
            count += len(rows)
        if count < num_texts:
            self._may_pack = False
            yield from map(alone, range(count, num_texts))

    @torch.no_grad()
    def _packed(self, texts: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Yield the log-probabilities of a few texts at a time; stop if a layer has an unsupported rule."""
        ids, cache = self._read["whole"]
        count = len(self.answer)
        for pack in packs(_placed(ids), texts, [text.shape[1] - count for text in texts]):
            cache = select_keys(cache, pack.before)
            logits = self._pack_logits(pack, cache)
            if logits is None:
                return
            yield [-token_losses(logits(columns[-count:]), self.answer).cpu() for columns in pack.texts]

    @torch.no_grad()
    def _hiding(self, hidden: Bool[Tensor, " token"]) -> Float[Tensor, " new"]:
        inputs = self._inputs(self.prompt)
        seen = torch.ones_like(inputs["input_ids"])
        seen[0, : len(hidden)] = ~hidden
        inputs["attention_mask"] = seen
        if POSITIONS in inspect.signature(self.model.forward).parameters:
            inputs[POSITIONS] = torch.arange(seen.shape[1], device=seen.device).unsqueeze(0)
        with self._running(LastRows(self.is_pair)):
            logits = self.model(**inputs, use_cache=False).logits[0, -len(self.answer) :]
        return -token_losses(logits, self.answer).cpu()

    def _pack_logits(self, pack: Pack, cache: DynamicCache) -> Callable[[Tensor], Tensor] | None:
        """Return the logits at columns of a pack, whose keys join the cache; None for unsupported rules."""
        attention, numbering = PackedAttention(pack, self.model), Numbering(False, None)
        device, count, before = self.model.device, len(self.answer), pack.num_before
        chosen = torch.cat([columns[-count:] for columns in pack.texts])
        chosen = torch.unique(chosen)
        options = {LOGITS_TO_KEEP: (chosen - before).to(device)} if self._keeps_logits else {}
        inputs = {"input_ids": pack.ids, POSITIONS: pack.positions}
        rows = {name: torch.tensor([row], device=device) for name, row in inputs.items()}
        kind = self.model.config.model_type
        consume = guarded(attention.take)
        with model_errors(kind, "read an answer"), handing_over(self.model, consume, numbering):
            output = self.model(**rows, past_key_values=cache, use_cache=True, **options)
        logits = output.logits[0] if self._keeps_logits else output.logits[0, chosen - before]
        if not attention.is_supported:
            return None
        return lambda columns: logits[torch.searchsorted(chosen, columns)]

    def _ids(self, prompt: Int[Tensor, " token"]) -> Int[Tensor, " read"]:
        """Return the decoder input that predicts the answer: everything but the answer's last token."""
        return torch.cat([prompt, self.answer[:-1]])

    def _inputs(self, prompt: Int[Tensor, " token"]) -> dict[str, Tensor]:
        """Return the whole input, for a model without a cache."""
        device = self.model.device
        if not self.is_pair:
            return {"input_ids": self._ids(prompt).unsqueeze(0).to(device)}
        ids = torch.cat([torch.tensor([start_token(self.model)]), self.answer[:-1]])
        return {
            "input_ids": prompt.unsqueeze(0).to(device),
            "decoder_input_ids": ids.unsqueeze(0).to(device),
        }

    @torch.no_grad()
    def _log_probabilities(
        self, prompt: Int[Tensor, " token"], rows: LastRows, name: str
    ) -> Float[Tensor, " new"]:
        with self._running(rows):
            if self._empty is None:
                logits = self.model(**self._inputs(prompt), use_cache=False).logits[0, -len(self.answer) :]
            else:
                logits = self._continued(prompt, name)
        return -token_losses(logits, self.answer).cpu()

    def _continued(self, prompt: Int[Tensor, " token"], name: str) -> Float[Tensor, "new vocabulary"]:
        """Return the logits of the answer without rereading tokens shared with an earlier prompt."""
        assert self._empty is not None
        ids, count = self._ids(prompt), len(self.answer)
        shared, cache = 0, copy(self._empty)
        cache.layers = [copy(layer) for layer in self._empty.layers]
        for before, earlier in self._read.values():
            alike = min(num_alike(before[None], ids[None]), len(prompt) - 1)
            if alike > shared:
                shared, cache = alike, _cut(earlier, alike)
        # Long prompts are read in chunks; the last chunk contains the whole answer.
        last = max(shared, len(ids) - count - LONG_CHUNK)
        starts = [*range(shared, last, LONG_CHUNK), last]
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            options = {LOGITS_TO_KEEP: count if stop == len(ids) else 1} if self._keeps_logits else {}
            piece = ids[start:stop].unsqueeze(0).to(self.model.device)
            output = self.model(input_ids=piece, past_key_values=cache, use_cache=True, **options)
        self._read[name] = ids, cache
        logits: Tensor = output.logits[0, -count:]
        return logits

    @contextmanager
    def _running(self, rows: LastRows) -> Iterator[None]:
        """Inside the block, let attn compute the model's attention, or the model compute it eagerly."""
        with ExitStack() as opened:
            opened.enter_context(model_errors(self.model.config.model_type, "read an answer"))
            if self.way.kind == "interface":
                hook = self.model.register_forward_pre_hook(lambda _module, _inputs: rows.begin())
                opened.enter_context(hook)
                opened.enter_context(handing_over(self.model, guarded(rows.take), rows.numbering))
            else:
                opened.enter_context(with_eager_attention(self.model))
                opened.enter_context(handing_over_weights(self.model, rows))
            yield
            if not rows.layers:
                raise CannotShow(NO_WEIGHTS)


def _placed(ids: Int[Tensor, " token"]) -> Int[Tensor, "2 token"]:
    """Return tokens and their positions, as two rows."""
    return torch.stack([ids, torch.arange(len(ids))])


def _cut(cache: DynamicCache, num_tokens: int) -> DynamicCache:
    """Return a cache's first tokens. The cache is not changed: appended tokens go into new tensors."""
    cut = copy(cache)
    cut.layers = [copy(layer) for layer in cache.layers]
    for layer in cut.layers:
        if not isinstance(layer, DynamicLayer):
            continue
        if layer.keys is not None and layer.values is not None:
            layer.keys, layer.values = layer.keys[..., :num_tokens, :], layer.values[..., :num_tokens, :]
    return cut


def with_queries(layer: CapturedLayer, first: int, stop: int) -> CapturedLayer:
    """Return a layer with some of its queries and, in self-attention, without keys after the last query."""
    attention, is_self = layer.attention, layer.kind == "self"
    if isinstance(attention, AttentionLayer):
        return replace(layer, attention=query_rows(attention, first, stop, is_self=is_self))
    num_queries, num_keys = attention.shape[2:]
    keys = num_keys - (num_queries - stop) * is_self
    rows = attention.weights[:, :, first:stop, :keys], attention.seen[:, first:stop, :keys]
    return replace(layer, attention=GivenWeights(*rows))


def token_rows(layers: Sequence[CapturedLayer], num_tokens: int) -> Iterator[list[CapturedLayer]]:
    """Yield, for each token of the answer, all layers with only the query that chose the token."""
    for place in range(num_tokens):
        yield [with_queries(layer, place, place + 1) for layer in layers]
