"""The tidy table of a store: one row per figure, in blocks of some runs."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attncli.batch.store.reading import Reader, RunInfo, Runs

Block = Mapping[str, list[Any]]


def tidy_columns(reader: Reader) -> dict[str, str]:
    """The names of the columns, each with its type: integer, text or number."""
    return {
        "run": "integer",
        "id": "text",
        **({"plan": "integer"} if reader.all_runs else {}),
        "layer": "integer",
        "head": "integer",
        **({"batch": "integer", "token": "integer"} if reader.keeps_rows else {}),
        "statistic": "text",
        "value": "number",
    }


def tidy_blocks(reader: Reader) -> Iterator[Block]:
    """The rows as columns of equal length; None for what is not there and for no number."""
    names = tidy_columns(reader)
    for runs in reader.done():
        yield {name: _cells(runs, name) for name in names}


def _cells(runs: Runs, name: str) -> list[Any]:
    if name in RunInfo._fields:
        width = len(runs.columns)
        return [value for run in runs.runs for value in [getattr(run, name)] * width]
    if name != "value":
        return [getattr(column, name) for column in runs.columns] * len(runs.runs)
    values = runs.figures.ravel()
    numbers: list[Any] = values.tolist()
    for i in np.flatnonzero(np.isnan(values)).tolist():
        numbers[i] = None
    return numbers
