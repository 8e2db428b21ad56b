"""Processes on this machine, each with a pipe to this one; the plan continues whatever happens to them.

A worker that dies is replaced. It has at most two chunks: the one that it computes, which is split, and one
that waits, which goes to another worker. Workers end with this process, however it ends: their pipe closes.
"""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from signal import Signals
from typing import Any

from attncli.batch.chunks import Chunk
from attncli.batch.executors.failures import Died, Pending, Queue, Result, Work
from attncli.errors import RunError
from attncli.running.threads import VARIABLE

CHUNKS_EACH = 2
"""One that it computes and one that waits, so that no worker is idle while its result is stored."""
MAX_FAILED_STARTS = 3
SECONDS_TO_DIE = 5


class Worker:
    """A process that computes chunks in the order in which they are sent."""

    def __init__(self, work: Work) -> None:
        self.pipe, theirs = Pipe()
        self.sent: deque[Pending] = deque()
        self.started = False
        path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        command = [sys.executable, "-P", "-m", "attncli.batch.executors.worker", str(theirs.fileno())]
        try:
            # A process group of its own: Ctrl-C is for this process, which then ends its workers.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                env={VARIABLE: "1", **os.environ, "PYTHONPATH": path},
                process_group=0,
            )
        finally:
            theirs.close()
        self._send(work)

    def send(self, pending: Pending) -> None:
        """Send it one more chunk."""
        self.sent.append(pending)
        self._send(pending.chunk)

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # it has died, which its closed pipe shows when results are read
            self.pipe.send(message)

    def end(self) -> None:
        """Kill it, if it is alive."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()

    def status(self) -> int:
        """The exit status of a worker whose pipe is closed; negative for a signal."""
        try:
            return self.process.wait(timeout=SECONDS_TO_DIE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.pipe.close()


def run_chunks(chunks: Iterable[Chunk], work: Work, *, workers: int) -> Iterator[tuple[Chunk, Result]]:
    """Each chunk with its result, as they are done. `work` is a function in a module; chunks can be pickled.

    Each worker has one torch thread, unless OMP_NUM_THREADS says how many, and at most two chunks.
    Closing the iterator, or any exception, ends the workers at once. RunError if no worker can be started.
    """
    pool = Pool(Queue(chunks), work)
    try:
        # No more than there are chunks: each takes a second of a core to start.
        for pending in islice(iter(pool.queue.take, None), workers):
            pool.start().send(pending)
        while pool.feed():
            yield from pool.results()
    finally:
        for worker in pool.workers:
            worker.end()


class Pool:
    """The living workers, and the chunks that none of them has."""

    def __init__(self, queue: Queue, work: Work) -> None:
        self.queue, self.work = queue, work
        self.workers: list[Worker] = []
        self.failed_starts = 0

    def start(self) -> Worker:
        """One more worker."""
        self.workers.append(Worker(self.work))
        return self.workers[-1]

    def feed(self) -> bool:
        """Hand out chunks, one to every worker before any gets a second; whether any worker is busy."""
        for level in range(1, CHUNKS_EACH + 1):
            for worker in self.workers:
                if len(worker.sent) < level and (pending := self.queue.take()) is not None:
                    worker.send(pending)
        return any(worker.sent for worker in self.workers)

    def results(self) -> Iterator[tuple[Chunk, Result]]:
        """Wait for messages of the workers; each finished chunk with its result."""
        ready = wait([worker.pipe for worker in self.workers])
        for worker in [worker for worker in self.workers if worker.pipe in ready]:
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                yield from self._replace(worker)
                continue
            if worker.started:
                yield from self.queue.finished(worker.sent.popleft(), message)
            else:
                worker.started, self.failed_starts = True, 0

    def _replace(self, worker: Worker) -> Iterator[tuple[Chunk, Result]]:
        self.workers.remove(worker)
        ending = ended(worker.status())
        if not worker.started:
            self.failed_starts += 1
            if self.failed_starts == MAX_FAILED_STARTS:
                raise RunError(f"workers: none could be started: the last one {ending}")
        elif worker.sent:
            yield from self.queue.finished(worker.sent.popleft(), Died(f"its worker {ending}"))
        for pending in reversed(worker.sent):
            self.queue.put_back(pending)
        self.start()


def ended(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    named = {signal.value: signal.name for signal in Signals}  # without most real-time signals
    return f"was killed by {named.get(-status, f'signal {-status}')}"
