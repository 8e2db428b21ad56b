"""A config file: one experiment, or several with defaults, or a grid of either; settings know their lines."""

from collections.abc import Iterator
from collections.abc import Mapping as Settings
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

from attncli.errors import UserError, nearest
from attncli.spec import SPECS
from attncli.spec.config.config_reader import STRUCTURE, ConfigReader, KeyNodes
from attncli.spec.config.overrides import Overrides, overridden, replaced_by
from attncli.spec.config.validation import NO_PREVIOUS, Given, setting_errors
from attncli.spec.config.yaml_nodes import Mapping, Scalar, Sequence, place, read_yaml
from attncli.spec.fields import Spec

MAX_POINTS = 100_000


class Entry(NamedTuple):
    """One experiment of a file: its settings, whether it starts its generator anew, and where it stands.

    `starts` is true for the first entry of the file, and of each point of its grid.
    """

    spec: Spec
    given: dict[str, Given]
    reseed: bool
    source: str
    starts: bool


class WrittenEntry(NamedTuple):
    """An entry as it is written, before the grid's values join it."""

    spec_class: type[Spec]
    own: dict[str, Given]
    source: str


class Point(NamedTuple):
    """One combination of swept values, and its name: `head_dim 8, causal true`."""

    given: dict[str, Given]
    label: str


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _grid(axes: Settings[str, list[Given]]) -> Iterator[Point]:
    """Every combination, the last key's values changing first; one where nothing is swept."""
    for values in product(*axes.values()):
        given = dict(zip(axes, values, strict=True))
        yield Point(given, ", ".join(f"{key} {_shown(value.value)}" for key, value in given.items()))


class ConfigFile:
    """The experiments of a YAML file."""

    def __init__(self, path: Path, overrides: Overrides | None = None) -> None:
        self.path = path
        self.overrides = overrides or {}
        self.reader = ConfigReader(path)
        root = read_yaml(path)
        if not isinstance(root, Mapping):
            raise UserError(f"{place(path, root)}: must be a mapping with `experiment: NAME` or `steps:`")
        self.keys = self.reader.keys(root)
        self.has_steps = "steps" in self.keys

    def single(self, experiment: str) -> dict[str, Given]:
        """The settings of a file for one experiment, as `attn NAME --config FILE` wants them."""
        for name, makes in (("steps", "holds"), ("sweep", "makes")):
            if name in self.keys:
                where = place(self.path, self.keys[name][0])
                instead = f"run them with `attn batch {self.path}`"
                raise UserError(f"{where}: {name}: {makes} several experiments: {instead}")
        if "experiment" in self.keys:
            key, node = self.keys["experiment"]
            if not isinstance(node, Scalar) or node.text != experiment:
                named = node.text if isinstance(node, Scalar) else "no name"
                message = f"must be {experiment} for this command (got {named})"
                raise UserError(f"{place(self.path, key)}: experiment: {message}")
        given = self.reader.settings(self.keys, ("experiment",))
        if self.reader.errors:
            self.reader.spec(SPECS[experiment], given)
        self.reader.raise_errors()
        return given

    def entries(self) -> list[Entry]:
        """Every experiment of the file and its grid, validated; UserError with all that is wrong in it."""
        defaults = self._defaults() if self.has_steps else {}
        written = [entry for keys in self._keys_of_entries() if (entry := self._written(keys))]
        axes = self._axes(written, defaults) if "sweep" in self.keys else {}
        if "sweep" in self.keys and self.reader.errors:  # without its values the rest cannot be judged
            for entry in written:
                for key, value in entry.own.items():
                    self.reader.errors += setting_errors(key, value, [entry.spec_class])
            self.reader.raise_errors()
        entries: list[Entry] = []
        for point in _grid(axes):
            of_point: list[Entry] = []
            for one in written:
                if complete := self._entry(one, defaults, point, of_point):
                    of_point.append(complete)
            entries += of_point
        self.reader.raise_errors()
        return entries

    def _defaults(self) -> dict[str, Given]:
        for name, (key, _) in self.keys.items():
            if name not in STRUCTURE:
                self.reader.error(key, name, "must stand in a step or under `defaults:`")
            elif name == "experiment":
                self.reader.error(key, name, "cannot be combined with steps: name it in each step")
        if "defaults" not in self.keys:
            return {}
        key, node = self.keys["defaults"]
        if not isinstance(node, Mapping):
            self.reader.error(key, "defaults", "must be a mapping of settings")
            return {}
        given = self.reader.settings(self.reader.keys(node))
        for name, value in given.items():
            self.reader.errors += setting_errors(name, value, SPECS.values())
        return given

    def _axes(self, written: list[WrittenEntry], defaults: Settings[str, Given]) -> dict[str, list[Given]]:
        """The swept keys with their values, minus those that an override replaces."""
        key, node = self.keys["sweep"]
        if not isinstance(node, Mapping) or not node.items:
            self.reader.error(key, "sweep", "must be a mapping from settings to lists of values")
            return {}
        fixed = (
            dict(defaults) if self.has_steps else {k: v for entry in written for k, v in entry.own.items()}
        )
        axes = {}
        for name, (where, values) in self.reader.keys(node).items():
            if name in fixed:
                self.reader.error(where, name, f"is given at {fixed[name].where}, too: sweep it, or give it")
            elif not isinstance(values, Sequence) or not values.items:
                self.reader.error(where, name, "must be a list of values to sweep over")
            else:
                axes[name] = self.reader.swept_values(name, values.items)
                for given in axes[name] if written else ():
                    self.reader.errors += setting_errors(name, given, [entry.spec_class for entry in written])
        axes = {name: given for name, given in axes.items() if name not in replaced_by(self.overrides)}
        if (num_points := prod(map(len, axes.values()))) > MAX_POINTS:
            self.reader.error(key, "sweep", f"makes {num_points:,} points, more than {MAX_POINTS:,}")
        return axes

    def _keys_of_entries(self) -> list[KeyNodes]:
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
        """An experiment and its own settings; None where it names no experiment, which is an error."""
        own = self.reader.settings(keys, ("experiment",) if self.has_steps else ("experiment", "sweep"))
        if "experiment" not in keys:
            where = next((key for key, _ in keys.values()), Scalar(None, 1, 1))
            self.reader.error(where, "experiment", f"must be given: one of {', '.join(SPECS)}")
            return None
        key, node = keys["experiment"]
        name = node.text if isinstance(node, Scalar) else None
        if name is None or name not in SPECS:
            shown = repr(name) if name is not None else "no name"
            hint = nearest(name or "", SPECS)
            self.reader.error(key, "experiment", f"must be one of {', '.join(SPECS)} (got {shown}){hint}")
            return None
        return WrittenEntry(SPECS[name], own, place(self.path, key))

    def _entry(
        self, written: WrittenEntry, defaults: Settings[str, Given], point: Point, before: list[Entry]
    ) -> Entry | None:
        """The entry at one point of the grid; the point's values stand between the defaults and its own."""
        spec_class, own, source = written
        fields = spec_class.model_fields
        shared = {key: value for key, value in {**defaults, **point.given}.items() if key in fields}
        given = overridden(spec_class, shared | own, self.overrides)
        if "embedding" in given and given["embedding"].value == "previous":
            dims = [dim for entry in before if (dim := entry.spec.table_dim()) is not None]
            if not dims:
                self.reader.errors.append(given["embedding"].line("embedding", NO_PREVIOUS))
                return None
            given.setdefault("embed_dim", Given(str(dims[-1]), given["embedding"].where))
        spec = self.reader.spec(spec_class, given)
        source = f"{source} ({point.label})" if point.label else source
        return Entry(spec, given, "seed" in own, source, not before) if spec else None
