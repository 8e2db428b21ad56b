"""What TransformerLens says of the scores of the shipped model: tests/measure/transformer_lens_scores.json.

Its packages pin others, so that it runs in an environment of its own, with attncli on the path:

    pip install transformer-lens==4.3.0 torch==2.13.0
    PYTHONPATH=. python tools/transformer_lens_scores.py
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformer_lens import TransformerBridge
from transformer_lens.patching import (
    get_act_patch_attn_head_out_all_pos,
    get_act_patch_attn_head_out_by_pos,
)

from attncli.models.loading import in_use, open_model
from attncli.models.probes import read_probe
from attncli.models.reading_text import read_text
from attncli.settings.heads import HeadsSpec

QUERY, KEY = 40, 17
FOLDER = str(HeadsSpec.default_model)
OUTPUT = Path(__file__).parents[1] / "tests" / "measure" / "transformer_lens_scores.json"


def opened() -> TransformerBridge:
    """The shipped model."""
    model = TransformerBridge.boot_transformers(FOLDER, device="cpu")
    # The gains of the norms go into W_Q and W_K, so that a stack is divided by the scales alone.
    model.enable_compatibility_mode(
        fold_value_biases=False, center_writing_weights=False, center_unembed=False
    )
    return model


@torch.no_grad()
def compositions(model: TransformerBridge) -> dict[str, list[Any]]:
    """The composition of each two heads: layer, head, layer, head."""
    sides = {"key": "K", "query": "Q", "value": "V"}
    return {side: model.all_composition_scores(mode).tolist() for side, mode in sides.items()}


@torch.no_grad()
def scores(model: TransformerBridge) -> dict[str, dict[str, dict[str, float]]]:
    """Of each head of layer 1 what each part adds to the score above the mean key, by key and by query."""
    with in_use(open_model(FOLDER)) as pretrained:
        ids = read_probe(pretrained, 24, torch.Generator().manual_seed(0)).text.ids
    _, cache = model.run_with_cache(ids.unsqueeze(0))
    parts, labels = cache.get_full_resid_decomposition(
        layer=1, expand_neurons=False, apply_ln=True, return_labels=True, mlp_input=False
    )
    scores_of_heads = {}
    for head in range(4):
        query, keys = (cache[f"blocks.1.attn.hook_{name}"][0, :, head] for name in "qk")
        by_key = (parts[:, 0] @ model.W_K[1, head]) @ query[QUERY]
        by_query = parts[:, 0, QUERY] @ model.W_Q[1, head] @ keys.mT
        sides = {"key": by_key, "query": by_query}
        scores_of_heads[f"1:{head}"] = {
            side: dict(zip(labels, (above(row) / keys.shape[-1] ** 0.5).tolist(), strict=True))
            for side, row in sides.items()
        }
    return scores_of_heads


TEXT, OTHER, ANSWER, AGAINST = "to be or not to b", "to go or not to g", "e", "o"


@torch.no_grad()
def patches() -> dict[str, list[list[float]]]:
    """The logit difference of one prompt with what a head (layer, head) gave on the other one, both ways."""
    # As transformers computes it: the compatible logits are not those of the model to 1e-4.
    model = TransformerBridge.boot_transformers(FOLDER, device="cpu")
    with in_use(open_model(FOLDER)) as pretrained:
        tokens = [read_text(pretrained, text).text.ids.unsqueeze(0) for text in (TEXT, OTHER)]
        encoded = [pretrained.encoded(text, add_special_tokens=False) for text in (ANSWER, AGAINST)]
        ids = [token for text in encoded for token in text["input_ids"]]

    def difference(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -1, ids[0]] - logits[0, -1, ids[1]]

    patched = {}
    for name, (clean, other) in {"text": tokens, "other": tokens[::-1]}.items():
        _, cache = model.run_with_cache(other)
        patched[name] = get_act_patch_attn_head_out_all_pos(model, clean, cache, difference).tolist()
        by_token = get_act_patch_attn_head_out_by_pos(model, clean, cache, difference)
        patched[f"{name}, by token"] = by_token.tolist()  # layer, token, head
    return patched


def above(row: torch.Tensor) -> torch.Tensor:
    """How far the score of the key is above the mean of those that the query sees."""
    return row[:, KEY] - row[:, : QUERY + 1].mean(dim=-1)


if __name__ == "__main__":
    about = {"transformer_lens": version("transformer-lens"), "query": QUERY, "key": KEY}
    model = opened()
    everything = about | {"heads": scores(model), "compositions": compositions(model), "patches": patches()}
    OUTPUT.write_text(json.dumps(everything, indent=1) + "\n")
