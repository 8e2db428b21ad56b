"""The JSON Schema of config files, and the resolved settings as YAML."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attncli.settings import SPECS
from attncli.settings.config_file import NULLS
from attncli.settings.fields import Spec, in_words_of
from attncli.settings.text import PATH_KEYS, SAMPLED_EMBEDDINGS, names_file
from attncli.settings.validation import Given

OBJECT = {"type": "object", "additionalProperties": False}


def _experiment_schema(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = SPECS[name].model_json_schema()
    definitions |= schema.pop("$defs", {})
    for setting in schema["properties"].values():
        setting["description"] = in_words_of(setting["description"], flags=False)
    experiment = {"const": name, "description": "which experiment"}
    return {
        "title": name,
        **OBJECT,
        "properties": {"experiment": experiment, **schema["properties"]},
        "required": [*schema.get("required", []), "experiment"],
    }


def _sweep_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": "lists of values, one experiment for each combination",
        **OBJECT,
        "minProperties": 1,
        "properties": {
            key: {"type": "array", "minItems": 1, "items": value} for key, value in properties.items()
        },
    }


def _settings(experiment: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in experiment["properties"].items() if key != "experiment"}


def _with_sweep(experiment: dict[str, Any]) -> dict[str, Any]:
    sweep = _sweep_schema(_settings(experiment))
    return experiment | {"properties": experiment["properties"] | {"sweep": sweep}}


def config_schema() -> dict[str, Any]:
    """One experiment, or steps with defaults, or a grid; the keys and types are those of the Specs."""
    definitions: dict[str, Any] = {}
    experiments = [_experiment_schema(name, definitions) for name in SPECS]
    every_key: dict[str, Any] = {}
    for experiment in experiments:
        for key, value in _settings(experiment).items():
            alternatives = every_key.setdefault(key, [])
            if value not in alternatives:
                alternatives.append(value)
    defaults = {
        key: values[0] if len(values) == 1 else {"anyOf": values} for key, values in every_key.items()
    }
    steps = {
        "title": "steps",
        **OBJECT,
        "required": ["steps"],
        "properties": {
            "defaults": {**OBJECT, "properties": defaults},
            "sweep": _sweep_schema(defaults),
            "steps": {"type": "array", "minItems": 1, "items": {"oneOf": experiments}},
        },
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A config file of attn",
        "oneOf": [*map(_with_sweep, experiments), steps],
    }
    return schema | ({"$defs": definitions} if definitions else {})


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
    if isinstance(value, list):
        return [_portable(key, one) for one in value]
    is_path = key in PATH_KEYS and value not in (None, "-", *SAMPLED_EMBEDDINGS)
    is_here = key == "model" and value is not None and Path(value).exists()
    is_here = is_here or (key == "answer" and value is not None and names_file(value))
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
