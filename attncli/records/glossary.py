"""The meanings of all columns of all results, by name."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from attncli.core.names import ROW_STATISTICS
from attncli.records.columns import Result, StatisticGroup
from attncli.records.kinds import KINDS
from attncli.records.meanings import INTERVAL, WEIGHT_COLUMNS, Meaning, meaning_of_name, spaced

ANY = "every result with weights"
ROW_COLUMNS = (*ROW_STATISTICS, "logsumexp", "outside_mass", "top_keys", "top_weights")
KEY_COLUMNS = ("received_mass",)


class Entry(NamedTuple):
    """A column's meaning in the named tables, each as `kind of result: table`."""

    meaning: Meaning
    tables: list[str]


def glossary(left_out: Collection[str] = ()) -> dict[str, list[Entry]]:
    """Return the meanings of every column, sorted by name, without the tables that are left out.

    Columns of the same meaning share an entry.
    """
    meanings: dict[str, dict[Meaning, list[str]]] = {}
    for kind, group in _groups():
        if group.name in left_out:
            continue
        for name, meaning in () if group.kind is None else group.kind.meanings():
            meanings.setdefault(name, {}).setdefault(meaning, []).append(f"{kind}: {group.name}")
    for name, meaning in WEIGHT_COLUMNS.items():
        labelled = meaning._replace(label=spaced(name))
        meanings.setdefault(name, {}).setdefault(labelled, []).append(f"{ANY}: as CSV")
    for table, names in (("rows", ROW_COLUMNS), ("keys", KEY_COLUMNS)):
        for name in names:
            meanings.setdefault(name, {}).setdefault(meaning_of_name(name), []).append(f"{ANY}: {table}")
    return {
        name: [Entry(*entry) for entry in by_meaning.items()] for name, by_meaning in sorted(meanings.items())
    }


def is_end(name: str) -> bool:
    """Return True for a column with the end of a mean's interval."""
    return name.endswith(INTERVAL)


def _groups() -> Iterator[tuple[str, StatisticGroup]]:
    """Yield each table with the kinds of results that have it."""
    kinds: dict[type[Result], list[str]] = {}
    for kind, result in KINDS.items():
        kinds.setdefault(result, []).append(kind)
    for result, names in kinds.items():
        yield from ((", ".join(names), group) for group in result.groups())
