"""The keys that kvpress keeps of a tiny Llama, and its logits: tests/features/cache/kvpress_kept_keys.json.

Its packages pin an older transformers, so that it runs in an environment of its own:

    pip install kvpress==0.5.5 transformers==5.2.0 torch==2.13.0
    PYTHONPATH=. python tools/kvpress_kept_keys.py
"""

import json
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

NUM_TOKENS, NUM_PROMPT, BUDGET = 409, 400, 0.6
SHOWN = 40
"""Of the logits of each token."""
OUTPUT = Path(__file__).parents[1] / "tests" / "features" / "cache" / "kvpress_kept_keys.json"
"""What they are called here, and there."""
PRESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "sinks": ("StreamingLLMPress", {}),
    "h2o": ("ObservedAttentionPress", {}),
    "tova": ("TOVAPress", {}),
    "snapkv": ("SnapKVPress", {}),
    "pyramidkv": ("PyramidKVPress", {}),
    "knorm": ("KnormPress", {}),
    "expected": ("ExpectedAttentionPress", {}),
}


def tiny_llama() -> LlamaForCausalLM:
    """The same numbers whatever initialises a model: three layers of four heads on two caches."""
    config = LlamaConfig(
        vocab_size=NUM_TOKENS,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval().requires_grad_(False)
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(3)
    for _, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.2 * noise if parameter.ndim > 1 else 1 + 0.2 * noise)
    llama: LlamaForCausalLM = model
    return llama


def tokens() -> torch.Tensor:
    """A text whose tokens all differ: the first layer's keys of one token are equally long."""
    return torch.randperm(NUM_TOKENS, generator=torch.Generator().manual_seed(4)).unsqueeze(0)


@torch.no_grad()
def kept_by(press: Any) -> dict[str, Any]:
    """By layer and head the keys that stay, and the logits of the other tokens, read with them."""
    from transformers import DynamicCache

    model, ids = tiny_llama(), tokens()
    whole: Any = DynamicCache()
    cache: Any = DynamicCache()
    model.model(ids[:, :NUM_PROMPT], past_key_values=whole)
    with press(model):
        model.model(ids[:, :NUM_PROMPT], past_key_values=cache)
    kept = [
        [
            sorted(int((own_keys == key).all(dim=-1).nonzero()) for key in head)
            for own_keys, head in zip(every.keys[0], left.keys[0], strict=True)
        ]
        for every, left in zip(whole.layers, cache.layers, strict=True)
    ]
    # Layers of a pyramid keep unequal numbers of keys, and one mask serves all: without a prompt beside
    # them the queries see each other causally, and all that is kept.
    logits = None
    if len({len(head) for layer in kept for head in layer}) == 1:
        positions = torch.arange(NUM_PROMPT, NUM_TOKENS).unsqueeze(0)
        logits = model(ids[:, NUM_PROMPT:], past_key_values=cache, position_ids=positions).logits
    return {
        "kept": kept,
        "logits": None if logits is None else logits[0, :, :SHOWN].double().round(decimals=6).tolist(),
    }


def main() -> None:
    """Every press that has a policy here."""
    kvpress = import_module("kvpress")  # which is in the environment of this script alone
    policies = {
        name: kept_by(getattr(kvpress, press)(compression_ratio=1 - BUDGET, **settings))
        for name, (press, settings) in PRESSES.items()
    }
    about = {"kvpress": version("kvpress"), "budget": BUDGET}
    OUTPUT.write_text(json.dumps(about | {"policies": policies}) + "\n")


if __name__ == "__main__":
    main()
