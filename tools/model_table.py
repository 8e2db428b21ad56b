"""Writes the table of docs/architectures.md, from tiny random models: python tools/model_table.py"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))
from tiny_architectures import ARCHITECTURES, Architecture, random_inputs

from attncli.core.engines import attend
from attncli.core.layer import Wanted
from attncli.errors import UserError
from attncli.models.capture import capture
from attncli.models.layers import CapturedLayer

PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"
BEGIN, END = "<!-- table: python tools/model_table.py -->\n", "<!-- end of table -->\n"
HEADER = (
    "| architecture | how | attention modules | difference to eager | what is special |\n"
    "| --- | --- | --- | --- | --- |\n"
)


@torch.no_grad()
def _eager(model: PreTrainedModel) -> list[Tensor]:
    """The weights of every layer: an encoder's, a decoder's, then those across."""
    model.set_attn_implementation("eager")
    model(**random_inputs(model))  # BigBird changes with what it reads first
    outputs = model(**random_inputs(model), output_attentions=True)
    two_stacks = ["encoder_attentions", "decoder_attentions", "cross_attentions"]
    names = two_stacks if model.config.is_encoder_decoder else ["attentions"]
    return [weights[0] for name in names for weights in outputs[name]]


def _in_order(layers: list[CapturedLayer]) -> list[CapturedLayer]:
    stacks = {("encoder", "self"): 0, ("decoder", "self"): 1, ("decoder", "cross"): 2}
    return sorted(layers, key=lambda layer: stacks.get((layer.stack, layer.kind), 1))


def _weights(layer: CapturedLayer) -> Tensor:
    weights = attend(layer.attention, Wanted(weights=True)).weights
    assert weights is not None
    return weights[0]


def row(name: str, architecture: Architecture) -> str:
    """What holds for one architecture."""
    model = architecture.build()
    layers: list[CapturedLayer] = []
    try:
        how = capture(model, random_inputs(model), layers.append).kind
    except UserError:
        return f"| {name} | refused | - | - | it has no attention weights |\n"
    pairs = zip(_in_order(layers), _eager(model), strict=True)
    difference = max(float((_weights(layer) - weights).abs().max()) for layer, weights in pairs)
    modules = ", ".join(f"`{layer.module}`" for layer in layers if layer.layer == 0)
    way = "interface" if how == "interface" else "eager (dense)"
    return f"| {name} | {way} | {modules} | {difference:.1e} | {architecture.special} |\n"


def table() -> str:
    """A row an architecture."""
    return HEADER + "".join(row(name, architecture) for name, architecture in ARCHITECTURES.items())


def refreshed(page: str) -> str:
    """The page with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    PAGE.write_text(refreshed(PAGE.read_text()))
