"""Tiny models with layers without a softmax, whose states decay like those of trained models."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.architecture_sweep.decaying import with_decay
from tools.architecture_sweep.folders import save_tokenizer, text_of, tiny_model


class HybridFolders:
    """The folders of models with their heads, by architecture, each saved on the first call."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root, self.settings = root, settings
        """The folder for all models, and the settings that differ in each model's config."""
        self.folders: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The folder of an architecture."""
        if name not in self.folders:
            folder = self.root / name
            torch.manual_seed(3)
            model = tiny_model(name, AutoModelForCausalLM)
            for key, value in self.settings.get(name, {}).items():
                setattr(model.config, key, value)
            model.generation_config.eos_token_id = None  # so that it generates as many tokens as requested
            with_decay(model).save_pretrained(folder)
            save_tokenizer(folder)
            self.folders[name] = str(folder)
        return self.folders[name]


class RecordedRun(NamedTuple):
    """A model, the tokens of a text, and the inputs and the output of each module on it."""

    model: Any
    ids: Tensor
    reads: dict[str, tuple[Tensor, ...]]
    gave: dict[str, Tensor]


@torch.no_grad()
def recorded_run(folder: str, num_tokens: int) -> RecordedRun:
    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(text_of(num_tokens), return_tensors="pt").input_ids
    run = RecordedRun(model, ids, {}, {})

    def record(name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def keep(_module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
            run.reads[name] = inputs or (named.get("hidden_states"),)
            run.gave[name] = output if isinstance(output, Tensor) else output[0]

        return keep

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(record(name), with_kwargs=True))
        model(ids, use_cache=False)
    return run
