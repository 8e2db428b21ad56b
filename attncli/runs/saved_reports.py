"""Reads saved reports, which are JSON or array files that contain the rest of the report as JSON."""

import binascii
import json
import re
import reprlib
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, StrictBool, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.dataclasses import dataclass as checked
from pydantic_core import ErrorDetails

from attncli.errors import UserError, nearest
from attncli.models.arrays import (
    LARGEST,
    NoSuchArray,
    read_stored,
    read_text,
    refuse_size,
    report_beside_arrays,
)
from attncli.records.arguments import expectation
from attncli.records.kinds import KINDS, may_lack_heads, read_result
from attncli.records.report import (
    PLACES,
    RANKED,
    SCHEMA_VERSION,
    Box,
    NamedTensor,
    Numbers,
    Picture,
    PictureMaps,
    PictureRow,
    Report,
    Statistic,
    Step,
    Table,
    Tensors,
    WholeNumber,
)
from attncli.records.values import has_head_rows
from attncli.runs.saved_tensors import (
    CELL,
    EXACT,
    LARGEST_WHOLE,
    NESTED,
    NESTED_SCHEMA,
    Axes,
    SavedTensor,
    as_array,
)
from attncli.system.version import __version__

BLANKS = re.compile(r"[ \t\r\n]*")
TEXT = r'"(?:[^"\\]|\\.)*"'
NO_NUMBER = re.compile(rf"{TEXT}|(NaN|-?Infinity)")


class _NoNumber(ValueError):
    """Raised for NaN or Infinity, which JSON does not allow."""


class _Twice(ValueError):
    """Raised for a name that occurs twice in one object."""


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in mapping if names.count(name) > 1))
    return mapping


def _refuse_constant(constant: str) -> Any:
    raise _NoNumber(constant)


DECODER = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)


def documents(text: str, name: str) -> Iterator[Any]:
    """Yield each JSON value in a text: one, or several separated by spaces or line breaks (JSON Lines)."""
    end = _skip_blanks(text, 0)
    if end == len(text):
        raise UserError(f"{name}: is empty: it contains no report")
    while end < len(text):
        try:
            data, end = DECODER.raw_decode(text, end)
        except (ValueError, RecursionError) as error:
            raise UserError(_line_about(text, name, error)) from None
        yield data
        end = _skip_blanks(text, end)


def _skip_blanks(text: str, start: int) -> int:
    blanks = BLANKS.match(text, start)
    assert blanks is not None, "it also matches an empty string"
    return blanks.end()


def _line_about(text: str, name: str, error: Exception) -> str:
    """Return the decoder's error on one line, with its place."""
    match error:
        case json.JSONDecodeError():
            if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
                return f"{_position(text, name, error.pos)}: is not valid JSON: it ends too soon"
            reason = error.msg.removesuffix(" at")
            return f"{_position(text, name, error.pos)}: is not valid JSON: {reason[0].lower()}{reason[1:]}"
        case _NoNumber():
            start = _first(NO_NUMBER, text)
            return (
                f"{_position(text, name, start)}: {error} is not valid JSON: write null for a missing number"
            )
        case _Twice():
            return f"{name}: has the name {str(error)!r} twice in one object"
        case RecursionError():
            return f"{name}: is nested too deeply for a report"
    most = sys.get_int_max_str_digits()
    start = _first(re.compile(rf"{TEXT}|(-?[0-9]{{{most + 1},}})"), text)
    return f"{_position(text, name, start)}: contains a number with more than {most} digits"


def _first(pattern: re.Pattern[str], text: str) -> int:
    """Return the position where the pattern's group first matches outside of JSON strings."""
    return next((match.start() for match in pattern.finditer(text) if match[1]), 0)


def _position(text: str, name: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"{name}:{line}:{position - text.rfind(chr(10), 0, position)}"


# The axis of each group of tensors, and the axis of the weights that the group lacks.
GROUPS = {"rows": ("query", "key"), "keys": ("key", "query"), "key_parts": ("key", "query")}


def with_axes(
    statistics: Mapping[str, Any], axes: Mapping[str, Mapping[str, tuple[str, ...]]]
) -> dict[str, Statistic]:
    """Return the statistics with each object of lists as tensors whose axes have the same names."""
    groups = {name for name, value in statistics.items() if type(value) is dict}
    if wrong := sorted(groups ^ axes.keys() | groups - GROUPS.keys()):
        raise ValueError(
            f"statistic_axes: {wrong[0]} is missing, or is not a group of tensors among the statistics"
        )
    return {
        name: _tensors(name, value, axes[name]) if name in groups else value
        for name, value in statistics.items()
    }


def _tensors(group: str, values: Mapping[str, Any], axes: Mapping[str, tuple[str, ...]]) -> Tensors:
    """Return tensors with a number per batch, head and query (or key); ranked keys have a number per rank."""
    if wrong := sorted(values.keys() ^ axes.keys()):
        raise ValueError(f"statistic_axes.{group}: {wrong[0]} is missing or unknown")
    tensors = Tensors()
    for name, numbers in values.items():
        last = (GROUPS[group][0], "rank") if name in RANKED else GROUPS[group][:1]
        if axes[name][-len(last) :] != last:
            got = ", ".join(axes[name])
            raise ValueError(f"statistic_axes.{group}.{name}: must end in {', '.join(last)} (got {got})")
        try:
            tensors[name] = NamedTensor(axes[name], as_array(numbers, len(axes[name])))
        except ValueError as error:
            raise ValueError(f"statistics.{group}.{name}: {error}") from None
    return tensors


def check_sizes(report: Report) -> None:
    """Raise ValueError unless every axis matches the tokens, the weights and the statistics of its group."""
    groups = {group: report.tensors_of(group) for group in GROUPS}
    tensors = {f"tensors.{name}": tensor for name, tensor in report.tensors.items()}
    for group, members in groups.items():
        tensors |= {f"statistics.{group}.{name}": tensor for name, tensor in members.items()}
    num_keys = len(report.context_tokens or report.tokens)
    num_queries = len(report.tokens[report.first_query :])
    tokens = {"query": num_queries, "token": len(report.tokens), "key": num_keys}
    for number, picture in enumerate(report.pictures):
        count = len(getattr(report, picture.axis))
        if len(picture.boxes) != count:
            raise ValueError(
                f"pictures[{number}].boxes: must have {count} entries, one for each of {picture.axis}"
            )
    if report.picture_maps is not None:
        _check_picture_maps(report.picture_maps)
    for place, tensor in tensors.items():
        for axis, size in zip(tensor.axes, tensor.values.shape, strict=True):
            if tokens.get(axis, 0) not in (0, size):
                raise ValueError(
                    f"{place}: has size {size} along {axis}, but there are {tokens[axis]} tokens"
                )
    weights = report.tensors.get("weights")
    if weights is not None and weights.axes[-2:] != ("query", "key"):
        raise ValueError(f"tensors.weights: axes must end in query, key (got {', '.join(weights.axes)})")
    for group, members in groups.items():
        has_heads = any("head" in tensor.axes for tensor in members.values())
        # If the statistics have a head axis and the weights do not, the weights are the mean over the heads.
        is_mean = weights is not None and weights.axes == ("query", "key") and has_heads
        known = {} if weights is None or is_mean else {"weights": weights}
        sizes = [_sizes(tensor, GROUPS[group][1]) for tensor in (*known.values(), *members.values())]
        for name, member_sizes in zip((*known, *members), sizes, strict=True):
            if member_sizes != sizes[0]:
                wanted = ", ".join(f"{axis} {size}" for axis, size in sizes[0])
                raise ValueError(
                    f"statistics.{group}.{name}: must have the axes {wanted}, like the rest of its group"
                )
    if any(name in groups["rows"] for name in RANKED):
        _check_ranks(groups["rows"], num_keys if weights is None else weights.values.shape[-1])


def _check_picture_maps(maps: PictureMaps) -> None:
    """Raise ValueError unless every row has a map per name, and a weight and a box per token."""
    if not maps.rows or not maps.names:
        raise ValueError("picture_maps: must have at least one row and one name")
    if maps.num_pictures < len(maps.rows):
        raise ValueError(f"picture_maps.num_pictures: must be at least {len(maps.rows)}, the number of rows")
    for number, row in enumerate(maps.rows):
        place, wanted = f"picture_maps.rows[{number}]", (len(maps.names), len(row.tokens))
        if len(row.picture.boxes) != len(row.tokens):
            raise ValueError(
                f"{place}.picture.boxes: must have {len(row.tokens)} entries, one for each token"
            )
        if row.weights.axes != ("map", "key") or row.weights.values.shape != wanted:
            raise ValueError(f"{place}.weights: must have the axes map {wanted[0]}, key {wanted[1]}")


def _sizes(tensor: NamedTensor, without: str) -> list[tuple[str, int]]:
    sizes = zip(tensor.axes, tensor.values.shape, strict=True)
    return [(axis, size) for axis, size in sizes if axis not in (without, "rank")]


def _check_ranks(rows: Tensors, num_keys: int) -> None:
    for name in RANKED:
        if name not in rows:
            raise ValueError(f"statistics.rows: {name} is missing: {' and '.join(RANKED)} belong together")
    keys, weights = (rows[name].values for name in RANKED)
    if keys.shape != weights.shape:
        raise ValueError("statistics.rows.top_weights: must have the same size as top_keys")
    if not np.issubdtype(keys.dtype, np.integer):
        raise ValueError("statistics.rows.top_keys: must hold whole numbers, the indices of keys")
    if num_keys and keys.max() >= num_keys:
        raise ValueError(
            f"statistics.rows.top_keys: has an index that is too large: there are {num_keys} keys"
        )


LONGEST_NAME = 100
MOST_PLACES = 4096  # of layers or heads: a survey becomes a grid of layers and heads


def is_plain_name(name: str) -> bool:
    """Return True for a name of reasonable length without characters that move or hide anything."""
    return name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _plain_name(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError(f"must be a printable name of 1 to {LONGEST_NAME} characters")
    return name


def _kind(name: str) -> str:
    """Check the name of a kind of result, which may belong to a feature that is not installed or be empty."""
    return _plain_name(name) if name else name


def _statistic(value: Any) -> Any:
    """Convert a list to a table; keep objects of lists, which are tensors with axes listed elsewhere."""
    if isinstance(value, list):
        return _table(value)
    if not isinstance(value, dict) or not value:
        raise ValueError("must be a nonempty object or list")
    if any(isinstance(item, list | np.ndarray) for item in value.values()):
        return value
    for name, item in value.items():
        if isinstance(item, dict | str):
            raise ValueError(f"{name} must be a number")
    return Numbers(value)


def _table(rows: list[Any]) -> Table:
    """Convert rows with the same names to a table: cells are null, numbers, strings or equally long lists."""
    kinds: dict[str, Any] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not row or list(row) != list(rows[0]):
            raise ValueError(f"row {number} must have the same names as row 0")
        for name, cell in row.items():
            if cell is None:
                continue
            kind = len(cell) if isinstance(cell, list) else str if isinstance(cell, str) else None
            items = cell if isinstance(cell, list) else [cell]
            is_plain = not any(isinstance(item, dict | list) for item in items)
            if not is_plain or kinds.setdefault(name, kind) != kind:
                raise ValueError(f"row {number}: {name} must be a cell of the same kind as in row 0")
            if name in ("stack", *PLACES) and isinstance(cell, list):
                raise ValueError(f"row {number}: {name} must be a number or a string")
            if name in PLACES and isinstance(cell, int) and not 0 <= cell < MOST_PLACES:
                raise ValueError(f"row {number}: {name} must be from 0 to {MOST_PLACES - 1} (got {cell})")
    return Table(rows)


def _object_schema(values: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "minProperties": 1, "additionalProperties": values, **more}


# JSON Schema for the checks above that annotations cannot express.
ROW_SCHEMA = _object_schema({"anyOf": [CELL, {"type": "array", "items": CELL}]})
STATISTIC_SCHEMA = {
    "anyOf": [
        _object_schema({"type": ["number", "boolean", "null"]}, title="Single numbers by their names"),
        _object_schema(NESTED, title="Tensors, whose axes are in statistic_axes"),
        {"title": "Rows with the same names", "type": "array", "items": ROW_SCHEMA},
    ]
}

PNG = b"\x89PNG\r\n\x1a\n"


def _png(value: object) -> bytes:
    """Decode base64. Raises ValueError unless it is a PNG."""
    try:
        data = b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if not data.startswith(PNG):
        raise ValueError("must be a PNG in base64")
    return data


def _finite_box(box: Box) -> Box:
    left, top, right, bottom = box
    if not (0 <= left <= right <= LARGEST and 0 <= top <= bottom <= LARGEST):
        raise ValueError("must be a box: left, top, right, bottom")
    return box


def _share(box: Box) -> Box:
    if max(box) > 1:
        raise ValueError("must hold shares of the picture, from 0 to 1")
    return box


SavedBox = Annotated[Box, AfterValidator(_finite_box)]
SharedBox = Annotated[SavedBox, AfterValidator(_share)]


@checked(frozen=True, config=EXACT)
class SavedPicture(Picture):
    """A picture in JSON."""

    crop: SavedBox
    png: Annotated[bytes, BeforeValidator(_png)]
    boxes: tuple[SharedBox | None, ...]


@checked(frozen=True, config=EXACT)
class SavedPictureRow(PictureRow):
    """A picture and the maps over it in JSON."""

    picture: SavedPicture
    weights: SavedTensor


@checked(frozen=True, config=EXACT)
class SavedPictureMaps(PictureMaps):
    """The maps over several pictures in JSON."""

    rows: tuple[SavedPictureRow, ...]


def _refuse_empty_tables(kind: str, statistics: Mapping[str, Statistic]) -> None:
    """Raise ValueError for a table without rows, except a survey's heads: perhaps no head has the pattern."""
    may_be_empty = may_lack_heads(kind)
    for name, statistic in statistics.items():
        is_allowed = may_be_empty and has_head_rows(name)
        if isinstance(statistic, Table) and not statistic and not is_allowed:
            raise ValueError(f"statistics.{name}: is empty")


@checked(frozen=True, kw_only=True, config=EXACT)
class SavedReport:
    """A report as saved in JSON; `statistic_axes` has the axes of the statistics that are tensors.

    Fields that have no default are required.
    """

    spec: Mapping[str, Any]
    environment: Mapping[str, str]
    steps: tuple[Step, ...] = ()
    first_query: WholeNumber = 0
    missing: str | None = None
    about: str = ""
    how_to_read: str = ""
    written: str | None = None
    experiment: Annotated[str, AfterValidator(_plain_name)]
    tokens: tuple[str, ...]
    context_tokens: tuple[str, ...]
    tensors: Mapping[str, SavedTensor]
    statistics: Mapping[str, Annotated[Any, AfterValidator(_statistic)]]
    notes: tuple[str, ...]
    token_spelling: Literal["byte-level", "metaspace"] | None = None
    is_unfinished: StrictBool = False
    pictures: tuple[SavedPicture, ...] = ()
    picture_maps: SavedPictureMaps | None = None
    kind: Annotated[str, AfterValidator(_kind)] = ""
    schema_version: Annotated[int, WithJsonSchema({"const": SCHEMA_VERSION})]
    statistic_axes: Mapping[str, Mapping[str, Axes]]

    def restored(self) -> Report:
        """Return the report.

        Raises ValueError, naming the place, for statistics and axes that do not match.
        """
        statistics = with_axes(self.statistics, self.statistic_axes)
        kind = self.kind or (self.experiment if self.experiment in KINDS else "")
        _refuse_empty_tables(kind, statistics)
        tensors = {name: tensor.unchecked() for name, tensor in self.tensors.items()}
        report = Report(
            self.experiment,
            self.spec,
            self.environment,
            self.tokens,
            self.context_tokens,
            tensors,
            read_result(kind, statistics, tensors),
            steps=self.steps,
            token_spelling=self.token_spelling,
            first_query=self.first_query,
            is_unfinished=self.is_unfinished,
            pictures=self.pictures,
            picture_maps=self.picture_maps,
            missing=self.missing,
            about=self.about,
            how_to_read=self.how_to_read,
            written=self.written,
        )
        return replace(report, notes=tuple(note for note in self.notes if note not in report.sentences))


SAVED = TypeAdapter(SavedReport)


def report_schema() -> dict[str, Any]:
    """Return the JSON Schema of reports, made from the types that read reports; it does not check sizes."""
    schema = SAVED.json_schema()
    definitions = schema["$defs"]
    definitions["Nested"] = NESTED_SCHEMA
    definitions["SavedTensor"]["properties"]["values"] = NESTED
    definitions["SavedMask"]["properties"]["visible"] = NESTED
    schema["properties"]["statistics"]["additionalProperties"] = STATISTIC_SCHEMA
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A report of attn",
        "description": f"A report as attn {__version__} writes it with --format json and reads it.",
    }


# Peak bytes of memory per byte of JSON, measured on matrices of weights and rounded up.
BYTES_PER_BYTE = 5
DEEPEST = 22
JSON_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class SavedReports:
    """The reports in a file; `several` is True for a list or for several lines."""

    reports: tuple[Report, ...]
    several: bool


def read_reports(file: str, *, most_bytes: int | None = None) -> SavedReports:
    """Read the reports in a JSON or JSON Lines file (`-`: standard input).

    Raises UserError if it is empty.
    """
    text, name = read_text(file, most_bytes=most_bytes, bytes_each=BYTES_PER_BYTE)
    return parse_reports(text, name)


def parse_reports(text: str, name: str) -> SavedReports:
    """Read the reports in a text: an object, a list of objects, or objects one after another."""
    reports: list[Report] = []
    several = False
    for number, data in enumerate(documents(text, name)):
        if isinstance(data, list):
            if number:
                raise UserError(
                    f"{name}: holds a list after another document: give one list, or one report per line"
                )
            several = True
            reports += [to_report(item, f"{name}: report {i}") for i, item in enumerate(data)]
        else:
            reports.append(to_report(data, f"{name}: report {number}" if number else name))
    return SavedReports(tuple(reports), several or len(reports) > 1)


def read_array_report(file: str, *, most_bytes: int | None = None) -> Report | None:
    """Read the report in an array file; return None for arrays from another tool."""
    text = report_beside_arrays(file, most_bytes=most_bytes)
    if text is None:
        return None
    refuse_size(file, len(text) * BYTES_PER_BYTE, most_bytes)
    data, *more = documents(text, file)
    if more:
        raise UserError(f"{file}: holds several reports, but an array file holds only one report")
    for parent, key, name in _array_places(data):
        try:
            parent[key] = read_stored(file, name=name, most_bytes=most_bytes)
        except NoSuchArray:
            raise UserError(f"{file}: the array {name} of its report is missing") from None
    return to_report(data, file)


def _array_places(data: Any) -> list[tuple[dict[str, Any], str, str]]:
    """Return the object and key of each array in the JSON form, and its name in the file.

    Damaged parts are skipped.
    """
    tensors, statistics, axes = (_mapping(data, key) for key in ("tensors", "statistics", "statistic_axes"))
    objects = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, dict)}
    places = [(tensor, "values", name) for name, tensor in objects.items()]
    masks = {name: _mapping(tensor, "mask") for name, tensor in objects.items()}
    places += [(mask, "visible", f"visible.{name}") for name, mask in masks.items() if "visible" in mask]
    for group in axes:
        members = _mapping(statistics, group)
        places += [(members, name, f"{group}.{name}") for name in _mapping(axes, group) if name in members]
    return places


def _mapping(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def to_report(data: Any, document: str) -> Report:
    """Build the report that a JSON object describes. Raises UserError for an invalid object."""
    try:
        _refuse_unknown_forms(data)
        _refuse_names_and_numbers(data)
        report = SAVED.validate_python(data).restored()
        check_sizes(report)
    except ValidationError as failure:
        raise UserError(f"{document}: {_line(failure.errors(include_url=False)[0])}") from None
    except ValueError as error:
        raise UserError(f"{document}: {error}") from None
    return report


def _refuse_unknown_forms(data: Any) -> None:
    if not isinstance(data, dict):
        raise ValueError(
            f"is not a saved report, which -o run.json writes: it must be an object {_got(data)}"
        )
    if "schema_version" not in data:
        raise ValueError(
            "is not a saved report (schema_version is missing): attn reads reports from -o FILE.json, and "
            "arrays "
            "(.npz, .npy, .safetensors, .pt)"
        )
    version = data["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(f"schema_version: this attn reads version {SCHEMA_VERSION} (got {version!r:.20})")


def _refuse_names_and_numbers(value: Any, path: KeyPath = ()) -> None:
    """Raise ValueError for special characters in names, huge numbers and deep nesting outside tensors."""
    match path:
        case (
            ("tensors", _, "values") | ("tensors", _, "mask", "visible") | ("statistics", "rows" | "keys", _)
        ):
            return
    if len(path) > DEEPEST:
        raise ValueError(f"{_place(path)}is nested too deeply")
    if isinstance(value, dict):
        for name, item in value.items():
            if not is_plain_name(name):
                raise ValueError(
                    f"{_place(path)}has a name that is unprintable or too long: {reprlib.repr(name)}"
                )
            _refuse_names_and_numbers(item, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _refuse_names_and_numbers(item, (*path, number))
    elif isinstance(value, float | int) and abs(value) > {float: LARGEST}.get(type(value), LARGEST_WHOLE):
        raise ValueError(f"{_place(path)}is too large a number")


def _line(error: ErrorDetails) -> str:
    """Return the place and the reason of a validation error."""
    path = error["loc"]
    if error["type"] == "missing":
        return f"{_place(path[:-1])}{path[-1]} is missing"
    if error["type"] == "unexpected_keyword_argument":
        hint = nearest(str(path[-1]), (part.name for part in fields(SavedReport)))
        return f"{_place(path[:-1])}unknown name {reprlib.repr(path[-1])}{hint}"
    got = "" if error["type"] == "value_error" else f" {_got(error['input'])}"
    return f"{_place(path)}{expectation(error)}{got}"


def _place(path: KeyPath) -> str:
    """Return `tensors.weights: ` or `tokens[1]: `, or an empty string for the whole document."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{place.removeprefix('.')}: " if path else ""


def _got(value: Any) -> str:
    return f"(got {JSON_KINDS.get(type(value)) or reprlib.repr(value)})"
