"""Recorded calls for other features: their settings, the calls in a store, and the heads in one call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attncli.features.record.settings import RECORDED_STATISTICS as RECORDED_STATISTICS
from attncli.features.record.settings import RecordSpec as RecordSpec
from attncli.runs.reading import Reader, StepOnText, model_of

if TYPE_CHECKING:
    from attncli.features.record.results import RecordedHeads


def _is_recorded(settings: Mapping[str, Any]) -> bool:
    return settings["experiment"] == RecordSpec.experiment and isinstance(model_of(settings), str)


def has_recorded_calls(reader: Reader) -> bool:
    """Return True if any run in the store is a recorded call."""
    return any(map(_is_recorded, reader.settings_in_use().values()))


def recorded_calls(reader: Reader) -> Iterator[StepOnText]:
    """Yield the recorded calls in a store in order, each as a step numbered by its run."""
    for runs in reader.done():
        for run, settings, values in zip(runs.run, runs.settings, runs.values, strict=True):
            if _is_recorded(reader.settings[settings]):
                yield StepOnText(run, settings, None, runs.columns, values)


def heads_of_call(call: Callable[[], object], tokens: Sequence[str] | None) -> "RecordedHeads | None":
    """Return the heads detected while `call` runs, or None if no attention is detected."""
    from attncli.features.record.listening.listener import Listener
    from attncli.features.record.listening.torch_calls import reading
    from attncli.features.record.recorder import Recorder

    recorder = Recorder(tokens=tokens)
    listener = Listener(recorder.take, calls="all")
    with listener.listening():
        call()
    if not recorder.has_heard:
        return None
    with reading():
        return recorder.result(listener.counts)
