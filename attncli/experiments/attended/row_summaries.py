"""Row statistics of a long text for people: quantiles, and the rows that stand out."""

from collections.abc import Mapping

import numpy as np
import torch

from attncli.report import NamedTensor, Statistic, Table, Tensors
from attncli.statistics.ranks import extreme_places, quantiles

NUM_EXTREMES = 3
MAX_ROWS_WHOLE = 1000


def with_summaries(statistics: Mapping[str, Statistic], num_queries: int) -> dict[str, Statistic]:
    """The statistics, and of very many rows their quantiles and extremes."""
    rows = statistics.get("rows")
    if not isinstance(rows, Tensors) or num_queries <= MAX_ROWS_WHOLE:
        return dict(statistics)
    summarised = {name: rows[name] for name in rows if name not in ("top_keys", "top_weights")}
    return {**statistics, "quantiles": quantile_rows(summarised), "extremes": extreme_rows(summarised)}


def quantile_rows(rows: Mapping[str, NamedTensor]) -> Table:
    """The quantiles over the queries of each statistic, a row for each batch and head."""
    return Table(
        {
            "statistic": name,
            **dict(zip(tensor.axes[:-1], index, strict=True)),
            **quantiles(torch.from_numpy(tensor.values[index])),
        }
        for name, tensor in rows.items()
        for index in np.ndindex(tensor.values.shape[:-1])
    )


def extreme_rows(rows: Mapping[str, NamedTensor]) -> Table:
    """The queries, of all batches and heads, where each statistic is lowest and highest."""
    found = Table()
    for name, tensor in rows.items():
        flat = torch.from_numpy(tensor.values).flatten()
        for extreme, places in zip(("lowest", "highest"), extreme_places(flat, NUM_EXTREMES), strict=True):
            for place in places.tolist():
                index = map(int, np.unravel_index(place, tensor.values.shape))
                where = dict(zip(tensor.axes, index, strict=True))
                found.append({"statistic": name, "extreme": extreme, **where, "value": flat[place].item()})
    return found
