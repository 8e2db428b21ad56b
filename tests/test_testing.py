"""`attncli.testing` with the template of docs/plugins.md, and with packages that break a rule."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attncli import testing
from tests.running import ROOT
from tests.test_adding import built, install_wheel
from tests.test_plugins import install_card

BLOCK = re.compile(r"(.*?)^```(?:python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`((?:attn_reach|tests)/\w+\.py|pyproject\.toml)`")
TEXT = "to be or not to be"


def template() -> dict[str, str]:
    """The files printed on the page."""
    page = (ROOT / "docs" / "plugins.md").read_text()
    section = page.partition("## A template\n")[2].partition("\n## ")[0]
    files = {FILE.findall(text)[-1]: code for text, code in BLOCK.findall(section)}
    return {**files, "attn_reach/__init__.py": ""}


def test_the_template_of_the_page_runs_as_printed_and_passes_its_own_test(tmp_path: Path) -> None:
    files = template()
    assert [*files] == [
        "pyproject.toml",
        *(f"attn_reach/{name}.py" for name in ("feature", "results", "measure", "question")),
        *("tests/test_reach.py", "attn_reach/__init__.py"),
    ]
    site = tmp_path / "site"
    install_wheel(site, built(tmp_path, files))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.nightly
def test_the_example_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a form of a built-in command, and a question without a kind of results."""
    install_wheel(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{ROOT}")
    commands = (["spread", TEXT], ["heads", "--spread", TEXT], ["similarity", TEXT])
    testing.check_feature("spread", *commands, folder=tmp_path)


@pytest.mark.nightly
def test_a_built_in_feature_passes(tmp_path: Path) -> None:
    testing.check_feature("norm", ["norm"], folder=tmp_path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the template as an installed package, which a test may damage."""
    modules = {Path(name).stem: code for name, code in template().items() if name.startswith("attn_reach/")}
    install_card(tmp_path / "site", "attn_reach", "reach", modules)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{ROOT}")
    return tmp_path / "site" / "attn_reach"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("module", "before", "after", "error"),
    [
        ("feature", "FEATURE = ", "import attn_reach.results\n\nFEATURE = ", "help must not import"),
        (
            "feature",
            '"reach": "results:',
            '"far": "results:',
            "the kind of its results must begin with reach",
        ),
        ("feature", "measure:reach", "measure:far", "attn info plugins: reach:"),
        ("question", "heads[: spec.top]", "None", "attn reach to be or not to be: its CSV file has no row"),
    ],
)
def test_a_broken_rule_is_named(
    module: str, before: str, after: str, error: str, package: Path, tmp_path: Path
) -> None:
    file = package / f"{module}.py"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(AssertionError, match=error):
        testing.check_feature("reach", ["reach", TEXT], folder=tmp_path)


def test_a_feature_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nowhere: no installed package has"):
        testing.check_feature("nowhere", ["nowhere"], folder=tmp_path)
