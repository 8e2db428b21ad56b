"""Of two surveys of many texts, the heads that changed beyond their intervals."""

from collections.abc import Mapping
from typing import Any

from attncli.report import Report, Row, Table
from attncli.row_statistics import HEAD_PATTERNS

WHERE = ("stack", "layer", "head")
ENDS = ("lower", "upper")
NAMING = frozenset(pattern.statistic for pattern in HEAD_PATTERNS.values())


def changed_heads(a: Report, b: Report) -> Table:
    """What names heads, and their shares of relations, where two 95 % intervals do not meet.

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
        place = tuple(row[name] for name in WHERE)
        found.append(
            {
                **{name: row[name] for name in WHERE},
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
    """How many of the heads of both changed, and what that is worth."""
    shared = {_key(row) for row in a.table("intervals")} & {_key(row) for row in b.table("intervals")}
    if not shared:
        return "The two have no statistic of a head in common."
    places = {key[: len(WHERE)] for key in shared}
    heads = {tuple(row[name] for name in WHERE) for row in changed}
    chance = " Of so many comparisons some differ by chance." if heads else ""
    return f"{len(heads)} of {len(places)} heads changed beyond their 95 % intervals.{chance}"


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in WHERE), row["statistic"])


def _names(report: Report) -> dict[tuple[Any, ...], Any]:
    return {
        tuple(row[name] for name in WHERE): row["pattern"]
        for row in report.table("heads")
        if "pattern" in row
    }


def _apart(a: Row, b: Row) -> bool:
    """Whether one interval ends before the other begins; an interval that is none is nowhere."""
    ends = [row[name] for row in (a, b) for name in ("lower", "upper")]
    if not all(isinstance(end, float) and end == end for end in ends):
        return False
    lower_a, upper_a, lower_b, upper_b = (float(str(end)) for end in ends)
    return upper_a < lower_b or upper_b < lower_a
