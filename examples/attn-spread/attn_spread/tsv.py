"""Matrices of reports as tab-separated values."""

from collections.abc import Iterable
from typing import TextIO

from attncli.records.report import Report
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.matrices import matrices
from attncli.views.texts import fixed


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write a title, the keys, and one line per query."""
    for report in reports:
        for matrix in matrices(report):
            stream.write(f"# {plain_text(matrix.title)}\n")
            if matrix.columns:
                stream.write("\t".join(map(plain_text, matrix.columns)) + "\n")
            for row in matrix.values:
                stream.write("\t".join(fixed(number, display.precision) for number in row) + "\n")
