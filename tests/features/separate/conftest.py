"""The report of `attn separate` on its example, made once."""

from pathlib import Path

import pytest

from attncli import cli
from attncli.commands.saved_files import opened
from attncli.features.separate.results import SeparatedTexts


@pytest.fixture(scope="package")
def detector_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved report on the example, with its detector."""
    file = tmp_path_factory.mktemp("separate") / "detector.json"
    assert cli.run(["separate", "--permutations", "19", "-o", str(file)]) == 0
    return file


@pytest.fixture(scope="package")
def example(detector_file: Path) -> SeparatedTexts:
    return opened(str(detector_file)).reports[0].result_of(SeparatedTexts)
