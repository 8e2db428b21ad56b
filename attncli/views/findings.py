"""The parts of findings, the sentences that a page begins with: names of heads and tokens, and numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from attncli.core.names import stack_label
from attncli.records.report import NamedTensor, Report, Table
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.matrices import (
    BLOCK_AXES,
    Matrix,
    axis_tokens,
    first_position,
    head_name,
    hidden_cells,
    tensor_matrices,
)
from attncli.views.texts import NO_NUMBER, fixed, labelled_axes, shortened, token_name, untrained

SMALL, NOTHING = 0.1, 1e-3
"""Below SMALL, numbers have two significant digits; below NOTHING, they are 0."""
MOST_TOKEN, MOST_NAMED = 24, 4
"""The longest name of a token, in terminal cells, and the most heads that a sentence names."""
EVEN, ALIKE = 1.2, 1e-6
"""Blocks whose means differ by a smaller factor look alike; weights that differ by less are equal."""
NEARLY_EVEN, MANY = 0.8, 100
"""The share of the visible keys over which nearly even weights spread; counts from MANY are whole."""


def number(value: float | None) -> str:
    """Format a number with the decimals of a screen, or with two digits if it is small."""
    text = fixed(value, Display().screen_precision)
    if value is None or not NOTHING <= abs(value) < SMALL or float(text) == value:
        return text
    return f"{value:.2g}"


def signed(value: float | None) -> str:
    """Format a change: a rise has a plus sign."""
    text = number(value)
    return f"+{text}" if value is not None and value > 0 and float(text) > 0 else text


def percent(share: float | None) -> str:
    """Format a share like `62 %`."""
    return NO_NUMBER if share is None else f"{100 * share:.0f} %"


def ends(
    row: Mapping[str, Any],
    low: str = "lower",
    high: str = "upper",
    *,
    text: Callable[[float], str] = number,
) -> str:
    """Return a row's interval as ` (0.12 to 0.34)`, or an empty string if it has none."""
    if row.get(low) is None or row.get(high) is None:
        return ""
    return f" ({text(row[low])} to {text(row[high])})"


def words_of(name: str) -> str:
    """Return the name of a column or statistic as words."""
    return plain_text(name.replace("_", " "))


def named_head(row: Mapping[str, Any]) -> str:
    """Return a head's name, after that of its stack if the model has several: `5:11`, `decoder 5:11`."""
    return plain_text(f"{stack_label(str(row.get('stack') or 'self'))} {head_name(row)}".strip())


def listed(names: Iterable[str], most: int = MOST_NAMED) -> str:
    """Return names like `0:1, 0:2 and 0:3`, or `0:1, 0:2, 0:3, 0:4 and 9 more`."""
    texts = [*names]
    if len(texts) > most + 1:
        texts = [*texts[:most], f"{len(texts) - most} more"]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def quoted(text: object, most: int = MOST_TOKEN) -> str:
    """Return a token or a short text in quotes, without the mark of a space before it."""
    name = plain_text(" ".join(str(text).split()) or str(text))
    name = shortened(name.removeprefix("·") or name, most)
    return f"'{name}'" if '"' in name else f'"{name}"'


def token_at(report: Report, axis: str, position: int) -> str:
    """Return the token at a position in quotes; its position if it is not the only one or has no name."""
    tokens = axis_tokens(report, axis)
    place = position - first_position(report, axis)
    where = f"{token_name(report)} {position}"
    if not 0 <= place < len(tokens) or not tokens[place]:
        return where
    return f"{quoted(tokens[place])} ({where})" if tokens.count(tokens[place]) > 1 else quoted(tokens[place])


def some_heads(count: int, total: int) -> str:
    """Return `3 of 72 heads`, `All 72 heads` or `No head`."""
    if not count:
        return "No head"
    return f"All {total:,} heads" if count == total > 1 else f"{count:,} of {counted(total, 'head')}"


def weights_finding(report: Report) -> Iterator[str]:
    """Yield the clearest look of the weights, and the number of keys over which a row spreads."""
    name = next((name for name in ("weights", "pooled_mean") if name in report.tensors), None)
    if name is None or (tensor := report.tensors[name]).values.ndim < 2:
        yield from _spread(report, None)
        return
    hidden = hidden_cells(name, tensor)
    values = tensor.values if hidden is None else np.where(hidden, np.nan, tensor.values)
    if report.pictures:
        values = _rows_of_look(report, values)
    counts = np.isfinite(values).sum(axis=-1)
    noun, is_blocks = token_name(report), tensor.axes[-2:] == BLOCK_AXES
    if not np.nan_to_num(values).any():
        yield "Every weight is 0." if counts.any() else "No weight is known."
        return
    if not (counts > 1).any():
        yield f"Each {noun} sees only one {noun}."
        return
    values = np.where((counts > 1)[..., np.newaxis], values, np.nan)
    has_signs = bool(np.nanmin(values) < 0)
    shares = values if has_signs else _shares_of_mean(values, counts)
    largest = float(np.nanmax(shares))
    if has_signs or largest >= (EVEN if is_blocks else 1 + ALIKE):
        place = np.unravel_index(int((shares >= largest - ALIKE * abs(largest)).argmax()), shares.shape)
        times = "" if has_signs else f", {largest:.1f} times an even share"
        yield _look(report, name, tensor, tuple(map(int, place)), times)
    elif is_blocks:
        yield f"No block of {noun}s stands out from the other blocks of its row."
    else:
        *_, last = np.argwhere(counts > 1)
        query = token_at(report, tensor.axes[-2], int(last[-1]) + first_position(report, tensor.axes[-2]))
        weight = number(float(np.nanmax(values[tuple(last)])))
        seen = f"{counts[tuple(last)]} {noun}s"
        each = f"Each {noun}" if counts.all() else f"Each {noun} with a known weight"
        yield f"{each} looks evenly at what it sees: {query} at {seen}, {weight} each."
        return
    num_visible = float(counts.mean())
    if is_blocks:
        num_visible = len(axis_tokens(report, "key")) if hidden is None else 0
    yield from _spread(report, num_visible or None)


def _rows_of_look(report: Report, values: np.ndarray) -> np.ndarray:
    """Return the weights of the queries whose look a picture shows, with NaN for all others."""
    from attncli.views.overlays import chosen_queries

    queries = chosen_queries(report, report.pictures[0])
    if not queries:
        return values
    is_other = ~np.isin(np.arange(values.shape[-2]), queries)
    return np.where(is_other[:, np.newaxis], np.nan, values)


def _shares_of_mean(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return weights as multiples of the mean of their row."""
    means = np.nansum(values, axis=-1) / np.maximum(counts, 1)
    return np.asarray(values / np.where(means > 0, means, np.nan)[..., np.newaxis])


def _look(report: Report, name: str, tensor: NamedTensor, place: Sequence[int], times: str) -> str:
    """Return a sentence on the weight at a place: its map, its query and its key."""
    *leading, row, column = place
    matrix, is_blocks = next(tensor_matrices(report, name, tensor)), tensor.axes[-2:] == BLOCK_AXES
    query, key = (_named_place(report, matrix, axis, at) for axis, at in ((0, row), (1, column)))
    in_map = ""
    if prod(tensor.values.shape[:-2]) > 1:
        in_map = f", in {_named_map(dict(zip(tensor.axes, leading, strict=False)))}"
    key = "itself" if key == query and not report.context_tokens else key
    weight = number(float(tensor.values[tuple(place)]))
    of_row = " on average" if is_blocks else " of its weight" if times else ""
    verb = "give" if is_blocks else "gives"
    return f"The clearest look{in_map}: {query} {verb} {key} {weight}{of_row}{times}."


def _named_map(place: Mapping[str, int]) -> str:
    """Return the place of a map, such as `head 5:11` or `sequence 1, head 3`."""
    names = [f"{'sequence' if name == 'batch' else name} {at}" for name, at in place.items()]
    if {"layer", "head"} <= place.keys():
        names = [name for name in names if not name.startswith(("layer", "head"))]
        names.append(f"head {head_name(place)}")
    return ", ".join(names)


def _named_place(report: Report, matrix: Matrix, axis: int, at: int) -> str:
    """Return a query or key of a matrix; for a block, its positions."""
    if matrix.axes == BLOCK_AXES:
        return f"{token_name(report)}s {labelled_axes(report, matrix)[axis].labels()[at].strip()}"
    return token_at(report, matrix.axes[axis], at + first_position(report, matrix.axes[axis]))


def _spread(report: Report, num_visible: float | None) -> Iterator[str]:
    """Yield a sentence on the keys over which a row spreads, unless the report lacks this number."""
    random = " (random, untrained weights)" if untrained(report) else ""
    noun, spread = token_name(report), _participation(report)
    if spread is None:
        return
    among = f"{_count(spread)}{'' if num_visible is None else f' of {_count(num_visible)}'} {noun}s"
    even = num_visible is not None and spread > NEARLY_EVEN * num_visible
    yield f"On average a {noun} spreads its weight over {among}{', nearly evenly' * even}{random}."


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= MANY or value == round(value) else f"{value:.1f}"


def _participation(report: Report) -> float | None:
    """Return the mean over all rows of the number of keys that share the weight; their median if many."""
    rows = report.tensors_of("rows").get("participation")
    if rows is not None and np.isfinite(rows.values).any():
        return float(np.nanmean(rows.values))
    quantiles = report.statistics.get("quantiles")
    table = quantiles if isinstance(quantiles, Table) else ()
    medians = [row.get("median") for row in table if row.get("statistic") == "participation"]
    numbers = [median for median in medians if isinstance(median, float)]
    return float(np.median(numbers)) if numbers else None
