"""What every step is made of: tables of terms, shortened, with totals over all terms."""

from collections.abc import Mapping, Sequence

import numpy as np

from attncli.report import Cell, NamedTensor, Shape, Terms

MOST_ROWS, FIRST_ROWS, LAST_ROWS = 12, 4, 2
MOST_PRODUCTS = 6
MOST_DIMS = 6

Numbers = np.ndarray
Columns = Mapping[str, Sequence[object] | Numbers]


def cell(number: object) -> Cell:
    """A number or text as a cell: None for infinity and NaN."""
    if isinstance(number, str):
        return number
    if isinstance(number, int | np.integer):
        return int(number)
    # Any number of Python, numpy or torch: they share no type.
    value = float(np.float64(number))  # type: ignore[arg-type]
    return value if np.isfinite(value) else None


def part(tensor: NamedTensor, **index: int) -> Numbers:
    """A tensor at these indices of its axes, in float64; axes that it lacks are ignored."""
    place = tuple(index.get(axis, slice(None)) for axis in tensor.axes)
    return np.asarray(tensor.values[place], dtype=np.float64)


def shapes_of(tensors: Mapping[str, NamedTensor], *names: str) -> tuple[Shape, ...]:
    """The shapes of the named tensors, without those that are missing."""
    there = {name: tensors[name] for name in names if name in tensors}
    return tuple(Shape(name, tensor.axes, tensor.values.shape) for name, tensor in there.items())


def terms(
    title: str,
    columns: Columns,
    *,
    notable: Sequence[int] = (),
    totals: Sequence[Sequence[object]] = (),
    most: int | None = None,
) -> Terms:
    """A table of columns: the first `most` rows, or of more than 12 the first, the last and the notable."""
    count = len(next(iter(columns.values())))
    rows: Sequence[int] = range(count if most is None else min(most, count))
    if most is None and count > MOST_ROWS:
        rows = sorted({*range(FIRST_ROWS), *notable, *range(count - LAST_ROWS, count)})
    cells = tuple(tuple(cell(column[row]) for column in columns.values()) for row in rows)
    sums = tuple(tuple(map(cell, total)) for total in totals)
    return Terms(title, tuple(columns), cells, count, sums)


def dot_product(
    title: str, left: tuple[str, Numbers], right: tuple[str, Numbers], *, axis: str = "dim"
) -> Terms:
    """Σ left right: the first products, and the sum over all of them."""
    products = left[1] * right[1]
    columns = {axis: range(len(products)), left[0]: left[1], right[0]: right[1], "product": products}
    return terms(title, columns, totals=[("sum", "", "", products.sum())], most=MOST_PRODUCTS)


def first_dims(
    title: str,
    columns: Columns,
    matrix: Numbers,
    *,
    notable: Sequence[int] = (),
) -> Terms:
    """The columns, then the first numbers of each row of a matrix."""
    dims = range(min(MOST_DIMS, matrix.shape[1]))
    left_out = f": the first {len(dims)} of {matrix.shape[1]} dims" if len(dims) < matrix.shape[1] else ""
    return terms(f"{title}{left_out}", {**columns, **{str(d): matrix[:, d] for d in dims}}, notable=notable)


def largest_difference(computed: Numbers, reported: Numbers) -> Cell:
    """The largest difference between numbers computed here and the report's, where both are finite."""
    both = np.isfinite(computed) & np.isfinite(reported)
    return cell(np.abs(computed - reported)[both].max(initial=0.0))
