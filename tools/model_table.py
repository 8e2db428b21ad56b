"""Writes the table of docs/architectures.md, from tiny random models: python tools/model_table.py"""

import sys
from pathlib import Path
from typing import NamedTuple

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
HEADER = "| architecture | read by | what is special |\n| --- | --- | --- |\n"


class Row(NamedTuple):
    """An architecture: how attn reads it, and the largest difference from eager attention."""

    name: str
    how: str
    special: str
    difference: float = 0.0

    @property
    def line(self) -> str:
        """The row as Markdown."""
        return f"| {self.name} | {self.how} | {self.special} |\n"


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


def row(name: str, architecture: Architecture) -> Row:
    """The row of one architecture."""
    model = architecture.build()
    layers: list[CapturedLayer] = []
    try:
        how = capture(model, random_inputs(model), layers.append).kind
    except UserError:
        return Row(name, "refused", "it has no attention weights")
    pairs = zip(_in_order(layers), _eager(model), strict=True)
    difference = max(float((_weights(layer) - weights).abs().max()) for layer, weights in pairs)
    return Row(name, "interface" if how == "interface" else "eager (dense)", architecture.special, difference)


def rows() -> list[Row]:
    """One row per architecture."""
    return [row(name, architecture) for name, architecture in ARCHITECTURES.items()]


def refreshed(page: str, rows: list[Row]) -> str:
    """The page with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, HEADER, *(row.line for row in rows), END, after])


if __name__ == "__main__":
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    PAGE.write_text(refreshed(PAGE.read_text(), rows()))
