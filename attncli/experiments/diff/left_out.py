"""Layers and heads that one side of a comparison has alone, in words."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from attncli.report import NamedTensor, Report

STACKS = {
    "self": "self-attention",
    "cross": "cross-attention",
    "encoder": "the encoder",
    "decoder": "the decoder",
}
MAX_NAMED = 3


class Place(NamedTuple):
    """Where a head stands: its stack, its layer (None where there is but one) and its number."""

    stack: str
    layer: Any
    head: Any


def places_of(report: Report, weights: NamedTensor | None) -> set[Place]:
    """The heads of a survey, else those on the axes of the weights."""
    if rows := report.table("heads"):
        return {Place(str(row["stack"]), row["layer"], row["head"]) for row in rows}
    if weights is None or "head" not in weights.axes:
        return set()
    sizes = dict(zip(weights.axes, weights.values.shape, strict=True))
    layers = range(sizes["layer"]) if "layer" in sizes else [None]
    return {Place("self", layer, head) for layer in layers for head in range(sizes["head"])}


def left_out_notes(a: set[Place], b: set[Place]) -> Iterator[str]:
    """`In A alone, and left out where heads are compared: layers 6 to 11.`, and the same of B."""
    for side, own, other in (("A", a, b), ("B", b, a)):
        if parts := [part for stack in STACKS for part in _alone(stack, own, other)]:
            yield f"In {side} alone, and left out where heads are compared: {'; '.join(parts)}."


def _alone(stack: str, own: set[Place], other: set[Place]) -> Iterator[str]:
    """What a stack has that the other's has not: itself, its layers, its heads."""
    of_stack = {place for place in other if place.stack == stack}
    alone = {place for place in own - other if place.stack == stack}
    if alone and not of_stack:
        yield STACKS[stack]
        return
    where = f" of {STACKS[stack]}" if len({place.stack for place in own | other}) > 1 else ""
    layers = {place.layer for place in alone} - {place.layer for place in of_stack}
    in_layers = {place for place in alone if place.layer not in layers}
    heads = {place.head for place in in_layers} - {place.head for place in of_stack}
    for name, numbers in (("layer", layers), ("head", heads)):
        if numbers:
            yield f"{name}{'s' * (len(numbers) > 1)} {_ranges(numbers)}{where}"
    single = sorted(f"{place.layer}:{place.head}" for place in in_layers if place.head not in heads)
    if single:
        more = f" and {len(single) - MAX_NAMED} more" if len(single) > MAX_NAMED else ""
        yield f"head{'s' * (len(single) > 1)} {', '.join(single[:MAX_NAMED])}{more}{where}"


def _ranges(numbers: Iterable[int]) -> str:
    """`0, 6 to 11` for 0, 6, 7, 8, 9, 10, 11."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ", ".join(" to ".join(map(str, ends)) for ends in found)
