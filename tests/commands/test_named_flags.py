"""Every command and flag that a screen, an example or an error names exists."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from attncli.cli import COMMANDS, build_app
from attncli.commands.output import refuse_unknown_parts
from attncli.features.diff.screens import DIFF_STEPS
from attncli.features.results.screens import SUMMARY_STEPS
from attncli.features.watch.screens import CHECKPOINT_NEXT_STEPS, STORE_NEXT_STEPS
from attncli.settings import SPECS
from attncli.views.tables import STEPS_OF_SAVED

PACKAGE = Path(__file__).parents[2] / "attncli"
APP = build_app()
VALUES = {"LAYER:HEAD": "1:0", "NAME": "entropy", "WORD": "cat"}
SETTINGS: tuple[dict[str, Any], ...] = (
    *({}, {"relations": "a"}, {"head": "1:0"}, {"statistic": "entropy"}, {"texts": "a"}, {"explain": True}),
    *({"image": "a"}, {"image": "a", "sentence": "b"}, {"policy": "h2o"}, {"answer": "a"}, {"other": "a"}),
    *({"from": ["a"], "to": ["b"]}, {"find_heads": True}, {"approximate": True}, {"model": "a"}),
)
"""Settings that a report may have: what is offered next follows from them."""
NAMED = re.compile(r"\battn ((?:[a-z]+-?)+) ([^`'\"\n]*?--?[a-z][^`'\"\n;|)]*)")
FLAG = re.compile(r"(?<!\S)(--[a-z][a-z-]*|-[a-z])(?![\w-])")


def command_of(name: str) -> Any:
    with APP.make_context("attn", [name], resilient_parsing=True) as context:
        return APP.get_command(context, name)


def flags_of(name: str) -> set[str]:
    command = command_of(name)
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}


def parse(name: str, words: list[str]) -> None:
    """Parse the words, with their values, without running the command."""
    words = [VALUES.get(word, word) for word in words]
    command_of(name).make_context(name, words, resilient_parsing=False)
    for flag, value in pairwise(words):
        if flag == "--show":
            refuse_unknown_parts(value.split(","))


def offered() -> Iterator[tuple[str, str]]:
    for name, spec in SPECS.items():
        for settings in SETTINGS:
            yield from ((name, step) for step in spec.steps_after(settings))
    yield from (("diff", step) for step in DIFF_STEPS)
    yield from (("results", step) for step in SUMMARY_STEPS)
    yield from (("show", step) for step in STEPS_OF_SAVED)
    for steps in (*STORE_NEXT_STEPS.values(), *CHECKPOINT_NEXT_STEPS.values()):
        yield from (("watch", step) for step in steps)
    yield from (("heads", "--skip-sink 1"), ("watch", "--show all"))


@pytest.mark.parametrize(("name", "step"), sorted({*offered()}))
def test_suggested_next_steps_are_valid_command_lines(name: str, step: str) -> None:
    files = {"diff": ["a.json", "b.json"], "results": ["a.db"], "show": ["a.json"], "watch": ["a.db"]}
    parse(name, [*files.get(name, []), *shlex.split(step)])


def test_flags_that_sources_name_are_flags_of_their_commands() -> None:
    named = {
        (found[1], flag)
        for path in PACKAGE.rglob("*.py")
        for found in NAMED.finditer(path.read_text(encoding="utf-8"))
        for flag in FLAG.findall(re.split(r" attn |(?<!\S)-- ", found[2])[0])
        if found[1] in COMMANDS
    }
    assert len(named) > 100
    wrong = {(name, flag) for name, flag in named if flag not in flags_of(name)}
    assert not wrong


def test_parts_that_screens_offer_are_parts_or_tables_of_reports() -> None:
    offered = {
        name
        for path in PACKAGE.rglob("*.py")
        for found in re.findall(r"--show ([a-z_]+(?:,[a-z_]+)*)", path.read_text(encoding="utf-8"))
        for name in found.split(",")
    }
    assert {"changes", "all", "weights"} <= offered
    refuse_unknown_parts(sorted(offered - {"asks", "says", "of", "names", "works"}))
