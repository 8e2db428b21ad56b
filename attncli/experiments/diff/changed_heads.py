"""Of two surveys of many texts, the heads that changed beyond their intervals."""

from collections.abc import Mapping
from typing import Any

from attncli.report import Report, Row, Table
from attncli.row_statistics import HEAD_PATTERNS

WHERE = ("stack", "layer", "head")
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
                "half_a": float(str(row["upper"])) - mean_a,
                "half_b": float(str(other["upper"])) - mean_b,
                "pattern_a": names_a.get(place),
                "pattern_b": names_b.get(place),
            }
        )
    found.sort(key=lambda row: -abs(row["difference"]))
    return Table(found)


def change_note(a: Report, b: Report, changed: Table) -> str:
    """How many of the heads of both changed."""
    places = _names(a).keys() & _names(b).keys()
    heads = {tuple(row[name] for name in WHERE) for row in changed}
    return f"{len(heads)} of {len(places)} heads changed beyond their 95 % intervals."


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in WHERE), row["statistic"])


def _names(report: Report) -> dict[tuple[Any, ...], Any]:
    return {tuple(row[name] for name in WHERE): row.get("pattern") for row in report.table("heads")}


def _apart(a: Row, b: Row) -> bool:
    """Whether one interval ends before the other begins; an interval that is none is nowhere."""
    ends = [row[name] for row in (a, b) for name in ("lower", "upper")]
    if not all(isinstance(end, float) and end == end for end in ends):
        return False
    lower_a, upper_a, lower_b, upper_b = (float(str(end)) for end in ends)
    return upper_a < lower_b or upper_b < lower_a
