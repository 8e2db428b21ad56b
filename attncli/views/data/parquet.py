"""Reports as one Parquet table."""

from collections.abc import Iterable
from typing import BinaryIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.data.chosen import chosen_table
from attncli.views.data.writers import write_parquet


def write(reports: Iterable[Report], stream: BinaryIO, display: Display) -> None:
    """The table of csv, its columns int64, float64, bool or text."""
    table = chosen_table(reports, display)
    write_parquet(table.columns, table.blocks(), stream)
