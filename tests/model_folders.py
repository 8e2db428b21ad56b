"""Folders with tiny models in them, made once in a process and then copied."""

import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from tools.tiny_architectures import ARCHITECTURES, GROUPED, VOCABULARY

logging.disable_progress_bar()

MADE = TemporaryDirectory(prefix="attn-models-")
"""What was made so far, for as long as the process lives."""


def made_once(make: Callable[..., Path]) -> Callable[..., Path]:
    """The same call again copies what the first one made; torch's random numbers go on as after the first."""
    known: dict[object, tuple[Path, torch.Tensor]] = {}

    @wraps(make)
    def copied(folder: Path, *arguments: Any, **options: Any) -> Path:
        key = (arguments, *options.items())
        if key not in known:
            kept = make(Path(MADE.name, f"{make.__name__}-{len(known)}"), *arguments, **options)
            known[key] = kept, torch.get_rng_state()
        kept, state = known[key]
        torch.set_rng_state(state)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        return folder

    return copied


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


@made_once
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


SLIDING_AND_FULL = ["sliding_attention", "full_attention"]
SHARING: dict[str, Any] = {
    **GROUPED,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": SLIDING_AND_FULL * 2,
    "sliding_window": 5,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}
"""Two layers that take keys and values from those before, each from the one of its kind."""
GEMMAS: dict[str, dict[str, Any]] = {
    "Gemma3n": {
        **SHARING, "laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4, "altup_num_inputs": 2,
    },
    "Gemma4": {**SHARING, "global_head_dim": 16, "num_global_key_value_heads": 2},
}  # fmt: skip


@made_once
def save_gemma(folder: Path, name: str) -> Path:
    """Gemma 3n or 4, which writes and shares keys and values."""
    kind: Any = getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(1)
    model = kind(kind.config_class(**GEMMAS[name])).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(0, 0.15) if parameter.ndim > 1 else parameter.add_(
            torch.randn_like(parameter) * 0.3
        )
    model.generation_config = GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@made_once
def save_model(folder: Path, architecture: str, *, padded: int | None = None) -> Path:
    """A folder as a user has it: config, safetensors, tokenizer."""
    model = ARCHITECTURES[architecture].build()
    if model.config.is_encoder_decoder:
        model.config.decoder_start_token_id = 0
    model.save_pretrained(folder)
    save_tokenizer(folder, padded=padded)
    return folder
