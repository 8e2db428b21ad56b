"""Reading pictures for a model: alone, with a text, or before the words of a caption."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from inspect import signature
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
import transformers
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from attncli.errors import UserError, one_line_reason
from attncli.features.pictures.image_processor import (
    Processing,
    cached_processing,
    image_processor,
    named_pixels,
)
from attncli.features.pictures.tokens import PICTURE_INPUTS, PlacedTokens, part_that_sees, placed_tokens
from attncli.models.architectures import (
    BLOCK,
    GRID,
    PIXELS,
    decoder_name,
    forward_arguments,
    layer_kind,
    takes_alone,
)
from attncli.models.folder import PROCESSOR_FILES
from attncli.models.image_files import OpenedPicture, open_picture
from attncli.models.pretrained import (
    FIRST_WORD_ID,
    GRID_INPUT,
    ModelText,
    Pretrained,
    Reading,
    part_that_reads,
)
from attncli.models.reading_text import OpenedModel, shifted_right, tokens_of_text
from attncli.models.writing import generating_part, in_chat_template
from attncli.records.arguments import FilePath, checked
from attncli.system.files import MODEL_SETTINGS_BYTES, read_whole
from attncli.system.plain_text import parsed_json

AROUND_PICTURES = ("<|vision_start|>", "<|vision_end|>")
"""The tokens before and after a picture in a text, in vocabularies that have such tokens (Qwen)."""
IMAGE_AXES = 4
"""The number of axes of pixels: batch, channel, height, width."""
LEAST_SIDE = 16
"""The smallest side in pixels. In smaller pictures, the places of tokens cannot be measured."""


def _opened_picture(file: str | PathLike[str]) -> OpenedPicture:
    """Open a picture. Raises UserError for other files and for pictures that are too small."""
    opened = open_picture(fspath(file))
    if min(opened.image.size) < LEAST_SIDE:
        sides = " × ".join(map(str, opened.image.size))
        raise UserError(f"image: {file}: must be at least {LEAST_SIDE} pixels high and wide (got {sides})")
    return opened


def _accepted(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str
) -> tuple[dict[str, Tensor], str]:
    """Return the inputs that the model's forward accepts, and the name of the pixels among these inputs."""
    accepted_names = forward_arguments(model) - {"labels"}  # some processors add labels for training
    pixels, numbers = named_pixels(inputs)
    candidates = {**inputs, GRID: inputs.get(f"image_{GRID}")}
    if "noise" in accepted_names and hasattr(
        model.config, "mask_ratio"
    ):  # MAE hides most patches during training
        counts = (getattr(module, "num_patches", None) for module in model.modules())
        if (count := next((each for each in counts if each is not None), None)) is not None:
            model.config.mask_ratio = 0.0
            candidates["noise"] = torch.linspace(0, 1, count).unsqueeze(0)
    if pixels not in accepted_names and GRID in accepted_names:
        candidates[GRID_INPUT] = numbers
        pixels = GRID_INPUT
    accepted = {
        key: tensor for key, tensor in candidates.items() if key in accepted_names and tensor is not None
    }
    if pixels not in accepted:
        raise UserError(f"image: {name} does not accept {pixels}")
    return accepted, pixels


@checked
def read_picture(
    model: OpenedModel,
    file: FilePath,
    text: str | None = None,
    *,
    is_whole: bool = False,
    is_open: bool = False,
) -> Reading:
    """Read a picture with a model's vision part or, if there is a text, read both with the whole model.

    In a text, the picture replaces the picture token ("<image>", or the model's name for it). If the text
    does not contain that token, the picture comes first. With `is_whole`, the text contains the token, and no
    special tokens are added around the text. With `is_open`, the model continues the text, which then has no
    special token at its end if the picture precedes all words (GIT).

    In a model with an encoder and a decoder, the encoder reads the picture and the decoder reads the text.
    Raises UserError for a file that is not a picture, and for a model that does not read pictures.
    """
    opened = _opened_picture(file)
    if text is None:
        return _read_picture(model, opened)
    if model.has_decoder:
        words = shifted_right(model, tokens_of_text(model, text, "sentence", beside_others=True))
        return _read_captioned(model, opened, words)
    if generating_part(model.model).model is not model.model:
        only = "only returns the weights of its words while it writes: use attn generate"
        raise UserError(f"image: {model.name} {only}")
    return _read_both(model, opened, text, is_whole=is_whole, is_open=is_open)


def read_picture_to_write(
    pretrained: Pretrained, file: str | PathLike[str], text: str, *, is_whole: bool = False
) -> Reading:
    """Read a picture and a text as the model does before it writes.

    Raises UserError for a text if the decoder looks at the picture through cross-attention, because such a
    decoder writes without reading a text.
    """
    model = pretrained.model
    writer = generating_part(model)
    if not pretrained.has_decoder and writer.model is model:
        return read_picture(pretrained, file, text, is_whole=is_whole, is_open=True)
    if text:
        raise UserError(f"sentence: {pretrained.name} describes a picture without any text: omit the text")
    if all(layer_kind(name) != "cross" for name, _ in writer.model.named_modules()):
        reason = "gives its decoder vectors that summarise the whole picture, so these have no place in it"
        raise UserError(f"model: {model.config.model_type} {reason}")
    nothing = ModelText((), torch.empty(0, dtype=torch.long))
    return replace(_read_captioned(pretrained, _opened_picture(file), nothing), part=writer.part)


def _read_captioned(pretrained: Pretrained, opened: OpenedPicture, words: ModelText) -> Reading:
    """Read a picture in the encoder, and words in the decoder."""
    picture = _read_picture(pretrained, opened)
    inputs = {**(picture.inputs or {})}
    if len(words.ids):
        inputs["decoder_input_ids"] = words.ids.unsqueeze(0).to(pretrained.device)
    if unknown := inputs.keys() - forward_arguments(pretrained.model):
        raise UserError(f"image: {pretrained.name} does not accept {', '.join(sorted(unknown))}")
    return Reading(words, picture.text, inputs=inputs)


def _read_both(
    pretrained: Pretrained, opened: OpenedPicture, text: str, *, is_whole: bool, is_open: bool
) -> Reading:
    """Read a picture and a text in a model that processes both in a single stack."""
    model = pretrained.model
    has_towers = part_that_reads(pretrained) is not pretrained
    reads_both = {"input_ids", PIXELS[0]} <= forward_arguments(model) and not has_towers
    part = decoder_name(model) or _shared_stack(model) if reads_both else None
    if part is None or pretrained.own_tokenizer is None:
        if pretrained.own_tokenizer is None:
            raise UserError(f"sentence: {pretrained.name} has no tokenizer: omit the text")
        message = "does not read text and pictures in one stack: use only one of the two"
        raise UserError(f"image: {pretrained.name} {message}")
    processor = _opened_reader(pretrained)
    whole = text if is_whole else _with_picture(text, processor)
    mark = _picture_token(processor)
    if mark is not None and (count := whole.count(mark)) > 1:
        raise UserError(
            f"sentence: must contain {mark}, the place of the picture, exactly once (got {count})"
        )
    beside = {"text": [whole]} | ({"add_special_tokens": False} if is_whole else {})
    processing = Processing(processor, pretrained.name, beside)
    inputs, name = _accepted(model, processing.inputs(opened.image), pretrained.name)
    inputs = {key: tensor.to(pretrained.device) for key, tensor in inputs.items()}
    inputs[name] = inputs[name].to(model.dtype)
    ends_in = inputs["input_ids"][0, -1] == pretrained.tokenizer.sep_token_id
    if is_open and ends_in and mark is None:
        inputs |= {key: inputs[key][:, :-1] for key in ("input_ids", "attention_mask") if key in inputs}
    placed = placed_tokens(model, inputs, opened, processing, name=name, part=f"{part}.")
    ids = _token_ids(inputs["input_ids"][0].cpu(), placed, pretrained)
    most = pretrained.most_tokens()
    if most is not None and len(inputs["input_ids"][0]) > most:
        raise UserError(f"sentence: must be at most {most} tokens with the picture (got {len(ids)})")
    words = pretrained.labels(ids.tolist())
    labels = tuple(word if label is None else label for word, label in zip(words, placed.labels, strict=True))
    on_picture = torch.tensor([label is not None for label in placed.labels])
    unique_ids = torch.where(on_picture, FIRST_WORD_ID * 2 + torch.arange(len(ids)), ids)
    read = ModelText(labels, unique_ids, is_merged=True, origin=placed.origin)
    return Reading(read, inputs=inputs, part=f"{part}.")


def _token_ids(
    ids: Int[Tensor, " word"], placed: PlacedTokens, pretrained: Pretrained
) -> Int[Tensor, " token"]:
    """Return the ids of the words at their places among all tokens. The tokens of the picture get 0."""
    count = len(placed.labels)
    if len(ids) == count:
        return ids
    are_words = torch.tensor([label is None for label in placed.labels])
    if int(are_words.sum()) != len(ids):
        raise UserError(
            f"image: {pretrained.name} makes {count} tokens from a picture, and {len(ids)} word tokens "
            "cannot be placed among them"
        )
    whole = torch.zeros(count, dtype=torch.long)
    whole[are_words] = ids
    return whole


def _shared_stack(model: PreTrainedModel) -> str | None:
    """Return the name of the only stack of blocks outside vision-only parts, or None if it is ambiguous."""
    parts = model.named_modules()
    sees = [
        name
        for name, module in parts
        if name and isinstance(module, PreTrainedModel) and takes_alone(module, PICTURE_INPUTS)
    ]
    names = [
        name
        for name, block in model.named_modules()
        if BLOCK.fullmatch(name) and any("att" in inner.lower() for inner, _ in block.named_modules())
    ]
    stacks = {
        name.rpartition(".")[0] for name in names if not any(name.startswith(f"{seeing}.") for seeing in sees)
    }
    return stacks.pop() if len(stacks) == 1 else None


def _picture_token(processor: Any) -> str | None:
    """Return the token that stands for a picture in a text, or None if pictures precede all words (GIT)."""
    token = getattr(processor, "image_token", None)
    return token if isinstance(token, str) else None


def _with_picture(text: str, processor: Any) -> str:
    """Return the text with a picture token, which is put first if the text did not contain one."""
    token = _picture_token(processor)
    if token is None or token in text:
        return text
    vocabulary = processor.tokenizer.get_vocab()
    start, end = AROUND_PICTURES if all(mark in vocabulary for mark in AROUND_PICTURES) else ("", "")
    return f"{start}{token}{end}{text}"


def picture_in_chat_template(text: str, pretrained: Pretrained) -> str:
    """Put a picture and a text in a user message, using the chat template of the processor or tokenizer.

    Raises UserError if the template has no place for a picture.
    """
    content = [{"type": "image"}, *([{"type": "text", "text": text}] if text else [])]
    tokenizer = pretrained.tokenizer
    processor = _opened_reader(pretrained)
    template = getattr(processor, "chat_template", None) or _stored_template(pretrained)
    if template is not None:
        tokenizer = copy(tokenizer)
        tokenizer.chat_template = template
    written = in_chat_template(
        [{"role": "user", "content": content}], replace(pretrained, own_tokenizer=tokenizer)
    )
    mark = _picture_token(processor)
    if mark is None:
        raise UserError(f"chat: {pretrained.name} reads pictures before any words: omit `chat`")
    if mark not in written:
        message = f"has no place for a picture, {mark}: omit `chat`"
        raise UserError(f"chat: the chat template of {pretrained.name} {message}")
    return written


def _stored_template(pretrained: Pretrained) -> str | None:
    """Return the chat template in a separate file, where earlier versions of transformers stored it."""
    path = Path(str(pretrained.source)) / "chat_template.json"
    try:
        stored = parsed_json(read_whole(path, MODEL_SETTINGS_BYTES)) if path.exists() else {}
    except OSError as error:
        raise UserError(f"chat: {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"chat: {path}: is not JSON: {one_line_reason(error)}") from None
    template = stored.get("chat_template") if isinstance(stored, dict) else None
    return template if isinstance(template, str) else None


def _opened_reader(pretrained: Pretrained) -> Any:
    """Return the processor for texts and pictures, of the class for this kind of model.

    The processor's part for videos, which needs torchvision, is left out.
    """
    source = pretrained.source
    if not isinstance(source, str):
        return source
    from transformers.models.auto import processing_auto

    kind = pretrained.model.config.model_type
    names: Mapping[str, str] = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
    name, pixels = names.get(kind), image_processor(pretrained)
    try:
        processor_class = getattr(transformers, str(name), None)
        if processor_class is None:
            raise ValueError(f"transformers has no processor for {kind}")
        parts = ["image_processor", "tokenizer"]
        reader = type(str(name), (processor_class,), {"get_attributes": classmethod(lambda _: parts)})
        path = Path(source) / PROCESSOR_FILES[1]
        settings = parsed_json(read_whole(path, MODEL_SETTINGS_BYTES)) if path.exists() else {}
        taken = signature(processor_class.__init__).parameters.keys() - {*parts, "self"}
        options = {key: None for key in ("video_processor",) if key in taken}
        options |= {key: value for key, value in settings.items() if key in taken - options.keys()}
        return reader(image_processor=pixels, tokenizer=pretrained.tokenizer, **options)
    except Exception as error:  # a damaged file may fail in any way
        message = f"cannot be opened: {one_line_reason(error):.200}"
        raise UserError(f"image: the processor of {pretrained.name} {message}") from None


def _read_picture(pretrained: Pretrained, opened: OpenedPicture) -> Reading:
    """Read a picture with the vision part. Raises UserError if the processor cuts pictures into parts."""
    part = part_that_sees(pretrained)
    processing = cached_processing(image_processor(part), part.name)
    inputs, name = _accepted(part.model, processing.inputs(opened.image), part.name)
    if part is not pretrained and inputs[name].ndim > IMAGE_AXES:
        raise UserError(f"image: {part.name} cuts pictures into parts: add a text")
    inputs = {key: tensor.to(part.device) for key, tensor in inputs.items()}
    inputs[name] = inputs[name].to(part.model.dtype)
    placed = placed_tokens(part.model, inputs, opened, processing, name=name)
    labels = tuple(str(label) for label in placed.labels)
    ids = FIRST_WORD_ID * 2 + torch.arange(len(labels))
    text = ModelText(labels, ids, is_merged=True, origin=placed.origin)
    return Reading(text, inputs=inputs)
