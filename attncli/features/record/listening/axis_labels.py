"""Which axes of a tensor are which of a product's, however it was viewed, turned or mixed since.

An axis is a sequence of parts, outermost first. Axes of size 1 have none.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count, pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

LABELS: Iterator[int] = count()
"""Numbers for axes; each is given once."""


class AxisPart(NamedTuple):
    """A part of an axis: `size` places of those that are called `label`, `step` apart."""

    label: int
    step: int
    size: int


TensorAxes = tuple[tuple[AxisPart, ...], ...]


class Labelled(NamedTuple):
    """A tensor and what its axes are."""

    tensor: Tensor
    axes: TensorAxes


def whole_axis(label: int, size: int) -> tuple[AxisPart, ...]:
    """An axis of one label."""
    return (AxisPart(label, 1, size),) if size > 1 else ()


def labels_in(axes: TensorAxes) -> list[int]:
    """The labels, in the order of the axes."""
    return [*dict.fromkeys(part.label for parts in axes for part in parts)]


def sizes_in(axes: TensorAxes) -> dict[int, int]:
    """The size of each label."""
    sizes: dict[int, int] = {}
    for parts in axes:
        for part in parts:
            sizes[part.label] = sizes.get(part.label, 1) * part.size
    return sizes


def is_whole_axis(parts: Sequence[AxisPart], axes: TensorAxes) -> bool:
    """Whether an axis is all of one label."""
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
    """The axes of a tensor as a view or copy of this shape has them; None where parts are torn."""
    rest = [part for parts in axes for part in parts][::-1]
    regrouped = []
    for size in shape:
        taken = []
        while size > 1 and rest:
            part = rest.pop()
            if size % part.size == 0:
                taken.append(part)
                size //= part.size
            elif part.size % size == 0:
                inner = part.size // size
                taken.append(AxisPart(part.label, part.step * inner, size))
                rest.append(AxisPart(part.label, part.step, inner))
                size = 1
            else:
                return None
        if size != 1:
            return None
        regrouped.append(_joined(taken))
    return None if rest else tuple(regrouped)


def broadcast(axes: TensorAxes, shape: Sequence[int]) -> TensorAxes | None:
    """The axes of a tensor in a larger one, whose other axes are new; None where it is no larger one."""
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
    """The axes after some of them were cut or made longer."""
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
    """The axes of an einsum's result by those of an operand; the labels that are gone, and the new ones."""
    kept: list[tuple[AxisPart, ...]] = []
    new = []
    for letter, size in zip(out, shape, strict=True):
        parts = axes.get(letter, ())
        if not parts and size > 1:
            new.append(next(LABELS))
            parts = whole_axis(new[-1], size)
        kept.append(parts)
    there = {part.label for parts in kept for part in parts}
    gone = [label for label in labels_in(tuple(axes.values())) if label not in there]
    return tuple(kept), gone, new


def of_operand(tensor: Tensor, letters: str, axes: Mapping[str, tuple[AxisPart, ...]]) -> TensorAxes:
    """The axes of an operand by its letters; of size 1 where it is shared."""
    return tuple(
        () if size == 1 else axes[letter] for letter, size in zip(letters, tensor.shape, strict=True)
    )


def aligned(tensor: Tensor, axes: TensorAxes) -> TensorAxes:
    """The axes of a tensor that was broadcast to one with these."""
    last = axes[len(axes) - tensor.ndim :]
    return tuple(() if size == 1 else parts for parts, size in zip(last, tensor.shape, strict=True))


def laid_out(labelled: Labelled, labels: Sequence[int], sizes: Mapping[int, int]) -> Tensor | None:
    """The tensor with one axis per label, of size 1 where it has none; None where an axis is none of them.

    A label of which it has a part alone is repeated along the others, as heads that share keys.
    """
    parts = [part for axis in labelled.axes for part in axis]
    if not {part.label for part in parts} <= {*labels}:
        return None
    order: list[int] = []
    repeats: list[int] = []
    shape = []
    for label in labels:
        of_label = sorted(
            (number for number, part in enumerate(parts) if part.label == label),
            key=lambda number: -parts[number].step,
        )
        rest = max(sizes.get(label, 1), 1) if of_label else 1
        shape.append(rest)
        for number in of_label:
            part = parts[number]
            if rest % (part.step * part.size):
                return None
            repeats += [rest // (part.step * part.size), part.size]
            order += [-1, number]
            rest = part.step
        if rest > 1:
            repeats.append(rest)
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
    """The axes after a function that puts them in another order."""
    before = torch.empty(*range(2, 2 + len(axes)), device="meta")
    after = move(before)
    assert isinstance(after, Tensor)
    return tuple(axes[size - 2] for size in after.shape)


def parts_of_axes(
    shape: Sequence[int], strides: Sequence[int], spans: Collection[tuple[int, int]]
) -> list[list[tuple[int, bool]]]:
    """The sizes that each axis is made of, outermost first, and whether these are features.

    `spans` are the strides, from and to, within which places are features.
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
"""The parts that a label falls into, outermost first; each has a label of its own."""


def split_labels(*of_tensors: TensorAxes) -> SplitAxis:
    """The labels whose parts lie on several axes of a tensor, and those parts."""
    cuts: dict[int, set[int]] = {}
    for axes in of_tensors:
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
    """The axes by the labels of the parts into which others fall."""
    return tuple(
        tuple(
            new._replace(step=1) if part.label in split else new
            for part in parts
            for new in split.get(part.label, (part,))
            if part.label not in split or part.step <= new.step < part.step * part.size
        )
        for parts in axes
    )
