"""The meanings of a report's tables and columns, for the page's script."""

from collections.abc import Mapping
from typing import Any

from attncli.records.meanings import Meaning, meaning_of_name, spaced
from attncli.records.report import Report, Table
from attncli.system.plain_text import plain_text
from attncli.views.texts import NAMED_WEIGHT, number_label


def page_meanings(report: Report) -> dict[str, Any]:
    """Return the meanings by name, and for each table its own and those of columns that differ from these.

    Meanings are a sentence, a unit and a label; names without any are left out.
    """
    groups = {group.name: group for group in report.result.groups()}
    names: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for table, value in report.statistics.items():
        group = groups.get(table)
        kind = None if group is None else group.kind
        differing: dict[str, Any] = {}
        for name in _names(value):
            found = _in_page(report, name, meaning_of_name(name) if kind is None else kind.meaning(name))
            if found and names.setdefault(name, found) != found:
                differing[name] = found
        about = [] if group is None else _in_page(report, table, group.meaning)
        if about or differing:
            tables[table] = {"about": about, "columns": differing}
    return {"names": names, "tables": tables}


def _names(value: object) -> list[str]:
    if isinstance(value, Table):
        first: Mapping[str, object] = next(iter(value), {})
        return [*first]
    return [*value] if isinstance(value, Mapping) else []


def _in_page(report: Report, name: str, meaning: Meaning) -> list[str]:
    """Return a meaning without its label if that is the name with blanks, and without empty ends."""
    label = number_label(report, name) if name == NAMED_WEIGHT else meaning.label
    label = "" if label == spaced(name) else label
    parts = [plain_text(part) for part in (meaning.about, meaning.unit, label)]
    while parts and not parts[-1]:
        del parts[-1]
    return parts
