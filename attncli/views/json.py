"""Reports as JSON at full precision: an object, or a list of them where several were asked for."""

import json
from collections.abc import Iterable
from typing import Any, TextIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.plain_text import UNSEEN


def dumps(data: Any) -> str:
    """JSON on one line; characters that a terminal would obey or hide are written as JSON escapes."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _document(report: Report) -> str:
    lines = [f"  {dumps(name)}: {dumps(value)}" for name, value in report.to_data().items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """One key of a report a line."""
    if not display.several:
        stream.writelines(f"{_document(report)}\n" for report in reports)
        return
    separator = "[\n"
    for report in reports:
        stream.write(separator + _document(report))
        separator = ",\n"
    stream.write("\n]\n" if separator == ",\n" else "[]\n")
