"""Python runs this file first in any program started by `attn record`; the file waits for torch.

This is the only file in a folder at the start of PYTHONPATH. PYTHONPATH is left unchanged, so that programs
that the recorded program starts, such as the ranks of torchrun, are recorded too. The file outlives attn,
because tools such as coverage list the files that a program has run.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class AfterTorch:
    """A finder that lets other finders locate torch, and starts recording once torch is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """Return the spec of torch; its loader runs the module and then starts the recording."""
        if name != "torch":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                if self in sys.meta_path:  # torch may be looked up several times
                    sys.meta_path.remove(self)
                    start()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def start() -> None:
    """Import attn from its own location, whatever environment the program uses, and start recording."""
    folder = os.environ.get("ATTN_RECORD_FOLDER", "")
    program, before = sys.path[:1], {*sys.modules}
    if program and program[0] not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        sys.path[:] = sys.path[1:] + program  # a program's file may be named like a standard module
    try:
        import_and_listen(folder)
    finally:
        if program and sys.path[-1:] == program:
            sys.path[:] = program + sys.path[:-1]
        give_back({*sys.modules} - before, program[0] if program else "")


def give_back(modules: "set[str]", program: str) -> None:
    """Remove new modules named like files of the program, so that the program can import its own files."""
    for name in modules:
        place = os.path.join(program, name.partition(".")[0])
        has_file = os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__init__.py"))
        if has_file and name.partition(".")[0] != "attncli":
            sys.modules.pop(name, None)


def import_and_listen(folder: str) -> None:
    package = os.path.join(os.environ.get("ATTN_RECORD_PACKAGE", ""), "")
    try:
        if "attncli" not in sys.modules:
            spec = importlib.util.spec_from_file_location(
                "attncli", f"{package}__init__.py", submodule_search_locations=[package]
            )
            assert spec is not None and spec.loader is not None, "attn is installed there"
            sys.modules["attncli"] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        from attncli.features.record.child.program import listen

        listen(folder)
    except Exception as error:  # the program must continue
        if isinstance(error, ModuleNotFoundError):
            line = (
                f"{sys.executable} has no {error.name}, which attn needs: install attncli in the same "
                "environment as torch"
            )
        else:
            line = f"{type(error).__name__}: {error}"
        leave(folder, f"{os.getpid()}.error", line)


def leave(folder: str, name: str, text: str) -> None:
    """Write a file for attn to read, if the folder for such files still exists."""
    try:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass


def run_next(here: str) -> None:
    """Run the program's own sitecustomize, if there is another sitecustomize further along the path."""
    folders = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    sys.path[:] = folders
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("ATTN_RECORD_FOLDER"):
    leave(os.environ["ATTN_RECORD_FOLDER"], "python", "")
    if "torch" in sys.modules:  # a .pth file has already imported it
        start()
    else:
        sys.meta_path.insert(0, AfterTorch())
run_next(os.path.dirname(os.path.abspath(__file__)))
