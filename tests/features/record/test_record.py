"""`attn record -- COMMAND` as a user runs it: the program is left alone, what was heard is written."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest

from attncli.runs.reading import reading
from attncli.runs.report_values import values_of
from attncli.runs.saved_reports import read_reports
from attncli.views.page import report_data
from tests.conftest import Attn
from tools.refresh_outputs import start_attn

ATTN = [sys.executable, "-m", "attncli"]
PYTHON = shlex.quote(sys.executable)
MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
def call(tokens=5):
    with torch.no_grad():
        return model(torch.randn(1, tokens, 12))
"""
PROGRAM = f"{MODEL}call()\n"
WAITS = "print('ready', flush=True) or time.sleep(60)\n"
HEARD = "6 heads of 2 modules"
NOTHING = (
    "no attention was detected: only torch's attention functions and softmaxes whose result is multiplied by "
    "values are detected, not JAX, compiled extensions or scripted code\n"
)


def record(
    folder: Path,
    program: str | Sequence[str],
    *flags: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Record a program of that source, or a command line, in a folder: attn is forked, the program is not."""
    if isinstance(program, str):
        (folder / "program.py").write_text(program)
        program = [sys.executable, "program.py"]
    arguments = ["record", *flags, "--", *program]
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as errors:
        given.write(stdin)
        for stream in (given, out, errors):
            stream.seek(0)
        process = start_attn(
            arguments,
            folder=folder,
            environment={**os.environ, **(environment or {})},
            stdin=given.fileno(),
            stdout=out.fileno(),
            stderr=errors.fileno(),
        )
        process.join(120)
        assert process.exitcode is not None, "it takes too long"
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, process.exitcode, out.read(), errors.read())


def started(folder: Path, program: str, *flags: str) -> "subprocess.Popen[bytes]":
    """Record a program in a session of its own; it has printed a line by now."""
    (folder / "program.py").write_text(program)
    running = subprocess.Popen(
        [*ATTN, "record", *flags, "--", sys.executable, "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert running.stdout is not None
    running.stdout.readline()
    return running


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `run.json` of PROGRAM, and in `left` what its process left for attn."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "left").mkdir()
    (folder / "program.py").write_text(PROGRAM)
    keep = f'{PYTHON} program.py && cd "$ATTN_RECORD_FOLDER" && cp python *.npz *.state {folder}/left'
    (folder / "keep.sh").write_text(keep)
    ended = record(folder, ["sh", "keep.sh", "--input", "data/a.csv"], "-o", "run.json")
    assert (ended.returncode, ended.stdout, ended.stderr.decode()) == (0, b"", f"run.json: {HEARD}\n")
    return folder


def again(recorded: Path, code: int = 0) -> list[str]:
    """A program that leaves the same without torch: for what attn does with it once a program has ended."""
    return ["sh", "-c", f'cp {recorded}/left/* "$ATTN_RECORD_FOLDER"; exit {code}']


def modules(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text())["statistics"]["modules"])


TALKATIVE = f"""{MODEL}
import hashlib, os, sys
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(data[::-1] + b"\\xff\\n")
print(hashlib.sha256(call().numpy().tobytes() + torch.get_rng_state().numpy().tobytes()).hexdigest())
try:
    model(torch.randn(1, 5, 13))
except Exception as error:
    print("error", error)
print("modules", *(name.partition(".")[0] for name in sys.modules))
print(sys.argv[1:], file=sys.stderr)
sys.exit(7)
"""
Ended = subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="module")
def alone_and_recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended]:
    """The same program by itself and in a recording."""
    folder = tmp_path_factory.mktemp("talkative")
    (folder / "program.py").write_text(TALKATIVE)
    command = [sys.executable, "program.py", "--head_dim", "-o", "--", "--debug", "*"]
    alone = subprocess.run(command, cwd=folder, input=b"\x00abc", capture_output=True)
    ended = record(folder, command, "-o", "run.json", stdin=b"\x00abc")
    assert [row["module"] for row in modules(folder / "run.json")] == [
        f"layers.{layer}.self_attn" for layer in range(2)
    ]
    return alone, ended


def without_modules(output: bytes) -> list[bytes]:
    return [line for line in output.splitlines() if not line.startswith(b"modules")]


def test_the_program_keeps_its_input_output_errors_and_exit_code(
    alone_and_recorded: tuple[Ended, Ended],
) -> None:
    alone, ended = alone_and_recorded
    assert (ended.returncode, alone.returncode) == (7, 7)
    assert without_modules(ended.stdout) == without_modules(alone.stdout)
    assert alone.stdout.startswith(b"cba\x00\xff\n") and b"\nerror " in alone.stdout
    assert ended.stderr == alone.stderr + f"run.json: {HEARD}\n".encode()


TRAINING = """
import gc
import torch
from torch import nn
from attncli.features.record.child.program import ListeningProcess
model = nn.MultiheadAttention(12, 3, batch_first=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
(process,) = [each for each in gc.get_objects() if isinstance(each, ListeningProcess)]
process._wait = 0.0  # a report is due after the first call
for _ in range(7):
    x = torch.randn(2, 5, 12)
    model(x, x, x)[0].square().mean().backward()
    optimizer.step()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("calls", "line", "steps"),
    [
        (
            "1",
            "Heads before the first of 7 training steps; use --calls last to record later calls.",
            (0, 0, 7),
        ),
        pytest.param(
            "last",
            "During training: heads after 6 of 7 training steps.",
            (6, 6, 7),
            marks=pytest.mark.nightly,  # as in the next test, after the training
        ),
        pytest.param("all", "Means over calls from step 1 to 7", (0, 6, 7), marks=pytest.mark.nightly),
    ],
)
def test_training_steps_are_counted_and_named(
    tmp_path: Path, attn: Attn, calls: str, line: str, steps: tuple[int, ...]
) -> None:
    assert record(tmp_path, TRAINING, "--calls", calls, "-o", "run.json").returncode == 0
    assert [row["calls"] for row in modules(tmp_path / "run.json")] == [7]
    training = json.loads((tmp_path / "run.json").read_text())["statistics"]["training"]
    assert (training["before_first"], training["before_last"], training["steps"]) == steps
    shown = attn(["show", str(tmp_path / "run.json")]).out.splitlines()
    assert shown[1].startswith(line)
    (report,) = read_reports(str(tmp_path / "run.json")).reports
    assert line in report_data(report)["finding"]  # above the maps of its page


@pytest.mark.nightly
def test_a_call_after_the_last_step_is_of_the_trained_model(tmp_path: Path) -> None:
    evaluated = f"{TRAINING}with torch.no_grad():\n    model(x, x, x)\n"
    shown = record(tmp_path, evaluated, "--calls", "last").stderr.decode()
    assert "\nAfter training: heads after the last of 7 training steps.\n" in shown


def test_the_two_dashes_may_be_left_out(tmp_path: Path) -> None:
    program = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(7)"
    command = [sys.executable, "-c", program, "--head_dim", "-o", "--", "--debug", "*"]
    ended = subprocess.run(
        [*ATTN, "record", "-o", "run.json", *command], cwd=tmp_path, input=b"abc", capture_output=True
    )
    assert (ended.returncode, ended.stdout) == (7, b"['--head_dim', '-o', '--', '--debug', '*'] abc\n")
    assert ended.stderr == b"no attention was detected: the program's Python did not import torch\n"


@pytest.mark.nightly
def test_without_a_file_the_first_screen_stands_on_standard_error(tmp_path: Path, recorded: Path) -> None:
    ended = record(tmp_path, f"{PROGRAM}print('result')")
    assert (ended.returncode, ended.stdout) == (0, b"result\n")
    assert b"2 layers" in ended.stderr and "layers.0-1.self_attn" in ended.stderr.decode()
    data = record(tmp_path, again(recorded), "--format", "json")
    assert data.stderr == b"" and json.loads(data.stdout)["experiment"] == "record"


def test_a_page_names_the_command_whole(tmp_path: Path, recorded: Path) -> None:
    ended = record(tmp_path, again(recorded), "-o", "run.html")
    assert ended.stderr.decode() == f"run.html: {HEARD}\n"
    assert "program sh keep.sh --input data/a.csv, calls 1" in (tmp_path / "run.html").read_text()


@pytest.mark.nightly
def test_calls_modules_heads_and_tokens_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("the\ncat\nsat\non\nit\n")
    program = f"""{PROGRAM}call()
class Heads(nn.Module):
    def forward(self, x):
        return torch.bmm(torch.bmm(x, x.mT).softmax(-1), x)
Heads()(torch.randn(6, 5, 4))
"""
    flags = ["--calls", "2", "--modules", "layers.1.*,", "--tokens", "tokens.txt", "-o", "run.json"]
    assert record(tmp_path, program, *flags).returncode == 0
    (row,) = modules(tmp_path / "run.json")
    assert (row["module"], row["calls"], row["measured"]) == ("layers.1.self_attn", 2, 2)
    report = json.loads((tmp_path / "run.json").read_text())
    assert report["tokens"] == ["the", "cat", "sat", "on", "it"] and report["spec"]["calls"] == 2
    assert record(tmp_path, program, "--heads", "*=3", "--grid", "2x2", "-o", "run.json").returncode == 0
    by_hand = modules(tmp_path / "run.json")[-1]
    assert (by_hand["function"], by_hand["texts"], by_hand["heads"]) == ("by hand", 2, 3)


def test_an_exception_leaves_the_recording_and_its_traceback(tmp_path: Path) -> None:
    """The program has files named like Python's `statistics` and `html`, which attn imports."""
    (tmp_path / "statistics.py").write_text("mean = 'the mean of the program'\n")
    (tmp_path / "html.py").write_text("raise SystemExit(9)\n")
    program = f"{PROGRAM}import statistics\nprint(statistics.mean)\nraise ValueError('as before')\n"
    ended = record(tmp_path, program, "-o", "run.json")
    *traceback, line = ended.stderr.decode().splitlines()
    assert (ended.returncode, ended.stdout) == (
        1,
        b"the mean of the program\n",
    ) and line == f"run.json: {HEARD}"
    assert traceback[0] == "Traceback (most recent call last):" and traceback[-1] == "ValueError: as before"
    assert not any("attncli" in line for line in traceback)


LOOKED_FOR = "import importlib.util\nassert importlib.util.find_spec('torch').loader\n"
"""torch may be looked for before it is imported."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command, words",
    [
        (["-c", f"{LOOKED_FOR}{PROGRAM}"], HEARD),
        pytest.param(["-m", "program"], HEARD, marks=pytest.mark.nightly),
        pytest.param(["-c", "import program"], HEARD, marks=pytest.mark.nightly),
        (["-I", "-c", "pass"], "only Python that ignores its environment (python -I, -E, -S)"),
        (["-c", "import sys; assert 'torch' not in sys.modules"], "did not import torch"),
        pytest.param(
            ["-c", "import torch; torch.randn(2).softmax(0)"], NOTHING.strip(), marks=pytest.mark.nightly
        ),
    ],
)
def test_ways_to_start_python(tmp_path: Path, command: list[str], words: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = record(tmp_path, [sys.executable, *command], "-o", "run.json")
    assert (ended.returncode, ended.stdout) == (0, b"") and ended.stderr.decode().count("\n") == 1
    assert words in ended.stderr.decode() and (tmp_path / "run.json").exists() is (words == HEARD)


def test_a_command_that_cannot_be_started_ends_as_in_a_shell(tmp_path: Path) -> None:
    missing = record(tmp_path, ["no-such-command", "x"])
    assert (missing.returncode, missing.stderr) == (127, b"no-such-command: no such command\n")
    (tmp_path / "data").write_text("")
    denied = record(tmp_path, ["./data"])
    assert (denied.returncode, denied.stderr) == (126, b"./data: cannot be run: Permission denied\n")
    missing = record(tmp_path, ["no-such-command", "x"], "-o", "run.db")
    assert missing.returncode == 127 and [*tmp_path.glob("run.db*")] == []


@pytest.mark.nightly
def test_a_program_ended_by_a_signal_leaves_one_line(tmp_path: Path) -> None:
    ended = record(tmp_path, f"{PROGRAM}import os; os.kill(os.getpid(), 15)\n", "-o", "run.json")
    assert ended.returncode == 128 + signal.SIGTERM and not (tmp_path / "run.json").exists()
    words = "a process was ended by a signal or os._exit: its recording was not written\n"
    assert ended.stderr.decode() == words


def test_a_signal_that_ends_the_program_sets_the_exit_code(tmp_path: Path) -> None:
    ended = record(tmp_path, ["sh", "-c", f"kill -{int(signal.SIGHUP)} $$"], "-o", "run.json")
    assert ended.returncode == 128 + signal.SIGHUP and not (tmp_path / "run.json").exists()


def test_ctrl_c_reaches_the_program(tmp_path: Path) -> None:
    running = started(tmp_path, f"import time\n{PROGRAM}{WAITS}", "-o", "run.json")
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and errors.decode().splitlines()[-2:] == [
        "KeyboardInterrupt",
        f"run.json: {HEARD}",
    ]


@pytest.mark.nightly
def test_the_program_chooses_its_exit_code_after_ctrl_c(tmp_path: Path) -> None:
    caught = f"import time\n{PROGRAM}try:\n    {WAITS}except KeyboardInterrupt:\n    raise SystemExit(5)\n"
    running = started(tmp_path, caught, "-o", "run.json")
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.decode()) == (5, f"run.json: {HEARD}\n")


@pytest.mark.nightly
def test_other_signals_are_passed_on(tmp_path: Path) -> None:
    """Each of them reaches the program, which ends at the last as it likes."""
    numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
    program = f"""{PROGRAM}
import signal, sys, time
def handle(number, frame):
    print(number, flush=True)
    if number == {int(numbers[-1])}:
        sys.exit(40)
for number in {[*map(int, numbers)]}:
    signal.signal(number, handle)
print("ready", flush=True)
time.sleep(60)  # handlers do not end it
"""
    running = started(tmp_path, program, "-o", "run.json")
    assert running.stdout is not None
    for number in numbers:
        running.send_signal(number)
        assert int(running.stdout.readline()) == number
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.decode()) == (40, f"run.json: {HEARD}\n")


def test_a_killed_program_leaves_its_recording(tmp_path: Path) -> None:
    program = f"""{MODEL}
import os, time
import attncli.features.record.child.program as child
child.SECONDS_BETWEEN = 0.3  # of the fork, which begins anew
if os.fork() == 0:
    end = time.monotonic() + 1
    while time.monotonic() < end:
        call()
        time.sleep(0.1)
    os.kill(os.getpid(), 9)
os.wait()
os.kill(os.getpid(), 9)
"""
    ended = record(tmp_path, program, "-o", "run.json")
    assert ended.returncode == 128 + 9 and len(modules(tmp_path / "run.json")) == 2
    lost, wrote = ended.stderr.decode().splitlines()
    assert "its last seconds were not written" in lost and wrote == f"run.json: {HEARD}"


@pytest.mark.nightly
def test_each_process_writes_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = f"{PYTHON} program.py; {PYTHON} program.py; {PYTHON} -c 1; exit 3"
    ended = record(tmp_path, ["sh", "-c", command], "-o", "run.json")
    assert ended.returncode == 3
    assert ended.stderr.decode() == f"run.1.json: {HEARD}\nrun.2.json: {HEARD}\n"
    ranks = f"""{MODEL}
import os, sys
for rank in (1, 0):
    if os.fork() == 0:
        os.environ["RANK"] = str(rank)
        call()
        sys.exit(0)
    os.wait()
"""
    assert record(tmp_path, ranks, "-o", "run.csv").returncode == 0
    assert {file.name for file in tmp_path.glob("*.csv")} == {"run.rank0.csv", "run.rank1.csv"}


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_are_recorded(tmp_path: Path, way: str) -> None:
    program = f"""{MODEL}
import multiprocessing
def work(tokens):
    call(tokens)
if __name__ == "__main__":
    torch.set_num_threads(1)
    context = multiprocessing.get_context({way!r})
    worker = context.Process(target=work, args=(5,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    work(7)
"""
    ended = record(tmp_path, program, "-o", "run.json")
    assert (ended.returncode, ended.stdout) == (0, b"")
    assert [modules(tmp_path / f"run.{number}.json")[0]["queries"] for number in (1, 2)] == [5, 7]


@pytest.mark.nightly
def test_a_worker_ended_by_its_pool_leaves_its_calls(tmp_path: Path) -> None:
    """`with Pool()` ends its workers by a signal."""
    program = f"""{MODEL}
import multiprocessing
def work(tokens):
    return call(tokens).shape[1]
if __name__ == "__main__":
    torch.set_num_threads(1)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(work, [5, 7]))
"""
    ended = record(tmp_path, program, "-o", "run.json")
    assert (ended.returncode, ended.stdout) == (0, b"[5, 7]\n") and HEARD in ended.stderr.decode()
    assert [row["queries"] for row in modules(tmp_path / "run.json")] == [5, 5]


@pytest.mark.nightly
def test_forks_are_counted_separately_and_threads_are_recorded(tmp_path: Path) -> None:
    program = f"""{PROGRAM}
import os, sys
from threading import Thread
if os.fork() == 0:
    call(7)
    sys.exit(0)
os.wait()
threads = [Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    assert record(tmp_path, program, "-o", "run.json", "--calls", "all").returncode == 0
    of_fork, of_program = (modules(tmp_path / f"run.{number}.json") for number in (1, 2))
    assert [(row["measured"], row["queries"]) for row in of_fork] == [(1, 7)] * 2
    assert [row["measured"] for row in of_program] == [1 + 4] * 2


def test_the_program_keeps_its_sitecustomize_and_path(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.custom = 'x'\n")
    (tmp_path / "program.py").write_text(
        "import sys, sitecustomize\nprint(custom, sitecustomize.__file__, sys.path)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "program.py"]
    alone = subprocess.run(command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True)
    assert record(tmp_path, command, environment=environment).stdout == alone.stdout != b""
    without = [sys.executable, "-c", "import sys; print('sitecustomize' in sys.modules, sys.path)"]
    alone = subprocess.run(without, cwd=tmp_path, capture_output=True)
    assert record(tmp_path, without).stdout == alone.stdout


def test_recording_imports_no_large_packages(
    alone_and_recorded: tuple[Ended, Ended],
) -> None:
    alone, imported = (
        {*line.decode().split()}
        for ended in alone_and_recorded
        for line in ended.stdout.splitlines()
        if line.startswith(b"modules ")
    )
    others = {"transformers", "rich", "typer", "matplotlib", "textual", "tokenizers", "safetensors", "PIL"}
    assert not (imported - alone) & others
    assert "attncli" in imported and "torch" in alone


@pytest.mark.nightly
def test_a_python_without_attns_packages_is_reported(tmp_path: Path) -> None:
    (tmp_path / "jaxtyping.py").write_text("raise ModuleNotFoundError('gone', name='jaxtyping')\n")
    ended = record(
        tmp_path, f"{PROGRAM}print('result')", "-o", "run.json", environment={"PYTHONPATH": str(tmp_path)}
    )
    assert (ended.returncode, ended.stdout) == (0, b"result\n")
    line = f"the recording failed: {sys.executable} has no jaxtyping, which attn needs: "
    assert ended.stderr.decode() == f"{line}install attncli in the same environment as torch\n"


def runs_of(store: Path) -> dict[str, list[tuple[int, int]]]:
    """The layers and heads of each run that is done, by its id."""
    with reading(store) as reader:
        return {
            str(name): [
                (int(column.layer or 0), int(column.head or 0))
                for column in runs.columns
                if column.statistic == "entropy"
            ]
            for runs in reader.done()
            for name in runs.id
        }


THREE_CALLS = f"{MODEL}for tokens in (5, 7, 9):\n    call(tokens)\n"


@pytest.fixture(scope="module")
def three_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the calls of THREE_CALLS."""
    folder = tmp_path_factory.mktemp("calls")
    ended = record(folder, THREE_CALLS, "-o", "run.db")
    said = "run.db: 3 runs (attn results run.db, attn watch run.db)\n"
    assert (ended.returncode, ended.stderr.decode()) == (0, said)
    return folder / "run.db"


def test_each_call_is_a_run_of_a_store(tmp_path: Path, recorded: Path, three_calls: Path) -> None:
    shutil.copy(three_calls, tmp_path)
    heads = [(layer, head) for layer in range(2) for head in range(3)]
    assert runs_of(tmp_path / "run.db") == dict.fromkeys(("1", "2", "3"), heads)
    added = record(tmp_path, f"{PROGRAM}call()", "-o", "run.db")
    assert (
        added.stderr.decode() == "run.db: 2 runs added to 3 runs (attn results run.db, attn watch run.db)\n"
    )
    assert [*runs_of(tmp_path / "run.db")] == ["1", "2", "3", "4", "5"]
    # The numbers of a run are those of a report of that call.
    (report,) = read_reports(str(recorded / "run.json")).reports
    columns, values = values_of(report)
    with reading(tmp_path / "run.db") as reader:
        runs = next(reader.done())
    assert runs.columns == columns
    np.testing.assert_allclose(runs.values[0], values, atol=1e-6)


def test_other_commands_read_the_stored_runs(tmp_path: Path, attn: Attn, three_calls: Path) -> None:
    shutil.copy(three_calls, tmp_path)
    assert record(tmp_path, THREE_CALLS, "--calls", "all", "-o", "run.json").returncode == 0
    survey = attn(["heads", "--store", str(tmp_path / "run.db"), "--format", "json"])
    of_store, of_report = (
        json.loads(text)["statistics"] for text in (survey.out, (tmp_path / "run.json").read_text())
    )
    for row, other in zip(of_store["heads"], of_report["heads"], strict=True):
        assert row["pattern"] == other["pattern"] and row["entropy"] == pytest.approx(other["entropy"])
    bounds = [
        [(row["lower"], row["upper"]) for row in each["intervals"] if row["statistic"] == "sink_mass"]
        for each in (of_store, of_report)
    ]
    assert len(bounds[0]) == 6 and np.allclose(*bounds)
    with reading(tmp_path / "run.db") as reader:
        runs = next(reader.done())
    of_heads = [place for place, column in enumerate(runs.columns) if column.statistic == "entropy"]
    watched = attn(["watch", str(tmp_path / "run.db"), "--format", "json"])
    steps = json.loads(watched.out)["statistics"]["steps"]
    assert [(row["step"], row["mean_entropy"]) for row in steps] == [
        (number + 1, pytest.approx(values[of_heads].mean())) for number, values in enumerate(runs.values)
    ]
    broken = attn(["watch", str(tmp_path / "run.db"), "--expect", "entropy < 0.1"])
    assert broken.code == 1 and "step 3: expected entropy < 0.1: got " in broken.err
    assert "largest induction" not in broken.out and "induction" not in json.loads(watched.out)["tensors"]
    assert "inputs: different for each call" in broken.out and ", 6 heads, calls 1 to 3\n" in broken.out


@pytest.mark.nightly
def test_programs_with_different_arguments_are_separate_surveys(tmp_path: Path, attn: Attn) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for arguments in ([], ["x"]):
        program = [sys.executable, "program.py", *arguments]
        assert record(tmp_path, program, "-o", "run.db").returncode == 0
    assert attn(["watch", str(tmp_path / "run.db")]).out.count("6 heads, calls ") == 2
    several = attn(["heads", "--store", str(tmp_path / "run.db")])
    assert several.code == 2 and "2 surveys (program" in several.err and "attn results" in several.err
    table = attn(["results", str(tmp_path / "run.db"), "--statistic", "entropy", "--format", "json"])
    assert {row["program"] for row in json.loads(table.out)["statistics"]["summary"]} == {
        f"{PYTHON} program.py",
        f"{PYTHON} program.py x",
    }


def test_a_killed_program_leaves_its_runs(tmp_path: Path) -> None:
    program = f"{MODEL}for _ in range(4):\n    call()\nimport os; os.kill(os.getpid(), 9)\n"
    ended = record(tmp_path, program, "-o", "run.db")
    assert ended.returncode == 128 + 9 and [*runs_of(tmp_path / "run.db")] == ["1", "2", "3"]
    assert "its last seconds were not written" in ended.stderr.decode()


@pytest.mark.nightly
def test_an_open_run_is_written_when_a_module_ends(tmp_path: Path) -> None:
    waiting = f"""{MODEL}
import os, time
import attncli.features.record.child.program as child
child.SECONDS_BETWEEN = 0.3  # of the fork, which begins anew
if os.fork() == 0:
    call()
    time.sleep(child.SECONDS_BETWEEN + 0.1)
    nn.Linear(1, 1)(torch.zeros(1, 1))  # a module that ends: what is open is written
    os.kill(os.getpid(), 9)
os.wait()
os.kill(os.getpid(), 9)
"""
    assert record(tmp_path, waiting, "-o", "waiting.db").returncode == 128 + 9
    assert [*runs_of(tmp_path / "waiting.db")] == ["1"]


@pytest.mark.nightly
def test_runs_are_stored_while_the_program_runs(tmp_path: Path) -> None:
    program = f"{MODEL}for _ in range(4):\n    call()\nprint(1, flush=True)\nimport sys; sys.stdin.read()\n"
    running = started(tmp_path, program, "-o", "run.db")
    end = time.monotonic() + 60
    while len(runs_of(tmp_path / "run.db")) < 3:
        assert time.monotonic() < end
        time.sleep(0.1)
    running.kill()
    running.communicate()


@pytest.mark.nightly
def test_threads_and_forks_keep_each_of_their_runs(tmp_path: Path) -> None:
    program = f"""{MODEL}
from threading import Thread
import os, sys
torch.set_num_threads(1)
other = nn.MultiheadAttention(12, 3, batch_first=True).eval()
call()
threads = [Thread(target=lambda: [call() for _ in range(25)]) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
x = torch.randn(1, 4, 12)
other(x, x, x)
if os.fork() == 0:
    other(x, x, x)  # of another process, where it is the same layer
    sys.exit(0)
os.wait()
"""
    assert record(tmp_path, program, "-o", "run.db").returncode == 0
    layers = [{layer for layer, _ in heads} for heads in runs_of(tmp_path / "run.db").values()]
    assert layers.count({0, 1}) == 101 and layers.count({2}) == 2 and len(layers) == 103


@pytest.mark.nightly
def test_processes_and_ranks_keep_their_runs_in_one_store(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    commands = [f"RANK={rank} {PYTHON} program.py" for rank in (1, 0)]
    assert record(tmp_path, ["sh", "-c", " & ".join([*commands, "wait"])], "-o", "run.db").returncode == 0
    names = sorted(name.split(":") for name in runs_of(tmp_path / "run.db"))
    assert [rank for rank, _ in names] == ["rank0", "rank1"] and {number for _, number in names} == {"1", "2"}


@pytest.mark.nightly
def test_expectations_are_an_exit_code(tmp_path: Path, recorded: Path) -> None:
    met = record(tmp_path, again(recorded), "--expect", "entropy < 9", "-o", "run.json")
    assert (met.returncode, met.stderr.decode()) == (0, f"run.json: {HEARD}\n")
    broken = record(tmp_path, again(recorded), "--expect", "entropy < 0.1", "-o", "run.json")
    assert broken.returncode == 1 and "expected entropy < 0.1: got 1." in broken.stderr.decode()
    in_store = record(tmp_path, f"{PROGRAM}call(7)", "--expect", "entropy < 0.1", "-o", "run.db")
    lines = in_store.stderr.decode().splitlines()
    assert in_store.returncode == 1 and [line.partition(":")[0] for line in lines[:2]] == ["run 1", "run 2"]
    failed = record(tmp_path, again(recorded, 5), "--expect", "entropy < 0", "-o", "x.json")
    assert failed.returncode == 5 and b"expected entropy < 0: " in failed.stderr


@pytest.mark.nightly
def test_nan_and_missing_runs_fail_expectations(tmp_path: Path) -> None:
    nan = "call()\ncall.__globals__['torch'].randn = lambda *s: torch.full(s, torch.nan)\ncall()\n"
    for file, line in (("run.json", "expected numbers: got NaN in 1 of 2 texts"), ("n.db", "got no number")):
        flags = ["--calls", "all", "--expect", "entropy < 9", "-o", file]
        undefined = record(tmp_path, f"{MODEL}{nan}", *flags)
        assert undefined.returncode == 1 and line in undefined.stderr.decode()
    assert [row["nan_texts"] for row in modules(tmp_path / "run.json")] == [1, 1]
    nothing = record(tmp_path, "import torch", "--expect", "entropy < 9", "-o", "x.db")
    assert nothing.returncode == 1 and "no run has entropy" in nothing.stderr.decode()


ROWS_OF_NAN = """import torch
from torch import nn

class Attention(nn.Module):
    def forward(self, x, seen):
        scores = (x @ x.mT).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ x

attention, x = Attention(), torch.randn(2, 3, 5, 4)
seen = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
seen[1, :, :, :2] = False  # the second text is padded on the left: by hand its rows of padding are NaN
"""


@pytest.mark.nightly
def test_rows_of_nan_fail_expectations(tmp_path: Path) -> None:
    padding = record(tmp_path, f"{ROWS_OF_NAN}attention(x, seen)", "--expect", "entropy < 9")
    said = padding.stderr.decode()
    assert padding.returncode == 1
    assert "8 rows were measured; 2 padding rows were left out, 2 of them NaN" in said
    assert "expected numbers: got NaN in 2 rows of padding of Attention" in said
    hidden = f"{ROWS_OF_NAN}seen[:, :, 3] = False\nattention(x, seen)"
    for flags, line in (
        ([], "expected numbers: got NaN in 2 of 2 texts of Attention"),
        (["-o", "runs.db"], "got no number"),
    ):
        rows = record(tmp_path, hidden, "--expect", "entropy < 9", *flags)
        said = rows.stderr.decode()
        assert rows.returncode == 1 and line in said and "NaN in weights of Attention" in said


@pytest.mark.nightly
def test_exec_keeps_the_runs_of_both_programs(tmp_path: Path) -> None:
    program = f"""{PROGRAM}
import os, sys
if len(sys.argv) < 2:
    call()
    os.execv(sys.executable, [sys.executable, "program.py", "x"])
"""
    ended = record(tmp_path, program, "-o", "run.db")
    assert ended.returncode == 0 and len(runs_of(tmp_path / "run.db")) == 2
    assert "its last seconds were" in ended.stderr.decode()  # of the first program, which had no end


@pytest.mark.nightly
def test_a_child_without_attention_reports_no_loss(tmp_path: Path) -> None:
    program = f"{PROGRAM}import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\n"
    ended = record(tmp_path, program, "-o", "run.json")
    assert (ended.returncode, ended.stderr.decode()) == (0, f"run.json: {HEARD}\n")


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0 and not sys.platform.startswith("linux"), reason="needs a limit")
def test_a_store_that_cannot_grow_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{MODEL}for _ in range(300):\n    call()\n")
    limited = f"ulimit -f 100; {shlex.join(ATTN)} record -o run.db -- {PYTHON} program.py"
    ended = subprocess.run(["bash", "-c", limited], cwd=tmp_path, capture_output=True)
    assert b"Traceback" not in ended.stderr and ended.returncode in (1, 4)
    is_said = re.search(rb"could not be written: File too large|runs? (is|are) lost", ended.stderr)
    assert is_said, ended.stderr
    assert runs_of(tmp_path / "run.db")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("code, exit_code", [(0, 4), (3, 3)])
def test_a_full_disk_is_one_line_after_the_failure_of_the_program(
    tmp_path: Path, recorded: Path, code: int, exit_code: int
) -> None:
    ended = record(tmp_path, again(recorded, code), "-o", "/dev/full", "--format", "json")
    assert ended.returncode == exit_code
    assert ended.stderr.decode() == "-o /dev/full: cannot be written: No space left on device\n"


@pytest.mark.nightly
def test_programs_run_in_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    tmp_path.chmod(0o555)
    try:
        ended = record(tmp_path, [sys.executable, "-B", "program.py"])
        refused = record(tmp_path, [sys.executable, "-c", "print('ran')"], "-o", "run.json")
    finally:
        tmp_path.chmod(0o755)
    assert ended.returncode == 0 and b"2 layers" in ended.stderr
    if os.geteuid():  # root may write everywhere
        line = b"-o run.json: cannot be written: Permission denied\n"
        assert (refused.returncode, refused.stdout, refused.stderr) == (4, b"", line)


@pytest.mark.nightly
def test_a_process_may_outlive_the_program(tmp_path: Path) -> None:
    program = f"""{MODEL}
import os, time
if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    while os.path.exists(os.environ["ATTN_RECORD_FOLDER"]):
        time.sleep(0.05)
    call()
    open("done", "w").close()
    raise SystemExit(0)
call()
"""
    assert record(tmp_path, program, "-o", "run.json").returncode == 0
    end = time.monotonic() + 60
    while not (tmp_path / "done").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.nightly
def test_a_recording_without_attention_says_what_was_searched(tmp_path: Path) -> None:
    ended = record(tmp_path, PROGRAM, "--modules", "other.*")
    line = "no attention was detected in modules that match --modules other.*: "
    assert ended.stderr.decode().startswith(line)
    script = record(tmp_path, ["program.py"])
    assert script.stderr == b"program.py: no such command: did you mean python program.py?\n"


REFUSED = [
    (["--calls", "0"], "--calls: must be a number of calls, all, or last (got 0)"),
    (["--heads", "a=x"], "--heads: must be a pattern and a number, such as '*.attn=8' (got a=x)"),
    (["--grid", "14"], "--grid: must be rows x columns, such as 14x14 (got 14)"),
    (["--image", "cat.png"], "--image: needs --grid for the number of patches"),
    (
        ["-o", "run.db", "--show", "all"],
        "--show: is only for reports: use attn results run.db to show a store",
    ),
    (
        ["-o", "run.db", "--calls", "last"],
        "--calls last: is only for reports: a store receives each call as it happens",
    ),
    (["-o", "none/run.db"], "-o none/run.db: no such directory: none"),
    (["--expect", "entropy"], "--expect 'entropy': must be a name, one of < <= > >= = == !=, and a value"),
    (["-o", "none/run.json"], "-o none/run.json: no such directory: none"),
    (["--cals", "2"], "--cals: is not a flag of attn record: did you mean --calls?"),
]


@pytest.mark.parametrize("flags, line", REFUSED)
def test_wrong_flags_are_refused_before_the_program_runs(attn: Attn, flags: list[str], line: str) -> None:
    ended = attn(["record", *flags, "--", "touch", "/nowhere/at/all"])
    assert (ended.code, ended.err) == (2, f"{line}\n")


def test_a_file_that_is_not_a_picture_is_refused_before_the_program_runs(attn: Attn, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_text("no picture")
    ended = attn(
        ["record", "--image", f"{tmp_path}/cat.png", "--grid", "2x2", "--", "touch", f"{tmp_path}/x"]
    )
    assert (ended.code, ended.out) == (2, "") and "must be a picture" in ended.err
    assert not (tmp_path / "x").exists()


@pytest.mark.nightly
def test_heads_without_maps_are_counted(tmp_path: Path, attn: Attn) -> None:
    program = f"""{MODEL}
decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, 24, batch_first=True), 1).eval()
import os, sys
is_fork = os.fork() == 0
if not is_fork:
    os.wait()
mask = None if is_fork else nn.Transformer.generate_square_subsequent_mask(4)
with torch.no_grad():
    decoder(torch.randn(1, 4, 12), call(), tgt_mask=mask)
"""
    assert record(tmp_path, program, "-o", "run.json").returncode == 0
    files = [str(tmp_path / f"run.{number}.json") for number in (2, 1)]
    # Maps are of the encoder: the decoder's self-attention is over other tokens, cross-attention has none.
    words = " ".join(attn(["diff", *files]).out.split())
    assert "6 heads have no map on one side or on both: use --show statistics to compare statistics." in words
