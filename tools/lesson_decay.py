"""The last matrix of lesson 16: attncli/data/lessons/files/decay.json.

    python tools/lesson_decay.py

Query and key are those of `attn self "the cat sees the dog" --causal --no-softmax`; the kernel of lightning
attention makes weights of them that halve with each token.
"""

import json
from dataclasses import replace
from math import log
from pathlib import Path

import torch

import attncli
from attncli.features.linear.kernels import lightning_kernel
from attncli.features.linear.linear_layer import LinearLayer
from attncli.records.attention import LayerStatistics
from attncli.records.report import Report
from attncli.runs.report_parts import named

SENTENCE = "the cat sees the dog"
DECAY = 0.5
NOTE = (
    "Made of the same query and key by the kernel of lightning attention: a weight halves with each token "
    "that comes after its key."
)
OUTPUT = Path(__file__).parents[1] / "attncli" / "data" / "lessons" / "files" / "decay.json"


def decayed() -> Report:
    """The report of attention without a softmax, with the matrix of the kernel in place of its weights."""
    report: Report = attncli.run("self", sentence=SENTENCE, causal=True, softmax=False, explain=True)
    query, key = (torch.from_numpy(report.tensors[name].values) for name in ("query", "key"))
    heads = LinearLayer(
        values=key[None, :, None],
        inputs={"query": query[None, :, None] * query.shape[-1] ** -0.5, "key": key[None, :, None]},
        fixed={"slope": torch.tensor([-log(DECAY)])},
        kernel=lightning_kernel,
        state_dim=key.shape[-1],
    )
    weights = named(heads.weights()[0, 0], "query", "key", mask=report.tensors["weights"].mask)
    plain: Report = attncli.run("self", sentence=SENTENCE, causal=True, softmax=False)
    return replace(plain, tensors={"weights": weights}, result=LayerStatistics(), notes=(NOTE,))


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(decayed().to_data()) + "\n")
