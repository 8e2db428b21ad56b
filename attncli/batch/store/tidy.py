"""The tidy table of a store: one row per value, in blocks of some runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncli.batch.store.reading import Reader, RunInfo, Runs, differing_settings

COLUMNS = ("layer", "head", "batch", "token", "statistic", "value")

Block = Mapping[str, list[Any]]


def tidy_columns(reader: Reader) -> dict[str, str]:
    """The name and type of each column: integer, text or number."""
    return {
        "run": "integer",
        "id": "text",
        **({"plan": "integer"} if reader.all_runs else {}),
        **_swept(reader),
        "layer": "integer",
        "head": "integer",
        **({"batch": "integer", "token": "integer"} if reader.keeps_rows else {}),
        "statistic": "text",
        "value": "number",
    }


def tidy_blocks(reader: Reader) -> Iterator[Block]:
    """The rows as columns of equal length; None for what is missing or not a number."""
    names = tidy_columns(reader)
    for runs in reader.done():
        yield {name: _cells(runs, name, kind, reader) for name, kind in names.items()}


def _swept(reader: Reader) -> dict[str, str]:
    """The settings in which runs of one experiment differ, unless another column has the same name."""
    used = reader.settings_in_use().values()
    by_experiment = [
        [settings for settings in used if settings["experiment"] == name]
        for name in dict.fromkeys(settings["experiment"] for settings in used)
    ]
    keys = dict.fromkeys(key for own in by_experiment for key in differing_settings(own))
    return {key: _type_of([own.get(key) for own in used]) for key in keys if key not in COLUMNS}


def _type_of(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return "integer"
    return "number" if kinds <= {int, float} else "text"


def _cells(runs: Runs, name: str, kind: str, reader: Reader) -> list[Any]:
    if name in RunInfo._fields:
        width = len(runs.columns)
        return [value for run in runs.runs for value in [getattr(run, name)] * width]
    if name not in COLUMNS:
        own = [reader.settings[run.settings].get(name) for run in runs.runs]
        if kind == "text":
            texts = (str(value).lower() if isinstance(value, bool) else str(value) for value in own)
            own = [None if value is None else text for value, text in zip(own, texts, strict=True)]
        return [cell for cell in own for _ in runs.columns]
    if name != "value":
        return [getattr(column, name) for column in runs.columns] * len(runs.runs)
    values: list[Any] = runs.values.ravel().tolist()
    for i in np.flatnonzero(np.isnan(runs.values)).tolist():
        values[i] = None
    return values
