"""Runs inside a program started by `attn record`.

Records from the moment torch is imported until the program exits. The recording is also saved at regular
intervals, so that it survives if the process is killed; with a store, each run is saved as soon as it ends.
"""

import atexit
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from multiprocessing import parent_process, util
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from torch.nn.modules.module import register_module_forward_hook

from attncli.errors import UserError
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.listening.listener import Listener
from attncli.features.record.listening.torch_calls import reading
from attncli.features.record.measured_calls import RowNotes
from attncli.features.record.recorder import RecordedRuns, Recorder

if TYPE_CHECKING:
    from attncli.features.record.stored_runs import WrittenRun

SECONDS_BETWEEN, SHARE = 5.0, 20
"""Seconds between reports; writing reports takes at most 1/SHARE of the program's time."""
SETTINGS = "settings.json"


def listen(folder: str) -> None:
    """Record until the process ends, then write its report."""
    settings = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
    listening = ProcessOfRuns if settings["into_store"] else ProcessOfReport
    process = listening(settings, Path(folder))
    process.opened.__enter__()
    register_module_forward_hook(lambda *_: process.write_if_due())
    atexit.register(process.end)
    os.register_at_fork(after_in_child=process.begin_again)
    # Workers forked by multiprocessing exit without running atexit handlers.
    util.register_after_fork(process, ListeningProcess.end_with_worker)


class ListeningProcess(ABC):
    """The recording of this process; each fork of the process starts a new recording."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self._token = token_hex(3)  # a process keeps its id when it executes another program
        listened = {name: settings[name] for name in ("calls", "modules", "heads")}
        self.listener = Listener(self._take, **listened, all_threads=True)
        self.opened = self.listener.listening()
        self.begin_again()

    def begin_again(self) -> None:
        """Start again with an empty recording."""
        self.listener.begin_again()
        self._has_heard, self._is_over = False, False
        self._written: object = None
        self._due_at, self._wait = float("inf"), SECONDS_BETWEEN
        self._leave("state", "idle")

    def new_recorder(self, **options: Any) -> Recorder:
        """Return a recorder with the token names and the grid that the settings contain."""
        grid = self.settings["grid"]
        names = self.settings["tokens"]
        return Recorder(tokens=names, grid=None if grid is None else (grid[0], grid[1]), **options)

    @abstractmethod
    def keep(self, call: HeardCall) -> None:
        """Measure a call."""

    @abstractmethod
    def write(self, *, is_end: bool) -> None:
        """Write the recording made so far; `is_end` is True when the process ends."""

    def end_with_worker(self) -> None:
        """Write the report of a worker when the worker ends."""
        util.Finalize(None, self.end, exitpriority=0)

    def _take(self, call: HeardCall) -> None:
        if not self._has_heard:
            self._leave("state", "listening")
            # A pool kills its workers as soon as it has their results.
            self._due_at = time.monotonic() + (self._wait if parent_process() is None else 0.0)
        self._has_heard = True
        self.keep(call)

    def write_if_due(self) -> None:
        """Write the recording if a few seconds have passed since the last write."""
        if (begun := time.monotonic()) < self._due_at:
            return
        if self._written is None and parent_process() is not None and self.listener.running.stack:
            return  # the first report must contain the whole call
        self._write(is_end=False)
        self._wait = max(SECONDS_BETWEEN, SHARE * (time.monotonic() - begun))
        self._due_at = time.monotonic() + self._wait

    def end(self) -> None:
        """Write the final report, once only."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(Exception):  # an error here must not change how the program ends
            self.opened.__exit__(None, None, None)
        self._write(is_end=True)
        self._leave("state", "ended")
        if issubclass(getattr(sys, "last_type", type(None)), KeyboardInterrupt) and not hasattr(sys, "ps1"):
            # Imports clear the interpreter's record that Ctrl-C ended the program.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _write(self, *, is_end: bool) -> None:
        """Write the recording, or only the notes if no attention was detected."""
        try:
            with reading():
                if not self._has_heard:
                    self._leave("silent", "\n".join(self.listener.notes()))
                elif (state := self._state()) != self._written or is_end:
                    self.write(is_end=is_end)
                    self._written = state
        except Exception as error:
            is_ours = isinstance(error, UserError)
            self._leave("error", str(error) if is_ours else f"{type(error).__name__}: {error}")

    def _state(self) -> tuple[object, ...]:
        """Return the number of calls, the training steps and the notes so far."""
        listener = self.listener
        return listener.counts.total(), listener.training_steps, tuple(listener.notes())

    def file(self, suffix: str) -> Path:
        """Return the path of a file of this process; the name contains the process id and the rank."""
        rank = os.environ.get("RANK", "")
        process = f"{os.getpid()}-{self._token}"
        return self.folder / f"{process}.{rank if rank.isdecimal() else ''}.{suffix}"

    def _leave(self, suffix: str, text: str) -> None:
        with suppress(OSError):  # the process may outlive attn and its folder
            self.file(suffix).write_text(text, encoding="utf-8")


class ProcessOfReport(ListeningProcess):
    """Writes a single report on the whole recording."""

    def begin_again(self) -> None:
        self.recorder = self.new_recorder(calls=self.settings["calls"])
        super().begin_again()

    def keep(self, call: HeardCall) -> None:
        self.recorder.take(call)

    def write(self, *, is_end: bool) -> None:
        from attncli.features.record.reports import recording_report
        from attncli.features.record.settings import RecordSpec
        from attncli.views import Display, load_view

        listener = self.listener
        survey = self.recorder.result(listener.counts, listener.notes(), listener.training_steps)
        report = recording_report(self.recorder, survey, RecordSpec.model_validate(self.settings["spec"]))
        part = self.file("part")
        with part.open("wb") as stream:
            load_view("npz")([report], stream, Display())
        part.replace(self.file("npz"))


class ProcessOfRuns(ListeningProcess):
    """Appends each run to a file as soon as it ends; open runs are kept in a second file."""

    runs: RecordedRuns | None = None

    def begin_again(self) -> None:
        # Every call of a run is measured, because the listener has already selected the calls.
        runs = RecordedRuns(lambda places: self.new_recorder(places=places), self._end_run)
        if self.runs is not None:  # a fork numbers modules as its parent does
            runs.places.update(self.runs.places)
        self.runs = runs
        self._last: WrittenRun | None = None
        self._num_written, self._num_lost, self._reason = 0, 0, ""
        self._row_notes = RowNotes()
        super().begin_again()

    def keep(self, call: HeardCall) -> None:
        assert self.runs is not None, "begin_again has run"
        self.runs.take(call)

    def write(self, *, is_end: bool) -> None:
        from attncli.features.record.stored_runs import as_bytes

        assert self.runs is not None, "begin_again has run"
        if is_end:
            self.runs.end()
            self._leave("notes", "\n".join([*self.listener.notes(), *self._row_notes.lines()]))
            if self._num_lost:
                self._leave("lost", f"{self._num_lost} {self._reason}")
            return
        opened = enumerate(self.runs.recorders(), self._num_written + 1)
        runs = [self._written_run(recorder, number) for number, recorder in opened]
        part = self.file("part")
        part.write_bytes(b"".join(as_bytes(run, None) for run in runs))
        part.replace(self.file("open"))

    def _written_run(self, recorder: Recorder, number: int) -> "WrittenRun":
        from attncli.core.runtime import versions
        from attncli.features.record.reports import run_values
        from attncli.features.record.settings import RecordSpec
        from attncli.features.record.stored_runs import WrittenRun

        columns, values = run_values(recorder.result({}), RecordSpec.model_validate(self.settings["spec"]))
        return WrittenRun(self.file("runs").stem, number, versions(), columns, values)

    def _end_run(self, recorder: Recorder) -> None:
        from attncli.features.record.stored_runs import as_bytes

        run = self._written_run(recorder, self._num_written + 1)
        self._row_notes.add(recorder.row_notes())
        try:
            with self.file("runs").open("ab") as file:
                end = file.tell()
                try:
                    file.write(as_bytes(run, self._last))
                    file.flush()
                except OSError:
                    file.truncate(end)  # readers expect the next run at this position
                    raise
        except OSError as error:
            self._num_lost, self._reason = self._num_lost + 1, str(error.strerror)
            return
        self._last = run
        self._num_written += 1
        with suppress(OSError):
            self.file("open").unlink(missing_ok=True)
