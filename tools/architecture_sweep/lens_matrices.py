"""Matrices of state spaces by TransformerLens: tests/features/linear/transformer_lens_matrices.json.

Its packages pin others, so that it runs in an environment of its own, with attncli on the path:

    pip install transformer-lens==4.3.0 torch==2.13.0
    PYTHONPATH=. python -m tools.architecture_sweep.lens_matrices
"""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformer_lens import TransformerBridge
from transformers import AutoModelForCausalLM, PreTrainedModel

from .decaying import decaying
from .folders import save_tokenizer

MODELS = ("mamba2",)
"""Those of Mamba-1 fail with this transformers, those of gated delta nets leave the delta rule out."""
IDS = (13, 7, 42, 13, 7, 88, 21, 13, 60, 7, 5)
OUTPUT = Path(__file__).parents[2] / "tests" / "features" / "linear" / "transformer_lens_matrices.json"


def with_head(body: PreTrainedModel) -> PreTrainedModel:
    """The model with a head, which TransformerLens wants."""
    auto_class: Any = AutoModelForCausalLM
    model: PreTrainedModel = auto_class.from_config(body.config)
    model.train(False)
    model.base_model.load_state_dict(body.state_dict())
    return model


@torch.no_grad()
def matrices(name: str) -> list[list[list[list[float]]]]:
    """(head, query, key) of each layer."""
    with tempfile.TemporaryDirectory() as folder:
        model = with_head(decaying(name))
        model.save_pretrained(folder)
        save_tokenizer(Path(folder))
        bridge = TransformerBridge.boot_transformers(folder, hf_model=model, device="cpu")
    for block in bridge.blocks:  # its own scan calls the modules whose outputs it needs
        block.mixer.eager_scan = True
    _, cache = bridge.run_with_cache(torch.tensor([IDS]), use_cache=False)
    of_layers = []
    for layer in range(model.config.num_hidden_layers):
        heads = cache.compute_ssm_effective_attention(layer, include_dt_scaling=True)[0]
        of_layers.append([[[round(w, 9) for w in row] for row in head] for head in heads.tolist()])
    return of_layers


if __name__ == "__main__":
    found = {"transformer_lens": version("transformer-lens"), "ids": IDS}
    OUTPUT.write_text(json.dumps(found | {"models": {name: matrices(name) for name in MODELS}}) + "\n")
