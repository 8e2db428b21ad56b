"""What computed a report."""

import torch

from attncli import __version__
from attncli.compiled import tile_pass_in_use


def versions() -> dict[str, str]:
    """Versions of attn and torch, and the pass that long rows take on the CPU."""
    return {"attncli": __version__, "torch": torch.__version__, "tile_pass": tile_pass_in_use()}
