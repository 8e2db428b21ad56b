"""What `attn` says about each class of architecture, against transformers' own eager attention."""

from pathlib import Path

import pytest

from tools.architecture_sweep.check import check
from tools.architecture_sweep.sample import RIGHT, SAMPLE


@pytest.mark.parametrize("name", SAMPLE)
def test_it_is_right_or_says_why_not(name: str, tmp_path: Path) -> None:
    """`python -m tools.architecture_sweep FILE` does the same for every architecture there is."""
    result = check(name, tmp_path / "model")
    assert not result.wrong, "\n".join(result.wrong)
    assert result.verdict != "not testable", result.reason
    if name in RIGHT:
        assert result.verdict == "right", result.refused or result.reason
