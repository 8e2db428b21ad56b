"""Heads by the names that a user gives them: found among all heads, or ablated while others are measured."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any

from torch import Tensor

from attncli.attention.engines.tile import GivenWeights
from attncli.errors import UserError
from attncli.experiments.ablate.removal import output_of, without_columns
from attncli.inputs.capture.captured_layers import CapturedLayer, Consumer
from attncli.inputs.models.pretrained import Pretrained
from attncli.spec.models.head_places import named_head


def index_of_head(rows: Sequence[Mapping[str, Any]], name: str, key: str, pretrained: Pretrained) -> int:
    """The index of its row; UserError, at `key`, for a head that the model does not have."""
    stack, layer, head = named_head(name)
    stacks = list(dict.fromkeys(row["stack"] for row in rows))
    if not stack and len(stacks) > 1:
        raise UserError(f"{key}: must say which stack of {pretrained.name}, as {stacks[0]}:{name}")
    own = stack or stacks[0]
    for index, row in enumerate(rows):
        if (row["stack"], row["layer"], row["head"]) == (own, layer, head):
            return index
    layers = sorted({row["layer"] for row in rows if row["stack"] == own})
    if not layers:
        raise UserError(f"{key}: {pretrained.name} has no stack {stack} (got {name})")
    if layer not in layers:
        raise UserError(f"{key}: layer must be one of {layers[0]} to {layers[-1]} (got {name})")
    count = sum(row["stack"] == own and row["layer"] == layer for row in rows)
    raise UserError(f"{key}: head must be below {count} (got {name})")


class AblatedHeads:
    """Takes the layers before `consume`, and zeroes what the named heads give."""

    def __init__(
        self, names: Sequence[str], pretrained: Pretrained, consume: Consumer, hooks: ExitStack
    ) -> None:
        self.name, self.model = pretrained.name, pretrained.model
        self.hooks = hooks
        self.heads = {name: named_head(name) for name in names}
        self.consume = consume
        self.found: set[str] = set()
        for name, head in self.heads.items():
            if not head.stack and pretrained.has_decoder:
                raise UserError(f"ablate: must say which stack of {self.name}, as decoder:{name}")

    def take(self, layer: CapturedLayer) -> Tensor | None:
        """The layer's output without these heads; UserError for a head that it does not have."""
        output = self.consume(layer)
        own = {
            name: head.head
            for name, head in self.heads.items()
            if (head.stack or "self", head.layer) == (layer.stack_name, layer.layer)
        }
        if not own:
            return output
        self.found.update(own)
        if isinstance(layer.attention, GivenWeights):
            raise UserError(f"ablate: {self.name} computes its attention itself: no head can be taken out")
        for name, head in own.items():
            if head >= layer.attention.num_heads:
                raise UserError(f"ablate: head must be below {layer.attention.num_heads} (got {name})")
        output = output_of(layer) if output is None else output
        places = list(product(range(len(output)), own.values()))
        return without_columns(self.model, layer, output, places, self.hooks)

    def check_all_found(self) -> None:
        """UserError for a head of a layer that the model does not have."""
        if missing := [name for name in self.heads if name not in self.found]:
            raise UserError(f"ablate: {self.name} has no such layer (got {missing[0]})")

    def notes(self) -> list[str]:
        """Which heads were ablated."""
        if not self.heads:
            return []
        heads, their = ("head", "its") if len(self.heads) == 1 else ("heads", "their")
        return [f"Without {heads} {', '.join(self.heads)}: as if {their} columns of W_O were zero."]
