"""YAML as nodes that know their line and column; every scalar stays the text that was written.

The key decides what a value means, so `sentence: yes`, `seed: 012` and `eps: 1e-5` mean what they say, where
YAML 1.1 would make them a truth value, an octal number and a text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from attncli.errors import UserError

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
    """`configs/x.yaml:7:3`, as editors and compilers write a place in a file."""
    return f"{path}:{node.line}:{node.column}"


def read_yaml(path: Path) -> Node:
    """The single document of a YAML file; UserError with the place for what is not plain YAML.

    Aliases, tags and nesting beyond 16 levels are refused: a settings file needs none of them, and they can
    make a small file expand without bound or construct objects.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return _document(path, yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise UserError(f"{where}: is not valid YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}:{line}: character U+{error.character:04X} is not allowed in YAML") from None


def _document(path: Path, events: Iterator[yaml.Event]) -> Node:
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            break
    else:
        raise UserError(f"{path}: is empty: it must hold `experiment: NAME` or `steps:`")
    node = _node(path, next(events), events, depth=1)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            message = "a second document: a file holds one, use `steps:` for several experiments"
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
        raise refuse(f"alias *{event.anchor}: aliases are not allowed, write the value out")
    if depth > MAX_DEPTH:
        raise refuse(f"nested deeper than {MAX_DEPTH} levels")
    assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
    if event.tag is not None:
        raise refuse(f"tag {event.tag}: tags are not allowed, write the plain value")
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
