"""Reports saved as JSON, or as arrays (.npz, .safetensors) with the rest as JSON beside them.

What is damaged is reported in one line that names the place.
"""

import reprlib
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from attncli.errors import UserError, nearest
from attncli.report import SCHEMA_VERSION, Report
from attncli.saved.arrays import NoSuchArray, read_stored, report_beside_arrays
from attncli.saved.content import read_text
from attncli.saved.documents import documents
from attncli.saved.models import SavedReport, is_plain_name
from attncli.saved.tensors import LARGEST, check_sizes
from attncli.spec.config.validation import expectation

# Peak bytes of memory per byte of JSON, measured on matrices of weights and rounded up.
BYTES_PER_BYTE = 5
DEEPEST, LARGEST_WHOLE = 22, 2**63 - 1
KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class SavedReports:
    """The reports of a file, and whether it is a list or has several lines."""

    reports: tuple[Report, ...]
    several: bool


def read_reports(file: str, *, most_bytes: int | None = None) -> SavedReports:
    """The reports of a JSON or JSON Lines file (`-`: standard input); UserError where it holds none."""
    text, name = read_text(file, most_bytes=most_bytes, bytes_each=BYTES_PER_BYTE)
    return reports_of(text, name)


def reports_of(text: str, name: str) -> SavedReports:
    """The reports of a text: an object, a list of objects, or objects one after another."""
    found: list[Report] = []
    several = False
    for number, data in enumerate(documents(text, name)):
        if isinstance(data, list):
            if number:
                raise UserError(
                    f"{name}: holds a list after another document: give one list, or a report a line"
                )
            several = True
            found += [to_report(item, f"{name}: report {i}") for i, item in enumerate(data)]
        else:
            found.append(to_report(data, f"{name}: report {number}" if number else name))
    return SavedReports(tuple(found), several or len(found) > 1)


def read_array_report(file: str, *, most_bytes: int | None = None) -> Report | None:
    """The report that a file of arrays holds; None for arrays from another tool."""
    text = report_beside_arrays(file, most_bytes=most_bytes)
    if text is None:
        return None
    data, *more = documents(text, file)
    if more:
        raise UserError(f"{file}: holds several reports beside its arrays")
    for parent, key, name in _places_of_arrays(data):
        try:
            parent[key] = read_stored(file, name=name, most_bytes=most_bytes)
        except NoSuchArray:
            raise UserError(f"{file}: the array {name} of its report is missing") from None
    return to_report(data, file)


def _places_of_arrays(data: Any) -> list[tuple[dict[str, Any], str, str]]:
    """Object and key of each array in the JSON form, and its name in the file; damaged parts are skipped."""
    tensors, statistics, axes = (_mapping(data, key) for key in ("tensors", "statistics", "statistic_axes"))
    places = [(tensor, "values", name) for name, tensor in tensors.items() if isinstance(tensor, dict)]
    for group in axes:
        members = _mapping(statistics, group)
        places += [(members, name, f"{group}.{name}") for name in _mapping(axes, group) if name in members]
    return places


def _mapping(data: Any, key: str) -> dict[str, Any]:
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def to_report(data: Any, document: str) -> Report:
    """The report that a JSON object holds."""
    try:
        _refuse_other_forms(data)
        _refuse_names_and_numbers(data)
        report = SavedReport.model_validate(data).restored()
        check_sizes(report)
    except ValidationError as failure:
        raise UserError(f"{document}: {_line(failure.errors(include_url=False)[0])}") from None
    except ValueError as error:
        raise UserError(f"{document}: {error}") from None
    return report


def _refuse_other_forms(data: Any) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"is not a saved report: it must be an object {_got(data)}")
    if "schema_version" not in data:
        raise ValueError("is not a saved report: schema_version is missing")
    version = data["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(f"schema_version: this attn reads version {SCHEMA_VERSION} (got {version!r:.20})")


def _refuse_names_and_numbers(value: Any, path: Path = ()) -> None:
    """ValueError for names that are not plain, numbers too large and deep nesting, outside of tensors."""
    match path:
        case ("tensors", _, "values") | ("statistics", "rows" | "keys", _):
            return
    if len(path) > DEEPEST:
        raise ValueError(f"{_place(path)}is nested too deeply")
    if isinstance(value, dict):
        for name, item in value.items():
            if not is_plain_name(name):
                raise ValueError(f"{_place(path)}has a name that is not plain: {reprlib.repr(name)}")
            _refuse_names_and_numbers(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _refuse_names_and_numbers(item, (*path, number))
    elif isinstance(value, float | int) and abs(value) > {float: LARGEST}.get(type(value), LARGEST_WHOLE):
        raise ValueError(f"{_place(path)}is a number too large")


def _line(error: ErrorDetails) -> str:
    """The place, and what is wrong there in our words."""
    path = error["loc"]
    if error["type"] == "missing":
        return f"{_place(path[:-1])}{path[-1]} is missing"
    if error["type"] == "extra_forbidden":
        hint = nearest(str(path[-1]), SavedReport.model_fields)
        return f"{_place(path[:-1])}unknown name {reprlib.repr(path[-1])}{hint}"
    got = "" if error["type"] == "value_error" else f" {_got(error['input'])}"
    return f"{_place(path)}{expectation(error)}{got}"


def _place(path: Path) -> str:
    """`tensors.weights: ` or `tokens[1]: `; empty for the whole document."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{place.removeprefix('.')}: " if path else ""


def _got(value: Any) -> str:
    return f"(got {KINDS.get(type(value)) or reprlib.repr(value)})"
