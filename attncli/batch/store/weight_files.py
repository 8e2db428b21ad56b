"""Raw matrices beside a store: one safetensors file per chunk, which the store names once it is complete."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from attncli.errors import UserError, WriteError

ENDING = "-weights"


class WeightFiles:
    """The folder `runs.db-weights` of the store `runs.db`."""

    def __init__(self, store: Path) -> None:
        self.folder = store.with_name(store.name + ENDING)

    def write(self, weights: Mapping[str, np.ndarray]) -> str | None:
        """Save the matrices by the keys of their runs; the name of the file, or None without matrices.

        The file is on disk before its transaction is, so that a store never names half a file.
        """
        if not weights:
            return None
        from safetensors.numpy import save

        data = save({key: np.ascontiguousarray(matrix) for key, matrix in weights.items()})
        last = max((int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")), default=0)
        name = f"{last + 1:06}.safetensors"
        part = self.folder / f"{name}.part"
        try:
            self.folder.mkdir(exist_ok=True)
            try:
                with part.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(self.folder / name)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            message = f"cannot be written: {error.strerror}: what was finished is kept"
            raise WriteError(f"{self.folder}: {message}") from None
        return name

    def remove_others(self, named: set[str | None]) -> None:
        """Remove what a crash left behind: our files that the store does not name."""
        for pattern in ("[0-9]*.safetensors", "[0-9]*.safetensors.part"):
            for path in self.folder.glob(pattern):
                if path.name not in named:
                    path.unlink()


def refuse_without_safetensors() -> None:
    """UserError if the package that writes the files is not installed."""
    if find_spec("safetensors") is None:
        raise UserError('--weights: needs: pip install "attncli[models]"')
