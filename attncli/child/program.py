"""Inside a program that `attn record` started: listen from the import of torch on, report at its end.

The settings are in the environment, and so is the folder for what each process heard.
"""

import atexit
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from attncli.errors import UserError

SETTINGS, FOLDER = "ATTN_RECORD_SETTINGS", "ATTN_RECORD_FOLDER"
"""The variables of the environment."""


def listen() -> None:
    """Listen until the process ends, which then writes its report."""
    from attncli.measure.recorded import Recorder
    from attncli.models.listening import Listener

    settings: dict[str, Any] = json.loads(os.environ[SETTINGS])
    tokens = settings["tokens"]
    recorder = Recorder(tokens=tokens, grid=settings["grid"], calls=settings["calls"])
    listener = Listener(
        recorder.take,
        calls=settings["calls"],
        modules=settings["modules"],
        heads=settings["heads"],
        all_threads=True,
    )
    opened = listener.listening()
    opened.__enter__()
    process = os.getpid()

    def end() -> None:
        if os.getpid() != process:  # a fork of it: the process itself writes what it heard
            return
        with suppress(Exception):  # the program ends as it ends
            opened.__exit__(None, None, None)
        _write(recorder, listener, settings)

    atexit.register(end)


def _write(recorder: Any, listener: Any, settings: dict[str, Any]) -> None:
    """The report of this process as JSON, or a line that says why there is none."""
    folder = Path(os.environ[FOLDER])
    rank = os.environ.get("RANK", "")
    name = f"rank{rank}" if rank.isdecimal() else f"{os.getpid()}"
    try:
        if not recorder.has_heard:
            (folder / f"{name}.silent").write_text("\n".join(listener.notes()), encoding="utf-8")
            return
        from attncli.commands.recorded import RecordSpec, report_of
        from attncli.views import Display, load_view

        survey = recorder.result(listener.counts, listener.notes())
        spec = RecordSpec(**settings["spec"])
        part = folder / f"{name}.part"
        with part.open("w", encoding="utf-8") as stream:
            load_view("json")([report_of(recorder, survey, spec)], stream, Display())
        part.rename(folder / f"{name}.json")
    except Exception as error:
        lines = "\n".join(error.lines) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            (folder / f"{name}.error").write_text(lines, encoding="utf-8")
