"""The resolved settings as YAML that can be run again, each with where it came from."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attncli.spec.config.validation import Given
from attncli.spec.config.yaml_nodes import NULLS
from attncli.spec.fields import Spec
from attncli.spec.text import PATH_KEYS, SAMPLED_EMBEDDINGS

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def _yaml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml_value, value))}]"
    if isinstance(value, str) and PLAIN.fullmatch(value) and value not in NULLS:
        return value
    return _visible(json.dumps(value, ensure_ascii=False))


def _visible(text: str) -> str:
    """What neither YAML nor a terminal would take as it is, as escapes of a quoted YAML text."""
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _portable(key: str, value: Any) -> Any:
    """Paths in a file are relative to it, wherever it will be: so they are written in full."""
    is_path = key in PATH_KEYS and value not in (None, "-", *SAMPLED_EMBEDDINGS)
    is_here = key == "model" and value is not None and Path(value).exists()
    return str(Path(value).absolute()) if is_path or is_here else value


def resolved_yaml(spec: Spec, given: Mapping[str, Given]) -> str:
    """One line per setting: `head_dim: 16  # --head-dim`; a setting without a value is a comment."""
    lines = [f"experiment: {spec.experiment}"]
    for key in type(spec).model_fields:
        value = _portable(key, getattr(spec, key))
        origin = given[key].where if key in given and given[key].value is not None else "default"
        unused = value is None or key in spec.unused_keys()
        lines.append(f"# {key}: none" if unused else f"{key}: {_yaml_value(value)}  # {_visible(origin)}")
    return "\n".join(lines) + "\n"
