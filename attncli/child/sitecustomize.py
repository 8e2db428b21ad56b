"""What Python runs first in a program that `attn record` started: it waits for torch, and imports nothing.

The folder of this file stands first on PYTHONPATH, so that the programs which that program starts, the ranks
of torchrun among them, are recorded too.
"""

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType


class AfterTorch:
    """A finder that lets others find torch, and starts the recording once it is imported."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """The spec of torch, whose loader runs the module and then the recording."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                start()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def start() -> None:
    """Import attn from where this file lies, whatever environment the program has, and listen."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        if "attncli" not in sys.modules:
            spec = importlib.util.spec_from_file_location(
                "attncli", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
            )
            assert spec is not None and spec.loader is not None, "it lies there"
            sys.modules["attncli"] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        from attncli.child.program import listen
    except Exception as error:
        folder = os.environ.get("ATTN_RECORD_FOLDER")
        if folder:
            with open(os.path.join(folder, f"{os.getpid()}.error"), "w") as file:
                file.write(f"{type(error).__name__}: {error}")
        return
    listen()


def run_next() -> None:
    """The program's own sitecustomize, where there is one behind this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    sys.path[:] = others
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ATTN_RECORD_FOLDER"):
    sys.meta_path.insert(0, AfterTorch())
run_next()
