"""A report as the data of a page: JSON with texts sanitised and arrays encoded as text."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import NamedTensor, Report, Tensors, plain
from attncli.views.heading import heading, subtitle, title
from attncli.views.matrices import (
    KEY_AXES,
    compared_names,
    hidden_cells,
    is_weights,
    shared_axes,
    whole_heads,
)
from attncli.views.page.encoding import encoded

# Beyond these a page takes too long to open; it names what is left out.
MAX_NUMBERS = 1 << 22
MAX_WEIGHTS = 1 << 26

# Characters that end a script's text or begin markup in it; JSON reads their escapes as the same text.
ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def report_data(report: Report) -> dict[str, Any]:
    """What the page's script reads of one report."""
    tensors = {name: tensor for name, tensor in report.tensors.items() if not _is_too_large(tensor)}
    statistics = {name: value for name, value in report.statistics.items() if not isinstance(value, Tensors)}
    return {
        "heading": heading(report),
        "title": title(report),
        "subtitle": subtitle(report),
        "experiment": report.experiment,
        "settings": {name: plain_text(_setting(value)) for name, value in report.spec.items()},
        "environment": {name: plain_text(value) for name, value in report.environment.items()},
        "sought": {key: [plain_text(name) for name in report.spec.get(key) or ()] for key in ("from", "to")},
        "tokens": [plain_text(token) for token in report.tokens],
        "context_tokens": [plain_text(token) for token in report.context_tokens],
        "first_query": report.first_query,
        "tensors": [_map_data(report, name, tensor) for name, tensor in tensors.items()],
        "left_out": [
            f"{name}: {' × '.join(map(str, tensor.values.shape))}"
            for name, tensor in report.tensors.items()
            if name not in tensors
        ],
        "whole_heads": {name: "{}:{}".format(*place) for place, name in whole_heads(report).items()},
        "rows": [_tensor_data(name, tensor) for name, tensor in report.tensors_of("rows").items()],
        "keys": [_tensor_data(name, tensor) for name, tensor in report.tensors_of("keys").items()],
        "statistics": _sanitised(plain(statistics)),
        "steps": _sanitised(plain(report.fields().get("steps", []))),
        "notes": [plain_text(note) for note in report.notes],
    }


def _map_data(report: Report, name: str, tensor: NamedTensor) -> dict[str, Any]:
    """A tensor as the page draws it: no number for a hidden key, and the tensors that share its colours."""
    return {
        **_tensor_data(name, tensor, hidden_cells(report, name, tensor)),
        "is_weights": is_weights(name, tensor.axes[-2:]),
        "compared": [plain_text(other) for other in compared_names(report, name)],
    }


def _tensor_data(name: str, tensor: NamedTensor, hidden: np.ndarray | None = None) -> dict[str, Any]:
    """A tensor with its name and axes; where every matrix of it is the same, one, and `shared` says so."""
    shared = shared_axes(tensor)
    first = (0,) * len(shared)
    values = tensor.values[first] if hidden is None else np.where(hidden, np.nan, tensor.values)[first]
    axes = list(tensor.axes[len(shared) :])
    return {"name": plain_text(name), "axes": axes, "shared": list(shared), **encoded(values)}


def page_json(data: Any) -> str:
    """JSON that is safe within a page: in ASCII, with nothing in it that HTML would read as markup."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(ESCAPES)


def _is_too_large(tensor: NamedTensor) -> bool:
    is_weights = tensor.axes[-1] in KEY_AXES and tensor.values.min(initial=0) >= 0
    return bool(tensor.values.size > (MAX_WEIGHTS if is_weights else MAX_NUMBERS))


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _sanitised(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Mapping):
        return {plain_text(str(name)): _sanitised(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_sanitised(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
