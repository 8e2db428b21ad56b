"""What lxt and captum say of an answer of SmolLM2: tests/measure/lxt_relevance.json.

In an environment of its own:

    pip install torch==2.13.0 transformers==4.52.4 captum==0.9.0
    pip install --no-deps lxt==2.1
    python tools/lxt_relevance.py SMOLLM2_FOLDER

AttnLRP (lxt.efficient, which changes the classes of transformers), and gradient x input of the embeddings
(captum), of the sum of the logits of the answer's tokens.
"""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from captum.attr import InputXGradient
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

# lxt imports its models of pictures, too, which need torchvision.
sys.modules["lxt.efficient.models.vit_torch"] = MagicMock()
patches = import_module("lxt.efficient.models.llama")
OUTPUT = Path(__file__).parents[1] / "tests" / "measure" / "lxt_relevance.json"
PROMPT = "Ann put the key in the drawer. Bo left the violin under the old bridge.\n\nBo left the violin"
ANSWER = " under the old bridge."


def scores(folder: str) -> dict[str, Any]:
    """The relevance of each token of the prompt, by both."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    prompt, answer = (tokenizer.encode(text, add_special_tokens=False).ids for text in (PROMPT, ANSWER))
    ids = torch.tensor([prompt + answer[:-1]])

    def of_model() -> tuple[Any, Callable[[Tensor], Tensor]]:
        config: Any = LlamaConfig.from_pretrained(folder, attn_implementation="eager")
        # transformers 5 writes it elsewhere than 4 reads it.
        written = json.loads((Path(folder) / "config.json").read_text())
        config.rope_theta = written["rope_parameters"]["rope_theta"]
        model: Any = modeling_llama.LlamaForCausalLM.from_pretrained(folder, config=config)
        model.eval().requires_grad_(False)

        def logits(vectors: Tensor) -> Tensor:
            rows = model(inputs_embeds=vectors, use_cache=False).logits[:, len(prompt) - 1 :]
            total: Tensor = rows.gather(-1, torch.tensor([answer]).unsqueeze(-1)).sum(dim=(1, 2))
            return total

        return model, logits

    model, logits = of_model()
    vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
    by_captum = InputXGradient(logits).attribute(vectors)[0].sum(dim=-1)
    for target, patch in patches.attnLRP.items():
        patch(target)
    model, logits = of_model()
    vectors = model.get_input_embeddings()(ids).detach().requires_grad_()
    total = logits(vectors).sum()
    (gradient,) = torch.autograd.grad(total, vectors)
    by_lxt = (vectors * gradient)[0].sum(dim=-1)
    count = len(prompt)
    return {
        "versions": {name: version(name) for name in ("lxt", "captum", "torch", "transformers")},
        "prompt": PROMPT,
        "answer": ANSWER,
        "logits": float(total),
        "attnlrp": by_lxt[:count].tolist(),
        "gradient_input": by_captum[:count].tolist(),
    }


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(scores(sys.argv[1]), indent=1) + "\n")
