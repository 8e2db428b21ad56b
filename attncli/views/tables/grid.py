"""Columns of text side by side, as rich draws them."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from attncli.views.numbers import NO_NUMBER
from attncli.views.tables.columns import Column


def grid(columns: Sequence[Column]) -> Table:
    """The columns with a rule below their headers."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim"
    )
    for column in columns:
        table.add_column(
            Text("\n".join(column.header).lstrip("\n")),
            justify="left" if column.left else "right",
            no_wrap=True,
            vertical="bottom",
        )
    for i in range(len(columns[0].cells)):
        table.add_row(*(_cell(column, i) for column in columns))
    return table


def _cell(column: Column, row: int) -> Text:
    text = column.cells[row]
    style = "bold" if row in column.emphasis else "dim" if text == NO_NUMBER else ""
    return Text(text, style=style)
