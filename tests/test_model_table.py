"""docs/architectures.md agrees with the code."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_table_of_architectures_is_fresh_and_its_weights_equal_eager_attention() -> None:
    """To update: python tools/model_table.py"""
    tool = runpy.run_path(str(ROOT / "tools" / "model_table.py"))
    page, rows = (ROOT / "docs" / "architectures.md").read_text(), tool["rows"]()
    assert tool["refreshed"](page, rows) == page
    assert [row.name for row in rows if row.how == "refused"] == ["Mamba"]
    assert max(row.difference for row in rows) < 1e-5
