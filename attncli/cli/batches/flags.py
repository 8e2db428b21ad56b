"""The flags that need a store."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attncli.cli.command import flag, option

FRESH = flag("--fresh", "Start the store over instead of resuming.")
WORKERS = option(
    "--workers",
    "Processes to compute in (default: one per core where the batch is worth their start).",
    "INTEGER",
    kind=int,
    min=1,
)
SCHEDULER = option("--scheduler", "Compute on a Dask cluster: tcp://host:port.", "ADDRESS")


def store_errors(store: Path | None, flags: Mapping[str, Any]) -> Iterator[str]:
    """The errors of flags that need a store."""
    given = [name for name, value in flags.items() if value not in (None, False)]
    for name in given if store is None else ():
        yield f"--{name}: needs a store: -o FILE.db"
    if {"workers", "scheduler"} <= {*given}:
        yield "--workers: cannot be combined with --scheduler, which has its own"
