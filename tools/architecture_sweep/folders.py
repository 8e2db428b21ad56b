"""A folder with a tiny random model of an architecture and a tokenizer, as a user would have it."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from .tiny_config import ATTEMPTS, PLAIN_TOKENS, VOCABULARY, Sizes, tiny_config

MOST_PARAMETERS = 30_000_000
WEIGHT_STD, NOISE = 0.15, 0.3
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
NUM_WORDS = 70
SHORT, LONG = 19, 100
"""Tokens of the texts, special ones included; both are longer than the windows of a tiny model."""


class NotTestable(Exception):
    """transformers itself cannot build the model, or cannot run it with eager attention on a text."""


def one_line(error: BaseException) -> str:
    """The kind of an error and the start of what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def text_of(num_tokens: int, seed: int = 0) -> str:
    """Random words, some of them several times, that the tokenizer makes `num_tokens` tokens of."""
    choose = random.Random(f"{num_tokens} {seed}")
    return " ".join(f"w{choose.randrange(NUM_WORDS)}" for _ in range(num_tokens - 2))


def save_tokenizer(folder: Path) -> None:
    """Words with [CLS] and [SEP] around them."""
    names = [*SPECIAL, *(f"w{i}" for i in range(VOCABULARY - len(SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", PLAIN_TOKENS["cls"]), ("[SEP]", PLAIN_TOKENS["sep"])]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    # transformers leaves this without types.
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)  # type: ignore[no-untyped-call]
    fast.save_pretrained(folder)


def inputs(ids: Tensor, *, has_decoder: bool, start: int | None) -> dict[str, Tensor]:
    """What a forward pass takes: a decoder writes the same text, its start token first."""
    taken = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if has_decoder:
        shifted = ids if start is None else torch.cat([torch.tensor([[start]]), ids[:, :-1]], dim=1)
        taken["decoder_input_ids"] = shifted
    return taken


@torch.no_grad()
def _sharpen(model: PreTrainedModel) -> None:
    """Other weights than at the start of training: attention far from uniform, nothing that is zero."""
    torch.manual_seed(7)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        if parameter.ndim > 1:
            parameter.normal_(0, WEIGHT_STD)
        else:
            parameter.add_(torch.randn_like(parameter) * NOISE)


def _from_config(config: PreTrainedConfig) -> PreTrainedModel:
    # transformers leaves this without types.
    model: PreTrainedModel = AutoModel.from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation="eager"
    )
    return model


def _built(model_type: str, sizes: Sizes) -> PreTrainedModel:
    config = tiny_config(model_type, sizes)
    with torch.device("meta"):
        count = sum(p.numel() for p in _from_config(config).parameters())
    if count > MOST_PARAMETERS:
        raise NotTestable(f"no tiny configuration: {count / 1e6:.0f} million parameters")
    torch.manual_seed(7)
    model = _from_config(config)
    model.train(False)
    _sharpen(model)
    model.config.use_cache = False
    return model


@torch.no_grad()
def _run(model: PreTrainedModel) -> None:
    ids = torch.arange(10, 10 + SHORT).unsqueeze(0)
    given = inputs(ids, has_decoder=bool(model.config.is_encoder_decoder), start=None)
    model(**given, output_attentions=True)


def _save(model: PreTrainedModel, folder: Path) -> None:
    if model.config.is_encoder_decoder and getattr(model.config, "decoder_start_token_id", None) is None:
        model.config.decoder_start_token_id = PLAIN_TOKENS["pad"]
    model.save_pretrained(folder)
    save_tokenizer(folder)


def save_model(model_type: str, folder: Path) -> None:
    """A folder with config, safetensors and tokenizer.

    NotTestable where no sizes make it run; the folder is there all the same if it could be built.
    """
    errors, built = [], []
    for sizes in ATTEMPTS:
        try:
            model = _built(model_type, sizes)
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
