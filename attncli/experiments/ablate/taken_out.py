"""Heads that give nothing while others are looked at."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product

from torch import Tensor

from attncli.attention.engines.tile import GivenWeights
from attncli.errors import UserError
from attncli.experiments.ablate.zeroed_columns import output_of, without_columns
from attncli.inputs.capture.capture import CapturedLayer, Consumer
from attncli.inputs.models.pretrained import Pretrained
from attncli.spec.models.head_places import named_head


class TakenOut:
    """Takes the layers before `consume`, and zeroes what the named heads give."""

    def __init__(
        self, names: Sequence[str], pretrained: Pretrained, consume: Consumer, hooks: ExitStack
    ) -> None:
        self.name = pretrained.name
        self.model = pretrained.model
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
        self.found.update(own)
        if not own:
            return output
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
        """Which heads were taken out."""
        if not self.heads:
            return []
        heads, their = ("head", "its") if len(self.heads) == 1 else ("heads", "their")
        return [f"Without {heads} {', '.join(self.heads)}: as if {their} columns of W_O were zero."]
