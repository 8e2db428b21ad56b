"""A config file: one experiment, or steps with defaults, as given settings that know their lines."""

from pathlib import Path
from typing import Any, NamedTuple

from attncli.errors import UserError, nearest
from attncli.spec import SPECS
from attncli.spec.fields import Spec
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
    """One experiment of a file: its settings, and whether it starts its generator anew."""

    spec: Spec
    given: dict[str, Given]
    reseed: bool
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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors: list[str] = []
        root = read_yaml(path)
        if not isinstance(root, Mapping):
            raise UserError(f"{place(path, root)}: must be a mapping with `experiment: NAME` or `steps:`")
        self.entries = self._entries(root)
        if "sweep" in self.entries:
            self._error(self.entries["sweep"][0], "sweep", "is not supported yet: write `steps:`")
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
                    self._error(key, name, "must stand at the top of the file, beside `steps:`")
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
        if "experiment" in self.entries:
            key, node = self.entries["experiment"]
            if not isinstance(node, Scalar) or node.text != experiment:
                named = node.text if isinstance(node, Scalar) else "no name"
                message = f"must be {experiment} for this command (got {named})"
                raise UserError(f"{place(self.path, key)}: experiment: {message}")
        given = self._settings(self.entries, ("experiment", "sweep"))
        if self.errors:
            self._validated(SPECS[experiment], given)
        self._raise_errors()
        return given

    def steps(self) -> list[Step]:
        """Every experiment of the file, validated; UserError with all that is wrong in it."""
        defaults = self._defaults() if self.has_steps else {}
        steps: list[Step] = []
        for entries in self._step_entries() if self.has_steps else [self.entries]:
            step = self._step(entries, defaults, steps)
            steps += [step] if step else []
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

    def _step_entries(self) -> list[Entries]:
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

    def _step(self, entries: Entries, defaults: dict[str, Given], before: list[Step]) -> Step | None:
        allowed = ("experiment",) if self.has_steps else ("experiment", "sweep")
        own = self._settings(entries, allowed)
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
        spec_class = SPECS[name]
        given = {k: v for k, v in defaults.items() if k in spec_class.model_fields} | own
        if "embedding" in given and given["embedding"].value == "previous":
            table = next((s.spec for s in reversed(before) if has_table(s.spec)), None)
            if table is None:
                self.errors.append(given["embedding"].line("embedding", NO_PREVIOUS))
                return None
            assert isinstance(table, TextSpec)
            given.setdefault("embed_dim", Given(str(table.embed_dim), given["embedding"].where))
        spec = self._validated(spec_class, given)
        return Step(spec, given, "seed" in own, place(self.path, key)) if spec else None

    def _validated(self, spec_class: type[Spec], given: dict[str, Given]) -> Spec | None:
        try:
            return build_spec(spec_class, given)
        except UserError as error:
            self.errors += error.lines
            return None

    def _raise_errors(self) -> None:
        """Every error so far, in the order of the lines."""

        def position(line: str) -> tuple[int, ...]:
            return tuple(int(n) for n in line.removeprefix(f"{self.path}:").split(":")[:2])

        if self.errors:
            raise UserError(*sorted(dict.fromkeys(self.errors), key=position))
