"""A pretrained model and its tokenizer: tokens and words of texts, the prediction head, and inputs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from attncli.core.process import ALONE
from attncli.core.row_tiles import GivenWeights
from attncli.core.rows import merged_into_words
from attncli.errors import UserError
from attncli.index import readings
from attncli.models.architectures import (
    BLANKS,
    PIXELS,
    POSITIONS,
    SOUNDS,
    TOWERS,
    Predicts,
    forward_arguments,
    has_two_stacks,
    layers_without_softmax,
    predicted_tokens,
    takes_alone,
    unshown_layers,
)
from attncli.models.encoding import check_encoded, tokenizer_errors, unknown_tokens, unknown_words
from attncli.models.folder import IDS_INSTEAD, read_config
from attncli.models.layers import CapturedLayer, ProcessedInputs
from attncli.models.token_places import Origin
from attncli.models.words import Spans, UnknownWord, Words, unknown_notes
from attncli.records.report import Picture
from attncli.records.token_ids import TokenIds

FIRST_WORD_ID = 2**32
"""A number larger than any id of a vocabulary."""
GRID_INPUT = "hidden_states"
"""The name of the input of a model part that reads a grid row by row."""


ROLES = ("bos", "eos", "cls", "sep", "pad", "mask", "unk", "decoder_start")
"""The roles of special tokens in a model's settings, as in `cls_token_id`."""
CLS = "[CLS]"
"""The name of the token that stands for the whole input."""


@dataclass(frozen=True)
class ModelText:
    """The tokens of a text as a model reads it, including special tokens: vocabulary names and ids.

    `left_out` is the number of tokens that are cut off because the model cannot read more: the last tokens of
    the text, or the first ones if its tokenizer cuts there. If requested, `words` holds the words of the
    tokens and `spans` the characters of each token. `is_merged` is True if the tokens are already words, and
    `is_labelled` is True if they are labels that came with the ids. `origin` holds the places of tokens that
    are not text; each of these has a different id. `unknown` holds the words that the vocabulary lacks.
    """

    tokens: tuple[str, ...]
    ids: Int[Tensor, " token"]
    left_out: int = 0
    words: Words | None = None
    is_merged: bool = False
    is_labelled: bool = False
    left_out_side: Literal["first", "last"] = "last"
    spans: Spans | None = None
    origin: Origin | None = None
    unknown: tuple[UnknownWord, ...] = ()

    def in_words(self) -> "ModelText":
        """The text with words instead of tokens, if words were requested.

        Equal words, in this text or in texts with the same tokens, share an id, which is the token's id if
        the word is a single token.
        """
        if self.words is None:
            return self
        pieces: list[tuple[int, ...]] = [()] * len(self.words.texts)
        for word, token_id in zip(self.words.of_token, self.ids.tolist(), strict=True):
            pieces[word] += (token_id,)
        numbers = {several: FIRST_WORD_ID + n for n, several in enumerate(dict.fromkeys(pieces))}
        word_ids: dict[str, int] = {}
        for word_text, several in zip(self.words.texts, pieces, strict=True):
            word_ids.setdefault(word_text, several[0] if len(several) == 1 else numbers[several])
        ids = [word_ids[word_text] for word_text in self.words.texts]
        merged = replace(self, tokens=self.words.texts, ids=torch.tensor(ids), words=None, spans=None)
        return replace(merged, is_merged=True)


@dataclass(frozen=True)
class Reading:
    """A model's input; if the model has an encoder and a decoder, the encoder reads the context.

    `repeat` is the length of r if the text is the repeated probe. `inputs` are arguments of the model's
    forward other than ids, such as pixels; in that case, only layers of the model's `part` see the tokens, or
    all layers if `part` is empty. `num_before` is the number of tokens in the text before the words that a
    decoder generates.
    """

    text: ModelText
    context: ModelText | None = None
    repeat: int | None = field(default=None, kw_only=True)
    inputs: Mapping[str, Tensor] | None = field(default=None, kw_only=True)
    part: str = field(default="", kw_only=True)
    num_before: int = field(default=0, kw_only=True)

    @property
    def counts(self) -> tuple[int, int]:
        """The token counts of the text and of the context, which are equal for all readings in a batch."""
        return len(self.text.ids), 0 if self.context is None else len(self.context.ids)

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shapes of `inputs`, which are equal for all readings in a batch."""
        return tuple(tensor.shape for tensor in (self.inputs or {}).values())

    @property
    def is_alone(self) -> bool:
        """True if it cannot share a batch, as with a grid read row by row, whose input has no text axis."""
        return GRID_INPUT in (self.inputs or {})

    @property
    def origin(self) -> Origin | None:
        """The origin of the text or else of the context, or None for plain text."""
        return self.text.origin or (None if self.context is None else self.context.origin)

    @property
    def on_grid(self) -> bool:
        """True if the tokens of the text (or else of the context) lie on a grid."""
        return self.origin is not None and self.origin.kind.on_grid

    def drawn(self) -> tuple[Picture, ...]:
        """Return the pictures that a page shows beside maps of the tokens."""
        if self.origin is None:
            return ()
        return self.origin.drawn("context_tokens" if self.text.origin is None else "tokens")

    def in_words(self) -> "Reading":
        """Return the reading with words instead of tokens, if words were requested."""
        context = None if self.context is None else self.context.in_words()
        return Reading(
            self.text.in_words(),
            context,
            repeat=self.repeat,
            inputs=self.inputs,
            part=self.part,
            num_before=self.num_before,
        )

    @property
    def unknown(self) -> tuple[UnknownWord, ...]:
        """The words of the text and of the context that the vocabulary lacks."""
        return self.text.unknown + (() if self.context is None else self.context.unknown)

    def left_out_notes(self) -> list[str]:
        """Return notes on cut-off tokens, on words that the vocabulary lacks, and on how a file was read."""
        texts = {"text": self.text, "context": None if self.context is self.text else self.context}
        return [
            f"The {text.left_out_side} {text.left_out} tokens of the {name} are left out: "
            f"the model reads {len(text.ids)}."
            for name, text in texts.items()
            if text is not None and text.left_out
        ] + [
            *unknown_notes(self.unknown),
            *(() if self.origin is None else self.origin.notes),
        ]


@dataclass(frozen=True)
class Pretrained:
    """A model in evaluation mode, without its head (attention needs no logits), and its tokenizer.

    `with_head` is the model with the head that predicts tokens, if that was requested and is present;
    `classifier` is an encoder with its classification head. `lent` is a caller's model, which is measured in
    its present state and left unchanged. `source` is the model's folder, whose processor reads files other
    than text, or that processor itself. `is_in_use` is True if the caller guarantees that only this thread
    uses the model. `no_tokenizer` is the reason why its tokenizer could not be opened.
    """

    name: str
    model: PreTrainedModel
    own_tokenizer: PreTrainedTokenizerBase | None
    with_head: PreTrainedModel | None = None
    classifier: PreTrainedModel | None = None
    lent: PreTrainedModel | None = None
    source: Any = None
    is_in_use: bool = False
    no_tokenizer: str = ""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer. Raises UserError for a model without one, which cannot read text."""
        if self.own_tokenizer is not None:
            return self.own_tokenizer
        if self.model.main_input_name != "input_ids":
            raise UserError(self._takes_no_text)
        if self.source is None:
            got = "tokenizer: must be the loaded model's transformers tokenizer (got none)"
            raise UserError(f"{got}; without it, {IDS_INSTEAD}")
        why = f" ({self.no_tokenizer})" if self.no_tokenizer else ""
        raise UserError(f"model: {self.name} has no tokenizer{why}: {IDS_INSTEAD}")

    @property
    def _takes_no_text(self) -> str:
        """Return the error for a model whose main input is not text, naming the setting for that input."""
        takes = self.model.main_input_name
        fitting = ((what, kind.setting) for what, kind in readings().items() if takes in kind.inputs)
        instead = next((f": pass a {what} with `{setting}`" for what, setting in fitting), "")
        return f"model: {self.name} takes {takes}, not text{instead}"

    @property
    def whole(self) -> PreTrainedModel:
        """The model, with its head if it was loaded with one."""
        return self.with_head or self.model

    @cached_property
    def _names_without_head(self) -> dict[str, str]:
        modules = self.whole.named_modules()
        prefix = next(name for name, module in modules if module is self.model)
        names = (name for name, _ in self.model.named_modules() if name)
        return {f"{prefix}.{name}": name for name in names} if prefix else {}

    def module_name(self, name: str) -> str:
        """Return the name of a module of `whole` or `model` in results: if possible, its name in `model`."""
        return self._names_without_head.get(name, name)

    def name_in_whole(self, name: str) -> str:
        """Return a module's name in the model with its head, even if that model is not loaded."""
        if self._names_without_head:
            return next(whole for whole, part in self._names_without_head.items() if part == name)
        kind, prefix = type(self.model).__name__, self.model.base_model_prefix
        has_head = self.with_head is None and kind not in (self.model.config.architectures or (kind,))
        return f"{prefix}.{name}" if has_head and prefix else name

    @cached_property
    def predicts(self) -> Predicts | None:
        """The kind of tokens that the model predicts, or None without a head."""
        return None if self.with_head is None else predicted_tokens(self.with_head)

    @cached_property
    def unshown_layers(self) -> str:
        """A sentence on the layers that have no weights, or an empty string if all layers have weights."""
        return unshown_layers(self.model)

    def layer_mixer(self, layer: int) -> str | None:
        """Return the mechanism that mixes tokens in a layer without attention, or None for other layers."""
        mixed, _ = layers_without_softmax(self.model)
        mixers = (mixer for (mixer, is_beside), layers in mixed.items() if layer in layers and not is_beside)
        return next(mixers, None)

    @property
    def has_decoder(self) -> bool:
        """True if the model has an encoder and a decoder and therefore reads two texts."""
        return has_two_stacks(self.model)

    @property
    def num_layers(self) -> int:
        """Return the number of layers in a stack according to the model's config, or 1 if it has none."""
        layers = getattr(self.model.config.get_text_config(), "num_hidden_layers", None)
        return layers if isinstance(layers, int) else 1

    @cached_property
    def token_spelling(self) -> str | None:
        """The vocabulary's spelling of a space: byte-level (`Ġ`), metaspace (`▁`), or None for others."""
        if self.own_tokenizer is None:
            return None
        with tokenizer_errors(self.name):
            written = "".join(self.tokenizer.tokenize("a b"))
        return next((name for mark, name in BLANKS.items() if mark in written), None)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that have a role (bos, sep, ...) or that the tokenizer's file marks as special.

        Without a tokenizer, these are the ids that have a role in the model's config.json.
        """
        if self.own_tokenizer is None:
            settings = self._config_settings()
            roles = (settings.get(f"{role}_token_id") for role in ROLES)
            ids = (each for role in roles for each in (role if isinstance(role, list) else [role]))
            return frozenset(each for each in ids if type(each) is int and each >= 0)
        with tokenizer_errors(self.name):
            added = self.tokenizer.added_tokens_decoder.items()
            return frozenset((*self.tokenizer.all_special_ids, *(i for i, token in added if token.special)))

    def _config_settings(self) -> Mapping[str, Any]:
        """The settings in config.json or, for a loaded model, the settings that are not defaults."""
        folder = Path(self.source) if isinstance(self.source, str) else None
        if folder is None or not (folder / "config.json").is_file():
            return self.model.config.to_diff_dict()
        return read_config(folder / "config.json")

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """The id of [UNK], or no id if that token also begins or ends texts (GPT-2)."""
        if self.own_tokenizer is None:
            return frozenset()
        ends = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        return frozenset((self.tokenizer.unk_token_id,)) - {getattr(self.tokenizer, end) for end in ends}

    def check_reads_text(self) -> None:
        """Raise UserError for a model whose main input is not text."""
        if self.model.main_input_name != "input_ids":
            raise UserError(self._takes_no_text)

    def encoded(self, text: str, **options: Any) -> BatchEncoding:
        """Return the tokenizer's encoding of a text.

        Raises UserError if the tokenizer fails, and for token ids.
        """
        if isinstance(text, TokenIds):
            raise UserError("text: must be text here (got token ids)")
        tokenizer = self.tokenizer
        with tokenizer_errors(self.name):
            read: BatchEncoding = tokenizer(text, **options)
        pair = options.get("text_pair")
        # The ids of placeholders for other inputs may exceed those of all tokens.
        reads_more = not forward_arguments(self.model).isdisjoint((*PIXELS, *SOUNDS))
        num_ids = None if reads_more else self.num_ids
        check_encoded(read, [text] if pair is None else [text, pair], self.name, num_ids=num_ids)
        return read

    def unknown_words(
        self, text: str, ids: Sequence[int], spans: Spans | None = None, **options: Any
    ) -> tuple[UnknownWord, ...]:
        """Return the words of a text that became an unknown token.

        The words are located by the characters of the tokens, if these are known.
        """
        if self._unknown_tokens.keys().isdisjoint(ids):
            return ()
        if spans is None and self.tokenizer.is_fast:
            spans = self.encoded(text, **(options | {"return_offsets_mapping": True}))["offset_mapping"]
        encode = partial(self.encoded, add_special_tokens=False)
        return unknown_words(text, ids, self._unknown_tokens, spans, encode)

    @cached_property
    def _unknown_tokens(self) -> dict[int, str]:
        with tokenizer_errors(self.name):
            return unknown_tokens(self.tokenizer)

    @property
    def num_ids(self) -> int | None:
        """The number of ids with an embedding, or None if the model does not look tokens up by id."""
        return getattr(self.model.get_input_embeddings(), "num_embeddings", None)

    def labels(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return each token's name in the vocabulary, or its id in brackets if the vocabulary lacks it.

        Without a tokenizer, the labels are the ids.
        """
        if self.own_tokenizer is None:
            return tuple(map(str, ids))
        # transformers' type hints do not allow a token without a name.
        with tokenizer_errors(self.name):
            names: Any = self.tokenizer.convert_ids_to_tokens([*ids])
        return tuple(f"[{i}]" if name is None else name for i, name in zip(ids, names, strict=True))

    def text_of(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """Return the decoded text of tokens, by default without special ones.

        Without a tokenizer, return the ids.
        """
        if self.own_tokenizer is None:
            return " ".join(self.labels(ids))
        with ALONE:  # no thread may change truncation while another one uses the tokenizer
            text = self.tokenizer.decode([*ids], skip_special_tokens=not with_special)
        assert isinstance(text, str)
        return text

    def written_tokens(self, text: ModelText) -> list[str]:
        """Return the tokens of a text as people write them. Words and labels are unchanged."""
        if self.spelling_of(text) is None:
            return [*text.tokens]
        return [self.written(token) for token in text.tokens]

    def spelling_of(self, text: ModelText) -> str | None:
        """Return the spelling of a text's tokens as `token_spelling` does, or None for words and labels."""
        return None if text.is_merged or text.is_labelled else self.token_spelling

    def written(self, token: str) -> str:
        """Return a vocabulary token as people write it: no marks for spaces, and bytes as characters."""
        text: str = self.tokenizer.convert_tokens_to_string([token]) if self.token_spelling else token
        return text.strip() if text.strip() and "\ufffd" not in text else token

    def inputs(self, readings: Sequence["Reading"]) -> dict[str, Tensor]:
        """Return the forward arguments for texts of one length; a context goes to the encoder."""
        if readings[0].inputs is not None:
            several = [dict(reading.inputs or {}) for reading in readings]
            pixels = {name: torch.cat([inputs[name] for inputs in several]) for name in several[0]}
            counts = readings[0].counts
            return ProcessedInputs(
                {name: tensor.to(self.device) for name, tensor in pixels.items()},
                num_tokens=(counts[0], counts[1] or counts[0]),
                num_texts=len(readings),
                part=readings[0].part,
                origin=readings[0].origin,
            )
        first = torch.stack(
            [reading.text.ids if reading.context is None else reading.context.ids for reading in readings]
        )
        inputs = {"input_ids": first, "attention_mask": torch.ones_like(first)}
        if readings[0].context is not None:
            inputs["decoder_input_ids"] = torch.stack([reading.text.ids for reading in readings])
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    @property
    def device(self) -> torch.device:
        """The device of the inputs: that of the weights, or the one to which accelerate moves the inputs."""
        if self.model.device.type != "meta":
            return self.model.device
        hooks = (getattr(module, "_hf_hook", None) for module in self.model.modules())
        places = (getattr(hook, "execution_device", None) for hook in hooks)
        return torch.device(next(place for place in places if place is not None))

    def most_tokens(self) -> int | None:
        """The number of tokens for which the model has positions, or None if the model has no limit."""
        for name, module in self.model.named_modules():
            if isinstance(module, torch.nn.Embedding) and name.endswith(POSITIONS):
                unused = 0 if module.padding_idx is None else module.padding_idx + 1
                return module.num_embeddings - unused - getattr(module, "offset", 0)
        most: int | None = getattr(self.model.config, "max_position_embeddings", None)
        return most if most is not None and most > 0 else None  # XLNet: -1


def reader_of(pretrained: Pretrained, reading: Reading) -> Pretrained:
    """Return the model, or the part of the model to which a reading belongs."""
    if reading.inputs is None:
        return part_that_reads(pretrained)
    if reading.part or reading.context is not None:
        return pretrained
    return pretrained if reading.origin is None else reading.origin.reader(pretrained)


def part_that_reads(pretrained: Pretrained) -> Pretrained:
    """Return the model, or the text tower of a model with two towers (CLIP)."""
    text, sees = (getattr(pretrained.model, name, None) for name in TOWERS)
    if not isinstance(text, PreTrainedModel) or not isinstance(sees, PreTrainedModel):
        return pretrained
    if text.main_input_name != "input_ids" or "pixel_values" in forward_arguments(text):
        return pretrained
    if not hasattr(pretrained.model, "get_text_features"):  # it generates text after reading both (Idefics 3)
        return pretrained
    return replace(
        pretrained, name=f"{pretrained.name} ({TOWERS[0]})", model=text, with_head=None, classifier=None
    )


def part_that_takes(pretrained: Pretrained, inputs: Collection[str]) -> Pretrained | None:
    """Return the model, or the first of its parts, that takes one of these inputs and no text."""
    model = pretrained.model
    if takes_alone(model, inputs):
        return pretrained
    for name, module in model.named_modules():
        if name and isinstance(module, PreTrainedModel) and takes_alone(module, inputs):
            return replace(
                pretrained, name=f"{pretrained.name} ({name})", model=module, with_head=None, classifier=None
            )
    return None


def stack_texts(reading: Reading, stack: str) -> tuple[ModelText, ModelText]:
    """Return the texts of queries and keys: encoders and cross-attention see the context."""
    text, context = reading.text, reading.context or reading.text
    sides = {"self": (text, text), "cross": (text, context), "encoder": (context, context)}
    return sides["self" if stack == "decoder" else stack]


def attention_between_words(layer: CapturedLayer, readings: Sequence[Reading]) -> GivenWeights:
    """Return a layer's weights between the words of texts that were read together."""
    sides = zip(*(stack_texts(reading, layer.stack_name) for reading in readings), strict=True)
    queries, keys = (
        torch.tensor([text.words.of_token for text in texts if text.words is not None]) for texts in sides
    )
    return merged_into_words(layer.attention, queries, keys)
