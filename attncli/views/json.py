"""Reports as JSON at full precision: an object, a list of them where several were asked for, JSON Lines."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

import numpy as np

from attncli.plain_text import UNSEEN
from attncli.report import NamedTensor, Report, plain
from attncli.views import Display


def _dumps(data: Any) -> str:
    """JSON on one line; characters that a terminal would obey or hide are written as JSON escapes."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _array(values: np.ndarray) -> Iterator[str]:
    """A row at a time: lists of Python numbers take eight times the memory of the array."""
    if values.ndim <= 1:
        yield _dumps(plain(values))
        return
    for i, part in enumerate(values):
        yield ", " if i else "["
        yield from _array(part)
    yield "]" if len(values) else "[]"


def pieces(value: Any) -> Iterator[str]:
    """The JSON of mappings, lists and arrays, piece by piece."""
    if isinstance(value, NamedTensor):
        yield from _array(value.values)
    elif isinstance(value, Mapping):
        yield "{"
        for i, (name, item) in enumerate(value.items()):
            yield f"{', ' if i else ''}{_dumps(name)}: "
            yield from pieces(item)
        yield "}"
    else:
        yield _dumps(plain(value))


def _document(report: Report) -> Iterator[str]:
    for i, (name, value) in enumerate(report.fields().items()):
        yield f"{',' if i else '{'}\n  {_dumps(name)}: "
        yield from pieces(value)
    yield "\n}"


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each key of a report on its own line."""
    if not display.several:
        for report in reports:
            stream.writelines(_document(report))
            stream.write("\n")
        return
    separator = "[\n"
    for report in reports:
        stream.write(separator)
        stream.writelines(_document(report))
        separator = ",\n"
    stream.write("\n]\n" if separator == ",\n" else "[]\n")


def write_lines(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """The same data, one report per line, flushed so that a reader can follow."""
    for report in reports:
        stream.writelines(pieces(report.fields()))
        stream.write("\n")
        stream.flush()
