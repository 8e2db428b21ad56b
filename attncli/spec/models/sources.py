"""What a setting `model` names on this machine: a folder, a GGUF file, or a package that ships one."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

GGUF = ".gguf"
WEIGHTS = (".safetensors", ".bin", ".pt", ".h5")


def local_model(model: str) -> Path | None:
    """The folder or GGUF file; None for what could only be a model of the hub.

    ValueError for a package that ships several.
    """
    path = Path(model)
    if path.is_dir() or (path.suffix.lower() == GGUF and path.is_file()):
        return path
    return None if len(path.parts) > 1 else _of_package(model)


@lru_cache(maxsize=64)
def _of_package(name: str) -> Path | None:
    """What an installed package's list of files says, none of whose code runs."""
    try:
        listed = files(name) if name.strip() else None
    except (PackageNotFoundError, ValueError):
        return None
    paths = [Path(str(file.locate())) for file in listed or ()]
    models = [path for path in paths if path.suffix.lower() == GGUF]
    if not models:
        configured = {path.parent for path in paths if path.name == "config.json"}
        weighed = {path.parent for path in paths if path.suffix in WEIGHTS}
        models = sorted(configured & weighed)
    if len(models) > 1:
        names = ", ".join(map(str, models))
        raise ValueError(f"{name} ships several models: name one of {names}")
    return models[0] if models else None
