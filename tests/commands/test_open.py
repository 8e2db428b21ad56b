"""`--open`: the page or picture that was written, in the browser."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Attn

ATTN = [sys.executable, "-m", "attncli"]


@pytest.fixture
def saved(attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a report."""
    monkeypatch.chdir(tmp_path)
    assert attn(["self", "--sentence", "a b", "-o", "x.json"]).code == 0
    return tmp_path


def opened_with(saved: Path, browser: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BROWSER": browser}
    command = [*ATTN, "show", "x.json", *arguments, "--open"]
    return subprocess.run(command, capture_output=True, text=True, cwd=saved, env=environment)


def test_the_file_is_opened_once_it_is_written(saved: Path) -> None:
    name = "my page.html"
    browser = saved / "browser.sh"
    browser.write_text(f'#!/bin/sh\ntest -s "{name}" && echo "$1" >> opened\n')
    browser.chmod(0o755)
    done = opened_with(saved, str(browser), "-o", name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (saved / "opened").read_text() == f"{(saved / name).as_uri()}\n"


def test_a_browser_that_does_not_start_leaves_the_file(saved: Path) -> None:
    done = opened_with(saved, "/bin/false", "-o", "x.html")
    message = "--open: the browser could not be started: open x.html yourself\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)
    assert (saved / "x.html").stat().st_size > 0


@pytest.mark.parametrize("arguments", [[], ["-o", "-", "--format", "html"], ["-o", "y.csv"]])
@pytest.mark.parametrize("command", [["self"], ["batch", "missing.yaml"]])
def test_formats_that_no_browser_shows_are_refused(
    attn: Attn, saved: Path, command: list[str], arguments: list[str]
) -> None:
    message = "--open: needs -o with a html, png, svg or pdf file, such as -o page.html\n"
    assert attn([*command, *arguments, "--open"]) == (2, "", message)
    assert not Path("y.csv").exists()
