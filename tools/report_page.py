"""Writes the lists of columns in docs/report.md: python tools/report_page.py [--check]

The lists come from the classes of results and are between two comments of the page. Each class of rows is
described by the first sentence of its docstring, followed by the names of its columns. Shared columns are
named once, at the top of the lists; a table below them says what each column means.
"""

import inspect
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

from attncli.core.names import SHARE
from attncli.records.columns import ColumnKind, Record, Result, StatisticGroup
from attncli.records.glossary import glossary, is_end
from attncli.records.kinds import KINDS
from attncli.records.meanings import INTERVAL
from attncli.records.tabled import PLACE

PAGE = Path(__file__).parent.parent / "docs" / "report.md"
TITLE = """### What the columns mean

A head's statistic is the mean over its rows, but `max_score` the largest; `..._mul` is a share of all weight.
`attn info columns NAME` prints the row of a column.

"""
BEGIN, END = "<!-- results: python tools/report_page.py -->\n", "<!-- end of results -->\n"


SHARED = {
    "strongest key": ("query", "query_token", "key", "key_token", "key_weight"),
    "effects": ("loss", "probability", "logit_difference", "kl", "restored", "cls_change", "output_change"),
    "losses": ("kl", "loss", "needle", "worst", "worst_at"),
    "change of AUROC": ("difference", "difference_lower", "difference_upper"),
    "AUROC": ("auroc", "lower", "upper"),
    "interval": ("lower", "upper"),
}
"""Names for columns that several classes of rows share."""
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


def sentence(kind: type[Record]) -> str:
    """The sentence on a class of rows; empty if names of counts say all."""
    return "" if all(name.startswith("num_") for name in kind.columns) else kind.about_rows()


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
            content = ". ".join(part for part in (sentence(rows), column_list(rows)) if part)
            lines.append(f"- {names}{axes}: {content}\n")
    lines += [f"- {', '.join(names)}: as in {other}\n" for other, names in repeated.items()]
    return "".join(lines)


def legend() -> str:
    """A table of the names of shared columns."""
    lines = [f"| {name} | {', '.join(f'`{column}`' for column in SHARED[name])} |\n" for name in SHARED]
    return "".join(["| short for | columns |\n| --- | --- |\n", *lines])


def column_table() -> str:
    """A row for each column: its name, its unit and what it means, without the ends of intervals."""
    rows = []
    for name, entries in glossary(NOT_LISTED).items():
        if is_end(name) or name.endswith(SHARE):
            continue
        units = dict.fromkeys(entry.meaning.unit for entry in entries if entry.meaning.unit)
        texts = [
            f"{about} ({tables.partition(':')[0]})" if len(entries) > 1 else about
            for (about, *_), (tables, *_) in entries
        ]
        content = "; ".join(dict.fromkeys(texts)).replace("|", r"\|")
        rows.append(f"| `{name}` | {', '.join(units)} | {content} |\n")
    return "".join(["| column | unit | meaning |\n| --- | --- | --- |\n", *rows])


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
    lists = f"{legend()}{''.join(result_lists())}\n{TITLE}{column_table()}"
    return f"{before}{BEGIN}\n{lists}\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        is_fresh = PAGE.read_text() == report_page()
        sys.exit(None if is_fresh else "docs/report.md is stale: python tools/report_page.py")
    PAGE.write_text(report_page())
