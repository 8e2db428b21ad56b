"""Writes the lists of columns in docs/report.md: python tools/report_page.py [--check]

The lists come from the classes of results and are between two comments of the page. Each class of rows is
described by the first sentence of its docstring, and its columns by their names and units.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from attncli.records.columns import INTERVAL, ColumnKind, Record, Result, StatisticGroup
from attncli.records.kinds import KINDS
from attncli.records.tabled import PLACE

PAGE = Path(__file__).parent.parent / "docs" / "report.md"
BEGIN, END = "<!-- results: python tools/report_page.py -->\n", "<!-- end of results -->\n"


def first_sentence(kind: type[Record]) -> str:
    """The first sentence of a class's docstring, without its full stop; empty without one."""
    text = " ".join((kind.__doc__ or "").split())
    return re.split(r"(?<=\S)\.(?: |$)", text)[0] if kind.__doc__ else ""


def column_name(column: ColumnKind, *, has_interval: bool) -> str:
    """A column as Markdown, `±` if its interval is beside it, and its unit."""
    return f"`{column.name}`{' ±' if has_interval else ''}{f' ({column.unit})' if column.unit else ''}"


def column_list(kind: type[Record]) -> str:
    """The declared columns of a class of rows, without those that say which head a row is about.

    The statistics that a survey adds are not repeated.
    """
    names = kind.columns.keys()
    with_interval = {name for name in names if {f"{name}{end}" for end in INTERVAL} <= names}
    ends = {f"{name}{end}" for name in with_interval for end in INTERVAL}
    declared = {
        vars(base)[name].name
        for base in kind.__mro__
        for name in inspect.get_annotations(base)
        if isinstance(vars(base).get(name), ColumnKind)
    }
    omitted = {*ends, *(PLACE if "layer" in names else ())}
    listed = [name for name in names if (name in declared or not declared) and name not in omitted]
    columns = [column_name(kind.columns[name], has_interval=name in with_interval) for name in listed]
    is_longer = bool(declared and names - declared - ends)
    return ", ".join([*columns, *(["statistics"] if is_longer else [])])


def group_line(groups: list[StatisticGroup], earlier: dict[type[Record], str], kind: str) -> str:
    """The line about groups of a kind of result that have the same rows.

    `earlier` maps classes of rows to the groups that are already described; these are added.
    """
    names = ", ".join(f"`{group.name}`" for group in groups)
    axes = groups[0].axes
    name = f"{names} ({', '.join(axes)})" if axes else names
    rows = groups[0].kind
    if rows is None:
        return f"- {name}: tensors\n"
    if rows in earlier:
        return f"- {name}: as {earlier[rows]}\n"
    earlier[rows] = f"`{groups[0].name}` of {kind}"
    content = ". ".join(part for part in (first_sentence(rows), column_list(rows)) if part)
    return f"- {name}: {content}\n"


def result_lists() -> Iterator[str]:
    """A heading and a list of groups for each kind of result; kinds of one class share them."""
    earlier: dict[type[Record], str] = {}
    kinds: dict[type[Result], list[str]] = {}
    for name in KINDS:
        kinds.setdefault(KINDS[name], []).append(name)
    for result, names in kinds.items():
        same_rows: dict[object, list[StatisticGroup]] = {}
        for group in result.groups():
            same_rows.setdefault((group.kind, group.axes), []).append(group)
        lines = "".join(group_line(groups, earlier, names[0]) for groups in same_rows.values())
        yield f"\n**{', '.join(names)}**\n\n{lines}"


def report_page() -> str:
    """The page with its lists written anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{''.join(result_lists())}\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        is_fresh = PAGE.read_text() == report_page()
        sys.exit(None if is_fresh else "docs/report.md is stale: python tools/report_page.py")
    PAGE.write_text(report_page())
