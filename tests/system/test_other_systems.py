"""Commands work without features that only Linux has, as on macOS."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Attn
from tests.model_folders import save_model
from tests.runs.stores import ROOT, assert_same_numbers, tidy, write_batch

# Python imports this first, in every process that is started from here, workers too.
TAKEN_AWAY = """
import builtins, errno, io, os, signal

ONLY_LINUX = (
    "sched_", "posix_fadvise", "posix_fallocate", "pidfd_", "memfd_", "eventfd", "timerfd", "splice", "setns",
    "unshare", "copy_file_range", "getrandom", "process_cpu_count", "O_DIRECT", "O_TMPFILE", "O_PATH",
)
for name in dir(os):
    if name.startswith(ONLY_LINUX) and name != "sched_yield":
        delattr(os, name)
for name in ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGPOLL", "SIGSTKFLT", "pidfd_send_signal", "sigtimedwait"):
    if hasattr(signal, name):
        delattr(signal, name)


def without_system_files(function):
    def call(path, *arguments, **options):
        if isinstance(path, (str, bytes, os.PathLike)):
            if os.fsdecode(path).startswith(("/proc", "/sys")):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *arguments, **options)

    return call


builtins.open = io.open = without_system_files(io.open)
for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
    setattr(os, name, without_system_files(getattr(os, name)))
"""


# One process for all command lines, since each would import torch again.
RUN = """
import json, sys
from attncli.cli import run
from attncli.runs.keys import os

assert not hasattr(os, "sched_getaffinity") and not os.path.exists("/proc/meminfo")
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    assert code == 0, (arguments, code)
"""


def run_elsewhere(folder: Path, *command_lines: list[str]) -> str:
    """Return the output of the commands in a process without features that only Linux has."""
    (folder / "sitecustomize.py").write_text(TAKEN_AWAY)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
    }
    command = [sys.executable, "-c", RUN, json.dumps(command_lines)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.nightly
def test_commands_run_without_features_that_only_linux_has(attn: Attn, tmp_path: Path) -> None:
    """Batches with their stores, models and reports."""
    arguments = write_batch(tmp_path, 5)
    assert attn([*arguments, "-o", str(tmp_path / "expected.db")]).code == 0
    model = ["--model", str(save_model(tmp_path / "model", "Llama"))]
    (tmp_path / "texts.txt").write_text("the cat walks on the street\nit was tired\n")
    shown = run_elsewhere(
        tmp_path,
        [*arguments, "-o", "runs.db"],
        [*arguments, "-o", "workers.db", "--workers", "2"],
        ["results", "runs.db"],
        ["results", "--tidy", "runs.db", "--format", "csv"],
        ["heads", *model, "the cat sat on the street"],
        ["heads", *model, "--texts", "texts.txt"],
        ["heads", *model, "--texts", "texts.txt", "-o", "survey.db"],
        ["self", "--num-tokens", "3000", "--engine", "streaming", "-o", "long.json"],
        ["multihead", "the cat sat", "-o", "report.json"],
        ["show", "report.json"],
    )
    for store in ("runs.db", "workers.db"):
        assert_same_numbers(tidy(tmp_path / store), tidy(tmp_path / "expected.db"))
    assert "10 runs are done, 0 failed" in shown and "run,id,causal,layer,head" in shown
    assert "2 layers" in shown and shown.count("2 texts") >= 2 and "multihead" in shown
