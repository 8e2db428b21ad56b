"""A config file: one experiment, or steps with defaults, or a grid of either; settings know their lines."""

import re
from collections.abc import Mapping as Settings
from pathlib import Path
from typing import Any, NamedTuple

from attncli.errors import UserError, nearest
from attncli.spec import SPECS
from attncli.spec.fields import Spec
from attncli.spec.overrides import Overrides, overridden, replaced_by
from attncli.spec.sweep import MAX_POINTS, Point, grid, num_points
from attncli.spec.text import PATH_KEYS, TextSpec, is_vector_file
from attncli.spec.validation import Given, build_spec, setting_errors
from attncli.spec.yaml_nodes import Mapping, Node, Scalar, Sequence, place, read_yaml

Entries = dict[str, tuple[Scalar, Node]]

STRUCTURE = ("experiment", "steps", "defaults", "sweep")


NO_PREVIOUS = "previous needs a step before it that has a table of words: it keeps that step's vectors"


def has_table(spec: Spec) -> bool:
    """Whether an experiment leaves a table of words' vectors to the next."""
    return isinstance(spec, TextSpec) and spec.embedding not in ("gaussian", "integers")


class Step(NamedTuple):
    """One experiment of a file: its settings, whether it starts its generator anew, and where it stands.

    `starts` is true for the first step of the file, and of each point of its grid.
    """

    spec: Spec
    given: dict[str, Given]
    reseed: bool
    source: str
    starts: bool


class Part(NamedTuple):
    """A step as it is written, before the grid's values join it."""

    spec_class: type[Spec]
    own: dict[str, Given]
    source: str


def _plain(node: Node) -> tuple[Any, str | None]:
    """The value of a setting as text or a list of texts, or what is wrong with it."""
    match node:
        case Scalar():
            return node.text, None
        case Sequence():
            if all(isinstance(item, Scalar) for item in node.items):
                return [item.text for item in node.items if isinstance(item, Scalar)], None
            return None, "must be a list of plain values"
        case Mapping():
            return None, "must be a value, not a mapping"


def _relative(path: Path, key: str, value: Any) -> Any:
    """Paths in a file are relative to it; a model is a path where there is such a folder."""
    if key == "model" and isinstance(value, str) and (path.parent / value).is_dir():
        return str(path.parent / value)
    is_path = key in PATH_KEYS and isinstance(value, str) and value != "-" and is_vector_file(value)
    # Joined as text: a Path would make `./random` the name of a way to draw.
    return f"{path.parent}/{value}" if is_path and not Path(value).is_absolute() else value


class ConfigFile:
    """The settings of a YAML file, collected with every error before any is told."""

    def __init__(self, path: Path, overrides: Overrides | None = None) -> None:
        self.path = path
        self.overrides = overrides or {}
        self.errors: list[str] = []
        root = read_yaml(path)
        if not isinstance(root, Mapping):
            raise UserError(f"{place(path, root)}: must be a mapping with `experiment: NAME` or `steps:`")
        self.entries = self._entries(root)
        self.has_steps = "steps" in self.entries

    def _error(self, node: Node, key: str, message: str) -> None:
        self.errors.append(f"{place(self.path, node)}: {key}: {message}")

    def _entries(self, mapping: Mapping) -> Entries:
        entries: Entries = {}
        for key, value in mapping.items:
            name = key.text or ""
            if name in entries:
                self._error(key, name, f"duplicate key, first given on line {entries[name][0].line}")
            else:
                entries[name] = (key, value)
        return entries

    def _settings(self, entries: Entries, allowed: tuple[str, ...]) -> dict[str, Given]:
        """The settings among the entries; of the words of the file's structure only these may stand here."""
        given = {}
        for name, (key, node) in entries.items():
            if name in STRUCTURE:
                if name not in allowed:
                    beside = "`steps:` or `experiment:`" if name == "sweep" else "`steps:`"
                    self._error(key, name, f"must stand at the top of the file, beside {beside}")
                continue
            value, problem = _plain(node)
            if problem:
                self._error(key, name, problem)
            elif value is not None:
                given[name] = Given(_relative(self.path, name, value), place(self.path, key))
        return given

    def single(self, experiment: str) -> dict[str, Given]:
        """The settings of a file for one experiment, as `attn NAME --config FILE` wants them."""
        if self.has_steps:
            key = self.entries["steps"][0]
            message = f"holds several experiments: run them with `attn batch {self.path}`"
            raise UserError(f"{place(self.path, key)}: steps: {message}")
        if "sweep" in self.entries:
            key = self.entries["sweep"][0]
            message = f"makes several experiments: run them with `attn batch {self.path}`"
            raise UserError(f"{place(self.path, key)}: sweep: {message}")
        if "experiment" in self.entries:
            key, node = self.entries["experiment"]
            if not isinstance(node, Scalar) or node.text != experiment:
                named = node.text if isinstance(node, Scalar) else "no name"
                message = f"must be {experiment} for this command (got {named})"
                raise UserError(f"{place(self.path, key)}: experiment: {message}")
        given = self._settings(self.entries, ("experiment",))
        if self.errors:
            self._validated(SPECS[experiment], given)
        self._raise_errors()
        return given

    def steps(self) -> list[Step]:
        """Every experiment of the file and its grid, validated; UserError with all that is wrong in it."""
        defaults = self._defaults() if self.has_steps else {}
        parts = [self._part(entries) for entries in self._step_entries()]
        known = [part for part in parts if part is not None]
        axes = self._axes(known, defaults) if "sweep" in self.entries else {}
        if "sweep" in self.entries and self.errors:  # without its values the rest cannot be judged together
            for part in known:
                self.errors += [
                    e for k, v in part.own.items() for e in setting_errors(k, v, [part.spec_class])
                ]
            self._raise_errors()
        steps: list[Step] = []
        for point in grid(axes):
            of_point: list[Step] = []
            for part in known:
                step = self._step(part, defaults, point, of_point)
                of_point += [step] if step else []
            steps += of_point
        self._raise_errors()
        return steps

    def _defaults(self) -> dict[str, Given]:
        for name, (key, _) in self.entries.items():
            if name not in STRUCTURE:
                self._error(key, name, "must stand in a step or under `defaults:`")
            elif name == "experiment":
                self._error(key, name, "cannot be combined with steps: name it in each step")
        if "defaults" not in self.entries:
            return {}
        key, node = self.entries["defaults"]
        if not isinstance(node, Mapping):
            self._error(key, "defaults", "must be a mapping of settings")
            return {}
        given = self._settings(self._entries(node), ())
        for name, value in given.items():
            self.errors += setting_errors(name, value, SPECS.values())
        return given

    def _axes(self, parts: list[Part], defaults: Settings[str, Given]) -> dict[str, list[Given]]:
        """The swept keys with their values, less those that an override puts aside."""
        key, node = self.entries["sweep"]
        if not isinstance(node, Mapping) or not node.items:
            self._error(key, "sweep", "must be a mapping from settings to lists of values")
            return {}
        fixed = dict(defaults) if self.has_steps else {k: v for part in parts for k, v in part.own.items()}
        axes = {}
        for name, (where, values) in self._entries(node).items():
            if name in fixed:
                self._error(where, name, f"is given at {fixed[name].where}, too: sweep it, or give it")
            elif not isinstance(values, Sequence) or not values.items:
                self._error(where, name, "must be a list of values to sweep over")
            else:
                axes[name] = [given for item in values.items if (given := self._value(name, item))]
                for given in axes[name] if parts else ():
                    self.errors += setting_errors(name, given, [part.spec_class for part in parts])
        axes = {name: given for name, given in axes.items() if name not in replaced_by(self.overrides)}
        if num_points(axes) > MAX_POINTS:
            self._error(key, "sweep", f"makes {num_points(axes):,} points, more than {MAX_POINTS:,}")
        return axes

    def _value(self, name: str, node: Node) -> Given | None:
        value, problem = _plain(node)
        if problem or value is None:
            self._error(node, name, problem or "must be a value (got nothing)")
            return None
        return Given(_relative(self.path, name, value), place(self.path, node))

    def _step_entries(self) -> list[Entries]:
        if not self.has_steps:
            return [self.entries]
        key, node = self.entries["steps"]
        if not isinstance(node, Sequence) or not node.items:
            self._error(key, "steps", "must be a list of experiments")
            return []
        mappings = []
        for item in node.items:
            if isinstance(item, Mapping):
                mappings.append(self._entries(item))
            else:
                self._error(item, "steps", "each step must be a mapping with `experiment: NAME`")
        return mappings

    def _part(self, entries: Entries) -> Part | None:
        """A step's experiment and its own settings; None where it names no experiment, which is an error."""
        own = self._settings(entries, ("experiment",) if self.has_steps else ("experiment", "sweep"))
        if "experiment" not in entries:
            where = next((key for key, _ in entries.values()), Scalar(None, 1, 1))
            self._error(where, "experiment", f"must be given: one of {', '.join(SPECS)}")
            return None
        key, node = entries["experiment"]
        name = node.text if isinstance(node, Scalar) else None
        if name is None or name not in SPECS:
            shown = repr(name) if name is not None else "no name"
            hint = nearest(name or "", SPECS)
            self._error(key, "experiment", f"must be one of {', '.join(SPECS)} (got {shown}){hint}")
            return None
        return Part(SPECS[name], own, place(self.path, key))

    def _step(
        self, part: Part, defaults: Settings[str, Given], point: Point, before: list[Step]
    ) -> Step | None:
        """The step at one point of the grid; the point's values stand between the defaults and its own."""
        fields = part.spec_class.model_fields
        shared = {key: value for key, value in {**defaults, **point.given}.items() if key in fields}
        given = overridden(part.spec_class, shared | part.own, self.overrides)
        if "embedding" in given and given["embedding"].value == "previous":
            table = next((s.spec for s in reversed(before) if has_table(s.spec)), None)
            if table is None:
                self.errors.append(given["embedding"].line("embedding", NO_PREVIOUS))
                return None
            assert isinstance(table, TextSpec)
            given.setdefault("embed_dim", Given(str(table.embed_dim), given["embedding"].where))
        spec = self._validated(part.spec_class, given)
        source = f"{part.source} ({point.label})" if point.label else part.source
        return Step(spec, given, "seed" in part.own, source, not before) if spec else None

    def _validated(self, spec_class: type[Spec], given: dict[str, Given]) -> Spec | None:
        try:
            return build_spec(spec_class, given)
        except UserError as error:
            self.errors += error.lines
            return None

    def _raise_errors(self) -> None:
        """Every error so far, in the order of the lines."""

        def position(line: str) -> tuple[int, ...]:
            place = re.match(r":(\d+):(\d+):", line.removeprefix(str(self.path)))
            return tuple(map(int, place.groups())) if place else (0, 0)

        if self.errors:
            raise UserError(*sorted(dict.fromkeys(self.errors), key=position))
