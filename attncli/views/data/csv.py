"""Reports as one CSV table."""

from collections.abc import Iterable
from typing import TextIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.data.chosen import chosen_table
from attncli.views.data.writers import write_csv


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """One line per row at full precision; a cell is empty where there is no value."""
    table = chosen_table(reports, display)
    write_csv(table.columns, table.blocks(), stream)
