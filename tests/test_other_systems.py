"""What only Linux has is taken away, and what only Unix has: the commands do their work all the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import Attn
from tests.model_folders import save_model
from tests.runs.stores import ROOT, assert_same_figures, tidy, write_batch

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
from attncli.runs.plan import os

assert not hasattr(os, "sched_getaffinity") and not os.path.exists("/proc/meminfo")
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    assert code == 0, (arguments, code)
"""


WINDOWS = (Path(__file__).parent / "pretended_windows.py").read_text()


def run_elsewhere(folder: Path, *command_lines: list[str], system: str = TAKEN_AWAY) -> str:
    """What they print, in a process without what only Linux has, or only Unix."""
    (folder / "sitecustomize.py").write_text(system)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
    }
    command = [sys.executable, "-c", RUN, json.dumps(command_lines)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_batches_and_their_stores(attn: Attn, tmp_path: Path) -> None:
    arguments = write_batch(tmp_path, 5)
    assert attn([*arguments, "-o", str(tmp_path / "expected.db")]).code == 0
    shown = run_elsewhere(
        tmp_path,
        [*arguments, "-o", "runs.db"],
        [*arguments, "-o", "workers.db", "--workers", "2"],
        ["results", "runs.db"],
        ["results", "--tidy", "runs.db", "--format", "csv"],
    )
    for store in ("runs.db", "workers.db"):
        assert_same_figures(tidy(tmp_path / store), tidy(tmp_path / "expected.db"))
    assert "10 runs are done, 0 failed" in shown and "run,id,causal,layer,head" in shown


def test_models_and_reports(tmp_path: Path) -> None:
    model = ["--model", str(save_model(tmp_path / "model", "Llama"))]
    (tmp_path / "texts.txt").write_text("the cat walks on the street\nit was tired\n")
    shown = run_elsewhere(
        tmp_path,
        ["heads", *model, "the cat sat on the street"],
        ["heads", *model, "--texts", "texts.txt"],
        ["heads", *model, "--texts", "texts.txt", "-o", "survey.db"],
        ["self", "--num-tokens", "3000", "--engine", "streaming", "-o", "long.json"],
        ["multihead", "the cat sat", "-o", "report.json"],
        ["show", "report.json"],
    )
    assert "2 layers" in shown and shown.count("2 texts") >= 2 and "multihead" in shown


# What the commands above do not reach: a lock that is held, and code of others that does not end.
MORE = """
import os
from pathlib import Path
from time import monotonic
from attncli.errors import RunError
from attncli.models import child
from attncli.runs.store_files import driving, is_driven
from attncli.systems import CAN_FORK, is_alive, read_at

assert not CAN_FORK and is_alive(2**22 - 1)
store = Path("driven.db")
with driving(store):
    # Locks on bytes are those of a process: another one asks.
    import subprocess, sys
    asked = "import pathlib, attncli.runs.store_files as s; print(s.is_driven(pathlib.Path('driven.db')))"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert said.stdout == "True\\n", said
    assert Path("driven.db-lock").read_text().startswith(f"{os.getpid()} ")
assert not is_driven(store) and not Path("driven.db-lock").exists()
child.MOST_SECONDS = 0.2
begun = monotonic()
for make, said in ((lambda: "made", "made"), (lambda: os.read(reading, 1), "it takes more than 0.2 s")):
    reading, writing = os.pipe()
    try:
        assert child.made_in_child(make) == said
    except ValueError as error:
        assert str(error) == said
    os.write(writing, b"x")
assert monotonic() - begun < 3
Path("numbers").write_bytes(bytes(range(200)))
file, buffer = os.open("numbers", os.O_RDONLY), bytearray(50)
assert read_at(file, memoryview(buffer)[10:], 170) == 30 and buffer[10:40] == bytes(range(170, 200))
"""


def test_a_pretended_windows(attn: Attn, tmp_path: Path) -> None:
    """Without forks, locks of files, limits, reads at a place; a file that is open cannot be removed."""
    (tmp_path / "texts.txt").write_text("the cat walks on the street\nit was tired\n")
    model = ["--model", str(save_model(tmp_path / "model", "Llama"))]
    arguments = write_batch(tmp_path, 5)
    assert attn([*arguments, "-o", str(tmp_path / "expected.db")]).code == 0
    survey = ["heads", *model, "the cat sat on the street", "--format", "csv"]
    shown = run_elsewhere(
        tmp_path,
        survey,
        [*survey, "--load", "disk", "-o", "disk.csv"],
        [*survey, "-o", "disk.csv"],
        [*arguments, "-o", "runs.db"],
        [*arguments, "-o", "runs.db"],
        ["heads", *model, "--texts", "texts.txt", "-o", "survey.db"],
        ["self", "the cat", "-o", "page.html"],
        system=WINDOWS,
    )
    assert attn(survey).out.splitlines()[0] in shown
    assert_same_figures(tidy(tmp_path / "runs.db"), tidy(tmp_path / "expected.db"))
    assert not [*tmp_path.glob(".*.part"), *tmp_path.glob("*-lock")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    ended = subprocess.run(
        [sys.executable, "-c", MORE], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
