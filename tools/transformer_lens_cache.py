"""Compare an attn cache with TransformerLens's own run of the same text, hook by hook.

    attn heads "the cat sat on the cat" --model FOLDER --names transformer_lens -o cache.safetensors
    python tools/transformer_lens_cache.py FOLDER cache.safetensors "the cat sat on the cat"

In an environment of its own with transformer_lens 4 (pip install transformer-lens torch==2.13.0). Prints the
largest difference of each hook. Where TransformerLens gives the weights in the place of hook_attn_scores, as
its bridge does for BERT and OPT, these are not compared.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformer_lens import ActivationCache
from transformer_lens.model_bridge import TransformerBridge

HIDDEN = -1e30


def main() -> None:
    """Read the cache as TransformerLens's users do, and run the model once more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder of transformers")
    parser.add_argument("cache", type=Path)
    parser.add_argument("text")
    given = parser.parse_args()
    model = TransformerBridge.boot_transformers(given.model)
    _, expected = model.run_with_cache(given.text, prepend_bos=False)
    cache = ActivationCache(load_file(given.cache), model)
    largest: dict[str, float] = {}
    for name in cache.cache_dict:
        ours, theirs = cache[name], expected[name]
        hook = name.rpartition(".")[2]
        if hook == "hook_attn_scores" and torch.equal(
            theirs, expected[name.replace("attn_scores", "pattern")]
        ):
            continue
        if ours.shape != theirs.shape:
            raise SystemExit(f"{name}: {tuple(ours.shape)} and {tuple(theirs.shape)}")
        seen = torch.isfinite(ours) & (theirs > HIDDEN)
        difference = float((ours - theirs)[seen].abs().max())
        largest[hook] = max(largest.get(hook, 0.0), difference)
    for hook, difference in largest.items():
        print(f"{hook:20} {difference:.1e}")


if __name__ == "__main__":
    main()
