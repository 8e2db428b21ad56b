"""Every executor returns every chunk's result even if workers die, and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import active_children, resource_tracker, set_executable, spawn
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from attncli.errors import RunError
from attncli.runs.driver import Died, Pending, Worker, run_here, run_in_workers
from tests import chunk_work
from tests.chunk_work import KILLER, WRONG, Numbers, by_number, chunks_of

ROOT = Path(__file__).parent.parent.parent


def run_workers(work, chunks, workers: int = 2):
    return list(run_in_workers(iter(chunks), work, workers=workers))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_workers_give_every_result_once(workers: int) -> None:
    results = by_number(run_workers(chunk_work.squares, chunks_of(101, 7), workers))
    assert results == {i: i**2 for i in range(101)}


def test_serial_gives_every_result_in_order() -> None:
    chunks = chunks_of(20, 3)
    results = list(run_here(chunks, chunk_work.squares))
    assert [chunk for chunk, _ in results] == chunks
    assert by_number(results) == {i: i**2 for i in range(20)}


@pytest.mark.parametrize("threads", [None, pytest.param(2, marks=pytest.mark.nightly)])
def test_workers_share_the_work_with_one_thread_each(
    threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # Dask's nanny leaves the second behind
        monkeypatch.delenv(name, raising=False)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    results = run_workers(chunk_work.squares_by_process, chunks_of(40, 2))
    pids = {pid for _, (_, pid, _) in results}
    assert len(pids) == 2 and os.getpid() not in pids
    assert {count for _, (_, _, count) in results} == {threads or 1}
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_run_that_kills_its_worker_every_time_is_the_only_one_lost(workers: int) -> None:
    results = by_number(run_workers(chunk_work.killed_by_thirteen, chunks_of(20, 4), workers))
    assert results.pop(KILLER) == Died("its worker was killed by SIGKILL")
    assert results == {i: i**2 for i in range(20) if i != KILLER}


def test_a_worker_that_is_killed_as_it_sends_a_result_ends_at_once() -> None:
    """The reader does not wait for the rest of the result."""
    worker = Worker(chunk_work.sends_much)
    worker.send(Pending(*chunks_of(1, 1)))
    assert wait([worker.connection], 60) and not [*worker.received()]
    assert wait([worker.connection], 60), "more than a pipe holds"
    os.kill(worker.process.pid, signal.SIGKILL)
    with pytest.raises((EOFError, OSError)):
        next(worker.received())
    assert worker.end() == -signal.SIGKILL


def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    results = by_number(run_workers(chunk_work.killed_once, chunks_of(12, 1, tmp_path)))
    assert results == {i: i**2 for i in range(12)}
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("executor", ["serial", "workers"])
def test_an_error_in_one_run_is_reported_and_the_others_continue(executor: str) -> None:
    run = partial(run_in_workers, workers=2) if executor == "workers" else run_here
    ran = run(chunks_of(20, 10), chunk_work.wrong_at_seven)
    results = by_number(ran)
    died = results.pop(WRONG)
    assert isinstance(died, Died)
    assert died.reason == "ValueError: no 7; in here"
    assert "wrong_at_seven" in died.traceback
    assert results == {i: i**2 for i in range(20) if i != WRONG}


def test_results_too_large_for_a_pipe_and_those_that_cannot_be_sent() -> None:
    results = run_workers(chunk_work.sends_much, chunks_of(6, 1))
    assert [result for _, result in results] == [bytes(5_000_000)] * 6
    ((_, died),) = run_workers(chunk_work.cannot_be_sent, chunks_of(1, 1), 1)
    # Python's message differs between versions, but it always names the object.
    assert isinstance(died, Died) and "cannot_be_sent.<locals>.<lambda>" in died.reason


def test_chunks_are_pulled_as_they_are_needed() -> None:
    pulled = 0

    def endless() -> Iterator[Numbers]:
        nonlocal pulled
        while True:
            pulled += 1
            yield Numbers((pulled,))

    results = run_in_workers(endless(), chunk_work.squares, workers=2)
    for finished in range(1, 30):
        next(results)
        assert pulled <= finished + 4
    results.close()


def test_no_more_workers_than_chunks_are_started() -> None:
    results = run_in_workers(iter(chunks_of(6, 3)), chunk_work.squares, workers=20)
    first = next(results)
    assert len(active_children()) == 2
    assert by_number([first, *results]) == {i: i**2 for i in range(6)}
    assert run_workers(chunk_work.squares, [], 20) == [] and not active_children()


def test_workers_that_cannot_start_are_an_error_not_a_loop() -> None:
    executable = spawn.get_executable()
    set_executable("/bin/false")
    try:
        with pytest.raises(
            RunError, match=r"workers: none could be started \(the last one ended with exit status 1"
        ):
            run_workers(chunk_work.squares, chunks_of(3, 1))
    finally:
        set_executable(executable)


@pytest.mark.nightly
def test_ctrl_c_is_blocked_in_the_first_worker() -> None:
    """The first worker also starts the resource tracker, which unblocks Ctrl-C."""
    resource_tracker._resource_tracker._stop()
    (blocked,) = by_number(run_workers(chunk_work.blocked_signals, chunks_of(1, 1), 1)).values()
    assert signal.SIGINT in blocked


@pytest.mark.nightly
def test_workers_import_nothing_from_the_folder_where_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("multiprocessing", "signal", "selectors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the user')")
    monkeypatch.chdir(tmp_path)
    assert by_number(run_workers(chunk_work.squares, chunks_of(4, 2))) == {i: i**2 for i in range(4)}


DRIVER = """
import sys
from pathlib import Path
from attncli.runs.driver import run_in_workers
from tests.chunk_work import chunks_of, tells_and_sleeps
folder = Path(sys.argv[1])
try:
    list(run_in_workers(chunks_of(9, 1, folder), tells_and_sleeps, workers=2))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (signal.SIGINT, 130),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGTERM, -15, marks=pytest.mark.nightly),
    ],
)
def test_workers_end_with_their_driver(stop: signal.Signals, status: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env=environment)
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.iterdir()]
        assert all(map(is_alive, pids))
        began = time.monotonic()
        driver.send_signal(stop)
        assert driver.wait(timeout=10) == status
        wait_until(lambda: not any(map(is_alive, pids)), 5)
        assert time.monotonic() - began < 5
    finally:
        driver.kill()
        driver.wait()
