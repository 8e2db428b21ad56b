"""Writes attncli/index.py from the cards of the built-in features: python tools/write_index.py [--check]

Features keep the order that they have there, which is that of help. A new one is last until moved by hand.

With --check it writes nothing, and fails if the index is stale. --package FOLDER is another copy of attncli.
"""

import argparse
import json
import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).parent.parent / "attncli"
HEAD = '''"""The built-in features by name, copied from their cards by `python tools/write_index.py`.

Commands, kinds of results, views and everything else on the cards come from this table: help imports no
feature.
"""

from collections.abc import Mapping
from functools import cache as computed_once
from typing import TYPE_CHECKING

from attncli.feature import Feature, LayerSource, Question, ReadingKind, View, features_in_use

'''
TAIL = '''

@computed_once
def installed_features() -> Mapping[str, Feature]:
    """Built-in features, then those of other packages; see `features_in_use`."""
    return features_in_use(FEATURES)


@computed_once
def readings() -> Mapping[str, ReadingKind]:
    """The kinds of files that models read besides texts, by name; the first card with a name counts."""
    kinds: dict[str, ReadingKind] = {}
    for feature in installed_features().values():
        kinds |= {what: kind for what, kind in feature.readings.items() if what not in kinds}
    return kinds
'''


def cards(package: Path) -> dict[str, Any]:
    """The card of each feature, with absolute places, by the name of its folder.

    The package's `__init__.py`, which imports the index, is not run: the index may be missing or damaged.
    """
    stand_in = ModuleType("attncli")
    stand_in.__path__ = [str(package)]
    sys.modules["attncli"] = stand_in
    from attncli.feature import with_absolute_places

    return {
        file.parent.name: with_absolute_places(
            runpy.run_path(str(file))["FEATURE"], f"attncli.features.{file.parent.name}"
        )
        for file in sorted((package / "features").glob("*/feature.py"))
    }


def in_order_of(index: Path, features: Mapping[str, Any]) -> dict[str, Any]:
    """The features in the order that they have in the index, which is theirs in help; new ones last."""
    text = index.read_text(encoding="utf-8") if index.exists() else ""
    before = [name for name in re.findall(r'^    "(\w+)": Feature\(', text, re.MULTILINE) if name in features]
    return {name: features[name] for name in (*before, *features)}


def literal(value: object, indent: str = "") -> Iterator[str]:
    """The lines of a value as a literal: texts on one line, else one line per item."""
    inner = f"{indent}    "
    opening, closing = "()"
    match value:
        case str():
            yield _text(value)
            return
        case bool() | None:
            yield str(value)
            return
        case Mapping():
            opening, closing = "{}"
            items = [(f"{_text(name)}: ", item) for name, item in value.items()]
        case tuple() if hasattr(value, "_field_defaults"):
            opening, defaults = f"{type(value).__name__}(", value._field_defaults
            fields = zip(type(value).__match_args__, value, strict=True)  # type: ignore[attr-defined]
            items = [(f"{name}=", item) for name, item in fields if item != defaults.get(name)]
        case tuple() if all(isinstance(item, str) for item in value):
            texts = ", ".join(map(_text, value))
            yield f"({texts},)" if len(value) == 1 else f"({texts})"
            return
        case tuple():
            items = [("", item) for item in value]
        case _:
            raise TypeError(f"a card holds texts, truth values, tuples and dicts (got {value!r})")
    if not items:
        yield f"{opening}{closing}"
        return
    yield opening
    for name, item in items:
        lines = [*literal(item, inner)]
        lines[0] = f"{inner}{name}{lines[0]}"
        yield from (*lines[:-1], f"{lines[-1]},")
    yield f"{indent}{closing}"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def index_of(package: Path) -> str:
    """The text of index.py."""
    features = in_order_of(package / "index.py", cards(package))
    functions = [item for card in features.values() for item in card.functions.items()]
    places = dict(sorted(functions, key=lambda item: (item[1].partition(":")[0], item[0])))
    checking = "".join(
        f"    from {place.partition(':')[0]} import {place.partition(':')[2]} as {name}\n"
        for name, place in places.items()
    )
    exported = f"""__all__ = [{", ".join(map(_text, sorted(places)))}]
\"\"\"Functions, for type checkers: at run time `attncli.NAME` imports them.\"\"\"

"""
    checking = f"if TYPE_CHECKING:\n{checking}\n" if checking else ""
    table = "\n".join(literal(features))
    return f"{HEAD}{checking}{exported}FEATURES: dict[str, Feature] = {table}\n{TAIL}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--package", type=Path, default=PACKAGE, metavar="FOLDER", help="a copy of attncli")
    arguments = parser.parse_args()
    file, text = arguments.package / "index.py", index_of(arguments.package)
    if not arguments.check:
        file.write_text(text, encoding="utf-8")
    elif not file.exists() or file.read_text(encoding="utf-8") != text:
        print(f"{file}: is stale: python tools/write_index.py writes it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
