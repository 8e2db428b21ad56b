"""The JSON Schema of a config file, for editors."""

from typing import Any

from attncli.spec import SPECS


def _experiment_schema(name: str, definitions: dict[str, Any], *, required: bool) -> dict[str, Any]:
    schema = SPECS[name].model_json_schema()
    definitions |= schema.pop("$defs", {})
    properties = {"experiment": {"const": name, "description": "which experiment"}, **schema["properties"]}
    extra = ["experiment"] if required else []
    return {
        "title": name,
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": [*schema.get("required", []), *extra],
    }


def config_schema() -> dict[str, Any]:
    """One experiment, or steps with defaults; the keys and types are those of the Specs."""
    definitions: dict[str, Any] = {}
    experiments = [_experiment_schema(name, definitions, required=True) for name in SPECS]
    every_key: dict[str, Any] = {}
    for spec in SPECS.values():
        for key, value in spec.model_json_schema()["properties"].items():
            alternatives = every_key.setdefault(key, [])
            if value not in alternatives:
                alternatives.append(value)
    defaults = {
        key: values[0] if len(values) == 1 else {"anyOf": values} for key, values in every_key.items()
    }
    steps = {
        "title": "steps",
        "type": "object",
        "additionalProperties": False,
        "required": ["steps"],
        "properties": {
            "defaults": {"type": "object", "additionalProperties": False, "properties": defaults},
            "steps": {"type": "array", "minItems": 1, "items": {"oneOf": experiments}},
        },
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A config file of attn",
        "oneOf": [*experiments, steps],
    }
    return schema | ({"$defs": definitions} if definitions else {})
