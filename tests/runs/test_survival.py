"""A driver killed at random moments: the store opens, no reported run is lost, and all runs are completed."""

import os
import random
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.conftest import Attn
from tests.runs.stores import (
    ATTN,
    ROOT,
    assert_same_numbers,
    done_runs,
    killed_by_thirteen,
    tidy,
    write_batch,
)

NUM_KILLS, NUM_NIGHTLY_KILLS = 3, 20
NUM_WORKER_KILLS, NUM_NIGHTLY_WORKER_KILLS = 1, 3
NUM_SENTENCES = 400
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

# A driver that prints the number of runs that it has reported as finished.
TELLING = """
import sys
from attncli.runs import driver
from attncli.cli import run

take = driver.Driver._take

def telling(self, *arguments):
    take(self, *arguments)
    print(self.num_done_before + self.done, flush=True)

driver.Driver._take = telling
driver.MOST_JOBS = 8
sys.exit(run(sys.argv[1:]))
"""


# The same with chunks of the usual size. It waits for a line after each, so that no kill comes too late.
WAITING = TELLING.replace("driver.MOST_JOBS = 8\n", "").replace(
    "flush=True)", "flush=True)\n    sys.stdin.readline()"
)


def killed_after(command: list[str], seconds: float, *, from_start: bool) -> int:
    """Kill a batch some time after its start or first chunk; return the number of runs that it reported."""
    process = subprocess.Popen(
        [ATTN[0], "-c", TELLING, *command],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        first = "" if from_start else process.stdout.readline()  # torch is imported now
        killer = threading.Timer(seconds, process.kill)
        killer.start()
        told = [first, *process.stdout]
        killer.cancel()
    return int(told[-1] or 0)


def test_a_driver_killed_again_and_again(attn: Attn, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    arguments = write_batch(tmp_path, NUM_SENTENCES)
    undisturbed, store = tmp_path / "whole.db", tmp_path / "runs.db"
    assert attn([*arguments, "-o", str(undisturbed)]).code == 0
    randomness = random.Random()
    told = 0
    prompts = Path(arguments[-1])
    lines = prompts.read_text().splitlines()
    for number in range(NUM_NIGHTLY_KILLS if pytestconfig.getoption("--nightly") else NUM_KILLS):
        # Each time the lines are in another order, and some are missing, so that the plan changes as well.
        prompts.write_text("\n".join(randomness.sample(lines, NUM_SENTENCES - number % 3)))
        from_start = number % 4 == 0
        seconds = randomness.uniform(0, 1.5 if from_start else 0.15)
        told = max(told, killed_after([*arguments, "-o", str(store)], seconds, from_start=from_start))
        runs = done_runs(store) if store.exists() else []
        assert len(set(runs)) == len(runs) >= told
    prompts.write_text("\n".join(lines))
    ended = attn([*arguments, "-o", str(store)])
    assert ended.code == 0, ended.err
    assert len(done_runs(store)) == 2 * NUM_SENTENCES
    assert_same_numbers(tidy(store), tidy(undisturbed))


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_a_worker_killed_mid_chunk_loses_nothing(
    attn: Attn, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    num_kills = NUM_NIGHTLY_WORKER_KILLS if pytestconfig.getoption("--nightly") else NUM_WORKER_KILLS
    arguments = write_batch(tmp_path, 2 * NUM_SENTENCES)
    undisturbed, store = tmp_path / "whole.db", tmp_path / "runs.db"
    assert attn([*arguments, "-o", str(undisturbed)]).code == 0
    process = subprocess.Popen(
        [ATTN[0], "-c", WAITING, *arguments, "-o", str(store), "--workers", "2"],
        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    kills = 0
    with process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            assert int(line) == len(done_runs(store))
            # While results of a killed worker remain to be read, there may be no worker to kill.
            if kills < num_kills and (workers := children(process.pid)):
                os.kill(random.choice(workers), signal.SIGKILL)
                kills += 1
                assert int(line) < 4 * NUM_SENTENCES
            process.stdin.write("go on\n")
            process.stdin.flush()
        told = process.stderr.read()
    assert process.returncode == 0 and kills, told
    assert_same_numbers(tidy(store), tidy(undisturbed))


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.nightly)])
def test_a_run_that_kills_its_worker_is_recorded_and_the_others_continue(
    attn: Attn, tmp_path: Path, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attncli.runs.driver.run_chunk", killed_by_thirteen)
    arguments, store = write_batch(tmp_path, 16, "experiment: self\nembed_dim: 4"), tmp_path / "runs.db"
    prompts = Path(arguments[-1])
    prompts.write_text("".join(prompts.read_text().splitlines(keepends=True)[-4:]))  # 12 to 15
    ended = attn([*arguments, "-o", str(store), "--workers", workers])
    assert ended.code == 3
    first, summary = ended.err.splitlines()
    assert re.fullmatch(r".*sweep.yaml:1:1, line 2: its worker was killed by SIGKILL", first)
    assert "has 3 of 4 runs" in summary and "1 failed" in summary
    monkeypatch.undo()
    again = attn([*arguments, "-o", str(store), "--workers", workers])
    assert again.code == 0 and "has 4 of 4 runs, 1 done now" in again.err
