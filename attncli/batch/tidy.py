"""The tidy table of a store: a row a figure, in blocks of some runs."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attncli.batch.reading import Reader, Runs

PLACES = ("layer", "head")
ROW_PLACES = ("batch", "token")

Block = Mapping[str, list[Any]]


def tidy_columns(reader: Reader) -> dict[str, str]:
    """The names of the columns, each with its type: integer, text or number."""
    places = (*PLACES, *ROW_PLACES) if reader.keeps_rows else PLACES
    return {
        "run": "integer",
        "id": "text",
        **dict.fromkeys(places, "integer"),
        "statistic": "text",
        "value": "number",
    }


def tidy_blocks(reader: Reader) -> Iterator[Block]:
    """The rows as columns of equal length; None for what is not there and for no number."""
    names = tidy_columns(reader)
    for runs in reader.done():
        yield {name: column for name, column in _block(runs).items() if name in names}


def _block(runs: Runs) -> dict[str, list[Any]]:
    width, count = len(runs.columns), len(runs.runs)
    values = runs.figures.ravel()
    numbers = values.tolist()
    for i in np.flatnonzero(np.isnan(values)).tolist():
        numbers[i] = None
    places = {place: [getattr(c, place) for c in runs.columns] * count for place in (*PLACES, *ROW_PLACES)}
    return {
        "run": [run for run in runs.runs for _ in range(width)],
        "id": [name for name in runs.ids for _ in range(width)],
        **places,
        "statistic": [column.statistic for column in runs.columns] * count,
        "value": numbers,
    }
