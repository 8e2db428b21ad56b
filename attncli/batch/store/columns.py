"""The columns of a run's values, which follow from the shapes of the statistics in its report."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from attncli.spec.fields import SUMMARIES

GROUP_SUMMARY = ("count", "mean", "std", "min", "max")
"""What `attn results` reports on the values of a group."""
FLOAT = "<f8"
"""How a value is stored: float64, little-endian."""


class Column(NamedTuple):
    """What one value is; `token` is the query of a row statistic, or the key of received_mass."""

    statistic: str
    layer: int | None = None
    head: int | None = None
    batch: int | None = None
    token: int | None = None


Columns = tuple[Column, ...]
Shape = tuple[Any, ...]
"""One of the functions below and its arguments, from which the columns of some values follow."""


def one_column(name: str, layer: int | None, head: int | None) -> Iterator[Column]:
    """The column of a single number."""
    yield Column(name, layer, head)


def grid_columns(name: str, num_layers: int, num_heads: int) -> Iterator[Column]:
    """One for each layer and head, layer by layer."""
    return (Column(name, *place) for place in product(range(num_layers), range(num_heads)))


def row_columns(
    name: str,
    layer: int | None,
    head: int | None,
    num_heads: int | None,
    num_batches: int | None,
    num_tokens: int,
) -> Iterator[Column]:
    """The summaries of each head, then its `num_tokens` rows, 0 where rows are not kept."""
    heads = [head] if num_heads is None else range(num_heads)
    batches = [None] if num_batches is None else range(num_batches)
    for place, how in product(heads, SUMMARIES):
        yield Column(f"{name}.{how}", layer, place)
    for row in product(heads, batches, range(num_tokens)):
        yield Column(name, layer, *row)


def survey_columns(heads: tuple[tuple[int, int, str, tuple[str, ...]], ...]) -> Iterator[Column]:
    """Head by head; each has its layer, head, the prefix of its names, and the names."""
    for layer, head, prefix, names in heads:
        yield from (Column(prefix + name, layer, head) for name in names)


@lru_cache(maxsize=256)
def columns_of_shapes(shapes: tuple[Shape, ...]) -> Columns:
    """The columns of a report; reports with equal shapes share the same tuple object."""
    return tuple(column for columns, *about in shapes for column in columns(*about))
