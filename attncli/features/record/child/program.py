"""Inside a program that `attn record` started: listen from the import of torch on, report at its end.

What a process has heard is written now and then, too, so that one that is killed leaves it; for a store each
run is, as it ends.
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
"""A report is written at most so often, and takes at most one part in so many of the time."""
SETTINGS = "settings.json"


def listen(folder: str) -> None:
    """Listen until the process ends, which then writes its report."""
    settings = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
    listening = ProcessOfRuns if settings["into_store"] else ProcessOfReport
    process = listening(settings, Path(folder))
    process.opened.__enter__()
    register_module_forward_hook(lambda *_: process.write_if_due())
    atexit.register(process.end)
    os.register_at_fork(after_in_child=process.begin_again)
    # Workers that multiprocessing forks end without Python's own end.
    util.register_after_fork(process, ListeningProcess.end_with_worker)


class ListeningProcess(ABC):
    """What this process hears; each fork of it begins anew."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self._token = token_hex(3)  # a process that executes another program keeps its number
        listened = {name: settings[name] for name in ("calls", "modules", "heads")}
        self.listener = Listener(self._take, **listened, all_threads=True)
        self.opened = self.listener.listening()
        self.begin_again()

    def begin_again(self) -> None:
        """With nothing heard yet."""
        self.listener.begin_again()
        self._has_heard, self._is_over = False, False
        self._written: object = None
        self._due_at, self._wait = float("inf"), SECONDS_BETWEEN
        self._leave("state", "idle")

    def new_recorder(self, **options: Any) -> Recorder:
        """A recorder of what the tokens are called, and of other options."""
        grid = self.settings["grid"]
        names = self.settings["tokens"]
        return Recorder(tokens=names, grid=None if grid is None else (grid[0], grid[1]), **options)

    @abstractmethod
    def keep(self, call: HeardCall) -> None:
        """Measure a call."""

    @abstractmethod
    def write(self, *, is_end: bool) -> None:
        """Leave what was heard so far, or in all."""

    def end_with_worker(self) -> None:
        """Write the report of a worker as it ends."""
        util.Finalize(None, self.end, exitpriority=0)

    def _take(self, call: HeardCall) -> None:
        if not self._has_heard:
            self._leave("state", "listening")
            # A pool ends its workers by a signal as soon as it has their results.
            self._due_at = time.monotonic() + (self._wait if parent_process() is None else 0.0)
        self._has_heard = True
        self.keep(call)

    def write_if_due(self) -> None:
        """Write what was heard and counted, if the last time is some seconds ago."""
        if (begun := time.monotonic()) < self._due_at:
            return
        if self._written is None and parent_process() is not None and self.listener.running.stack:
            return  # the first report has the whole call
        self._write(is_end=False)
        self._wait = max(SECONDS_BETWEEN, SHARE * (time.monotonic() - begun))
        self._due_at = time.monotonic() + self._wait

    def end(self) -> None:
        """Write the report, once."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(Exception):  # the program ends as it ends
            self.opened.__exit__(None, None, None)
        self._write(is_end=True)
        self._leave("state", "ended")
        if issubclass(getattr(sys, "last_type", type(None)), KeyboardInterrupt) and not hasattr(sys, "ps1"):
            # Python forgets that Ctrl-C ended the program when a text is run, as imports of ours do.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _write(self, *, is_end: bool) -> None:
        """What this process heard, or lines that say why there is nothing."""
        try:
            with reading():
                if not self._has_heard:
                    self._leave("silent", "\n".join(self.listener.notes()))
                elif (heard := self._state()) != self._written or is_end:
                    self.write(is_end=is_end)
                    self._written = heard
        except Exception as error:
            is_ours = isinstance(error, UserError)
            self._leave("error", str(error) if is_ours else f"{type(error).__name__}: {error}")

    def _state(self) -> tuple[object, ...]:
        """How often each module was called, measured or not, and the notes and training steps so far."""
        listener = self.listener
        return listener.counts.total(), listener.training_steps, tuple(listener.notes())

    def file(self, suffix: str) -> Path:
        """A file of this process, by which its parent knows what it is."""
        rank = os.environ.get("RANK", "")
        process = f"{os.getpid()}-{self._token}"
        return self.folder / f"{process}.{rank if rank.isdecimal() else ''}.{suffix}"

    def _leave(self, suffix: str, text: str) -> None:
        with suppress(OSError):  # a process may outlive attn and its folder
            self.file(suffix).write_text(text, encoding="utf-8")


class ProcessOfReport(ListeningProcess):
    """Writes one report of all that it heard."""

    def begin_again(self) -> None:
        self.recorder = self.new_recorder(calls=self.settings["calls"])
        super().begin_again()

    def keep(self, call: HeardCall) -> None:
        self.recorder.take(call)

    def write(self, *, is_end: bool) -> None:
        from attncli.features.record.reports import report_of
        from attncli.features.record.settings import RecordSpec
        from attncli.views import Display, load_view

        listener = self.listener
        survey = self.recorder.result(listener.counts, listener.notes(), listener.training_steps)
        report = report_of(self.recorder, survey, RecordSpec.model_validate(self.settings["spec"]))
        part = self.file("part")
        with part.open("wb") as stream:
            load_view("npz")([report], stream, Display())
        part.replace(self.file("npz"))


class ProcessOfRuns(ListeningProcess):
    """Appends each run to a file as it ends; one that is not over lies beside it meanwhile."""

    runs: RecordedRuns | None = None

    def begin_again(self) -> None:
        # Of a run every call counts: which ones are heard at all the listener knows.
        runs = RecordedRuns(lambda places: self.new_recorder(places=places), self._end_run)
        if self.runs is not None:  # a fork numbers modules as the process before it
            runs.places.update(self.runs.places)
        self.runs = runs
        self._last: WrittenRun | None = None
        self._num_written, self._num_lost, self._reason = 0, 0, ""
        self._row_notes = RowNotes()
        super().begin_again()

    def keep(self, call: HeardCall) -> None:
        assert self.runs is not None, "it has begun"
        self.runs.take(call)

    def write(self, *, is_end: bool) -> None:
        from attncli.features.record.stored_runs import as_bytes

        assert self.runs is not None, "it has begun"
        if is_end:
            self.runs.end()
            self._leave("notes", "\n".join([*self.listener.notes(), *self._row_notes.lines()]))
            if self._num_lost:
                self._leave("lost", f"{self._num_lost} {self._reason}")
            return
        opened = enumerate(self.runs.recorders(), self._num_written + 1)
        runs = [self._run_of(recorder, number) for number, recorder in opened]
        part = self.file("part")
        part.write_bytes(b"".join(as_bytes(run, None) for run in runs))
        part.replace(self.file("open"))

    def _run_of(self, recorder: Recorder, number: int) -> "WrittenRun":
        from attncli.core.runtime import versions
        from attncli.features.record.reports import values_of_run
        from attncli.features.record.settings import RecordSpec
        from attncli.features.record.stored_runs import WrittenRun

        columns, values = values_of_run(recorder.result({}), RecordSpec.model_validate(self.settings["spec"]))
        return WrittenRun(self.file("runs").stem, number, versions(), columns, values)

    def _end_run(self, recorder: Recorder) -> None:
        from attncli.features.record.stored_runs import as_bytes

        run = self._run_of(recorder, self._num_written + 1)
        self._row_notes.add(recorder.row_notes())
        try:
            with self.file("runs").open("ab") as file:
                end = file.tell()
                try:
                    file.write(as_bytes(run, self._last))
                    file.flush()
                except OSError:
                    file.truncate(end)  # what follows is read from here on
                    raise
        except OSError as error:
            self._num_lost, self._reason = self._num_lost + 1, str(error.strerror)
            return
        self._last = run
        self._num_written += 1
        with suppress(OSError):
            self.file("open").unlink(missing_ok=True)
