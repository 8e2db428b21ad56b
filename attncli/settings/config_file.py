"""Config files: parsing with the line and column of every value, their JSON Schema, and writing settings.

The type of a value is that of its key, so `sentence: yes`, `seed: 012` and `eps: 1e-5` keep their meaning,
whereas YAML 1.1 would read a Boolean, an octal number and a string.
"""

import json
import re
from collections.abc import Iterator
from collections.abc import Mapping as Settings
from contextlib import suppress
from decimal import Decimal
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from attncli.errors import UserError, hints_for_first_lines, nearest
from attncli.settings import SPECS, every_setting_of, spec_class_of
from attncli.settings.fields import (
    NO_PREVIOUS,
    Given,
    Spec,
    build_spec,
    current,
    setting_errors,
    values_of,
    with_key_names,
)
from attncli.settings.overrides import Overrides, overridden, replaced_keys
from attncli.settings.text import PATH_KEYS, SAMPLED_EMBEDDINGS, is_vector_file, names_file
from attncli.system.files import SETTINGS_BYTES, read_whole
from attncli.system.plain_text import binary_kind

MAX_DEPTH = 16
NULLS = ("", "~", "null", "Null", "NULL")


class Scalar(NamedTuple):
    text: str | None
    line: int
    column: int


class Sequence(NamedTuple):
    items: list["Node"]
    line: int
    column: int


class Mapping(NamedTuple):
    items: list[tuple[Scalar, "Node"]]
    line: int
    column: int


Node = Scalar | Sequence | Mapping


def place(path: Path | str, node: Node) -> str:
    """Return a place like `configs/x.yaml:7:3`, the form that editors and compilers use."""
    return f"{path}:{node.line}:{node.column}"


def read_yaml(path: Path) -> Node:
    """Parse the single document of a YAML file. Raises UserError, naming the place, if it is not plain YAML.

    Aliases, tags and nesting beyond 16 levels are refused: settings do not need them, and with them a small
    file can expand without bound or construct objects.
    """
    try:
        content = read_whole(path, SETTINGS_BYTES, may_be_pipe=True)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        wrong = binary_kind(content) or f"is not UTF-8 text (byte {error.start})"
        raise UserError(f"{path}: {wrong}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return _document(path, yaml.parse(text, Loader=_loader(len(text))))
    except yaml.MarkedYAMLError as error:
        mark, message = _syntax_error(error, text.split("\n"))
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise UserError(f"{where}: {message}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}:{line}: character U+{error.character:04X} is not allowed in YAML") from None


BRACKETS = {"while parsing a flow sequence": ("[", "]"), "while parsing a flow mapping": ("{", "}")}
"""The brackets for each context in the parser's messages."""


def _syntax_error(error: yaml.MarkedYAMLError, lines: list[str]) -> tuple[yaml.Mark | None, str]:
    """Return the place of a syntax error, the problem, and how to fix it.

    An unclosed bracket or quote is reported where it was opened, not where the parser gives up.
    """
    mark, opened, problem = error.problem_mark, error.context_mark, error.problem or ""
    if mark is None:
        return None, f"is not valid YAML: {problem}"
    line = lines[mark.line] if mark.line < len(lines) else ""
    before, at = line[: mark.column], line[mark.column : mark.column + 1]
    if at == "\t" or "\\t" in problem:
        return mark, "contains a tab: use spaces, both for indentation and between a key and its value"
    if opened is not None and error.context in BRACKETS:
        first, last = BRACKETS[error.context]
        if opened.line < mark.line or "stream end" in problem:
            return opened, f"{first} is not closed: write {last} after its last item"
        return mark, f"must be a comma, or {last} to close the {first} in column {opened.column + 1}"
    if opened is not None and "quoted scalar" in (error.context or ""):
        if "escape" in problem:
            return mark, f"\\{at} is not an escape sequence: put the text in single quotes"
        quote = lines[opened.line][opened.column]
        return opened, f"{quote} is not closed: write {quote} at the end of the text"
    if opened is not None and problem.startswith("could not find expected ':'"):
        return opened, "has no colon: write KEY: VALUE, with a space after the colon"
    if problem.startswith("expected <block end>") and ":" in before:
        return (
            mark,
            "text after the closing quote: put a text that contains quotes in the other kind of quotes",
        )
    is_key = KEY.fullmatch(before.strip(" -")) is not None
    if problem.startswith("expected <block end>") or (problem.startswith("mapping values") and is_key):
        return mark, "is indented differently from the lines before it: indent the keys of a mapping equally"
    if problem.startswith("sequence entries"):
        return mark, "a list must start on a new line, or be written in brackets: [A, B]"
    if "cannot start any token" in problem or problem.startswith("expected the node content"):
        return mark, f"a value cannot begin with {at}{_in_quotes(line)}"
    return mark, f"is not valid YAML: {problem}{_in_quotes(line)}"


def _in_quotes(line: str) -> str:
    """Return the advice to quote a value that YAML does not read as plain text, or an empty string."""
    key, colon, value = line.partition(":")
    value = value.strip()
    if not colon or not KEY.fullmatch(key.strip(" -")) or not value or value[0] in "\"'":
        return ""
    quoted = f'"{value}"' if not {'"', "\\"} & {*value} else "'" + value.replace("'", "''") + "'"
    return f": put the text in quotes: {key.strip(' -')}: {quoted}"


KEY = re.compile(r"[A-Za-z_-]+")
LONG = 2**16
"""Characters of a file that Python's parser takes a second to read."""


def _loader(length: int) -> Any:
    """Return Python's parser, which has better error messages, or the parser in C for long files."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader) if length > LONG else yaml.SafeLoader


def _document(path: Path, events: Iterator[yaml.Event]) -> Node:
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            break
    else:
        raise UserError(f"{path}: is empty: it must contain `experiment: NAME` or `steps:`")
    node = _node(path, next(events), events, depth=1)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            message = "must be a single document: use `steps:` for several experiments"
            raise UserError("{}:{}:{}: {}".format(path, *_position(event), message))
    return node


def _position(event: yaml.Event) -> tuple[int, int]:
    assert event.start_mark is not None, "the parser marks every event"
    return event.start_mark.line + 1, event.start_mark.column + 1


def _node(path: Path, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
    line, column = _position(event)

    def refuse(message: str) -> UserError:
        return UserError(f"{path}:{line}:{column}: {message}")

    if isinstance(event, yaml.AliasEvent):
        raise refuse(f"alias *{event.anchor}: aliases are not allowed: write the value out")
    if depth > MAX_DEPTH:
        raise refuse(f"nested deeper than {MAX_DEPTH} levels")
    assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
    if event.tag is not None:
        raise refuse(f"tag {event.tag}: tags are not allowed: write the plain value")
    if isinstance(event, yaml.ScalarEvent):
        plain_null = event.style is None and event.value in NULLS
        return Scalar(None if plain_null else event.value, line, column)
    children = []
    while not isinstance(following := next(events), yaml.CollectionEndEvent):
        children.append(_node(path, following, events, depth + 1))
    if isinstance(event, yaml.SequenceStartEvent):
        return Sequence(children, line, column)
    pairs = []
    for key, value in zip(children[::2], children[1::2], strict=True):
        if not isinstance(key, Scalar) or key.text is None:
            raise UserError(f"{place(path, key)}: a key must be a word")
        pairs.append((key, value))
    return Mapping(pairs, line, column)


KeyNodes = dict[str, tuple[Scalar, Node]]

EXPERIMENT_SYNONYMS = ("command", "cmd", "subcommand", "name", "run")
"""Names in other tools for the key `experiment`."""
STRUCTURE = ("experiment", "steps", "defaults", "sweep")


def _plain(node: Node) -> tuple[Any, str | None]:
    """Return the value of a setting, a string or a list of strings, or else the error in it."""
    match node:
        case Scalar():
            return node.text, None
        case Sequence():
            texts = [item.text for item in node.items if isinstance(item, Scalar)]
            return (
                (texts, None) if len(texts) == len(node.items) else (None, "must be a list of plain values")
            )
        case Mapping():
            return None, "must be a value, not a mapping"


def _relative(path: Path, key: str, value: Any) -> Any:
    """Resolve paths against the file's folder; `model` and `answer` are paths only if such a path exists."""
    if isinstance(value, list):
        return [_relative(path, key, item) for item in value]
    if key == "model" and isinstance(value, str) and (path.parent / value).exists():
        return str(path.parent / value)
    if key == "answer" and isinstance(value, str) and names_file(str(path.parent / value)):
        return str(path.parent / value)
    is_path = key in PATH_KEYS and isinstance(value, str) and value != "-" and is_vector_file(value)
    # Joined as strings, because a Path would turn `./random` into `random`, a way of sampling.
    return f"{path.parent}/{value}" if is_path and not Path(value).is_absolute() else value


MOST_DIGITS = 15
"""The most digits of a number in a range, before and after the point."""


def _is_plain(number: Decimal) -> bool:
    if not number.is_finite():
        return False
    exponent = number.normalize().as_tuple().exponent
    return isinstance(exponent, int) and number.adjusted() < MOST_DIGITS and exponent >= -MOST_DIGITS


class ConfigReader:
    """Reads the settings of one file and collects all errors before reporting them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors: list[str] = []

    def error(self, node: Node, key: str, message: str) -> None:
        """Record an error about a key together with its place."""
        self.errors.append(f"{place(self.path, node)}: {key}: {message}")

    def keys(self, mapping: Mapping) -> KeyNodes:
        """Return the keys of a mapping, each with its own node and its value's node."""
        nodes: KeyNodes = {}
        for key, value in mapping.items:
            name = key.text or ""
            if name in nodes:
                self.error(key, name, f"duplicate key, first used on line {nodes[name][0].line}")
            else:
                nodes[name] = (key, value)
        return nodes

    def settings(self, nodes: KeyNodes, allowed: tuple[str, ...] = ()) -> dict[str, Given]:
        """Return the settings among the keys; `allowed` are the structural keys permitted here."""
        settings = {}
        for name, (key, node) in nodes.items():
            if name in EXPERIMENT_SYNONYMS and "experiment" not in nodes:
                command = node.text if isinstance(node, Scalar) and node.text in SPECS else "NAME"
                self.error(key, name, f"unknown key: name the command with experiment: {command}")
                continue
            if name in STRUCTURE:
                if name == "experiment" and name not in allowed:
                    self.error(key, name, "must be named in each step")
                elif name not in allowed:
                    keys = "`steps:` or `experiment:`" if name == "sweep" else "`steps:`"
                    self.error(key, name, f"must be at the top level of the file, next to {keys}")
                continue
            value, problem = _plain(node)
            if problem:
                self.error(key, name, problem)
            elif value is not None:
                settings[name] = Given(_relative(self.path, name, value), place(self.path, key))
        return settings

    def swept_values(self, name: str, nodes: list[Node]) -> list[Given]:
        """Return the values in a list to sweep over, each with its place."""
        values = []
        for node in nodes:
            value, problem = _plain(node)
            if problem or value is None:
                self.error(node, name, problem or "must be a value (got nothing)")
            else:
                values.append(Given(_relative(self.path, name, value), place(self.path, node)))
        return values

    def range_of(self, name: str, where: Scalar, mapping: Mapping) -> list[Given]:
        """Return the values of `{from: 4, to: 16, step: 4}`, including both ends, at the place of the key."""
        ends: dict[str, Decimal] = {"step": Decimal(1)}
        for key, (_, node) in self.keys(mapping).items():
            if key not in ("from", "to", "step"):
                self.error(where, name, f"must be a range such as {{from: 4, to: 16, step: 4}} (got {key})")
                return []
            with suppress(ArithmeticError, TypeError):
                ends[key] = Decimal(node.text or "" if isinstance(node, Scalar) else "")
        if not {"from", "to"} <= ends.keys() or not all(map(_is_plain, ends.values())):
            self.error(where, name, "must be a range of numbers, such as {from: 4, to: 16, step: 4}")
            return []
        steps = (ends["to"] - ends["from"]) / ends["step"] if ends["step"] else Decimal(-1)
        if not 0 <= steps < MAX_POINTS:
            message = f"must have from 1 to {MAX_POINTS:,} values: `step` must lead from `from` to `to`"
            self.error(where, name, message)
            return []
        values = (ends["from"] + number * ends["step"] for number in range(int(steps) + 1))
        return [Given(format(value, "f"), place(self.path, where)) for value in values]

    def spec(self, experiment: str, given: Settings[str, Given]) -> Spec | None:
        """Return the validated settings of an experiment, or None after recording their errors."""
        try:
            return build_spec(spec_class_of(experiment, values_of(given)), given)
        except UserError as error:
            self.errors += error.lines
            return None

    def raise_errors(self) -> None:
        """Raise UserError with all errors collected so far, in line order."""

        def position(line: str) -> tuple[int, ...]:
            place = re.match(r":(\d+):(\d+):", line.removeprefix(str(self.path)))
            return tuple(map(int, place.groups())) if place else (0, 0)

        if self.errors:
            raise UserError(*sorted(dict.fromkeys(self.errors), key=position))


MAX_POINTS = 100_000


class Entry(NamedTuple):
    """One experiment of a file: its settings, whether its seed restarts the generator, and its place.

    `starts` is True for the first entry of each point of the file's grid.
    """

    spec: Spec
    given: dict[str, Given]
    reseed: bool
    source: str
    starts: bool


class WrittenEntry(NamedTuple):
    """An entry as written in the file, without the grid's values."""

    experiment: str
    settings: dict[str, Given]
    source: str

    @property
    def spec_class(self) -> type[Spec]:
        """The Spec with all settings that may be written here."""
        return every_setting_of(self.experiment)


class Point(NamedTuple):
    """One combination of swept values and its name, like `head_dim 8, causal true`."""

    given: dict[str, Given]
    label: str


def _joined(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _grid(axes: Settings[str, list[Given]]) -> Iterator[Point]:
    """Yield every combination, the last key's values changing fastest, or only one if nothing is swept."""
    for values in product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        yield Point(settings, ", ".join(f"{key} {_joined(value.value)}" for key, value in settings.items()))


class ConfigFile:
    """The experiments of a YAML file."""

    def __init__(self, path: Path, overrides: Overrides | None = None) -> None:
        self.path = path
        self.overrides = overrides or {}
        self.reader = ConfigReader(path)
        root = read_yaml(path)
        if not isinstance(root, Mapping):
            is_text = isinstance(root, Scalar) and path.suffix not in (".yaml", ".yml")
            texts = f": use --file {path} for a text" if is_text else ""
            message = f"must be a mapping with `experiment: NAME` or `steps:`{texts}"
            raise UserError(f"{place(path, root)}: {message}")
        self.keys = self.reader.keys(root)
        self.has_steps = "steps" in self.keys

    def single(self, experiment: str) -> dict[str, Given]:
        """Return the settings of a file that has one experiment, for `attn NAME --config FILE`."""
        for name, makes in (("steps", "holds"), ("sweep", "makes")):
            if name in self.keys:
                where = place(self.path, self.keys[name][0])
                advice = f"run them with `attn batch {self.path}`"
                raise UserError(f"{where}: {name}: {makes} several experiments: {advice}")
        if "experiment" in self.keys:
            key, node = self.keys["experiment"]
            if not isinstance(node, Scalar) or node.text != experiment:
                value = node.text if isinstance(node, Scalar) else "no name"
                message = f"must be {experiment} for this command (got {value})"
                raise UserError(f"{place(self.path, key)}: experiment: {message}")
        settings = self.reader.settings(self.keys, ("experiment",))
        if self.reader.errors:
            self.reader.spec(experiment, settings)
        self.reader.raise_errors()
        return settings

    @hints_for_first_lines()
    def entries(self) -> list[Entry]:
        """Return every experiment of the file and its grid, validated. Raises UserError with all errors."""
        written = [entry for keys in self._entry_keys() if (entry := self._written(keys))]
        defaults = self._defaults([entry.spec_class for entry in written]) if self.has_steps else {}
        axes = self._axes(written, defaults) if "sweep" in self.keys else {}
        if (
            "sweep" in self.keys and self.reader.errors
        ):  # entries cannot be validated without the values of the grid
            for entry in written:
                for key, value in entry.settings.items():
                    self.reader.errors += setting_errors(key, value, [entry.spec_class])
            self.reader.raise_errors()
        entries: list[Entry] = []
        for point in _grid(axes):
            point_entries: list[Entry] = []
            for entry in written:
                if complete := self._entry(entry, defaults, point, point_entries):
                    point_entries.append(complete)
            entries += point_entries
        self.reader.raise_errors()
        return entries

    def _defaults(self, step_classes: list[type[Spec]]) -> dict[str, Given]:
        """Return the settings under `defaults`, each validated by the first step that has its key."""
        for name, (key, _) in self.keys.items():
            if name not in STRUCTURE:
                self.reader.error(key, name, "must be in a step or under `defaults:`")
            elif name == "experiment":
                self.reader.error(key, name, "cannot be combined with steps: put it in each step")
        if "defaults" not in self.keys:
            return {}
        key, node = self.keys["defaults"]
        if not isinstance(node, Mapping):
            self.reader.error(key, "defaults", "must be a mapping of settings")
            return {}
        settings = self.reader.settings(self.reader.keys(node))
        for name, value in settings.items():
            self.reader.errors += setting_errors(name, value, [*step_classes, *map(every_setting_of, SPECS)])
        return settings

    def _axes(self, written: list[WrittenEntry], defaults: Settings[str, Given]) -> dict[str, list[Given]]:
        """Return the swept keys with their values, except for keys that an override replaces."""
        key, node = self.keys["sweep"]
        if not isinstance(node, Mapping) or not node.items:
            self.reader.error(key, "sweep", "must be a mapping from settings to lists of values")
            return {}
        fixed = (
            dict(defaults)
            if self.has_steps
            else {k: v for entry in written for k, v in entry.settings.items()}
        )
        axes = {}
        for name, (where, values) in self.reader.keys(node).items():
            if name in fixed:
                self.reader.error(where, name, f"is also set at {fixed[name].where}: remove one of the two")
            elif isinstance(values, Mapping):
                axes[name] = self.reader.range_of(name, where, values)
            elif not isinstance(values, Sequence) or not values.items:
                message = "must be a list of values to sweep over, or a range: {from: 4, to: 16, step: 4}"
                self.reader.error(where, name, message)
            else:
                axes[name] = self.reader.swept_values(name, values.items)
            if name in axes:
                for value in axes[name] if written else ():
                    self.reader.errors += setting_errors(name, value, [entry.spec_class for entry in written])
        axes = {name: values for name, values in axes.items() if name not in replaced_keys(self.overrides)}
        if (num_points := prod(map(len, axes.values()))) > MAX_POINTS:
            self.reader.error(key, "sweep", f"makes {num_points:,} points, which is more than {MAX_POINTS:,}")
        return axes

    def _entry_keys(self) -> list[KeyNodes]:
        if not self.has_steps:
            return [self.keys]
        key, node = self.keys["steps"]
        if not isinstance(node, Sequence) or not node.items:
            self.reader.error(key, "steps", "must be a list of experiments")
            return []
        for item in node.items:
            if not isinstance(item, Mapping):
                self.reader.error(item, "steps", "each step must be a mapping with `experiment: NAME`")
        return [self.reader.keys(item) for item in node.items if isinstance(item, Mapping)]

    def _written(self, keys: KeyNodes) -> WrittenEntry | None:
        """Return an experiment with its settings, or None after recording an error about its name."""
        settings = self.reader.settings(keys, ("experiment",) if self.has_steps else ("experiment", "sweep"))
        if "experiment" not in keys and keys.keys() & {*EXPERIMENT_SYNONYMS}:
            return None
        if "experiment" not in keys:
            where = next((key for key, _ in keys.values()), Scalar(None, 1, 1))
            self.reader.error(where, "experiment", f"must be given: one of {', '.join(SPECS)}")
            return None
        key, node = keys["experiment"]
        name = node.text if isinstance(node, Scalar) else None
        if name is None or name not in SPECS:
            name_or_none = repr(name) if name is not None else "no name"
            hint = nearest(name or "", SPECS)
            self.reader.error(
                key, "experiment", f"got {name_or_none}{hint}: must be one of {', '.join(SPECS)}"
            )
            return None
        return WrittenEntry(name, settings, place(self.path, key))

    def _entry(
        self, written: WrittenEntry, defaults: Settings[str, Given], point: Point, before: list[Entry]
    ) -> Entry | None:
        """Return the entry at a point of the grid, whose values override defaults but not the entry's."""
        (experiment, settings, source), spec_class = written, written.spec_class
        outer = {**defaults, **point.given}
        shared = current(spec_class, {key: outer[key] for key in outer if spec_class.reads_key(key)})
        given = overridden(spec_class, shared | current(spec_class, settings), self.overrides)
        if "embedding" in given and given["embedding"].value == "previous":
            dims = [dim for entry in before if (dim := entry.spec.table_dim()) is not None]
            if not dims:
                self.reader.errors.append(given["embedding"].line("embedding", NO_PREVIOUS))
                return None
            given.setdefault("embed_dim", Given(str(dims[-1]), given["embedding"].where))
        spec = self.reader.spec(experiment, given)
        source = f"{source} ({point.label})" if point.label else source
        return Entry(spec, given, "seed" in settings, source, not before) if spec else None


OBJECT = {"type": "object", "additionalProperties": False}


def _experiment_schema(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = every_setting_of(name).model_json_schema()
    definitions |= schema.pop("$defs", {})
    for setting in schema["properties"].values():
        setting["description"] = with_key_names(setting["description"], flags=False)
    experiment = {"const": name, "description": "which experiment"}
    return {
        "title": name,
        **OBJECT,
        "properties": {"experiment": experiment, **schema["properties"]},
        "required": [*schema.get("required", []), "experiment"],
    }


RANGE_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["from", "to"],
    "properties": {name: {"type": "number"} for name in ("from", "to", "step")},
}


def _sweep_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": "lists of values, with one experiment for each combination",
        **OBJECT,
        "minProperties": 1,
        "properties": {
            key: {"anyOf": [{"type": "array", "minItems": 1, "items": value}, RANGE_SCHEMA]}
            for key, value in properties.items()
        },
    }


def _settings(experiment: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in experiment["properties"].items() if key != "experiment"}


def _with_sweep(experiment: dict[str, Any]) -> dict[str, Any]:
    sweep = _sweep_schema(_settings(experiment))
    return experiment | {"properties": experiment["properties"] | {"sweep": sweep}}


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of config files, which hold one experiment, steps with defaults, or a grid."""
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
        "title": "A config file for attn",
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
    """Escape characters that YAML or a terminal would not take literally."""
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def _portable(key: str, value: Any) -> Any:
    """Return the value with absolute paths, because the paths in a file are relative to the file."""
    if isinstance(value, list):
        return [_portable(key, item) for item in value]
    is_path = key in PATH_KEYS and value not in (None, "-", *SAMPLED_EMBEDDINGS)
    exists = key == "model" and value is not None and Path(value).exists()
    exists = exists or (key == "answer" and value is not None and names_file(value))
    return str(Path(value).absolute()) if is_path or exists else value


def _unreadable_defaults(spec: Spec, given: Settings[str, Given]) -> set[str]:
    """Return the settings whose default values would be refused in a file that has the given settings."""
    spec_class = type(spec)
    values = {
        key: value for key in spec_class.model_fields if (value := getattr(spec, key, None)) is not None
    }
    everything = spec_class.model_construct({*values} - spec.unused_keys(), **values)
    return {problem.key for problem in everything.contradictions()} - given.keys()


def resolved_yaml(spec: Spec, given: Settings[str, Given]) -> str:
    """Return a line per setting, like `head_dim: 16 # --head-dim`; if unset or unused, it is a comment."""
    lines = [f"experiment: {spec.experiment}"]
    ignored = spec.unused_keys() | _unreadable_defaults(spec, given)
    for key in type(spec).model_fields:
        value = _portable(key, getattr(spec, key, None))
        origin = given[key].where if key in given and given[key].value is not None else "default"
        unused = value is None or key in ignored
        lines.append(f"# {key}: none" if unused else f"{key}: {_yaml_value(value)}  # {_visible(origin)}")
    return "\n".join(lines) + "\n"
