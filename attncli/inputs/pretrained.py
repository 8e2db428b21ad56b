"""A pretrained transformers model and its tokenizer: safetensors only, no foreign code, no network."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from attncli.errors import UserError

SPELLINGS = {"Ġ": "byte-level", "▁": "metaspace"}
UNTRAINED_PARTS = ("pooler",)
"""Parts of base models beside the layers: a checkpoint may lack them, attention ignores them."""


@dataclass(frozen=True)
class ModelText:
    """The tokens of a text as a model reads it, special ones included: the vocabulary's names, and ids.

    `left_out` is how many tokens of the text are not there, since the model reads no more.
    """

    tokens: tuple[str, ...]
    ids: Int[Tensor, " token"]
    left_out: int = 0


@dataclass(frozen=True)
class Reading:
    """What a model reads; with an encoder and a decoder the context goes to the encoder."""

    text: ModelText
    context: ModelText | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Tokens of the text and of the context: what runs together has the same."""
        return len(self.text.ids), 0 if self.context is None else len(self.context.ids)

    def left_out_notes(self) -> list[str]:
        """What was cut off, where anything was."""
        sides = {"text": self.text, "context": self.context}
        return [
            f"Of the {name} the last {side.left_out} tokens are left out: the model reads {len(side.ids)}."
            for name, side in sides.items()
            if side is not None and side.left_out and (name == "text" or side is not self.text)
        ]


@dataclass(frozen=True)
class Pretrained:
    """A model without its head (attention needs no logits), in evaluation mode, and its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def has_decoder(self) -> bool:
        """Whether there are an encoder and a decoder, so that two texts go in."""
        return bool(self.model.config.is_encoder_decoder)

    @cached_property
    def token_spelling(self) -> str | None:
        """How the vocabulary writes a blank: byte-level (`Ġ`), metaspace (`▁`) or not at all."""
        written = "".join(self.tokenizer.tokenize("a b"))
        return next((name for mark, name in SPELLINGS.items() if mark in written), None)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens with a role (bos, sep, ...), and those that the tokenizer's file marks as special."""
        added = self.tokenizer.added_tokens_decoder.items()
        return frozenset((*self.tokenizer.all_special_ids, *(i for i, token in added if token.special)))

    @cached_property
    def unknown_ids(self) -> frozenset[int]:
        """[UNK], which stands for a word of the text; none where it begins or ends texts as well (GPT-2)."""
        ends = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        return frozenset((self.tokenizer.unk_token_id,)) - {getattr(self.tokenizer, end) for end in ends}

    def read(self, text: str, key: str, *, truncate: bool = False) -> ModelText:
        """A text's tokens, not padded, and cut only where asked to; UserError that names `key` for none, or
        too many.
        """
        ids = self.tokenizer(text, padding=False, truncation=False)["input_ids"]
        if not ids:
            raise UserError(f"{key}: the tokenizer of {self.name} makes no tokens of it")
        most, count = self.most_tokens(), len(ids)
        if most is not None and count > most:
            if not truncate:
                message = f"must be at most {most} tokens for {self.name} (got {count}): truncate cuts it"
                raise UserError(f"{key}: {message}")
            ids = self.tokenizer(text, padding=False, truncation=True, max_length=most)["input_ids"]
        return ModelText(self.labels(ids), torch.tensor(ids), count - len(ids))

    def labels(self, ids: list[int]) -> tuple[str, ...]:
        """Each token as the vocabulary has it."""
        return tuple(self.tokenizer.convert_ids_to_tokens(ids))

    def written(self, token: str) -> str:
        """A token of the vocabulary as people write it: without the mark of a blank, bytes as characters."""
        text: str = self.tokenizer.convert_tokens_to_string([token]) if self.token_spelling else token
        return text.strip() if text.strip() and "\ufffd" not in text else token

    def shifted_right(self, text: ModelText) -> ModelText:
        """What a decoder reads to write this text: its start token first, the last token left out."""
        start = self.model.config.decoder_start_token_id
        if start is None:
            return text
        ids = torch.cat([torch.tensor([start]), text.ids[:-1]])
        return ModelText((*self.labels([start]), *text.tokens[:-1]), ids, text.left_out)

    def inputs(self, readings: Sequence["Reading"]) -> dict[str, Tensor]:
        """What the model's forward wants of texts of one length; a context goes to the encoder."""
        first = torch.stack([one.text.ids if one.context is None else one.context.ids for one in readings])
        inputs = {"input_ids": first, "attention_mask": torch.ones_like(first)}
        if readings[0].context is not None:
            inputs["decoder_input_ids"] = torch.stack([one.text.ids for one in readings])
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    def most_tokens(self) -> int | None:
        """How many tokens there are positions for; None where the model sets no limit."""
        for name, module in self.model.named_modules():
            if isinstance(module, torch.nn.Embedding) and name.endswith(
                ("position_embeddings", "embed_positions")
            ):
                unused = 0 if module.padding_idx is None else module.padding_idx + 1
                return module.num_embeddings - unused - getattr(module, "offset", 0)
        most: int | None = getattr(self.model.config, "max_position_embeddings", None)
        return most if most is not None and most > 0 else None  # XLNet: -1


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def load_pretrained(model: str, *, allow_download: bool, device: torch.device) -> Pretrained:
    """The model of a local folder or, where downloads are allowed, of a hub id.

    UserError where transformers cannot load it, and where its weights are not all there: those would be
    random.
    """
    # transformers leaves these without types.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": not allow_download}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, **options)
        loaded, info = AutoModel.from_pretrained(
            model,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, in one line
            **options,
        )
    except Exception as error:  # a damaged config may fail in any way; the reason is told in one line
        raise UserError(f"model: {model}: cannot be loaded: {_one_line(error)}") from None
    missing = [
        name for name in sorted(info["missing_keys"]) if not any(part in name for part in UNTRAINED_PARTS)
    ]
    wrong = missing + sorted(str(key) for key in info["mismatched_keys"])
    if wrong:
        raise UserError(
            f"model: {model}: {len(wrong)} weights are missing or have another shape, as {wrong[0]}"
        )
    name = short_name(model)
    check_reads_text(name, loaded)
    return Pretrained(name, loaded.eval().to(device), tokenizer)


def short_name(model: str) -> str:
    """The last part of a folder or hub id."""
    return Path(model).name or model


def check_reads_text(name: str, model: PreTrainedModel) -> None:
    """UserError for a model of images or sounds."""
    if model.main_input_name != "input_ids":
        raise UserError(f"model: {name} takes {model.main_input_name}, not text")


def kept_pretrained(model: str, *, allow_download: bool, device: torch.device) -> Pretrained:
    """load_pretrained, with the model of the last call kept: of many runs on one model the first loads it.

    A folder whose files have changed is loaded anew. One model is kept and no more, since it may be large.
    """
    return _kept(model, allow_download, device, _state_of_files(model))


@lru_cache(maxsize=1)
def _kept(model: str, allow_download: bool, device: torch.device, state: object) -> Pretrained:
    return load_pretrained(model, allow_download=allow_download, device=device)


def _state_of_files(model: str) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of the files of a folder; nothing for a model of the hub, which has a version."""
    folder = Path(model)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
