"""The pass over tiles in C: where its library is, and whether it is used.

A leaf without torch. The library is built when attn is installed, where there is a compiler (hatch_build.py);
its name has the digest of its source, so that none of another version is ever loaded.
"""

import ctypes
import os
from functools import cache
from hashlib import sha256
from pathlib import Path

SOURCE = Path(__file__).with_name("tile_pass.c")
SWITCH = "ATTN_COMPILED"
"""The environment variable that, set to 0, leaves everything to torch."""


def library_name() -> str:
    """What the library of this source is called."""
    return f"tile_pass-{sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"


@cache
def tile_pass() -> ctypes.CDLL | None:
    """The library; None where it was not built, does not load, or is switched off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return ctypes.CDLL(str(SOURCE.with_name(library_name())))
    except OSError:
        return None


def tile_pass_in_use() -> str:
    """`compiled` or `torch`: what computes long rows on the CPU."""
    return "torch" if tile_pass() is None else "compiled"
