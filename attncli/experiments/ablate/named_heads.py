"""Where a head that is named stands among the rows of all heads."""

from collections.abc import Mapping, Sequence
from typing import Any

from attncli.errors import UserError
from attncli.inputs.models.pretrained import Pretrained
from attncli.spec.models.head_places import named_head


def number_of_head(rows: Sequence[Mapping[str, Any]], name: str, key: str, pretrained: Pretrained) -> int:
    """The place of its row; UserError, at `key`, for a head that the model does not have."""
    stack, layer, head = named_head(name)
    stacks = list(dict.fromkeys(row["stack"] for row in rows))
    if not stack and len(stacks) > 1:
        raise UserError(f"{key}: must say which stack of {pretrained.name}, as {stacks[0]}:{name}")
    own = stack or stacks[0]
    for number, row in enumerate(rows):
        if (row["stack"], row["layer"], row["head"]) == (own, layer, head):
            return number
    layers = sorted({row["layer"] for row in rows if row["stack"] == own})
    if not layers:
        raise UserError(f"{key}: {pretrained.name} has no stack {stack} (got {name})")
    if layer not in layers:
        raise UserError(f"{key}: layer must be one of {layers[0]} to {layers[-1]} (got {name})")
    count = sum(row["stack"] == own and row["layer"] == layer for row in rows)
    raise UserError(f"{key}: head must be below {count} (got {name})")
