"""Rows as a small table: as plain text for a prompt, as HTML for a notebook."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from attncli.records.meanings import Meaning, meaning_of_name
from attncli.system.plain_text import counted, plain_text

MOST_ROWS, MOST_COLUMNS = 10, 7
CELL = ' style="padding:0 .5em"'
"""Notebooks have their own styles; marimo's leave no space between columns."""
PLACE = ("layer", "head", "module", "kind", "stack")
"""Columns that the head's name replaces, or that few readers need."""


class SmallTable(NamedTuple):
    """The first rows and columns of a table, and a line about the whole table."""

    about: str
    header: list[str]
    rows: list[list[str]]

    @classmethod
    def of(cls, name: str, rows: Sequence[Mapping[str, object]], where: str = "") -> "SmallTable":
        """Build the table from rows that share their names; layer and head become one column, like 5:11.

        `where` is the attribute that holds all rows, such as `.heads`.
        """
        first = [_with_head(row) for row in rows[:MOST_ROWS]]
        filled = {name: None for row in first for name, cell in row.items() if cell is not None}
        names = [*filled][:MOST_COLUMNS]
        left_out = [
            f"{count} more {what}"
            for count, what in ((len(rows) - len(first), "rows"), (len(filled) - len(names), "columns"))
            if count
        ]
        about = f"{name}: {counted(len(rows), 'row')}{f' in {where}' if where else ''}"
        cells = [[_cell(row.get(name)) for name in names] for row in first]
        more = f" ({', '.join(left_out)})" if left_out else ""
        return cls(f"{about}{more}", [*map(plain_text, names)], cells)

    def text(self) -> str:
        """Return the table in plain text."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [[*self.header], *self.rows]
        aligned = ("  ".join(map(str.rjust, line, widths)).rstrip() for line in lines)
        return "\n".join([self.about, *aligned])

    def html(self, meaning: Callable[[str], Meaning] = meaning_of_name) -> str:
        """Return the table in HTML for a notebook; a column's meaning is the title of its header."""
        titles = [escape(plain_text(meaning(name).title())) for name in self.header]
        cells = [CELL + (f' title="{title}"' if title else "") for title in titles]
        head = "".join(
            f"<th{cell}>{escape(name)}</th>" for name, cell in zip(self.header, cells, strict=True)
        )
        rows = ("".join(f"<td{CELL}>{escape(cell)}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        about = f"<p>{escape(self.about)}</p>"
        return f"{about}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _with_head(row: Mapping[str, object]) -> dict[str, object]:
    if not {"layer", "head"} <= row.keys():
        return dict(row)
    statistics = {name: cell for name, cell in row.items() if name not in PLACE}
    name = None if row["head"] is None else f"{row['layer']}:{row['head']}"  # an MLP has no head
    return {"head": name, **statistics}


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else plain_text(str(value))
