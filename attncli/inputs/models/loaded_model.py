"""A transformers model that somebody has loaded: it runs where it is, and is left as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from attncli.errors import UserError
from attncli.inputs.models.language_head import predicted_tokens
from attncli.inputs.models.loading import body_of, check_reads_text
from attncli.inputs.models.pretrained import Pretrained


@contextmanager
def borrowed(name: str, model: Any, tokenizer: Any) -> Iterator[Pretrained]:
    """The model in evaluation mode; afterwards modes and configs are as before.

    UserError for what is no transformers model of text, and for what is no tokenizer.
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
