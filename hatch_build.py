"""Compiles attn's C loops if there is a compiler; without one, torch computes the same."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-std=gnu11", "-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")


class CompiledPass(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the libraries beside their sources, in a wheel and in an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root, "attncli", "core")
        runtime = _runtime(folder)
        for source in (runtime.TILE_PASS, runtime.FEW_ROWS):
            library = folder / runtime.library_name(source)
            if not library.exists() and not compiled(source, library):
                continue
            build_data["artifacts"].append(f"/attncli/core/{library.name}")
            # The library is not an extension module: every version of Python can load it.
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["pure_python"] = False


def _runtime(folder: Path) -> Any:
    spec = spec_from_file_location("runtime", folder / "runtime.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(source: Path, library: Path) -> bool:
    """Compile a library and return True; on failure return False and leave no file."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        return False
    with TemporaryDirectory(dir=library.parent) as folder:
        new = Path(folder, library.name)
        # cibuildwheel sets ARCHFLAGS on macOS to build for another processor.
        processor = shlex.split(os.environ.get("ARCHFLAGS", ""))
        command = [*compiler, *FLAGS, *processor, "-o", new, source, "-lm"]
        if subprocess.run(command, capture_output=True).returncode:
            return False
        new.replace(library)
    return True
