"""The JSON Schema of a config file, for editors."""

from typing import Any

from attncli.spec import SPECS

OBJECT = {"type": "object", "additionalProperties": False}


def _experiment_schema(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = SPECS[name].model_json_schema()
    definitions |= schema.pop("$defs", {})
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
