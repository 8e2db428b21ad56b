"""Reports as one HTML file that opens from disk, without a network, to look at weights head by head."""

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from typing import TextIO

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views import SCALES, Display
from attncli.views.colormaps import COOLWARM, VIRIDIS
from attncli.views.page.report_data import page_json, report_data

SOURCES = files("attncli.views.page")
# In the order in which they build on one another.
SCRIPTS = [
    f"{folder}/{name}.js"
    for folder, names in (
        ("values", "arrays numbers labels colours shades ticks"),
        ("parts", "elements overview map lines head_keys tokens tables cards charts curves steps"),
        ("page", "report rankings matrix heads selection controls page"),
    )
    for name in names.split()
]
# Later files override earlier ones.
STYLES = ("base.css", "maps.css", "tokens.css", "cards.css", "tables.css", "charts.css", "layout.css")
REPORTS = "<!-- reports -->\n"


def _source(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


def _script() -> str:
    """The page's own script: its files as one, in a scope of its own."""
    parts = "\n".join(_source(f"scripts/{name}") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _style() -> str:
    """The page's own style: its files as one."""
    return "\n".join(_source(f"styles/{name}") for name in STYLES)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _content_security_policy(script: str, style: str) -> str:
    """Only this script and this style are loaded and run; no text ever becomes markup."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _json_block(kind: str, data: object) -> str:
    return f'<script type="application/json" class="{kind}">{page_json(data)}</script>\n'


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """One page for all reports; each is written as it comes."""
    page_style, page_script = _style(), _script()
    page = _source("page.html").replace("<!-- policy -->", _content_security_policy(page_script, page_style))
    before, after = page.replace("/* style */", page_style).split(REPORTS)
    stream.write(before)
    start = {
        "viridis": VIRIDIS,
        "coolwarm": COOLWARM,
        "scale": display.scale_colors,
        "scales": SCALES,
        "skip": display.skip_sink,
    }
    stream.write(_json_block("start", start))
    headings = []
    for report in reports:
        data = report_data(report)
        if display.title is not None:
            data["title"] = plain_text(display.title)
        headings.append(data.pop("heading"))
        stream.write(_json_block("report", data))
    stream.write(_json_block("headings", headings))
    stream.write(after.replace("/* script */", page_script))
