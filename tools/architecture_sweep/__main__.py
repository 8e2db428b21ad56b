"""Runs the sweep over all text architectures: python -m tools.architecture_sweep results.jsonl"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from attncli.settings import EXPERIMENTS

from .check import check
from .classes import architectures, model_class
from .result import Result

MEMORY_LIMIT = 16 * 2**30
FORK = multiprocessing.get_context("fork")


class Running(NamedTuple):
    """An architecture that is looked at in a process of its own."""

    name: str
    process: ForkProcess
    until: float


def _in_child(name: str, results: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    with Path(os.devnull).open("w") as nowhere, TemporaryDirectory() as folder:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
        results.send(check(name, Path(folder) / "model").to_json())


def _start(name: str, seconds: float) -> tuple[Connection, Running]:
    """Forked, so that what was imported stays imported."""
    receive, send = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_in_child, args=(name, send))
    process.start()
    send.close()
    return receive, Running(name, process, time.monotonic() + seconds)


def _ended(connection: Connection, running: Running, seconds: float) -> str:
    """The result of a process that has one, has died, or whose time is over."""
    line = ""
    if connection.poll():
        try:
            line = connection.recv()
        except EOFError:
            running.process.join()
    else:
        running.process.kill()
    running.process.join()
    connection.close()
    if line:
        return line
    reason = f"took more than {seconds:g} s" if running.process.exitcode == -9 else "its process died"
    result = Result(running.name, str(model_class(running.name)), "wrong", wrong=[reason])
    return result.to_json()


def sweep(names: list[str], path: Path, *, workers: int, seconds: float) -> None:
    """One line for each architecture, added to the file as it is done."""
    waiting, running = list(reversed(names)), dict[Connection, Running]()
    while waiting or running:
        while waiting and len(running) < workers:
            running.update([_start(waiting.pop(), seconds)])
        now = time.monotonic()
        ready = wait(running, timeout=max(0.0, min(job.until for job in running.values()) - now))
        over = [connection for connection, job in running.items() if job.until <= time.monotonic()]
        for connection in {*ready, *over}:
            assert isinstance(connection, Connection)
            line = _ended(connection, running.pop(connection), seconds)
            with path.open("a") as file:
                file.write(line + "\n")
            result = Result.from_json(line)
            commands = (f"{name} {outcome.verdict}" for name, outcome in result.commands.items())
            print(f"{result.name}: {result.verdict};", ", ".join(commands), *result.wrong[:1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.architecture_sweep", description=__doc__)
    parser.add_argument("results", type=Path, help="JSON lines; architectures that are in it are skipped")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these, even if they are in the results")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120, help="for one architecture")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for question in EXPERIMENTS.values():
        import_module(question.spec.partition(":")[0])
    lines = chosen.results.read_text().splitlines() if chosen.results.exists() else []
    done = {json.loads(line)["name"]: line for line in lines}
    names = list(dict.fromkeys(chosen.only or ())) or [name for name in architectures() if name not in done]
    if chosen.only:
        kept = [line for name, line in done.items() if name not in names]
        chosen.results.write_text("".join(line + "\n" for line in kept))
    sweep(names, chosen.results, workers=chosen.workers, seconds=chosen.seconds)
    verdicts = Counter(json.loads(line)["verdict"] for line in chosen.results.read_text().splitlines())
    print(*(f"{count} {verdict}" for verdict, count in verdicts.most_common()), sep=", ")


if __name__ == "__main__":
    main()
