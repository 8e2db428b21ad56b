"""The instructions of `attn info skill`; tests/test_pages.py runs their commands."""

import re
import shlex

from attncli import errors
from attncli.cli import COMMANDS
from tests.conftest import Attn
from tests.running import ROOT

SKILL = (ROOT / "attncli" / "data" / "SKILL.md").read_text()


def test_the_skill_is_printed_unchanged(attn: Attn) -> None:
    assert attn(["info", "skill"]) == (0, SKILL, "")


def test_its_exit_codes_are_those_of_attn() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", SKILL, re.MULTILINE)}
    names = ("DONE", "FAILED", "REFUSED", "SOME_FAILED", "NOT_WRITTEN", "INTERRUPTED")
    assert codes == {getattr(errors, name) for name in names}


def test_every_command_and_flag_that_it_names_exists(attn: Attn) -> None:
    assert {*re.findall(r"`attn ([a-z]+) [^`]*`", SKILL)} <= {*COMMANDS}
    flags = {*re.findall(r"(?<![\w-])--[a-z-]+", SKILL)} - {"---", "--tops"}
    helped = "".join(attn([name, "--help-all"]).out for name in ("heads", "results"))
    assert flags <= {*re.findall(r"--[a-z-]+", helped), "--help", "--help-all"}


def test_files_named_in_agents_md_exist() -> None:
    page = (ROOT / "AGENTS.md").read_text()
    lines = re.findall(r"^(?:python|\.venv/bin/pytest|UPDATE_GOLDEN|make) .*$", page, re.MULTILINE)
    named = [
        word for line in lines for word in shlex.split(line, comments=True) if "/" in word and "=" not in word
    ]
    named += re.findall(r"`((?:attncli|tests|tools|docs)/[\w/.-]+)`", page)
    assert len(named) > 8
    for name in {*named} - {".venv/bin/pytest", "docs/PAGE.md", "attncli/features/NAME/"}:
        assert (ROOT / name.rstrip(";")).exists(), name
    assert "check:" in (ROOT / "Makefile").read_text() and len(page.split()) < 500
