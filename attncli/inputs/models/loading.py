"""A model and its tokenizer: from a folder or the hub (safetensors, no foreign code), or the caller's own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from attncli.errors import UserError
from attncli.inputs.models.language_head import class_with_head, predicted_tokens
from attncli.inputs.models.model_folder import quiet_transformers
from attncli.inputs.models.pretrained import Pretrained

UNTRAINED_PARTS = ("pooler",)
"""Parts of base models beside the layers: a checkpoint may lack them, attention ignores them."""


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def load_pretrained(
    model: str, *, allow_download: bool, device: torch.device, dtype: str = "float32", with_head: bool = False
) -> Pretrained:
    """The model of a local folder or, where downloads are allowed, of a hub id.

    UserError where transformers cannot load it, and where its weights are not all there: those would be
    random. A head whose weights are not all there is left out.
    """
    quiet_transformers()
    options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": not allow_download}
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, **options)
        head = class_with_head(AutoConfig.from_pretrained(model, **options)) if with_head else None
        options |= {"dtype": getattr(torch, dtype)}
        loaded, wrong = _loaded(head or AutoModel, model, options, device)
        if head is not None and wrong:
            head = None
            loaded, wrong = _loaded(AutoModel, model, options, device)
    except Exception as error:  # a damaged config may fail in any way; the reason is given in one line
        raise UserError(f"model: {model}: cannot be loaded: {_one_line(error)}") from None
    if wrong:
        raise UserError(
            f"model: {model}: {len(wrong)} weights are missing or have another shape, as {wrong[0]}"
        )
    name = short_name(model)
    body = body_of(loaded)
    check_reads_text(name, body)
    return Pretrained(name, body, tokenizer, None if head is None else loaded)


def _loaded(
    auto_class: Any, model: str, options: Mapping[str, Any], device: torch.device
) -> tuple[PreTrainedModel, list[str]]:
    """The model in evaluation mode, and the names of its weights that the checkpoint lacks."""
    loaded, info = auto_class.from_pretrained(
        model,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported in one line
        **options,
    )
    missing = [
        name for name in sorted(info["missing_keys"]) if not any(part in name for part in UNTRAINED_PARTS)
    ]
    if loaded.config.is_encoder_decoder and not loaded.can_generate():
        # Only a model that writes has it; the decoder's first token may stand there alone.
        with suppress(OSError):
            loaded.generation_config = GenerationConfig.from_pretrained(
                model, local_files_only=options["local_files_only"]
            )
    return loaded.eval().to(device), missing + sorted(str(key) for key in info["mismatched_keys"])


def body_of(model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head; the model itself where transformers does not say which part that is.

    A body may have one of its own (DPR: an encoder around a BERT, which gives no outputs by name).
    """
    base = model.base_model
    return model if base is model or not isinstance(base, PreTrainedModel) else body_of(base)


def short_name(model: str) -> str:
    """The last part of a folder or hub id."""
    return Path(model).name or model


def check_reads_text(name: str, model: PreTrainedModel) -> None:
    """UserError for a model of images or sounds."""
    if model.main_input_name != "input_ids":
        raise UserError(f"model: {name} takes {model.main_input_name}, not text")


def kept_pretrained(model: str, **loading: Any) -> Pretrained:
    """load_pretrained, with the model of the last call kept: of many runs on one model the first loads it.

    A folder whose files have changed is loaded anew. One model is kept and no more, since it may be large.
    """
    folder = Path(model)
    files = sorted(folder.iterdir()) if folder.is_dir() else []  # a model of the hub has a version
    state = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _kept(model, state, **loading)


@lru_cache(maxsize=1)
def _kept(model: str, state: object, **loading: Any) -> Pretrained:
    return load_pretrained(model, **loading)


@contextmanager
def borrowed(name: str, model: Any, tokenizer: Any) -> Iterator[Pretrained]:
    """A loaded transformers model, in evaluation mode; afterwards modes and configs are as before.

    UserError for what is not a transformers model of text, or not a tokenizer.
    """
    if not isinstance(model, PreTrainedModel):
        got = type(model).__name__
        raise UserError(f"model: must be a folder's name or a transformers PreTrainedModel (got {got})")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        got = "none" if tokenizer is None else type(tokenizer).__name__
        raise UserError(f"tokenizer: must be the loaded model's transformers tokenizer (got {got})")
    check_reads_text(name, model)
    modes = {module: module.training for module in model.modules()}
    configs = [(config, dict(vars(config))) for config in _configs(model)]
    model.train(False)
    try:
        yield Pretrained(name, body_of(model), tokenizer, model if predicted_tokens(model) else None)
    finally:
        for module, training in modes.items():
            module.training = training
        for config, settings in configs:
            vars(config).clear()
            vars(config).update(settings)


def _configs(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every config in the model once: parts of a model may have, or share, their own."""
    found: dict[int, PreTrainedConfig] = {}
    waiting = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    while waiting:
        config = waiting.pop()
        if id(config) not in found:
            found[id(config)] = config
            parts = (getattr(config, name, None) for name in config.sub_configs)
            waiting += [part for part in parts if part is not None]
    return list(found.values())
