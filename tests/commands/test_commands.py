"""The command line as a user runs it: exit code, standard output, standard error."""

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from errno import ENOSPC
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import yaml

import attncli
from attncli.cli import COMMAND_GROUPS, COMMANDS, run
from attncli.system.plain_text import LEGIBLE
from attncli.views import VIEWS, Display, load_view
from tests.conftest import Attn, in_turn
from tests.forked import run_attn
from tests.running import ROOT

ATTN = [sys.executable, "-m", "attncli"]


def test_the_first_help_has_every_command_in_its_group_on_one_screen(attn: Attn) -> None:
    out = attn(["--help"]).out
    assert out.count("\n") <= 43
    _, _, *groups = re.split(r"^(\S[^\n]*):\n", out, flags=re.MULTILINE)[1:]
    listed = {
        title: re.findall(r"^  (\S+) ", rows, re.MULTILINE)
        for title, rows in zip(*[iter(groups)] * 2, strict=True)
    }
    assert tuple(listed) == COMMAND_GROUPS
    assert listed == {
        title: [name for name, row in COMMANDS.items() if row.group == title] for title in COMMAND_GROUPS
    }
    assert sum(map(len, listed.values())) == len(COMMANDS) - 1 == 24
    assert listed["See"][0] == "self" and listed["Learn"][0] == "lesson"


def test_the_page_of_settings_is_fresh() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "settings_page.py"))["settings_page"]()
    assert (ROOT / "docs" / "settings.md").read_text() == page, "run: python tools/settings_page.py"


def test_bare_commands_show_something(attn: Attn) -> None:
    """The others are in tests/commands/test_first_screens.py."""
    for name in ("average", "self", "multihead", "cross", "separate"):
        ended = attn([name])
        assert ended.code == 0 and ended.err == "" and ended.out.startswith(f"{name}: "), ended


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["self", "a", "-o", "a.html", "--output", "b.png"],
            "--output/-o: takes one value (got a.html, b.png)",
        ),
        (["self", "--seed", "1", "--seed", "2", "--seed", "1"], "--seed: takes one value (got 1, 2)"),
        (["batch", "x.yaml", "--workers", "1", "--workers", "2"], "--workers: takes one value (got 1, 2)"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_second_value_of_a_flag_is_refused_before_anything_is_written(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """Otherwise the last value would silently win. A repeated value changes nothing."""
    monkeypatch.chdir(tmp_path)
    assert attn(arguments) == (2, "", f"{message}\n") and not [*tmp_path.iterdir()]
    once, twice = attn(["self", "a b", "--seed", "1"]), attn(["self", "a b", "--seed", "1", "--seed", "1"])
    assert once == twice and once.code == 0


def test_several_bad_flags_are_reported_together(attn: Attn) -> None:
    assert len(attn(["self", "--head-dim", "0", "--seed", "-1", "--top-k", "x"]).err.splitlines()) == 3


def test_hostile_text_in_an_error_is_plain(attn: Attn, tmp_path: Path) -> None:
    vectors = tmp_path / "v.txt"
    vectors.write_text("the 1 2\n")
    ended = attn(["self", "--embedding", str(vectors), "--sentence", "the \x1b[31m\u202e"])
    assert ended.code == 2 and "\x1b" not in ended.err and r"\x1b[31m\u202e" in ended.err


def test_flags_override_the_file_and_the_file_overrides_defaults(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("experiment: self\nhead_dim: 5\nvalue_dim: 3\n")
    ended = attn(["self", "--config", str(path), "--head-dim", "7", "--show-config"])
    assert ended.code == 0
    lines = dict(line.split(": ", 1) for line in ended.out.splitlines())
    assert lines["head_dim"] == "7  # --head-dim"
    assert lines["value_dim"] == f"3  # {path}:3:1"
    assert lines["embed_dim"] == "64  # default"
    assert yaml.safe_load(ended.out)["sentence"] == "the cat walks on the street"


def test_a_config_for_another_command_is_refused(attn: Attn) -> None:
    example = str(ROOT / "configs" / "example.yaml")
    ended = attn(["norm", "--config", example])
    assert ended.code == 2 and "experiment: must be norm for this command (got self)" in ended.err


def test_batch_prints_each_report_and_names_failed_runs(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "steps: [{experiment: norm}, {experiment: self, scale: 1e38}, {experiment: norm, seed: 1}]"
    )
    ended = attn(["batch", str(path), "--format", "jsonl"])
    assert ended.code == 3
    assert [json.loads(line)["spec"]["seed"] for line in ended.out.splitlines()] == [0, 1]
    first, last = ended.err.splitlines()
    assert first.startswith(f"{path}:1:30: self: the scores overflow") and last == "1 of 3 experiments failed"


@pytest.mark.parametrize(("num_failing", "kept"), [(21, True), (22, False), (40, True)])
def test_only_the_first_of_many_failed_runs_are_shown(
    attn: Attn, tmp_path: Path, num_failing: int, kept: bool
) -> None:
    path, store = tmp_path / "x.yaml", tmp_path / "x.db"
    scales = [1e38 - 1e35 * i for i in range(num_failing)]
    path.write_text(f"experiment: self\nsentence: a b c d\nseed: 1\nsweep: {{scale: {scales}}}\n")
    ended = attn(["batch", str(path), *(["-o", str(store)] if kept else [])])
    *lines, summary = ended.err.splitlines()
    assert ended.code == 3 and f"{num_failing} " in summary and "failed" in summary
    named = [line for line in lines if "the scores overflow" in line]
    if num_failing <= 21:
        assert lines == named and len(named) == num_failing
    else:
        assert lines == [*named, f"and {num_failing - 20} more"] and len(named) == 20


def test_a_single_command_and_a_batch_of_one_give_the_same_report(attn: Attn) -> None:
    example = str(ROOT / "configs" / "example.yaml")
    single = json.loads(attn(["self", "--config", example, "--format", "json"]).out)
    assert json.loads(attn(["batch", example, "--format", "json"]).out) == [single]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "txt"])
def test_output_files_appear_whole_with_the_view_of_their_suffix(
    attn: Attn, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"x.{suffix}"
    assert attn(["norm", "-o", str(path)]) == (0, "", "")
    view = {"txt": "table"}.get(suffix, suffix)
    assert path.read_text() == attn(["norm", "--format", view]).out
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_run_leaves_the_old_file_unchanged(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    assert attn(["self", "--scale", "1e38", "-o", str(path)]).code == 1
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_links_are_followed_and_permissions_stay(attn: Attn, tmp_path: Path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(target)
    assert attn(["norm", "-o", str(link)]).code == 0
    assert link.is_symlink() and json.loads(target.read_text())["experiment"] == "norm"
    fresh = tmp_path / "fresh"
    fresh.touch()
    assert target.stat().st_mode == fresh.stat().st_mode
    fresh.chmod(0o600)
    assert attn(["norm", "-o", str(fresh), "--format", "json"]).code == 0
    assert fresh.stat().st_mode & 0o777 == 0o600


def test_devices_are_written_not_replaced(attn: Attn) -> None:
    assert attn(["norm", "-o", "/dev/null", "--format", "json"]).code == 0
    assert Path("/dev/null").is_char_device()
    ended = attn(["norm", "-o", "/dev/full", "--format", "json"])
    assert ended.code == 4 and ended.err == "-o /dev/full: cannot be written: No space left on device\n"


@pytest.mark.parametrize("view", ["html", "npz", "safetensors", "pdf"])
def test_a_disk_that_fills_while_a_view_is_written_is_that_error(view: str) -> None:
    """A library may raise another error during cleanup, as matplotlib's PDF writer does."""

    class Disk(BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > 1000:
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            return super().write(data)

    report = attncli.run("self", sentence="the cat sat because it was tired")
    disk = Disk()
    stream = disk if VIEWS[view].writes_bytes else TextIOWrapper(disk, encoding="utf-8", write_through=True)
    with pytest.raises(OSError, match="No space left on device"):
        load_view(view)([report], stream, Display())


def test_open_pipes_are_written_and_standard_output_has_two_names(attn: Attn, tmp_path: Path) -> None:
    assert attn(["norm", "-o", str(tmp_path / "norm.json")]).code == 0
    script = (
        'show() { "$PYTHON" -m attncli show norm.json "$@"; }; echo first > all;'
        "show --format jsonl -o /dev/stdout >> all; show -o /dev/stdout >> all;"
        "show --format json -o /dev/stdout | cat; show --format json -o >(cat > piped); wait $!"
    )
    environment = os.environ | {"PYTHON": sys.executable}
    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (json.loads(ended.stdout)["experiment"], ended.stderr) == ("norm", "")
    first, report, *table = (tmp_path / "all").read_text().splitlines()
    assert first == "first" and json.loads(report)["experiment"] == "norm" and table[0].startswith("norm")
    assert json.loads((tmp_path / "piped").read_text())["experiment"] == "norm"
    (tmp_path / "norm.yaml").write_text("experiment: norm\n")
    assert attn(["batch", str(tmp_path / "norm.yaml"), "-o", "-"]).out.startswith("norm")


def test_inputs_are_never_overwritten(attn: Attn, tmp_path: Path) -> None:
    texts, config, store, link = (tmp_path / name for name in ("t.csv", "c.yaml", "runs.db", "link.csv"))
    texts.write_text("sentence\nthe cat walks\n")
    config.write_text("experiment: self\n")
    link.symlink_to(texts)
    batch = ["batch", str(config), "--file", str(texts)]
    assert attn([*batch, "-o", str(store)]).code == 0
    kept = {path: path.read_bytes() for path in (texts, config, store)}
    for command, written in (
        (batch, texts),
        (batch, link),
        ([*batch, "--format", "json"], config),
        (["results", str(store), "--tidy", "--format", "csv"], store),
        (["heads", "--store", str(store), "--format", "csv"], store),
        (["self", "--config", str(config), "--format", "csv"], config),
    ):
        ended = attn([*command, "-o", str(written)])
        line = f"-o {written}: would overwrite an input of this command: choose another name\n"
        assert (ended.code, ended.err) == (2, line)
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.parametrize(
    "command",
    [
        ["norm", "-o", "/proc/x.json"],
        ["norm", "-o", f"{'x' * 300}.json"],
        ["batch", "configs/sweep.yaml", "-o", "/proc/x.db"],
        ["diff", "self", "--set", "causal=true", "-o", "/proc/x.html"],
    ],
)
def test_output_that_cannot_be_written_is_exit_code_4(attn: Attn, command: list[str]) -> None:
    ended = attn(command)
    assert ended.code == 4 and ended.err.startswith(f"-o {command[-1]}: cannot be written: "), ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ["self", "--file"],
        ["self", "--embedding"],
        ["self", "--model"],
        ["show"],
        ["results", "--tidy"],
        ["batch", "--set"],
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_an_error_in_the_input(
    attn: Attn, tmp_path: Path, command: list[str]
) -> None:
    name = "x" * 300
    config = tmp_path / "self.yaml"
    config.write_text("experiment: self\n")
    ended = attn(["batch", str(config), "--set", f"file={name}"] if "batch" in command else [*command, name])
    expected = f"{name}: cannot be read: File name too long\n"
    if "--model" in command:  # it may also be the name of a package
        expected = f"--model: must have at most 255 bytes between slashes (got {name[:57]}...)\n"
    assert (ended.code, ended.err) == (2, expected)


@pytest.mark.parametrize(
    ("arguments", "environment", "coloured"),
    [
        ([], {}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "0"}, False),
        ([], {"FORCE_COLOR": "0", "CLICOLOR_FORCE": "1"}, False),
        ([], {"CLICOLOR_FORCE": "1"}, True),
        ([], {"CLICOLOR_FORCE": "0"}, False),
        ([], {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ([], {"NO_COLOR": "", "FORCE_COLOR": "1"}, True),
        ([], {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
    ],
)
def test_colour_is_decided_in_order(
    attn: Attn,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    coloured: bool,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in attn(["self", *arguments]).out) is coloured


def test_lines_in_files_and_pipes_have_no_trailing_spaces(attn: Attn, tmp_path: Path) -> None:
    """Both maps and numbers; the output is otherwise the same."""
    for flags in ([], ["--format", "heatmap"], ["--show", "all"], ["--explain"]):
        out = attn(["self", "a b c d", *flags]).out
        assert out.endswith("\n") and [line for line in out.splitlines() if line != line.rstrip()] == []
    stream = StringIO()
    load_view("table")([attncli.run("self", sentence="a b c d")], stream, Display())
    written = stream.getvalue()
    assert any(line != line.rstrip() for line in written.splitlines())
    path = tmp_path / "self.txt"
    assert attn(["self", "a b c d", "-o", str(path)]).code == 0
    assert path.read_text().splitlines() == [line.rstrip() for line in written.splitlines()]


def test_columns_is_honoured_and_a_pipe_has_no_width(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(map(len, attn(["self", "--show", "all"]).out.splitlines())) > 200
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, attn(["self"]).out.splitlines())) <= 60


@pytest.mark.parametrize("view", ["table", "png"])
def test_a_closed_pipe_ends_quietly(view: str) -> None:
    ended = run_attn(["self", "--num-tokens", "300", "--format", view], read=100)
    assert (ended.code, ended.err) == (0, "")


def test_a_process_whose_pipe_is_closed_ends_quietly() -> None:
    """In a real shell, with everything that Python does at exit."""
    command = f"{shlex.quote(sys.executable)} -m attncli self --num-tokens 300 | head -c 100 > {os.devnull}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_one_line_and_exit_4() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*ATTN, "lesson"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (4, "cannot write: No space left on device\n")


@pytest.mark.parametrize(
    ("module", "signal_name", "code"),
    in_turn(
        ["attncli.cli", "typer", "attncli.commands.command", "torch.version"],
        [("SIGTERM", 143), ("SIGINT", 130)],
    ),
)
def test_a_signal_during_an_import_ends_it_quietly(module: str, signal_name: str, code: int) -> None:
    """The signal arrives when `module` is looked up; only `attncli` itself was imported before."""
    program = f"""
import signal, sys

class Looked:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.{signal_name})

sys.meta_path.insert(0, Looked())
sys.argv = ["attn", "self", "the cat"]
from attncli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_control_c_is_ignored_where_whoever_starts_attn_ignores_it() -> None:
    program = """
import signal, sys
from attncli import cli

signal.signal(signal.SIGINT, signal.SIG_IGN)
cli.build_app = lambda: lambda **given: signal.raise_signal(signal.SIGINT)
from attncli.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_debug_shows_the_traceback_and_changes_no_exit_code(attn: Attn) -> None:
    ended = attn(["self", "--head-dim", "0", "--debug"])
    assert ended.code == 2 and "Traceback" in ended.err and "--head-dim: must be" in ended.err


def test_without_arguments_help_is_readable(attn: Attn) -> None:
    for arguments in (["batch"], ["results"]):
        ended = attn(arguments)
        assert ended.code == 2 and ended.err.startswith("Usage: attn") and "\\n" not in ended.err


def test_a_flag_replaces_the_text_of_the_file_whatever_its_kind(attn: Attn, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("experiment: self\nsentence: from the file\n")
    ended = attn(["self", "--config", str(path), "--num-tokens", "3", "--format", "json"])
    assert json.loads(ended.out)["tokens"] == ["x0", "x1", "x2"]


def test_a_colour_variable_colours_no_file(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    path = tmp_path / "x.txt"
    assert attn(["self", "-o", str(path)]).code == 0 and "\x1b" not in path.read_text()
    assert attn(["self", "-o", str(path), "--color", "always"]).code == 0 and "\x1b" in path.read_text()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("self >&-", 4, "cannot write: standard output is closed\n"),
        ("self 2>&- >&-", 4, ""),
        ("self --file - <&-", 2, "--file: standard input is closed\n"),
        ("show - <&-", 2, "standard input is closed: pass a file name instead\n"),
        ("show - <&- 2>&-", 2, ""),
        ("--help | true", 0, ""),
    ],
)
def test_closed_streams_end_quietly(command: str, code: int, message: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m attncli {command}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.nightly
def test_a_terminal_without_unicode_gets_plain_characters() -> None:
    """Maps are drawn with characters instead of coloured half-blocks."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1"}
    arguments = ["self", "--sentence", "日本 cat", "--show", "weights"]
    done = subprocess.run([*ATTN, *arguments], capture_output=True, env=environment, check=True)
    assert b"\\u65e5\\u672c" in done.stdout and done.stdout.isascii() and b"\x1b" not in done.stdout
    assert b"query x key" in done.stdout and b"-----" in done.stdout


def test_data_is_utf_8_whatever_a_console_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    for format in ("csv", "table"):
        monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="cp1252", errors=LEGIBLE))
        assert run(["self", "日本 cat", "--show", "weights", "--format", format]) == 0
    assert "日本".encode() in written.getvalue() and "query × key".encode("cp1252") in written.getvalue()


@pytest.mark.parametrize(("asked", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_no_unfinished_file(tmp_path: Path, asked: signal.Signals, code: int) -> None:
    path = tmp_path / "x.csv"
    process = subprocess.Popen([*ATTN, "self", "--num-tokens", "2000", "-o", str(path)])
    while not list(tmp_path.glob(".x.csv.*")):
        time.sleep(0.05)
    process.send_signal(asked)
    assert process.wait(timeout=30) == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("signal_name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_is_not_lost_where_python_drops_exceptions(signal_name: str, code: int) -> None:
    program = f"""
import signal, time, weakref
from attncli import cli

class Freed:
    pass

def command(**given):
    freed = Freed()
    reference = weakref.ref(freed, lambda _: signal.raise_signal(signal.{signal_name}))
    del freed
    time.sleep(30)

cli.build_app = lambda: command
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (code, "")


def test_an_internal_error_is_one_line(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    from attncli.commands import output

    def broken(self: object, reports: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(output.Destination, "write", broken)
    ended = attn(["norm"])
    assert ended.code == 1 and ended.err.startswith("internal error: ZeroDivisionError: oops")
