"""From given settings to a Spec, or to every error at once, each with the place that it came from."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from attncli.errors import UserError, nearest
from attncli.plain_text import note
from attncli.settings.fields import Spec, flag_name, in_words_of
from attncli.settings.text import ALTERNATIVES

AnySpec = TypeVar("AnySpec", bound=Spec)


class Given(NamedTuple):
    """A value that somebody gave, and where: `configs/x.yaml:7:3` or `--head-dim`."""

    value: Any
    where: str
    is_flag: bool = False

    def line(self, key: str, message: str) -> str:
        """The error line for this value: `where: key: message`, or `where: key (10) must be ...`.

        A flag's name says its key already. Keys are flags for who typed this one.
        """
        flags = self.where.startswith("--") and not self.where.startswith("--set")
        joint = " " if message.startswith("(") else ": "
        named = self.where if self.is_flag else f"{self.where}: {flag_name(key) if flags else key}"
        return f"{named}{joint}{in_words_of(message, flags=flags)}"


# fmt: off
FLAGS = {
    "format", "output", "open", "title", "show", "step", "precision", "color", "scale_colors",
    "skip_first_keys", "skip_sink", "config", "show_config", "set", "dry_run", "fresh", "rows", "weights",
    "workers", "scheduler", "fail_fast", "expect", "debug",
}
# fmt: on
"""The flags of commands that are no settings: no config file may set them."""

NO_PREVIOUS = "previous needs a step before it that has a table of words: it keeps that step's vectors"


def unknown_key(key: str, value: Any, known: Iterable[str]) -> str:
    """What is wrong with a key that is no setting: a flag says so, else the nearest setting is named."""
    name = key.replace("-", "_")
    if name not in FLAGS:
        return f"unknown key{nearest(key, known)}"
    argument = "" if str(value) in ("true", "false") else f" {_shown(value)}"
    return f"is a flag of the command, not a setting: give it as --{name.replace('_', '-')}{argument}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        value = f"[{', '.join(map(str, value))}]"
    text = value if isinstance(value, str) and value.strip() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


MESSAGES = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must hold at least {min_length}",
    "literal_error": "must be one of {expected}",
    "int_parsing_size": "must be a smaller whole number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "dataclass_type"), "must be an object"),
}


def _choices(context: dict[str, Any]) -> str:
    return str(context["expected"]).replace("'", "")


def expectation(error: ErrorDetails) -> str:
    """In our own words what pydantic wanted of a value."""
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] not in MESSAGES:
        return error["msg"]
    words = {key: f"{value:g}" if isinstance(value, float) else value for key, value in context.items()}
    if "expected" in context:
        words["expected"] = _choices(context)
    return MESSAGES[error["type"]].format(**words)


def error_message(error: ErrorDetails) -> str:
    """One line for an error of pydantic's: what the value must be, and what it is."""
    if error["type"] == "value_error":
        return expectation(error)
    wanted, got = expectation(error), f"got {_shown(error['input'])}"
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        known = _choices(error["ctx"]).replace(" or ", ", ").split(", ")
        if hint := nearest(error["input"], known):
            return f"{got}{hint}: {wanted}"
    return f"{wanted} ({got})"


def _field_errors(
    spec_class: type[AnySpec], values: Mapping[str, Any]
) -> tuple[AnySpec | None, dict[str, str]]:
    try:
        return spec_class.model_validate(values), {}
    except ValidationError as failure:
        # A default that depends on a bad value is no error of its own.
        errors = [e for e in failure.errors() if e["type"] != "default_factory_not_called"]
        found = {str(error["loc"][0]): error_message(error) for error in reversed(errors)}
    fields = spec_class.model_fields
    for key, value in values.items():
        if value and isinstance(value, list) and get_origin(fields[key].annotation) is not list:
            shown = _shown(value)
            found[key] = f"takes one value (got {shown}): to run each, write {key}: {shown} below sweep:"
    return None, found


def current(spec_class: type[Spec], given: Mapping[str, Given]) -> dict[str, Given]:
    """The settings as they are called now, each by itself: `head: 24:4` is a layer and a head.

    A former name is read with a note on standard error. A head whose layer is given otherwise stays whole,
    which is an error of its own.
    """
    found: dict[str, Given] = {}
    for key, value in given.items():
        name = spec_class.former_keys.get(key, key)
        if name != key:
            note(value.line(key, f"is now called {name}"))
        parts = spec_class.parts_of(name, value.value)
        differ = [
            part for part in parts.keys() & given.keys() - {key} if str(given[part].value) != parts[part]
        ]
        parts = {name: value.value} if differ else parts
        found |= {part: value._replace(value=of_part) for part, of_part in parts.items()}
    return found


def setting_errors(key: str, value: Given, specs: Iterable[type[Spec]]) -> list[str]:
    """What is wrong with a setting by itself, for the first experiment that has it: one line, or none."""
    specs = list(specs)
    spec_class = next((spec for spec in specs if spec.reads_key(key)), None)
    if spec_class is None:
        known = {name for spec in specs for name in spec.model_fields}
        return [value.line(key, unknown_key(key, value.value, known))]
    parts = current(spec_class, {key: value})
    _, errors = _field_errors(spec_class, {name: part.value for name, part in parts.items()})
    return [value.line(name, message) for name, message in errors.items()]


def build_spec(spec_class: type[AnySpec], given: Mapping[str, Given]) -> AnySpec:
    """The validated settings of an experiment; UserError with one line for each thing that is wrong.

    A value of None counts as not given. Contradictions among the settings that are valid are reported
    together with those that are not.
    """
    known = spec_class.model_fields
    given = current(spec_class, given)
    lines = []
    for key, value in given.items():
        if key not in known:
            message = unknown_key(key, value.value, known)
            more = f" for {spec_class.experiment}; known: {', '.join(known)}"
            lines.append(value.line(key, message + (more if message == "unknown key" else "")))
    values = {k: v.value for k, v in given.items() if k in known and v.value is not None}

    spec, errors = _field_errors(spec_class, values)
    if spec is None:
        lines += [given[key].line(key, message) for key, message in errors.items() if key in given]
        spec, _ = _field_errors(spec_class, {k: v for k, v in values.items() if k not in errors})
    if spec is not None:
        for key, message, keys in spec.contradictions():
            if not keys & errors.keys():
                source = next(given[k] for k in (key, *sorted(keys), *given) if k in given)
                lines.append(source._replace(is_flag=source.is_flag and key in given).line(key, message))
    if lines:
        raise UserError(*dict.fromkeys(lines))
    assert spec is not None
    return spec.chosen()


def checked_spec(spec_class: type[AnySpec], given: Mapping[str, Given]) -> AnySpec:
    """The settings of a single experiment; UserError with every mistake."""
    spec = build_spec(spec_class, given)
    if "embedding" in given and given["embedding"].value == "previous":
        raise UserError(given["embedding"].line("embedding", NO_PREVIOUS))
    return spec


def with_maps(spec_class: type[Spec], given: Mapping[str, Given], reason: str) -> dict[str, Given]:
    """The settings with which a survey keeps what each head looks at, because it is drawn."""
    if spec_class.drawn_maps is not None and not {"statistic", "texts", "relations"} & given.keys():
        return {"maps": Given(spec_class.drawn_maps, reason), **given}
    return dict(given)


Overrides = Mapping[str, Given]


def parse_overrides(texts: Iterable[str]) -> dict[str, Given]:
    """The settings of `KEY=VALUE` texts; UserError for one that is none, and for a key given twice."""
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
    """The keys that overrides replace: their own, and the alternatives to a text that they give."""
    groups = [group for group in ALTERNATIVES if overrides.keys() & set(group)]
    return {*overrides, *(key for group in groups for key in group)}


def overridden(spec_class: type[Spec], given: Mapping[str, Given], overrides: Overrides) -> dict[str, Given]:
    """The given settings with the overrides that this experiment has; a list stands between commas."""
    fields = spec_class.model_fields
    own = current(spec_class, {key: value for key, value in overrides.items() if spec_class.reads_key(key)})
    kept = {key: value for key, value in given.items() if key not in replaced_by(own)}
    for key, value in own.items():
        if get_origin(fields[key].annotation) is list:
            own[key] = value._replace(value=[part.strip() for part in value.value.split(",")])
    return kept | own
