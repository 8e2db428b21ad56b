"""The page that asks a server, and the lines in which its reports come."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from attncli.records.kinds import kinds_of
from attncli.records.report import Report
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.page import json_block, page_json, page_shell, page_start, page_style, report_data
from attncli.views.page.blocks import blocks_of, page_script
from attncli.views.texts import readable, title

FOLDER = files(__package__)
OF_SERVER = "served.js"
"""The module that begins."""


def served_page(asked: Mapping[str, Any], questions: Iterable[str], display: Display) -> tuple[str, str]:
    """The page without a report, which asks a server for them; and what it may load and run.

    `asked` is what it knows of the model: its name, what it may be asked, the first text. It has the blocks
    of all results of the questions.
    """
    kinds = dict.fromkeys(kind for name in questions for kind in kinds_of(name).values())
    blocks = [block for kind in kinds for block in blocks_of(kind)]
    script = page_script(blocks, OF_SERVER, FOLDER)
    style, asking = ((FOLDER / name).read_text(encoding="utf-8") for name in ("served.css", "asking.html"))
    style = f"{page_style(blocks)}\n{style}"
    shell = page_shell(blocks, script, style, asking=asking, also="; connect-src 'self'")
    reports = json_block("start", page_start(display) | {"asked": asked}) + json_block("headings", [])
    return f"{shell.before}{reports}{shell.after}", shell.policy


def report_line(report: Report, *, name: str = "", without: Sequence[str] = ()) -> str:
    """What the script of the page reads of a report: JSON, on one line; what its title says."""
    report = readable(report)
    return page_json(report_data(report) | {"title": title(report, name=plain_text(name), without=without)})
