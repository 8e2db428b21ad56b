"""Settings that override every file: `--set KEY=VALUE`."""

from collections.abc import Iterable, Mapping
from typing import get_origin

from attncli.errors import UserError
from attncli.settings.fields import ALTERNATIVES, Given, Spec, current, unknown_key

Overrides = Mapping[str, Given]


def parse_overrides(texts: Iterable[str]) -> dict[str, Given]:
    """Parse `KEY=VALUE` settings. Raises UserError for a string without `=` and for a repeated key."""
    settings: dict[str, Given] = {}
    errors = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            errors.append(f"--set: must be KEY=VALUE (got {text!r})")
        elif key in settings:
            errors.append(f"--set {key}: must be given only once")
        else:
            settings[key] = Given(value, f"--set {key}", is_flag=True)
    if errors:
        raise UserError(*errors)
    return settings


def unknown_overrides(overrides: Overrides, specs: Iterable[type[Spec]]) -> list[str]:
    """Return an error line for each override that no experiment of the plan accepts."""
    specs = list(specs)
    keys = {key for spec in specs for key in spec.model_fields}
    messages = {
        key: unknown_key(key, value.value, keys)
        for key, value in overrides.items()
        if not any(spec.reads_key(key) for spec in specs)
    }
    return [
        overrides[key].line(key, message + (" for these experiments" if message == "unknown key" else ""))
        for key, message in messages.items()
    ]


def replaced_keys(overrides: Overrides) -> set[str]:
    """Return the keys that overrides replace: their own, and other sources of any text that they set."""
    groups = [group for group in ALTERNATIVES if overrides.keys() & set(group)]
    return {*overrides, *(key for group in groups for key in group)}


def overridden(
    spec_class: type[Spec], settings: Mapping[str, Given], overrides: Overrides
) -> dict[str, Given]:
    """Return the settings with those overrides that this experiment reads; lists are comma-separated."""
    fields = spec_class.model_fields
    overriding = current(
        spec_class, {key: value for key, value in overrides.items() if spec_class.reads_key(key)}
    )
    unchanged = {key: value for key, value in settings.items() if key not in replaced_keys(overriding)}
    for key, value in overriding.items():
        if get_origin(fields[key].annotation) is list:
            overriding[key] = value._replace(value=[part.strip() for part in value.value.split(",")])
    return unchanged | overriding
