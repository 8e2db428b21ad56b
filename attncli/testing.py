"""Checks of a feature, for use in its package's tests.

    pytest_plugins = ["attncli.testing"]

    def test_spread(attn_feature):
        attn_feature("spread", ["spread", "to be or not to be"])

Commands run in new processes, so that the process of the tests imports neither torch nor the feature.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

LINES, COLUMNS = 30, 80
"""The largest size of a first screen."""
PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
import attncli
from attncli.cli import run
from attncli.feature import added
from attncli.index import FEATURES, installed_features

def can_be_imported(function):
    try:
        return callable(getattr(attncli, function))
    except (AttributeError, ImportError):
        return False

ended = []
for arguments in json.load(sys.stdin):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(arguments)
    ended.append([code, out.getvalue(), err.getvalue()])
name, modules = sys.argv[1], [*sys.modules]
card, plugin = installed_features().get(name), added(FEATURES).get(name)
built_in = f"attncli.features.{name}.feature" if name in FEATURES else ""
print(json.dumps({
    "ended": ended,
    "modules": modules,
    "card_module": plugin.place.partition(":")[0] if plugin else built_in,
    "kinds": {} if card is None else {kind: place in card.screens for kind, place in card.results.items()},
    "functions": {} if card is None else {each: can_be_imported(each) for each in card.functions},
    "public": dir(attncli),
}))
"""


class Ended(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


class Process(NamedTuple):
    """A finished attn process: its commands, and the feature as that process saw it.

    `modules` are the modules that the commands imported; `card_module` is the card's module, which is empty
    if no package has the feature. `kinds` maps each kind of results on the card to True if the kind has a
    first screen; `functions` maps each function to True if the function can be imported; both are empty if
    the feature is off. `public` holds the names in `attncli`.
    """

    ended: list[Ended]
    modules: list[str]
    card_module: str
    kinds: dict[str, bool]
    functions: dict[str, bool]
    public: list[str]


def run_attn(feature: str, commands: Sequence[Sequence[str]], folder: Path, *, off: str = "") -> Process:
    """Run commands in a new process and in a folder, with the features named by `off` switched off."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, feature],
        input=json.dumps([[*command] for command in commands]),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "ATTN_OFF": off, "COLUMNS": str(COLUMNS)},
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return Process(**{**answer, "ended": [Ended(*each) for each in answer["ended"]]})


def check_feature(feature: str, *commands: Sequence[str], folder: Path) -> None:
    """Check a feature by running some of its commands, each of which makes a report.

    attn must use every part of the card, and help must import no other module of the package. Reports must be
    of a kind of the card, fit a first screen, be written as JSON, CSV and a page, and open again unchanged.
    With the feature switched off, its commands and functions must be gone, and its saved reports must still
    be shown. Raises AssertionError that names the command.
    """
    check_help(feature, folder)
    functions = check_reports(feature, commands, folder)
    check_without(feature, commands, functions, folder)


def check_help(feature: str, folder: Path) -> None:
    """Check that attn uses the whole card and that help imports no other module of the package."""
    done = run_attn(feature, [["--help"]], folder)
    assert done.card_module, f"{feature}: no installed package has a feature with this name"
    package, card = done.card_module.rpartition(".")[0], done.card_module
    imported = {name for name in done.modules if f"{name}.".startswith(f"{package}.")}
    assert imported <= {package, card}, (
        f"{feature}: help must not import {sorted(imported - {package, card})}"
    )
    (plugins,) = run_attn(feature, [["info", "plugins"]], folder).ended
    rows = [line.split() for line in plugins.out.splitlines()]
    states = [" ".join(row[4:]) for row in rows if row[:2] == ["features", feature]]
    assert states == ["ok"] or package.startswith("attncli."), f"attn info plugins: {feature}: {states}"


def check_reports(feature: str, commands: Sequence[Sequence[str]], folder: Path) -> list[str]:
    """Check the report of each command in every form, and return the functions on the card.

    The reports are left in the folder as 0.json, 1.json, ...
    """
    lines = [_forms(command, f"{number}") for number, command in enumerate(commands)]
    done = run_attn(feature, [line for forms in lines for line in forms], folder)
    ended = iter(done.ended)
    for number, forms in enumerate(lines):
        screen, _, table, *_ = (_succeeded(line, next(ended)) for line in forms)
        name, file = f"attn {' '.join(commands[number])}", folder / f"{number}.json"
        report = json.loads(file.read_text(encoding="utf-8"))
        kind = report.get("kind", report["experiment"])
        belongs = kind.split(" of ")[0] == report["experiment"]
        assert belongs, f"{name}: the kind of its results must begin with {report['experiment']} (got {kind})"
        _check_same(folder / f"{number}-again.json", file, f"{name}: attn show changes its report")
        assert table.count("\n") > 1, f"{name}: its CSV file has no rows"
        if done.kinds.get(kind):
            rows = screen.splitlines()
            size = f"{max(map(len, rows))} × {len(rows)}"
            is_small = len(rows) <= LINES and max(map(len, rows)) <= COLUMNS
            assert is_small, f"{name}: its first screen must be at most {COLUMNS} × {LINES} (got {size})"
    missing = [name for name, is_there in done.functions.items() if not is_there]
    assert not missing, f"attncli has no function {missing[0]}"
    return [*done.functions]


def check_without(
    feature: str, commands: Sequence[Sequence[str]], functions: Sequence[str], folder: Path
) -> None:
    """Check that the feature can be switched off and that the reports in the folder are shown without it."""
    shows = [
        line
        for number in range(len(commands))
        for line in (["show", f"{number}.json"], ["show", f"{number}.json", "-o", f"{number}-off.json"])
    ]
    other_commands = [["info"], ["self", "a b"], *shows]
    done = run_attn(feature, [*commands, *other_commands], folder, off=feature)
    for command, ended in zip(commands, done.ended, strict=False):
        name = f"ATTN_OFF={feature} attn {' '.join(command)}"
        assert (ended.code, ended.out) == (2, ""), f"{name}: must be refused (got exit code {ended.code})"
        assert ended.err.count("\n") == 1, f"{name}: must print one line to standard error (got {ended.err})"
    for line, ended in zip(other_commands, done.ended[len(commands) :], strict=True):
        _succeeded(line, ended, off=feature)
    for number in range(len(commands)):
        _check_same(folder / f"{number}-off.json", folder / f"{number}.json", f"ATTN_OFF={feature} attn show")
    left = {*functions} & {*done.public}
    assert not left, f"ATTN_OFF={feature}: attncli still has {sorted(left)}"


def _forms(command: Sequence[str], name: str) -> list[list[str]]:
    """Return a command in every form: screen, JSON, CSV, page, and the saved report shown and saved again."""
    return [
        [*command],
        [*command, "-o", f"{name}.json"],
        [*command, "--format", "csv"],
        [*command, "-o", f"{name}.html"],
        ["show", f"{name}.json"],
        ["show", f"{name}.json", "-o", f"{name}-again.json"],
    ]


def _succeeded(line: Sequence[str], ended: Ended, *, off: str = "") -> str:
    """Return the standard output of a command that must end with exit code 0."""
    switch = f"ATTN_OFF={off} " if off else ""
    assert ended.code == 0, f"{switch}attn {' '.join(line)}: exit code {ended.code}: {ended.err}"
    return ended.out


def _check_same(file: Path, saved: Path, what: str) -> None:
    assert file.read_text(encoding="utf-8") == saved.read_text(encoding="utf-8"), what


@pytest.fixture
def attn_feature(tmp_path: Path) -> Callable[..., None]:
    """Return `check_feature` bound to a new folder: attn_feature("spread", ["spread", "a text"], ...)."""
    return partial(check_feature, folder=tmp_path)
