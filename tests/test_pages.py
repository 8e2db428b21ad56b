"""What the pages show is what the commands print; links lead somewhere."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attncli.cli import COMMANDS
from tests.same_text import assert_same_text
from tools.man_page import man_page
from tools.refresh_outputs import PAGES, PYTHON_PAGES, ROOT, refreshed, refreshed_python

MACHINE = re.compile(r"(?<= done now in ).*|(?<=; made with ).*")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_outputs_are_fresh(page: Path, terminal: bool) -> None:
    """Where this fails: python tools/refresh_outputs.py [PAGE ...]"""
    text = page.read_text()
    assert_same_text(MACHINE.sub("#", refreshed(text, terminal=terminal, quick=True)), MACHINE.sub("#", text))


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_python_prints_is_fresh(page: Path) -> None:
    """Where this fails: python tools/refresh_outputs.py PAGE"""
    text = page.read_text()
    assert_same_text(refreshed_python(text), text)


@pytest.mark.parametrize(
    "page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_man_page_is_fresh_and_well_formed() -> None:
    """Where this fails: python tools/man_page.py"""
    page = ROOT / "docs" / "attn.1"
    assert page.read_text() == man_page()
    linter = shutil.which("mandoc")
    if linter is None:
        assert not os.environ.get("CI"), "mandoc is missing: see .ci/run"
        return
    ended = subprocess.run([linter, "-T", "lint", page], capture_output=True, text=True)
    found = [line for line in ended.stdout.splitlines() if ": STYLE: " not in line]
    # A page of every version would need a date that changes with it.
    assert len(found) == 1 and "missing date" in found[0], ended.stdout
    shown = subprocess.run([linter, "-T", "ascii", page], capture_output=True, text=True, check=True).stdout
    assert all(f"\n   attn {name} " in re.sub(".\x08", "", shown) for name in COMMANDS)


def test_the_readme_is_short_and_names_its_lessons_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 200 and any("attn lesson 1" in line for line in lines[:40])


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = re.findall(r"\]\(([^)/]+\.md)\)", (ROOT / "docs" / "README.md").read_text())
    assert sorted([*listed, "README.md"]) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert all(f"`attn {name}" in readme for name in COMMANDS)
