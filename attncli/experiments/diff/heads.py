"""The heads of two reports: what changed in those that both have, and which only one of them has."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from attncli.report import NamedTensor, Report, Row, Table
from attncli.row_statistics import HEAD_PATTERNS

WHERE = ("stack", "layer", "head")
ENDS = ("lower", "upper")
NAMING = frozenset(pattern.statistic for pattern in HEAD_PATTERNS.values())
STACKS = {
    "self": "self-attention",
    "cross": "cross-attention",
    "encoder": "the encoder",
    "decoder": "the decoder",
}
MAX_NAMED = 3


def changed_heads(a: Report, b: Report) -> Table:
    """The statistics that name heads, and shares of relations, whose 95 % intervals do not overlap.

    The largest change comes first.
    """
    of_b = {_key(row): row for row in b.table("intervals")}
    names_a, names_b = _names(a), _names(b)
    found: list[dict[str, Any]] = []
    for row in a.table("intervals"):
        other = of_b.get(_key(row))
        is_shown = row["statistic"] in NAMING or "relation" in row
        if other is None or not is_shown or not _apart(row, other):
            continue
        mean_a, mean_b = float(str(row["mean"])), float(str(other["mean"]))
        place = _place(row)
        found.append(
            {
                **dict(zip(WHERE, place, strict=True)),
                "statistic": row["statistic"],
                "a": mean_a,
                "b": mean_b,
                "difference": mean_b - mean_a,
                **{f"{end}_a": row[end] for end in ENDS},
                **{f"{end}_b": other[end] for end in ENDS},
                **({"pattern_a": names_a.get(place), "pattern_b": names_b.get(place)} if names_a else {}),
            }
        )
    found.sort(key=lambda row: -abs(row["difference"]))
    return Table(found)


def change_note(a: Report, b: Report, changed: Table) -> str:
    """How many heads changed, of those that both surveys have."""
    shared = {_key(row) for row in a.table("intervals")} & {_key(row) for row in b.table("intervals")}
    if not shared:
        return "The two have no statistic of a head in common."
    places = {place for place, _ in shared}
    heads = {_place(row) for row in changed}
    chance = " Of so many comparisons some differ by chance." if heads else ""
    return f"{len(heads)} of {len(places)} heads changed beyond their 95 % intervals.{chance}"


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in WHERE)


def _key(row: Row) -> tuple[tuple[Any, ...], Any]:
    return _place(row), row["statistic"]


def _names(report: Report) -> dict[tuple[Any, ...], Any]:
    return {_place(row): row["pattern"] for row in report.table("heads") if "pattern" in row}


def _apart(a: Row, b: Row) -> bool:
    """Whether one interval ends before the other begins; one without ends is apart from none."""
    ends = [row[name] for row in (a, b) for name in ENDS]
    if not all(isinstance(end, float) and end == end for end in ends):
        return False
    lower_a, upper_a, lower_b, upper_b = (float(str(end)) for end in ends)
    return upper_a < lower_b or upper_b < lower_a


def heads_difference(a: Report, b: Report) -> Table:
    """B - A of every statistic of the heads that both surveys have."""
    where = ("layer", "head", "stack", "kind")
    of_b = {tuple(map(row.get, where)): row for row in b.table("heads")}
    found = Table()
    for row in a.table("heads"):
        other = of_b.get(tuple(map(row.get, where)), {})
        numbers = {
            name: of_other - value
            for name, value in row.items()
            if isinstance(value, float) and isinstance(of_other := other.get(name), float)
        }
        if other:
            found.append({name: row[name] for name in where} | numbers)
    return found


class Place(NamedTuple):
    """The place of a head: its stack, its layer (None where there is only one) and its number."""

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
    """`In A alone, and left out where heads are compared: layers 6 to 11.`, and the same for B."""
    for side, own, other in (("A", a, b), ("B", b, a)):
        if parts := [part for stack in STACKS for part in _alone(stack, own, other)]:
            yield f"In {side} alone, and left out where heads are compared: {'; '.join(parts)}."


def _alone(stack: str, own: set[Place], other: set[Place]) -> Iterator[str]:
    """What a stack has and that of the other side lacks: itself, layers, heads."""
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
