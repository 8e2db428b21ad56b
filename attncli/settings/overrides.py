"""Settings that override those of every file: `--set KEY=VALUE`."""

from collections.abc import Iterable, Mapping
from typing import get_origin

from attncli.errors import UserError
from attncli.settings.fields import ALTERNATIVES, Given, Spec, current, unknown_key

Overrides = Mapping[str, Given]


def parse_overrides(texts: Iterable[str]) -> dict[str, Given]:
    """Parse `KEY=VALUE` settings. Raises UserError for a text without `=`, and for a key given twice."""
    given: dict[str, Given] = {}
    errors = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            errors.append(f"--set: must be KEY=VALUE (got {text!r})")
        elif key in given:
            errors.append(f"--set {key}: is given twice")
        else:
            given[key] = Given(value, f"--set {key}", is_flag=True)
    if errors:
        raise UserError(*errors)
    return given


def unknown_overrides(overrides: Overrides, specs: Iterable[type[Spec]]) -> list[str]:
    """A line for each override that no experiment of the plan has."""
    specs = list(specs)
    known = {key for spec in specs for key in spec.model_fields}
    messages = {
        key: unknown_key(key, value.value, known)
        for key, value in overrides.items()
        if not any(spec.reads_key(key) for spec in specs)
    }
    return [
        overrides[key].line(key, message + (" for these experiments" if message == "unknown key" else ""))
        for key, message in messages.items()
    ]


def replaced_by(overrides: Overrides) -> set[str]:
    """The keys that overrides replace: theirs, and the alternatives to a text that they give."""
    groups = [group for group in ALTERNATIVES if overrides.keys() & set(group)]
    return {*overrides, *(key for group in groups for key in group)}


def overridden(spec_class: type[Spec], given: Mapping[str, Given], overrides: Overrides) -> dict[str, Given]:
    """The given settings with the overrides that this experiment reads; a list has commas."""
    fields = spec_class.model_fields
    overriding = current(
        spec_class, {key: value for key, value in overrides.items() if spec_class.reads_key(key)}
    )
    kept = {key: value for key, value in given.items() if key not in replaced_by(overriding)}
    for key, value in overriding.items():
        if get_origin(fields[key].annotation) is list:
            overriding[key] = value._replace(value=[part.strip() for part in value.value.split(",")])
    return kept | overriding
