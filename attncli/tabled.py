"""Results of the library as small tables, for a prompt and for a notebook."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, ClassVar

from attncli.plain_text import counted, plain_text

MOST_ROWS, MOST_COLUMNS = 10, 7
PLACE = ("layer", "head", "module", "kind", "stack")
"""What a head's name stands for, and what few readers ask."""


class Tabled:
    """A result whose rows a notebook or a prompt shows as a small table; all of them are in its fields."""

    shown_rows: ClassVar[str] = "heads"
    """The name of the rows that are shown."""

    def __repr__(self) -> str:
        """The table in plain text."""
        about, header, rows = self._table()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = [[*header], *rows]
        aligned = ("  ".join(map(str.rjust, line, widths)).rstrip() for line in lines)
        return "\n".join([about, *aligned])

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        about, header, rows = self._table()
        head = "".join(f"<th>{escape(name)}</th>" for name in header)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<p>{escape(about)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        """What it is, the names of the first columns, and the first rows; a head is one column, as 5:11."""
        rows: Sequence[Mapping[str, Any]] = getattr(self, self.shown_rows)
        first = [_with_head(row) for row in rows[:MOST_ROWS]]
        known = {name: None for row in first for name, cell in row.items() if cell is not None}
        names = [*known][:MOST_COLUMNS]
        left_out = [
            f"{count} more {what}"
            for count, what in ((len(rows) - len(first), "rows"), (len(known) - len(names), "columns"))
            if count
        ]
        about = f"{type(self).__name__}: {counted(len(rows), 'row')} in .{self.shown_rows}"
        shown = ", ".join(left_out)
        cells = [[_cell(row.get(name)) for name in names] for row in first]
        return f"{about}{f' ({shown})' if shown else ''}", [*map(plain_text, names)], cells


def _with_head(row: Mapping[str, Any]) -> dict[str, Any]:
    if not {"layer", "head"} <= row.keys():
        return dict(row)
    others = {name: cell for name, cell in row.items() if name not in PLACE}
    return {"head": f"{row['layer']}:{row['head']}", **others}


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else plain_text(str(value))
