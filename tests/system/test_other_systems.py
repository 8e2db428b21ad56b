"""What only Linux has is taken away, and what only Unix has: the commands do their work all the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Attn
from tests.model_folders import save_model, save_writer
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
from attncli.runs.keys import os

assert not hasattr(os, "sched_getaffinity") and not os.path.exists("/proc/meminfo")
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    assert code == 0, (arguments, code)
"""


WINDOWS = (Path(__file__).parents[1] / "pretended_windows.py").read_text()


def run_elsewhere(folder: Path, *command_lines: list[str], system: str = TAKEN_AWAY, more: str = "") -> str:
    """What they print, and more code after them, in a process without what only Linux has, or only Unix."""
    (folder / "sitecustomize.py").write_text(system)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
    }
    command = [sys.executable, "-c", RUN + more, json.dumps(command_lines)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.nightly
def test_without_what_only_linux_has(attn: Attn, tmp_path: Path) -> None:
    """As on macOS: batches and their stores, models and reports. The pretended Windows has even less."""
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
        assert_same_figures(tidy(tmp_path / store), tidy(tmp_path / "expected.db"))
    assert "10 runs are done, 0 failed" in shown and "run,id,causal,layer,head" in shown
    assert "2 layers" in shown and shown.count("2 texts") >= 2 and "multihead" in shown


# What no command below reaches: a lock that is held, code of others that does not end, pipes, consoles.
MORE = """
import subprocess
from ctypes import c_uint32
from pathlib import Path
from time import monotonic
from attncli.system import platforms as systems
from attncli.models import child
from attncli.runs.store_files import driving, is_driven
from attncli.system.files import is_store_name
from attncli.system.platforms import CAN_FORK, is_alive, is_readable_within, os, read_at

assert not CAN_FORK and is_alive(2**22 - 1)
store = Path("driven.db")
with driving(store):
    # Locks on bytes are those of a process: another one asks.
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
reading, writing = os.pipe()
assert is_readable_within(file, 9) and not is_readable_within(reading, 0.05)
os.write(writing, b"x")
assert is_readable_within(reading, 9) and os.read(reading, 1)
os.close(writing)
assert is_readable_within(reading, 9), "it has ended"
systems.let_consoles_follow_escapes()
assert systems._windows().modes == {1: 7, 2: 7} and systems.machine_memory() == 2**32
assert systems.terminal_size(file).columns == 80
assert systems.shell_line(["attn", "a b", 'c"d']) == 'attn "a b" c\\\\"d'
assert systems.last_part("C:\\\\pictures\\\\cat.png") == "cat.png" and is_store_name("runs\\\\")
"""


def test_a_pretended_windows(attn: Attn, tmp_path: Path) -> None:
    """Without forks, locks of files, limits, reads at a place; a file that is open cannot be removed.

    Each command does its work, with workers and programs that are recorded as well.
    """
    (tmp_path / "texts.txt").write_text("the cat walks on the street\nit was tired\n")
    (tmp_path / "pairs.jsonl").write_text('{"text": "the cat sat on a mat", "pairs": [[1, 0], [5, 4]]}\n')
    (tmp_path / "program.py").write_text(
        "import torch\nq = torch.ones(1, 2, 5, 4)\nfor _ in range(3):\n"
        "    torch.nn.functional.scaled_dot_product_attention(q, q, q)\n"
    )
    model = ["--model", str(save_model(tmp_path / "checkpoint-1", "Llama"))]
    writer = ["--model", str(save_writer(tmp_path / "writer", "Llama"))]
    arguments = write_batch(tmp_path, 5)
    assert attn([*arguments, "-o", str(tmp_path / "expected.db")]).code == 0
    survey = ["heads", *model, "the cat sat on the street", "--format", "csv"]
    text = [*writer, "the cat sat"]
    shown = run_elsewhere(
        tmp_path,
        survey,
        [*survey, "--load", "disk", "-o", "disk.csv"],
        [*survey, "-o", "disk.csv"],
        [*arguments, "-o", "runs.db"],
        [*arguments, "-o", "runs.db"],
        [*arguments, "-o", "runs.db", "--fresh"],
        [*arguments, "-o", "workers.db", "--workers", "2", "--weights"],
        [*arguments, "-o", "folder/"],
        ["results", "folder/"],
        ["results", "--tidy", "workers.db", "--format", "csv"],
        ["heads", *model, "--texts", "texts.txt", "-o", "survey.db"],
        ["heads", "--store", "survey.db"],
        ["heads", *writer, "--pairs", "pairs.jsonl"],
        ["record", "-o", "recorded.db", sys.executable, "program.py"],
        ["results", "recorded.db"],
        ["watch", model[1], "-o", "steps.db"],
        ["watch", "steps.db"],
        ["generate", *text, "--max-new-tokens", "2", "-o", "written.json"],
        ["show", "written.json"],
        *(["ablate", *text], ["cache", *text], ["why", *text], ["circuit", *model]),
        ["source", *writer, "the cat?", "--document", "texts.txt", "--max-new-tokens", "2"],
        *([name] for name in ("multihead", "cross", "average", "norm", "scale-demo", "pitfalls", "info")),
        *(["diff", "self", "--set", "causal=true"], ["lesson", "1"], ["batch", "sweep.yaml", "--dry-run"]),
        ["self", "the cat", "-o", "page.html"],
        system=WINDOWS,
        more=MORE,
    )
    assert attn(survey).out.splitlines()[0] in shown
    for store in ("runs.db", "workers.db"):
        assert_same_figures(tidy(tmp_path / store), tidy(tmp_path / "expected.db"))
    assert not [*tmp_path.glob(".*.part"), *tmp_path.glob("*-lock")]
