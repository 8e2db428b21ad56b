"""The pages show current outputs of commands, and their links have targets."""

import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attncli.cli import COMMANDS
from tests.conftest import Attn, some_seldom
from tests.same_text import assert_same_text
from tools import report_page
from tools.man_page import man_page
from tools.readme_picture import ARGUMENTS, PICTURE, picture
from tools.refresh_outputs import BLOCK, PAGES, PYTHON_PAGES, ROOT, refreshed, refreshed_python, runs_again
from tools.site_hooks import PLACES

MACHINE = re.compile(r"(?<= done now in ).*|(?<=; made with ).*")


def first_of_each_name() -> set[str]:
    """One command of each name, which also runs in a pipe; tests/views/tables has every screen both ways."""
    blocks = [match for page in PAGES for match in BLOCK.finditer(page.read_text()) if not match[2]]
    commands = [line[2:] for block in blocks for line in block[3].splitlines() if line.startswith("$ ")]
    return {*{command.split()[1]: command for command in reversed(commands) if runs_again(command)}.values()}


IN_A_PIPE = first_of_each_name()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Lesson 22 records, too; other pages survey the model that ships with attn.
@pytest.mark.parametrize(
    "page", some_seldom(PAGES, [ROOT / "docs" / "record.md", ROOT / "docs" / "survey.md"]), ids=name_of
)
def test_outputs_are_fresh(page: Path) -> None:
    """To update: python tools/refresh_outputs.py [PAGE ...]"""
    text = page.read_text()
    again = refreshed(text, quick=True, in_a_pipe=IN_A_PIPE)
    assert_same_text(MACHINE.sub("#", again), MACHINE.sub("#", text))


# The 65,536 tokens of README.md take eight seconds on one core.
@pytest.mark.parametrize("page", some_seldom(PYTHON_PAGES, [ROOT / "README.md"]), ids=name_of)
def test_outputs_of_python_are_fresh(page: Path) -> None:
    """To update: python tools/refresh_outputs.py PAGE"""
    text = page.read_text()
    assert_same_text(refreshed_python(text, quick=True), text)


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=name_of)
def test_links_have_targets(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_picture_of_the_readme_is_fresh(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    """To update: python tools/readme_picture.py"""
    monkeypatch.setenv("COLUMNS", "80")
    printed, picture_file = picture(attn(ARGUMENTS).out), PICTURE.read_text()
    assert "http" not in picture_file.replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )
    texts = [re.findall(r"<text[^>]*>([^<]*)</text>", svg) for svg in (printed, picture_file)]
    assert texts[0] == texts[1]
    assert printed.count("<rect") == picture_file.count("<rect") > 100


@pytest.mark.nightly
def test_the_site_builds_without_a_warning_and_its_links_have_targets(tmp_path: Path) -> None:
    site = tmp_path / "site"
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0 and "WARNING" not in ended.stderr, ended.stderr
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    assert {place.replace(".md", ".html") for place in PLACES.values()} <= pages.keys()
    anchors = {name: {*re.findall(r' (?:id|name)="([^"]+)"', text)} for name, text in pages.items()}
    links = {
        (name, link) for name, text in pages.items() for link in re.findall(r'(?:href|src)="([^"]*)"', text)
    }
    for name, link in links - {(name, "/.") for name in pages}:
        target, _, anchor = link.partition("#")
        if not target.startswith(("https://", "data:", "http://")) and name != "404.html":
            linked_page = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), target or Path(name).name)
            )
            assert (site / linked_page).is_file(), f"{name}: {link}"
            assert not anchor or linked_page not in pages or anchor in anchors[linked_page], f"{name}: {link}"


def test_the_man_page_is_fresh_and_well_formed() -> None:
    """To update: python tools/man_page.py"""
    page = ROOT / "docs" / "attn.1"
    assert page.read_text() == man_page()
    linter = shutil.which("mandoc")
    if linter is None:
        return
    ended = subprocess.run([linter, "-T", "lint", page], capture_output=True, text=True)
    warnings = [line for line in ended.stdout.splitlines() if ": STYLE: " not in line]
    # A date would change with every version.
    assert len(warnings) == 1 and "missing date" in warnings[0], ended.stdout
    shown = subprocess.run([linter, "-T", "ascii", page], capture_output=True, text=True, check=True).stdout
    assert all(f"\n   attn {name} " in re.sub(".\x08", "", shown) for name in COMMANDS)


def test_the_columns_of_results_are_fresh() -> None:
    """To update: python tools/report_page.py"""
    assert report_page.PAGE.read_text() == report_page.report_page()


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = re.findall(r"\]\(([^)/]+\.md)\)", (ROOT / "docs" / "README.md").read_text())
    assert sorted([*listed, "README.md"]) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert all(f"`attn {name}" in readme for name in COMMANDS)
