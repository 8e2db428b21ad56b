"""A report that was saved as arrays (.npz, .safetensors), with all else of it as JSON beside them."""

from typing import Any

from attncli.errors import UserError
from attncli.report import Report
from attncli.saved.arrays import NoSuchArray, read_stored, report_beside_arrays
from attncli.saved.documents import documents
from attncli.saved.reports import to_report


def read_array_report(file: str, *, most_bytes: int | None = None) -> Report | None:
    """The report that a file of arrays holds; None where they are another tool's."""
    text = report_beside_arrays(file, most_bytes=most_bytes)
    if text is None:
        return None
    data, *more = documents(text, file)
    if more:
        raise UserError(f"{file}: holds several reports beside its arrays")
    for entries, key, name in _places(data):
        try:
            entries[key] = read_stored(file, name=name, most_bytes=most_bytes)
        except NoSuchArray:
            raise UserError(f"{file}: the array {name} of its report is missing") from None
    return to_report(data, file)


def _places(data: Any) -> list[tuple[dict[str, Any], str, str]]:
    """Where each array belongs in the JSON form, and its name in the file; what is damaged has no place."""
    tensors, statistics, axes = (_mapping(data, key) for key in ("tensors", "statistics", "statistic_axes"))
    places = [(tensor, "values", name) for name, tensor in tensors.items() if isinstance(tensor, dict)]
    for group in axes:
        members = _mapping(statistics, group)
        places += [(members, name, f"{group}.{name}") for name in _mapping(axes, group) if name in members]
    return places


def _mapping(data: Any, key: str) -> dict[str, Any]:
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}
