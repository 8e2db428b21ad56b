"""Inside a program that `attn record` started: listen from the import of torch on, report at its end.

What a process has heard is written now and then, too, so that one that is killed leaves it.
"""

import atexit
import json
import os
import sys
import time
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_forward_hook

from attncli.errors import UserError
from attncli.measure.recorded import Recorder
from attncli.models.listening import HeardCall, Listener, reading

SECONDS_BETWEEN, SHARE = 5.0, 20
"""A report is written at most so often, and takes at most one part in so many of the time."""
SETTINGS = "settings.json"


def listen(folder: str) -> None:
    """Listen until the process ends, which then writes its report."""
    settings = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
    process = ListeningProcess(settings, Path(folder))
    process.opened.__enter__()
    register_module_forward_hook(lambda *_: process.write_if_due())
    atexit.register(process.end)
    os.register_at_fork(after_in_child=process.begin_again)
    # Workers that multiprocessing forks end without Python's own end.
    util.register_after_fork(process, ListeningProcess.end_with_worker)


class ListeningProcess:
    """What this process hears; each fork of it begins anew."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings, self.folder = settings, folder
        listened = {name: settings[name] for name in ("calls", "modules", "heads")}
        self.listener = Listener(self._take, **listened, all_threads=True)
        self.opened = self.listener.listening()
        self.begin_again()

    def begin_again(self) -> None:
        """With nothing heard yet."""
        grid = self.settings["grid"]
        self.recorder = Recorder(
            tokens=self.settings["tokens"],
            grid=None if grid is None else (grid[0], grid[1]),
            calls=self.settings["calls"],
        )
        self.listener.counts.clear()
        self.listener.not_heard.clear()
        self._is_changed, self._is_over = False, False
        self._due_at, self._wait = float("inf"), SECONDS_BETWEEN
        self._leave("state", "listening")

    def end_with_worker(self) -> None:
        """Write the report of a worker as it ends."""
        util.Finalize(None, self.end, exitpriority=0)

    def _take(self, call: HeardCall) -> None:
        self.recorder.take(call)
        self._is_changed = True
        self._due_at = min(self._due_at, time.monotonic() + self._wait)

    def write_if_due(self) -> None:
        """Write what was heard, where the last time is some seconds ago."""
        if time.monotonic() < self._due_at:
            return
        self._due_at, begun = float("inf"), time.monotonic()
        self._write()
        self._wait = max(SECONDS_BETWEEN, SHARE * (time.monotonic() - begun))

    def end(self) -> None:
        """Write the report, once."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(Exception):  # the program ends as it ends
            self.opened.__exit__(None, None, None)
        self._write()
        self._leave("state", "ended")
        if issubclass(getattr(sys, "last_type", type(None)), KeyboardInterrupt) and not hasattr(sys, "ps1"):
            # Python forgets that Ctrl-C ended the program when a text is run, as imports of ours do.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")

    def _write(self) -> None:
        """The report of this process, or lines that say why there is none."""
        try:
            with reading():
                if not self.recorder.has_heard:
                    self._leave("silent", "\n".join(self.listener.notes()))
                elif self._is_changed:
                    self._is_changed = False
                    self._write_report()
        except Exception as error:
            is_ours = isinstance(error, UserError)
            self._leave("error", str(error) if is_ours else f"{type(error).__name__}: {error}")

    def _write_report(self) -> None:
        from attncli.commands.recorded import RecordSpec, report_of
        from attncli.views import Display, load_view

        survey = self.recorder.result(self.listener.counts, self.listener.notes())
        report = report_of(self.recorder, survey, RecordSpec(**self.settings["spec"]))
        part = self._file("part")
        with part.open("wb") as stream:
            load_view("npz")([report], stream, Display())
        part.rename(self._file("npz"))

    def _file(self, suffix: str) -> Path:
        rank = os.environ.get("RANK", "")
        return self.folder / f"{os.getpid()}.{rank if rank.isdecimal() else ''}.{suffix}"

    def _leave(self, suffix: str, text: str) -> None:
        with suppress(OSError):  # a process may outlive attn and its folder
            self._file(suffix).write_text(text, encoding="utf-8")
