"""The page of a server, and the lines that carry reports to it."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from attncli.records.kinds import experiment_kinds
from attncli.records.report import Report
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.page import json_block, page_json, page_shell, page_start, page_style, report_data
from attncli.views.page.blocks import blocks_of, page_script
from attncli.views.texts import readable, title

FOLDER = files(__package__)
START_SCRIPT = "served.js"
"""The script module that starts the page."""


def served_page(model_info: Mapping[str, Any], questions: Iterable[str], display: Display) -> tuple[str, str]:
    """Return the page without a report, and its content security policy.

    `model_info` has the model's name, its questions and the first text. The page contains the result blocks
    of all questions.
    """
    kinds = dict.fromkeys(kind for name in questions for kind in experiment_kinds(name).values())
    blocks = [block for kind in kinds for block in blocks_of(kind)]
    script = page_script(blocks, START_SCRIPT, FOLDER)
    style, asking = ((FOLDER / name).read_text(encoding="utf-8") for name in ("served.css", "asking.html"))
    style = f"{page_style(blocks)}\n{style}"
    shell = page_shell(blocks, script, style, asking=asking, also="; connect-src 'self'")
    reports = json_block("start", page_start(display) | {"asked": model_info}) + json_block("headings", [])
    return f"{shell.before}{reports}{shell.after}", shell.policy


def report_line(report: Report, *, name: str = "", without: Sequence[str] = ()) -> str:
    """Return a report, with its title, as one line of JSON for the page's script."""
    report = readable(report)
    return page_json(report_data(report) | {"title": title(report, name=plain_text(name), without=without)})
