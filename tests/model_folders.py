"""Folders with tiny models in them, made on the spot."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from tools.tiny_architectures import ARCHITECTURES, VOCABULARY

logging.disable_progress_bar()

WORDS = ["the", "cat", "walks", "on", "street", "sat", "because", "it", "was", "tired", "die", "katze"]


def save_tokenizer(folder: Path, *, padded: int | None = None) -> None:
    """Words with [CLS] and [SEP] around them; `padded` pads and cuts to it, as MiniLM's file asks."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    names += [f"w{i}" for i in range(VOCABULARY - len(names))]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    if padded is not None:
        tokenizer.enable_padding(length=padded, pad_id=0, pad_token="[PAD]")
        tokenizer.enable_truncation(padded)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def save_writer(folder: Path, architecture: str) -> Path:
    """The same with the head that writes, which ends at no token before its time."""
    config = ARCHITECTURES[architecture].build().config
    torch.manual_seed(7)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.ndim > 1 else 1)
    start = {"decoder_start_token_id": 0} if config.is_encoder_decoder else {}
    model.generation_config = GenerationConfig(pad_token_id=0, **start)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_model(folder: Path, architecture: str, *, padded: int | None = None) -> Path:
    """A folder as a user has it: config, safetensors, tokenizer."""
    model = ARCHITECTURES[architecture].build()
    if model.config.is_encoder_decoder:
        model.config.decoder_start_token_id = 0
    model.save_pretrained(folder)
    save_tokenizer(folder, padded=padded)
    return folder
