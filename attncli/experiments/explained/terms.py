"""The parts that every step is made of: terms in part, with totals over all of them."""

from collections.abc import Mapping, Sequence

import numpy as np

from attncli.report import Cell, NamedTensor, Shape, Terms

MOST_ROWS, FIRST_ROWS, LAST_ROWS = 12, 4, 2
MOST_PRODUCTS = 6
MOST_DIMS = 6

Numbers = np.ndarray


def cell(number: object) -> Cell:
    """A number as a cell: None for what is infinite or no number."""
    if isinstance(number, str):
        return number
    if isinstance(number, int | np.integer):
        return int(number)
    # Any number of Python, numpy or torch: they share no type.
    value = float(np.float64(number))  # type: ignore[arg-type]
    return value if np.isfinite(value) else None


def cells(*numbers: object) -> tuple[Cell, ...]:
    """Each as a cell."""
    return tuple(map(cell, numbers))


def part(tensor: NamedTensor, **index: int) -> Numbers:
    """A tensor at these places of its axes, in float64; an axis that it lacks is passed over."""
    place = tuple(index.get(axis, slice(None)) for axis in tensor.axes)
    return np.asarray(tensor.values[place], dtype=np.float64)


def shape_of(name: str, tensor: NamedTensor) -> Shape:
    """Name, axes and sizes of a tensor of the report."""
    return Shape(name, tensor.axes, tensor.values.shape)


def shapes_of(tensors: Mapping[str, NamedTensor], *names: str) -> tuple[Shape, ...]:
    """The shapes of those of the named tensors that there are."""
    return tuple(shape_of(name, tensors[name]) for name in names if name in tensors)


def shown_rows(count: int, *notable: int) -> list[int]:
    """All rows of a short table; of a long one the first four, the last two and the notable ones."""
    if count <= MOST_ROWS:
        return list(range(count))
    return sorted({*range(FIRST_ROWS), *notable, *range(count - LAST_ROWS, count)})


def terms(
    title: str,
    columns: Sequence[str],
    values: Sequence[Sequence[object] | Numbers],
    *,
    notable: Sequence[int] = (),
    totals: Sequence[Sequence[object]] = (),
    most: int | None = None,
) -> Terms:
    """A table of whole columns, in part where it is long: the first `most` rows, or the notable ones, too."""
    count = len(values[0])
    rows = shown_rows(count, *notable) if most is None else range(min(most, count))
    return Terms(
        title,
        tuple(columns),
        tuple(cells(*(column[row] for column in values)) for row in rows),
        count,
        tuple(cells(*total) for total in totals),
    )


def dot_product(
    title: str, left: tuple[str, Numbers], right: tuple[str, Numbers], *, axis: str = "dim"
) -> Terms:
    """Σ left right: the first products, and the sum over all of them."""
    products = left[1] * right[1]
    return terms(
        title,
        (axis, left[0], right[0], "product"),
        (range(len(products)), left[1], right[1], products),
        totals=[("sum", "", "", products.sum())],
        most=MOST_PRODUCTS,
    )


def vectors(
    title: str, axis: str, tokens: Sequence[str], matrix: Numbers, *, notable: Sequence[int] = ()
) -> Terms:
    """The first numbers of each token's vector."""
    dims = range(min(MOST_DIMS, matrix.shape[1]))
    left_out = f": the first {len(dims)} of {matrix.shape[1]} dims" if len(dims) < matrix.shape[1] else ""
    columns = [axis, "text", *(str(dim) for dim in dims)]
    values: list[Sequence[object] | Numbers] = [range(len(matrix)), tokens, *(matrix[:, dim] for dim in dims)]
    return terms(f"{title}{left_out}", columns, values, notable=notable)


def largest_difference(worked: Numbers, reported: Numbers) -> Cell:
    """The largest difference between what was worked out here and the report's numbers, where both are."""
    both = np.isfinite(worked) & np.isfinite(reported)
    return cell(np.abs(worked - reported)[both].max(initial=0.0))
