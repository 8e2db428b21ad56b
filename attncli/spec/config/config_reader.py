"""The nodes of a config file as given settings that know their lines, and every error among them."""

import re
from collections.abc import Mapping as Settings
from pathlib import Path
from typing import Any

from attncli.errors import UserError
from attncli.spec.config.validation import Given, build_spec
from attncli.spec.config.yaml_nodes import Mapping, Node, Scalar, Sequence, place
from attncli.spec.fields import Spec
from attncli.spec.text import PATH_KEYS, is_vector_file

KeyNodes = dict[str, tuple[Scalar, Node]]

STRUCTURE = ("experiment", "steps", "defaults", "sweep")


def _plain(node: Node) -> tuple[Any, str | None]:
    """The value of a setting as text or a list of texts, or what is wrong with it."""
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
    """Paths in a file are relative to it; a model is a path where there is such a folder or file."""
    if key == "model" and isinstance(value, str) and (path.parent / value).exists():
        return str(path.parent / value)
    is_path = key in PATH_KEYS and isinstance(value, str) and value != "-" and is_vector_file(value)
    # Joined as text: a Path would make `./random` the name of a way to sample.
    return f"{path.parent}/{value}" if is_path and not Path(value).is_absolute() else value


class ConfigReader:
    """Reads the settings of one file, and collects every error before any is reported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.errors: list[str] = []

    def error(self, node: Node, key: str, message: str) -> None:
        """Collect what is wrong with a key at its place."""
        self.errors.append(f"{place(self.path, node)}: {key}: {message}")

    def keys(self, mapping: Mapping) -> KeyNodes:
        """The keys of a mapping, each with its own node and that of its value."""
        nodes: KeyNodes = {}
        for key, value in mapping.items:
            name = key.text or ""
            if name in nodes:
                self.error(key, name, f"duplicate key, first given on line {nodes[name][0].line}")
            else:
                nodes[name] = (key, value)
        return nodes

    def settings(self, nodes: KeyNodes, allowed: tuple[str, ...] = ()) -> dict[str, Given]:
        """The settings among the keys; of the words of the file's structure only these may stand here."""
        given = {}
        for name, (key, node) in nodes.items():
            if name in STRUCTURE:
                if name not in allowed:
                    beside = "`steps:` or `experiment:`" if name == "sweep" else "`steps:`"
                    self.error(key, name, f"must stand at the top of the file, beside {beside}")
                continue
            value, problem = _plain(node)
            if problem:
                self.error(key, name, problem)
            elif value is not None:
                given[name] = Given(_relative(self.path, name, value), place(self.path, key))
        return given

    def swept_values(self, name: str, nodes: list[Node]) -> list[Given]:
        """The values of a list to sweep over, each with its own place."""
        given = []
        for node in nodes:
            value, problem = _plain(node)
            if problem or value is None:
                self.error(node, name, problem or "must be a value (got nothing)")
            else:
                given.append(Given(_relative(self.path, name, value), place(self.path, node)))
        return given

    def spec(self, spec_class: type[Spec], given: Settings[str, Given]) -> Spec | None:
        """The validated settings of an experiment; None where something is wrong with them."""
        try:
            return build_spec(spec_class, given)
        except UserError as error:
            self.errors += error.lines
            return None

    def raise_errors(self) -> None:
        """UserError with every error so far, in the order of the lines."""

        def position(line: str) -> tuple[int, ...]:
            place = re.match(r":(\d+):(\d+):", line.removeprefix(str(self.path)))
            return tuple(map(int, place.groups())) if place else (0, 0)

        if self.errors:
            raise UserError(*sorted(dict.fromkeys(self.errors), key=position))
