"""The report of a command line, as JSON has it."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import Attn


def report_of(attn: Attn, *arguments: str | Path) -> dict[str, Any]:
    """Run `attn` without errors or messages, and return its report."""
    ended = attn([*map(str, arguments), "--format", "json"])
    assert ended.code == 0 and ended.err == "", ended.err
    report: dict[str, Any] = json.loads(ended.out)
    return report
