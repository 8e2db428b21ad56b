"""The fields of a Spec as flags, so that every flag is a YAML key; the Spec reads their values."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from typer.core import TyperOption

from attncli.cli.command import option
from attncli.errors import UserError
from attncli.spec.config.validation import Given
from attncli.spec.fields import Spec

MAX_CHOICES_SHOWN = 8
FLAGS = {"num_examples": "--examples"}
"""The flags that are not called like their keys: `examples` are a Spec's own, for help."""


def flag_name(key: str) -> str:
    """`--head-dim` for `head_dim`."""
    return FLAGS.get(key, f"--{key.replace('_', '-')}")


def setting_options(spec_class: type[Spec]) -> list[TyperOption]:
    """A flag for each setting, its value None where it is not given; those of every experiment come last."""
    shared_last = sorted(spec_class.model_fields, key=lambda key: key in Spec.model_fields)
    return [_option(spec_class, key) for key in shared_last]


def _option(spec_class: type[Spec], key: str) -> TyperOption:
    field, group = spec_class.model_fields[key], spec_class.group_of(key)
    name, description = flag_name(key), f"{field.description}{default_text(field)}"
    if field.annotation is bool:
        return option(f"{name}/--no-{name[2:]}", help=description, kind=bool, group=group)
    return option(
        f"{key} {name}",
        description,
        kind=list[str] if _is_list(field) else str,
        metavar=metavar(key, field),
        choices=_choices(field.annotation),
        group=group,
    )


def given_flags(flags: dict[str, Any]) -> dict[str, Given]:
    """The flags that were given; the values of a list may be repeated flags or stand between commas."""
    given = {}
    for key, value in flags.items():
        if isinstance(value, list):
            value = [part.strip() for text in value for part in text.split(",")]
        if value not in (None, ()):
            given[key] = Given(value, flag_name(key), is_flag=True)
    return given


def refuse_given(values: Mapping[str, Any], reason: str) -> None:
    """UserError for the first flag that was given, which means nothing here."""
    for key, value in values.items():
        if value not in (None, ()):
            raise UserError(f"{flag_name(key)}: {reason}")


def metavar(key: str, field: FieldInfo) -> str:
    """How help names the values of a setting: its choices, a kind of number, a file or text."""
    choices, leaves = _choices(field.annotation), list(_leaves(field.annotation))
    numbers = ["NUMBER"] if float in leaves else ["INTEGER"] if int in leaves else []
    if key == "projection_order":
        return ",".join(choices)
    if len(choices) > MAX_CHOICES_SHOWN:
        return "STATISTIC" if "entropy" in choices else "NAME"
    if choices or numbers:
        return "|".join([*choices, *numbers]) + (",..." if _is_list(field) else "")
    return "FILE" if key.endswith("file") else "TEXT"


def default_text(field: FieldInfo) -> str:
    """` [default: 16]`, where a setting has one that follows from no other setting."""
    value = field.default
    if field.is_required() or value in (None, []) or field.default_factory is not None:
        return ""
    if isinstance(value, list):
        return f" [default: {','.join(f'{v:g}' if isinstance(v, float) else str(v) for v in value)}]"
    return f" [default: {str(value).lower() if isinstance(value, bool) else value}]"


def _choices(annotation: Any) -> list[str]:
    """The words that a setting may be, where it is one of some."""
    return [leaf for leaf in _leaves(annotation) if isinstance(leaf, str)]


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types and words of which an annotation is made."""
    parts = get_args(annotation)
    if not parts:
        yield annotation
    for part in parts:
        yield from _leaves(part)


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is list
