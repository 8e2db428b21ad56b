"""Labels that follow the axes of a product through views, transpositions and mixtures.

An axis is a sequence of parts, the outermost first. Axes of size 1 have no parts.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count, pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

LABELS: Iterator[int] = count()
"""Unique numbers for axes."""


class AxisPart(NamedTuple):
    """Part of an axis: `size` positions along the label, at intervals of `step`."""

    label: int
    step: int
    size: int


TensorAxes = tuple[tuple[AxisPart, ...], ...]


class Labelled(NamedTuple):
    """A tensor and the labels of its axes."""

    tensor: Tensor
    axes: TensorAxes


def whole_axis(label: int, size: int) -> tuple[AxisPart, ...]:
    """Return an axis made of one label."""
    return (AxisPart(label, 1, size),) if size > 1 else ()


def labels_in(axes: TensorAxes) -> list[int]:
    """Return the labels, in the order of the axes."""
    return [*dict.fromkeys(part.label for parts in axes for part in parts)]


def sizes_in(axes: TensorAxes) -> dict[int, int]:
    """Return the size of each label."""
    sizes: dict[int, int] = {}
    for parts in axes:
        for part in parts:
            sizes[part.label] = sizes.get(part.label, 1) * part.size
    return sizes


def is_whole_axis(parts: Sequence[AxisPart], axes: TensorAxes) -> bool:
    """Return True if an axis is the whole of one label."""
    return len(parts) == 1 and sizes_in(axes)[parts[0].label] == parts[0].size


def _joined(parts: Sequence[AxisPart]) -> tuple[AxisPart, ...]:
    joined: list[AxisPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and last.label == part.label and last.step == part.step * part.size:
            joined[-1] = AxisPart(part.label, part.step, last.size * part.size)
        else:
            joined.append(part)
    return tuple(joined)


def regrouped(axes: TensorAxes, shape: Sequence[int]) -> TensorAxes | None:
    """Return the axes after a reshape, or None if the reshape splits parts unevenly."""
    remaining = [part for parts in axes for part in parts][::-1]
    regrouped = []
    for size in shape:
        taken = []
        while size > 1 and remaining:
            part = remaining.pop()
            if size % part.size == 0:
                taken.append(part)
                size //= part.size
            elif part.size % size == 0:
                inner = part.size // size
                taken.append(AxisPart(part.label, part.step * inner, size))
                remaining.append(AxisPart(part.label, part.step, inner))
                size = 1
            else:
                return None
        if size != 1:
            return None
        regrouped.append(_joined(taken))
    return None if remaining else tuple(regrouped)


def broadcast(axes: TensorAxes, shape: Sequence[int]) -> TensorAxes | None:
    """Return the axes after broadcasting to a shape, or None if the sizes differ; new axes get new labels."""
    if len(shape) < len(axes):
        return None
    padded = ((),) * (len(shape) - len(axes)) + axes
    larger = []
    for parts, size in zip(padded, shape, strict=True):
        if not parts:
            larger.append(whole_axis(next(LABELS), size))
        elif prod(part.size for part in parts) == size:
            larger.append(parts)
        else:
            return None
    return tuple(larger)


def resized(axes: TensorAxes, shape: Sequence[int]) -> TensorAxes | None:
    """Return the axes after some of them were shortened or lengthened, or None if the result is ambiguous."""
    if len(shape) != len(axes):
        return None
    changed = []
    for parts, size in zip(axes, shape, strict=True):
        if prod(part.size for part in parts) == size:
            changed.append(parts)
        elif len(parts) <= 1:
            changed.append(whole_axis(parts[0].label if parts else next(LABELS), size))
        else:
            return None
    return tuple(changed)


def contracted(
    axes: Mapping[str, tuple[AxisPart, ...]], out: str, shape: Sequence[int]
) -> tuple[TensorAxes, list[int], list[int]]:
    """Return the axes of an einsum's result from one operand's axes, and the labels removed and added."""
    result: list[tuple[AxisPart, ...]] = []
    new = []
    for letter, size in zip(out, shape, strict=True):
        parts = axes.get(letter, ())
        if not parts and size > 1:
            new.append(next(LABELS))
            parts = whole_axis(new[-1], size)
        result.append(parts)
    present = {part.label for parts in result for part in parts}
    gone = [label for label in labels_in(tuple(axes.values())) if label not in present]
    return tuple(result), gone, new


def operand_axes(tensor: Tensor, letters: str, axes: Mapping[str, tuple[AxisPart, ...]]) -> TensorAxes:
    """Return the axes of an operand, given its letters; broadcast axes have no parts."""
    return tuple(
        () if size == 1 else axes[letter] for letter, size in zip(letters, tensor.shape, strict=True)
    )


def aligned(tensor: Tensor, axes: TensorAxes) -> TensorAxes:
    """Return the axes of a tensor that was broadcast against a tensor with these axes."""
    last = axes[len(axes) - tensor.ndim :]
    return tuple(() if size == 1 else parts for parts, size in zip(last, tensor.shape, strict=True))


def laid_out(labelled: Labelled, labels: Sequence[int], sizes: Mapping[int, int]) -> Tensor | None:
    """Return the tensor with one axis per label (size 1 for missing ones), or None if it has other labels.

    If the tensor has only part of a label, that part is repeated, as for heads that share keys.
    """
    parts = [part for axis in labelled.axes for part in axis]
    if not {part.label for part in parts} <= {*labels}:
        return None
    order: list[int] = []
    repeats: list[int] = []
    shape = []
    for label in labels:
        numbers = sorted(
            (number for number, part in enumerate(parts) if part.label == label),
            key=lambda number: -parts[number].step,
        )
        size_left = max(sizes.get(label, 1), 1) if numbers else 1
        shape.append(size_left)
        for number in numbers:
            part = parts[number]
            if size_left % (part.step * part.size):
                return None
            repeats += [size_left // (part.step * part.size), part.size]
            order += [-1, number]
            size_left = part.step
        if size_left > 1:
            repeats.append(size_left)
            order.append(-1)
    whole = labelled.tensor.reshape([part.size for part in parts])
    whole = whole.permute([number for number in order if number >= 0])
    for place, (number, size) in enumerate(zip(order, repeats, strict=True)):
        if number < 0:
            whole = whole.unsqueeze(place)
            if size > 1:
                whole = whole.expand(*[-1] * place, size, *[-1] * (whole.ndim - place - 1))
    return whole.reshape(shape)


def moved(axes: TensorAxes, move: Callable[[Tensor], object]) -> TensorAxes:
    """Return the axes after a function that reorders axes."""
    before = torch.empty(*range(2, 2 + len(axes)), device="meta")
    after = move(before)
    assert isinstance(after, Tensor)
    return tuple(axes[size - 2] for size in after.shape)


def axis_parts(
    shape: Sequence[int], strides: Sequence[int], spans: Collection[tuple[int, int]]
) -> list[list[tuple[int, bool]]]:
    """Return the sizes that make up each axis, outermost first, each paired with True for features.

    `spans` are the stride ranges (start, end) of features.
    """
    axes = []
    for size, stride in zip(shape, strides, strict=True):
        end = stride * size
        cuts = {stride, end}
        for span in spans:
            cuts |= {cut for cut in span if stride < cut < end and cut % stride == 0 and end % cut == 0}
        bounds = sorted(cuts, reverse=True)
        if stride == 0 or size == 0 or any(high % low for high, low in pairwise(bounds)):
            axes.append([(size, False)])
            continue
        axes.append(
            [
                (high // low, any(start <= low and high <= stop for start, stop in spans))
                for high, low in pairwise(bounds)
            ]
            or [(size, False)]
        )
    return axes


SplitAxis = Mapping[int, Sequence[AxisPart]]
"""The parts of split labels, outermost first, with new labels."""


def split_labels(*axes_by_tensor: TensorAxes) -> SplitAxis:
    """Return the labels whose parts lie on several axes of a tensor, with new labels for these parts."""
    cuts: dict[int, set[int]] = {}
    for axes in axes_by_tensor:
        for parts in axes:
            for part in parts:
                cuts.setdefault(part.label, set()).update((part.step, part.step * part.size))
    split = {}
    for label, steps in cuts.items():
        bounds = sorted({1, *steps}, reverse=True)
        pairs = [*pairwise(bounds)]
        if len(pairs) > 1 and all(high % low == 0 for high, low in pairs):
            split[label] = [AxisPart(next(LABELS), low, high // low) for high, low in pairs]
    return split


def refined(axes: TensorAxes, split: SplitAxis) -> TensorAxes:
    """Return the axes with split labels replaced by their parts."""
    return tuple(
        tuple(
            new._replace(step=1) if part.label in split else new
            for part in parts
            for new in split.get(part.label, (part,))
            if part.label not in split or part.step <= new.step < part.step * part.size
        )
        for parts in axes
    )
