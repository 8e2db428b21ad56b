"""What is to be run: every setting validated before anything runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attncli.errors import UserError
from attncli.spec import Spec
from attncli.spec.config_file import ConfigFile


class Item(NamedTuple):
    """One experiment, where it stands, and whether it starts its file's generator (anew)."""

    spec: Spec
    source: str | None = None
    starts_file: bool = True
    reseed: bool = True


def plan_files(paths: Sequence[Path]) -> list[Item]:
    """The experiments of all files in order; UserError with every error of every file."""
    items: list[Item] = []
    errors: list[str] = []
    for path in paths:
        try:
            steps = ConfigFile(path).steps()
        except UserError as error:
            errors += error.lines
            continue
        items += [Item(step.spec, step.source, i == 0, i == 0 or step.reseed) for i, step in enumerate(steps)]
    if errors:
        raise UserError(*errors)
    return items
