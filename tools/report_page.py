"""Writes the lists of columns in docs/report.md: python tools/report_page.py [--check]

The lists come from the classes of results and are between two comments of the page. Each class of rows is
described by the first sentence of its docstring, followed by the names of its columns. Units, shared columns
and missing values are described once, at the top of the lists.
"""

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from attncli.records.columns import INTERVAL, ColumnKind, Record, Result, StatisticGroup
from attncli.records.kinds import KINDS
from attncli.records.tabled import PLACE

PAGE = Path(__file__).parent.parent / "docs" / "report.md"
BEGIN, END = "<!-- results: python tools/report_page.py -->\n", "<!-- end of results -->\n"


OMITTED = re.compile(
    r", or None [^,;]*$|, which are None if [^,;]*$|,? (?:as in|see) `[A-Z]\w+`|; see `[A-Z]\w+`"
)
"""Parts of a sentence that readers of the page don't need: missing values, and names of classes."""
SHARED = {
    "strongest key": ("query", "query_token", "key", "key_token", "key_weight"),
    "effects": ("loss", "probability", "logit_difference", "kl", "restored", "cls_change", "output_change"),
    "losses": ("kl", "loss", "needle", "worst", "worst_at"),
    "change of AUROC": ("difference", "difference_lower", "difference_upper"),
    "AUROC": ("auroc", "lower", "upper"),
    "interval": ("lower", "upper"),
}
"""Names for columns that several classes of rows share."""
UNITS = ("nats", "logit", "seconds", "tokens")
"""Units that are listed; the others are those of a statistic whose formula is on the page."""
NOT_LISTED = {
    *("pattern_rows", "without_first_rows", "named_tokens", "example_weights", "part_names", "key_parts"),
    *(
        "chosen",
        "full",
        "lines",
        "curves",
        "fitted",
        "coefficients",
        "regression",
        "approximation",
        "learned",
    ),
    *("norms", "high_norm_patches", "left_out", "refused", "training", "speech", "sound", "sentences"),
}
"""Groups that only attn's own tables, pages and commands read."""


def first_sentence(kind: type[Record]) -> str:
    """The first sentence of a class's docstring, without its full stop; empty if names of counts say all."""
    if not kind.__doc__ or all(name.startswith("num_") for name in kind.columns):
        return ""
    return OMITTED.sub("", re.split(r"(?<=\S)\.(?: |$)", " ".join(kind.__doc__.split()))[0])


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
    columns = shortened([f"`{name}`{' ±' if name in with_interval else ''}" for name in listed])
    is_longer = bool(declared and names - declared - ends)
    return ", ".join([*columns, *(["statistics"] if is_longer else [])])


def shortened(columns: list[str]) -> list[str]:
    """The columns with each group of SHARED replaced by its name."""
    for shared, names in SHARED.items():
        plain = [column.strip("`± ") for column in columns]
        if {*names} <= {*plain}:
            place = plain.index(names[0])
            rest = [column for column, name in zip(columns, plain, strict=True) if name not in names]
            before = sum(name not in names for name in plain[:place])
            mark = " ±" if columns[place].endswith("±") else ""
            columns = [*rest[:before], f"{shared}{mark}", *rest[before:]]
    return columns


def group_lines(groups: Collection[list[StatisticGroup]], earlier: dict[type[Record], str], kind: str) -> str:
    """The lines about the groups of a kind of result; groups in one list have the same rows.

    `earlier` maps classes of rows to the kinds that describe them; the classes of `groups` are added.
    """
    lines, repeated = [], defaultdict(list)
    for same in groups:
        rows = same[0].kind
        names = ", ".join(f"`{group.name}`" for group in same)
        if rows is None:
            continue
        if rows in earlier:
            repeated[earlier[rows]].append(names)
        else:
            earlier[rows] = kind
            axes = f" ({', '.join(same[0].axes)})" if same[0].axes else ""
            content = ". ".join(part for part in (first_sentence(rows), column_list(rows)) if part)
            lines.append(f"- {names}{axes}: {content}\n")
    lines += [f"- {', '.join(names)}: as in {other}\n" for other, names in repeated.items()]
    return "".join(lines)


def legend() -> str:
    """Tables of the names of shared columns, and of the columns that have a unit."""
    columns: dict[str, set[str]] = defaultdict(set)
    kinds = (group.kind for result in KINDS.values() for group in result.groups())
    for column in (column for kind in kinds if kind for column in kind.columns.values()):
        if not column.name.endswith(INTERVAL):
            columns[column.unit].add(column.name)
    shared = table("short for", SHARED)
    return f"{shared}\n{table('unit', {unit: sorted(columns[unit]) for unit in UNITS})}"


def table(head: str, columns: Mapping[str, Iterable[str]]) -> str:
    """A table of columns by name."""
    lines = [f"| {name} | {', '.join(f'`{column}`' for column in columns[name])} |\n" for name in columns]
    return "".join([f"| {head} | columns |\n| --- | --- |\n", *lines])


def result_lists() -> Iterator[str]:
    """A heading and a list of groups for each kind of result; kinds of one class share them."""
    earlier: dict[type[Record], str] = {}
    kinds: dict[type[Result], list[str]] = {}
    for name in (name for name in KINDS):
        kinds.setdefault(KINDS[name], []).append(name)
    for result, names in kinds.items():
        same_rows: dict[object, list[StatisticGroup]] = {}
        for group in (group for group in result.groups() if group.name not in NOT_LISTED):
            same_rows.setdefault((group.kind, group.axes), []).append(group)
        if lines := group_lines(same_rows.values(), earlier, names[0]):
            yield f"\n**{', '.join(names)}**\n\n{lines}"


def report_page() -> str:
    """The page with its lists written anew."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{legend()}{''.join(result_lists())}\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        is_fresh = PAGE.read_text() == report_page()
        sys.exit(None if is_fresh else "docs/report.md is stale: python tools/report_page.py")
    PAGE.write_text(report_page())
