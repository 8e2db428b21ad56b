"""Shapes in signatures are checked while the tests run; a fixture runs `attn` as its entry point does."""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# The same digits on every processor, since shown outputs are compared; torch reads these when it is imported.
os.environ |= {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}

# Elsewhere the examples change with every run; what a machine checks before landing is the same twice.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

ROOMS_OF_TENSORS = ("core", "models", "measure", "library", "toys", "commands", "report_parts")
install_import_hook([f"attncli.{room}" for room in ROOMS_OF_TENSORS], "beartype.beartype")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Attn = Callable[[Sequence[str]], Ended]


@pytest.fixture
def attn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Attn:
    """Runs a command line in this process, with no terminal and no colour variables around."""
    from attncli.cli import run

    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)

    def run_attn(arguments: Sequence[str]) -> Ended:
        code = run(arguments)
        return Ended(code, *capsys.readouterr())

    return run_attn
