"""docs/architectures.md agrees with the code."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIGURE = re.compile(r"\d\.\de[+-]\d\d")


def test_the_table_of_architectures_is_fresh() -> None:
    """To update: python tools/model_table.py. The last digits of a difference depend on the machine."""
    tool = runpy.run_path(str(ROOT / "tools" / "model_table.py"))
    page = (ROOT / "docs" / "architectures.md").read_text()
    refreshed = tool["refreshed"](page)
    assert FIGURE.sub("#", refreshed) == FIGURE.sub("#", page)
    figures = [float(figure) for figure in FIGURE.findall(refreshed)]
    assert len(figures) == len(tool["ARCHITECTURES"]) - 1 and max(figures) < 1e-5, "all but the refused one"
