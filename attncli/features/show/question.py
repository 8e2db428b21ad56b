"""`attn show`: a saved report, or weights from another tool, in any view."""

from dataclasses import replace
from functools import partial
from typing import Any

from attncli.commands.command import DEBUG, OUTPUT_FLAGS, Command, argument, option
from attncli.commands.output import Destination
from attncli.commands.saved_files import ARRAY_FLAGS, opened
from attncli.errors import UserError
from attncli.runs.saved_reports import SavedReports
from attncli.system.plain_text import whole_number

EXAMPLES = (
    'attn self --sentence "the cat sleeps" -o cat.json',
    "attn show cat.json",
    "attn show cat.json -o cat.csv",
    "attn show lessons.jsonl --report 3",
    "attn show weights.npz --array attention --tokens tokens.txt",
    "attn heads --format json | attn show -",
)
FILE = argument(
    "file",
    "A saved report (.json, .jsonl, .npz, .safetensors; - reads stdin), or an array (.npz, .npy, "
    ".safetensors, .pt): query × key, head × query × key, or layer × head × query × key.",
    "FILE",
    reads_file=True,
)
REPORT = option(
    "--report",
    "The number of the report, from 0, if a file has several.",
    "INTEGER",
    everyday="the number of the report, from 0, if a file has several",
)


def _one(saved: SavedReports, file: str, number: str) -> SavedReports:
    count, place = len(saved.reports), whole_number(number)
    if place is None or place >= count:
        raise UserError(
            f"--report: must be below {count}, the number of reports in {file} (got {number:.60})"
        )
    return SavedReports((saved.reports[place],), several=False)


def show(file: str, report: str | None, **flags: Any) -> None:
    """Read the whole file before showing it, so that nothing is written if the file is damaged."""
    arrays = {parameter.name: flags.pop(parameter.name) for parameter in ARRAY_FLAGS}
    to = Destination(**flags)
    to.display = replace(to.display, is_saved=True)
    saved = opened(file, **arrays)
    if report is not None:
        saved = _one(saved, file, report)
    to.write(saved.reports, several=saved.several)


command = partial(
    Command, run=show, parameters=[FILE, *ARRAY_FLAGS, REPORT, *OUTPUT_FLAGS, DEBUG], examples=EXAMPLES
)
