"""Blocks that features add to the page for classes of results: a section and the script that fills it."""

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from attncli.feature import LoadedOnUse
from attncli.index import installed_features
from attncli.records.columns import Result
from attncli.records.kinds import class_place
from attncli.records.report import Report, Table


@dataclass(frozen=True, kw_only=True)
class PageBlock:
    """A section of the page: above the maps if `is_above`, otherwise below them.

    `name` is its id and `label` its name for screen readers. `script` and `style` are files of `folder`. The
    script is a module that exports `show(container, report, data)`; the function `data` computes the last
    argument, or returns None for a report without the block. The block takes the place of the report's parts
    in `replaces` (table names and `picture_maps`), which the page then does not show. `tables` returns tables
    that the page has instead of the report's, by name, for example in another order.
    """

    name: str
    label: str
    folder: Traversable
    script: str
    style: str = ""
    data: Callable[[Report], object] = lambda report: {}
    is_above: bool = False
    replaces: tuple[str, ...] = ()
    tables: Callable[[Report], Mapping[str, Table]] = lambda report: {}

    def __post_init__(self) -> None:
        for name in filter(None, (self.script, self.style)):
            if not (self.folder / name).is_file():
                raise FileNotFoundError(f"{name} is not in the folder of the block {self.name}")

    def section(self) -> str:
        """Return the empty HTML section."""
        return f'  <section id="{self.name}" class="block" aria-label="{self.label}" hidden></section>\n'


PLACES_OF_BLOCKS: dict[str, tuple[str, ...]] = {}
"""The places of the blocks of each class of results, by the place of the class."""
for feature in installed_features().values():
    for kind, place in feature.page.items():
        PLACES_OF_BLOCKS[kind] = (*PLACES_OF_BLOCKS.get(kind, ()), place)
BLOCKS: LoadedOnUse[PageBlock] = LoadedOnUse(
    {place: place for places in PLACES_OF_BLOCKS.values() for place in places}
)


def blocks_of(kind: type[Result]) -> list[PageBlock]:
    """Return the blocks for a class of results."""
    places = PLACES_OF_BLOCKS.get(class_place(kind), ())
    return [BLOCKS[place] for place in places if place in BLOCKS]


SOURCES = files("attncli.views.page")
SHARED = "attn/"
"""The prefix of the addresses of the page's own modules, like `attn/parts/elements.js`."""
# A module's imports and exports as written in its source: each on its own line, under its own name.
IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async |const |let |class |function ))", re.MULTILINE)
# What only readers of the source need: a fifth of the script.
COMMENT_OR_INDENT = re.compile(r"^[ \t]*(?://.*)?\n|^[ \t]+", re.MULTILINE)
OF_FILE = "attn/page/file.js"
"""The entry point of a page in a file."""


def modules(first: str = OF_FILE, folder: Traversable = SOURCES) -> dict[str, str]:
    """Return the sources of a module and its imports, dependencies first."""
    sources: dict[str, str] = {}

    def add(name: str) -> None:
        is_shared = name.startswith(SHARED)
        file = SOURCES / "scripts" / name.removeprefix(SHARED) if is_shared else folder / name
        source = file.read_text(encoding="utf-8")
        for address in IMPORT.findall(source):
            is_absolute = address.startswith(SHARED)
            needed = address if is_absolute else posixpath.normpath(f"{posixpath.dirname(name)}/{address}")
            if needed.removeprefix("/") not in sources:
                add(needed.removeprefix("/"))
        sources[name] = source

    add(first)
    return sources


def page_script(blocks: Iterable[PageBlock], first: str = OF_FILE, folder: Traversable = SOURCES) -> str:
    """Return a page's modules as a single script, because browsers load no modules from files on disk.

    The modules of each block have their own scope. Indentation and comments on their own lines are left
    out, so no text in a module continues on another line.
    """
    begins = modules(first, folder)
    last = {name: begins.pop(name) for name in [*begins] if name == first or not name.startswith(SHARED)}
    shared, scoped = begins, []
    for block in blocks:
        of_block = modules(block.script, block.folder)
        shared |= {name: source for name, source in of_block.items() if name.startswith(SHARED)}
        own = _joined(source for name, source in of_block.items() if not name.startswith(SHARED))
        scoped.append(f"blocks.set({json.dumps(block.name)}, (() => {{\n{own}return show;\n}})());\n")
    return "\n".join([_joined(shared.values()), *scoped, _joined(last.values())])


def _joined(sources: Iterable[str]) -> str:
    code = (EXPORT.sub("", IMPORT.sub("", source)) for source in sources)
    return "\n".join(COMMENT_OR_INDENT.sub("", source) for source in code)
