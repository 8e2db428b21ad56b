"""What the numbers of a run are: a column each, which follow from the shapes of a report's statistics."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

SUMMARIES = ("mean", "min", "max")


class Column(NamedTuple):
    """What one number is; `token` is the query of a row statistic, or the key of received_mass."""

    statistic: str
    layer: int | None = None
    head: int | None = None
    batch: int | None = None
    token: int | None = None


Columns = tuple[Column, ...]


class ScalarShape(NamedTuple):
    """One number."""

    name: str
    layer: int | None
    head: int | None

    def columns(self) -> Iterator[Column]:
        """Its column."""
        yield Column(*self)


class GridShape(NamedTuple):
    """One number for each layer and head."""

    name: str
    num_layers: int
    num_heads: int

    def columns(self) -> Iterator[Column]:
        """Layer by layer."""
        for layer in range(self.num_layers):
            yield from (Column(self.name, layer, head) for head in range(self.num_heads))


class RowShape(NamedTuple):
    """A number for each row, summarised for each head; with `num_tokens` every row is kept, too."""

    name: str
    layer: int | None
    head: int | None
    num_heads: int | None = None
    num_batches: int | None = None
    num_tokens: int | None = None

    def columns(self) -> Iterator[Column]:
        """The summaries of each head, then every row."""
        heads = [self.head] if self.num_heads is None else list(range(self.num_heads))
        for head in heads:
            yield from (Column(f"{self.name}.{how}", self.layer, head) for how in SUMMARIES)
        batches = [None] if self.num_batches is None else list(range(self.num_batches))
        for head in heads:
            for batch in batches:
                for token in range(self.num_tokens or 0):
                    yield Column(self.name, self.layer, head, batch, token)


class SurveyShape(NamedTuple):
    """A survey of heads: layer, head, what stands before the names, and the names, for each head."""

    heads: tuple[tuple[int, int, str, tuple[str, ...]], ...]

    def columns(self) -> Iterator[Column]:
        """Head by head."""
        for layer, head, prefix, names in self.heads:
            yield from (Column(prefix + name, layer, head) for name in names)


Shape = ScalarShape | GridShape | RowShape | SurveyShape


@lru_cache(maxsize=256)
def columns_of_shapes(shapes: tuple[Shape, ...]) -> Columns:
    """The columns of a report; reports of equal shapes share the very tuple."""
    return tuple(column for shape in shapes for column in shape.columns())
