"""What lxt and captum say of a similarity by all-MiniLM: tests/measure/lxt_bert.json.

In the environment of tools/lxt_relevance.py:

    python tools/lxt_bert.py ALL_MINILM_FOLDER

Of the cosine of the vectors of a text and a question: gradient x input of the embeddings (captum), and
AttnLRP (lxt.efficient) of the same with the length of the text's vector kept.
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
from transformers.models.bert import modeling_bert

# lxt imports its models of pictures, too, which need torchvision.
sys.modules["lxt.efficient.models.vit_torch"] = MagicMock()
patches = import_module("lxt.efficient.models.bert")
OUTPUT = Path(__file__).parents[1] / "tests" / "measure" / "lxt_bert.json"
QUESTION = "Where was the instrument found?"
TEXT = "Its owner was born in Lisbon. A violin was found under the old bridge. Rain is expected on Sunday."


def scores(folder: str) -> dict[str, Any]:
    """The relevance of each token of the text, by both."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    ids, of_question = (torch.tensor([tokenizer.encode(text).ids]) for text in (TEXT, QUESTION))

    def cosines(*, keeps_length: bool) -> tuple[Any, Callable[[Tensor], Tensor]]:
        model: Any = modeling_bert.BertModel.from_pretrained(folder, attn_implementation="eager")
        model.eval().requires_grad_(False)
        toward = model(of_question).last_hidden_state.mean(dim=1)

        def cosine(vectors: Tensor) -> Tensor:
            mean = model(inputs_embeds=vectors).last_hidden_state.mean(dim=1)
            length = mean.norm(dim=-1)
            product = (mean * toward).sum(dim=-1) / toward.norm()
            result: Tensor = product / (length.detach() if keeps_length else length)
            return result

        return model, cosine

    model, cosine = cosines(keeps_length=False)
    vectors = model.embeddings.word_embeddings(ids).detach().requires_grad_()
    by_captum = InputXGradient(cosine).attribute(vectors)[0].sum(dim=-1)
    for target, patch in patches.attnLRP.items():
        patch(target)
    model, cosine = cosines(keeps_length=True)
    vectors = model.embeddings.word_embeddings(ids).detach().requires_grad_()
    total = cosine(vectors).sum()
    (gradient,) = torch.autograd.grad(total, vectors)
    return {
        "versions": {name: version(name) for name in ("lxt", "captum", "torch", "transformers")},
        "question": QUESTION,
        "text": TEXT,
        "ids": ids[0].tolist(),
        "cosine": float(total.detach()),
        "attnlrp": (vectors * gradient)[0].sum(dim=-1).tolist(),
        "gradient_input": by_captum.tolist(),
    }


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(scores(sys.argv[1]), indent=1) + "\n")
