"""A folder with a tiny random model of an architecture and a tokenizer, as a user would have it."""

import random
import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, processors
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from .tiny_config import ATTEMPTS, PLAIN_TOKENS, VOCABULARY, Sizes, tiny_config

MOST_PARAMETERS = 30_000_000
WEIGHT_STD, NOISE = 0.15, 0.3
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = string.ascii_letters + string.digits
FEW, SHORT, MEDIUM, LONG = 5, 19, 37, 100
"""Tokens of the texts, special ones included; all but the first are longer than the windows of a tiny model,
and none is a multiple of one."""
HEADS = (AutoModelForSeq2SeqLM, AutoModelForMaskedLM, AutoModelForCausalLM, AutoModelForImageTextToText)


class NotTestable(Exception):
    """transformers itself cannot build the model, or cannot run it with eager attention on a text."""


def one_line(error: BaseException) -> str:
    """The kind of an error and the start of what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def text_of(num_tokens: int, seed: int = 0) -> str:
    """Random characters, some of them several times, that the tokenizer makes `num_tokens` tokens of."""
    choose = random.Random(f"{num_tokens} {seed}")
    return "".join(choose.choice(CHARACTERS) for _ in range(num_tokens - 2))


def save_tokenizer(folder: Path) -> None:
    """Each character a token, with [CLS] and [SEP] around them.

    As byte pairs of which none is merged: the tokenizers that transformers takes for some types whatever the
    folder says (Qwen2) read these, and no words.
    """
    names = [*SPECIAL, *CHARACTERS]
    names += [f"<{number}>" for number in range(VOCABULARY - len(names))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="[UNK]"))
    ends = [("[CLS]", PLAIN_TOKENS["cls"]), ("[SEP]", PLAIN_TOKENS["sep"])]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    special = {f"{name[1:-1].lower()}_token": name for name in SPECIAL}
    # transformers leaves this without types.
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)  # type: ignore[no-untyped-call]
    fast.save_pretrained(folder)


def inputs(model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
    """What a forward pass takes: a decoder writes the same text, its start token first."""
    taken = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        start = getattr(model.config, "decoder_start_token_id", None)
        shifted = ids if start is None else torch.cat([torch.tensor([[start]]), ids[:, :-1]], dim=1)
        taken["decoder_input_ids"] = shifted
    return taken


@torch.no_grad()
def sharpen(model: PreTrainedModel) -> None:
    """Other weights than at the start of training: attention far from uniform, nothing that is zero."""
    torch.manual_seed(7)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim > 1:
            parameter.normal_(0, WEIGHT_STD)
        else:
            parameter.add_(torch.randn_like(parameter) * NOISE)


def head_class(model_type: str) -> Any:
    """transformers' class of this type with the head that predicts tokens; None where there is none.

    Some are made from a part of the configuration (Emu3): those are of another type.
    """
    config = CONFIG_MAPPING[model_type]
    # transformers says that one configuration could have several classes.
    classes: Any = ((head, head._model_mapping.get(config, None)) for head in HEADS)
    return next((head for head, model in classes if model is not None and model.config_class is config), None)


def _from_config(config: PreTrainedConfig, auto_class: Any) -> PreTrainedModel:
    model: PreTrainedModel = auto_class.from_config(config, attn_implementation="eager")
    return model


def _built(model_type: str, sizes: Sizes, auto_class: Any) -> PreTrainedModel:
    config = tiny_config(model_type, sizes)
    with torch.device("meta"):
        count = sum(p.numel() for p in _from_config(config, auto_class).parameters())
    if count > MOST_PARAMETERS:
        raise NotTestable(f"no tiny configuration: {count / 1e6:.0f} million parameters")
    torch.manual_seed(7)
    model = _from_config(config, auto_class)
    model.train(False)
    sharpen(model)
    return model


@torch.no_grad()
def _run(model: PreTrainedModel) -> None:
    given = inputs(model, torch.arange(10, 10 + SHORT).unsqueeze(0))
    model(**given, output_attentions=True, use_cache=False)


def _save(model: PreTrainedModel, folder: Path) -> None:
    """With a start token for a decoder, and without an end: it writes as many tokens as it is asked for."""
    if model.config.is_encoder_decoder and getattr(model.config, "decoder_start_token_id", None) is None:
        model.config.decoder_start_token_id = PLAIN_TOKENS["pad"]
    if model.can_generate():
        model.generation_config.eos_token_id = None
        model.generation_config.decoder_start_token_id = getattr(model.config, "decoder_start_token_id", None)
    model.save_pretrained(folder)
    save_tokenizer(folder)


def save_model(model_type: str, folder: Path, auto_class: Any = AutoModel) -> None:
    """A folder with config, safetensors and tokenizer.

    NotTestable where no sizes make it run; the folder is there all the same if it could be built.
    """
    errors, built = [], []
    for sizes in ATTEMPTS:
        try:
            model = _built(model_type, sizes, auto_class)
            built.append(model)
            _run(model)
        except NotTestable:
            raise
        except Exception as error:  # whatever transformers says to sizes that are not its own
            errors.append(error)
            continue
        _save(model, folder)
        return
    if built:
        _save(built[-1], folder)
    raise NotTestable(one_line(errors[0]))


def tiny_model(model_type: str, auto_class: Any = AutoModel) -> PreTrainedModel:
    """The model of `save_model`, in memory. NotTestable where no sizes make it run."""
    errors = []
    for sizes in ATTEMPTS:
        try:
            model = _built(model_type, sizes, auto_class)
            _run(model)
        except NotTestable:
            raise
        except Exception as error:  # whatever transformers says to sizes that are not its own
            errors.append(error)
            continue
        return model
    raise NotTestable(one_line(errors[0]))
