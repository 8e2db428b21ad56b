"""What is done to a tile of scores: by the compiled library where there is one, else by torch."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from attncli.attention.engines.tiles import compiled_pass, torch_pass


class TilePass(NamedTuple):
    """Takes a tile into the running sums of its rows; adds its weights to the sums of its columns."""

    add_tile: Callable[..., None]
    add_columns: Callable[..., None]


TORCH = TilePass(torch_pass.add_tile, torch_pass.add_columns)
COMPILED = TilePass(compiled_pass.add_tile, compiled_pass.add_columns)


def tile_pass_for(like: Tensor) -> TilePass:
    """The pass for tensors of that type, on that device."""
    return COMPILED if compiled_pass.suits(like) else TORCH
