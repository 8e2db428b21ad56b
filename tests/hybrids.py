"""Tiny models with layers without a softmax, whose states decay as those of trained ones do."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM

from tools.architecture_sweep.decaying import with_decay
from tools.architecture_sweep.folders import save_tokenizer, tiny_model


class HybridFolders:
    """The folder of each, made when it is first asked for: the body alone, or with its head."""

    def __init__(self, root: Path, auto_class: Any = AutoModelForCausalLM, **settings: Any) -> None:
        self.root, self.auto_class, self.settings = root, auto_class, settings
        """The settings of a model's config that differ, by its name."""
        self.folders: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The folder of an architecture."""
        if name not in self.folders:
            folder = self.root / name
            torch.manual_seed(3)
            model = tiny_model(name, self.auto_class)
            for key, value in self.settings.get(name, {}).items():
                setattr(model.config, key, value)
            if self.auto_class is not AutoModel:
                model.generation_config.eos_token_id = None  # so that it writes as much as it is asked for
            with_decay(model).save_pretrained(folder)
            save_tokenizer(folder)
            self.folders[name] = str(folder)
        return self.folders[name]
