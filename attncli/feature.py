"""The parts that a feature declares on its card, and the way cards are found.

A feature is a package whose card, `FEATURE` in its feature.py, declares its parts. A card holds only
literals, so that listing the features imports none of them:

    FEATURE = Feature(
        questions=(Question("spread", "How far each head looks", "Models", "settings:SpreadSpec"),),
        results={"spread": "results:HeadSpreads"},
        screens={"results:HeadSpreads": "screens:SCREEN"},
        page={"results:HeadSpreads": "page:BLOCK"},
        functions={"spread": "door:spread"},
        views={"tsv": View("tsv:write", (".tsv",))},
        extras=("models",),
        lessons=("lessons/01-spread.md",),
        docs="spread.md",
        papers={"spread": "doe2024"},
        bibliography="papers.bib",
    )

A place is `module:name`, relative to the card's package; a file is a path in the card's folder. Built-in
cards are copied into index.py by tools/write_index.py; another package names its card in the entry point
group `attncli.features`. A card and the `__init__.py` of its package import only this module from attncli.

Entry points are read directly from the metadata files of packages
(https://packaging.python.org/en/latest/specifications/entry-points/): importing `importlib.metadata` takes
more than half the time of `attn --help`.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as NotEntryPoints
from contextlib import suppress
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

SWITCH = "ATTN_OFF"
"""The environment variable that switches features off: their names, comma-separated."""


class Question(NamedTuple):
    """A command; if it has a Spec, also an experiment of config files.

    `summary` and `group` are its row in `attn --help`. `spec` is the place of its settings class. `page` is
    the place of the page that runs it (default: PAGE beside the Spec), and `model_page` the place of the page
    that runs it with a model. `command` is the place of the function that makes the command from its name and
    summary (by default, the fields of the Spec become flags). `synonyms` are its names in other tools,
    separated by spaces. `opens` maps each flag that takes a file (an empty name means the argument) to the
    suffixes that the flag accepts, separated by spaces (`/` means a folder).

    `form_of` is the name of a command that has this question as a form: if all settings in `asked_by`,
    separated by spaces, are given, the command uses this Spec and this page. The fields of every form are
    flags of the command.
    """

    name: str
    summary: str
    group: str = ""
    spec: str = ""
    page: str = ""
    model_page: str = ""
    command: str = ""
    synonyms: str = ""
    opens: Mapping[str, str] = {}
    form_of: str = ""
    asked_by: str = ""


class ReadingKind(NamedTuple):
    """A kind of file, other than a text, that models read.

    `setting` is the setting that names the file. `spec` is the place of the class that declares it, which
    extends attncli.settings.readings.FileSpec. `opener` is the place of an attncli.models.openers.Opener.
    `suffixes` identify such files in a folder or a list, `inputs` gives the names of a model's inputs, and
    `reader` describes a model that can read them, like `one that reads pictures`. With `on_grid`, tokens
    have neighbours on all sides and no order. With `in_time`, each token begins at a time in seconds. With
    `is_transcribed`, a model with a decoder writes the words of the file.
    """

    setting: str
    spec: str
    opener: str
    suffixes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    reader: str = ""
    on_grid: bool = False
    in_time: bool = False
    is_transcribed: bool = False


class View(NamedTuple):
    """An output format for reports, and the suffixes of its files.

    `write` is the place of a function `write(reports, stream, display)`, which writes reports as they arrive.
    `extra` names the extra of attn that it needs, and one package of that extra. `one_report`: a file holds a
    single report. `writes_bytes`: the stream takes bytes instead of text. `draws`: it shows what every head
    of a model looks at. `whole`: it holds every part of a report, so that `--show` is refused.
    `spells_tokens`: it receives tokens as the model's vocabulary spells them. `one_table`: it holds the
    report's main table, or the one that `--show` names, or else raises attncli.views.NoSuchTable.
    `has_steps`: it shows explanations. `has_title`: `--title` replaces its title. `for_other_programs`:
    people do not open such files themselves. `for_terminals`: it uses the terminal's encoding instead of
    UTF-8. `caption` is the place of a function `caption(report, display)` for a figure, whose width
    `--figure-width` sets: its text is written beside the file.
    """

    write: str
    suffixes: tuple[str, ...] = ()
    extra: tuple[str, str] | None = None
    one_report: bool = False
    writes_bytes: bool = False
    draws: bool = False
    whole: bool = False
    spells_tokens: bool = False
    one_table: bool = False
    has_steps: bool = False
    has_title: bool = False
    for_other_programs: bool = False
    for_terminals: bool = False
    caption: str = ""


class LayerSource(NamedTuple):
    """A source of layers for modules that mix tokens without a softmax.

    `capture` is the import path of an attncli.models.layer_sources.Capture, a function that takes such
    modules. `mixers` maps attn's name for each kind of mixer that it supports to a regular expression that
    matches class names in transformers, or to an empty one if attn knows the classes.
    """

    capture: str
    mixers: Mapping[str, str]


class Feature(NamedTuple):
    """A card: the parts that a feature adds to attn.

    questions: the commands.
    results: the place of each result class, by the name of its kind in saved reports. The kinds of
        a command begin with its name: `spread`, `spread of texts`.
    screens: the place of a result class's first screen, by the place of the class.
    page: the place of a block of the page for a class of results, an attncli.views.page.blocks.PageBlock, by
        the place of the class.
    functions: the place of each function `attncli.NAME`, by its name.
    statistics: the place of each statistic of a row of weights, a function of attncli.core.formulas.Rows, by
        its name. The statistic is measured if queries and keys come from the same text.
    views: the formats that `--format` and the suffix of `-o` choose, by name.
    engines: the place of each attncli.core.engines.Engine, by its name. Each is tried before attn's own.
    layer_sources: sources of layers for modules without a softmax, by name. The first source that has a mixer
        makes that mixer's layers.
    readings: the kinds of files that models read besides texts, by their name in messages. A question whose
        Spec reads that kind has the kind's settings.
    needs: the features that this feature imports. If one of them is switched off, so is this feature.
    extras: the extras of attn that the functions need.
    lessons: the feature's lessons, Markdown files called `NN-name.md`. A lesson is listed if all its commands
        are available.
    docs: the feature's page in docs/.
    papers: the ids of papers, separated by spaces, by the item that cites them: a kind of results, a
        statistic of a row, a table or column, a setting, or `name=value` for a value of a setting or in a
        column. Tables, columns and settings are those of reports of the card's kinds, or of any report if the
        card has no kinds.
    bibliography: a BibTeX file with the papers that attncli/data/papers.bib lacks.
    """

    questions: tuple[Question, ...] = ()
    results: Mapping[str, str] = {}
    screens: Mapping[str, str] = {}
    page: Mapping[str, str] = {}
    functions: Mapping[str, str] = {}
    statistics: Mapping[str, str] = {}
    views: Mapping[str, View] = {}
    engines: Mapping[str, str] = {}
    layer_sources: Mapping[str, LayerSource] = {}
    readings: Mapping[str, ReadingKind] = {}
    needs: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    lessons: tuple[str, ...] = ()
    docs: str = ""
    papers: Mapping[str, str] = {}
    bibliography: str = ""


def with_absolute_places(card: Feature, package: str) -> Feature:
    """Return the card with places that begin with the package; places in attn itself are left unchanged."""

    def absolute(place: str) -> str:
        return f"{package}.{place}" if package and place and not place.startswith("attncli.") else place

    def in_package(file: str) -> str:
        return f"{package}:{file}" if package and file else file

    def values(places: Mapping[str, str]) -> dict[str, str]:
        return {name: absolute(place) for name, place in places.items()}

    questions = (
        each._replace(
            spec=absolute(each.spec),
            page=absolute(each.page),
            model_page=absolute(each.model_page),
            command=absolute(each.command),
        )
        for each in card.questions
    )
    return card._replace(
        questions=tuple(questions),
        results=values(card.results),
        screens={absolute(place): screen for place, screen in values(card.screens).items()},
        page={absolute(place): block for place, block in values(card.page).items()},
        functions=values(card.functions),
        statistics=values(card.statistics),
        views={name: view._replace(write=absolute(view.write)) for name, view in card.views.items()},
        engines=values(card.engines),
        layer_sources={
            name: source._replace(capture=absolute(source.capture))
            for name, source in card.layer_sources.items()
        },
        readings={
            name: kind._replace(spec=absolute(kind.spec), opener=absolute(kind.opener))
            for name, kind in card.readings.items()
        },
        lessons=tuple(in_package(file) for file in card.lessons),
        bibliography=in_package(card.bibliography),
    )


def card_places(card: Feature) -> Iterator[str]:
    """Yield every place on a card."""
    for question in card.questions:
        places = (question.spec, question.page, question.model_page, question.command)
        yield from (place for place in places if place)
    yield from (*card.results.values(), *card.screens.values(), *card.page.values(), *card.functions.values())
    yield from (*card.statistics.values(), *card.engines.values())
    yield from (view.write for view in card.views.values())
    yield from (source.capture for source in card.layer_sources.values())
    for kind in card.readings.values():
        yield from (kind.spec, kind.opener)


GROUP = "features"
FORMER_GROUPS = {
    "experiments": "questions",
    "statistics": "statistics",
    "views": "views",
    "engines": "engines",
}
"""The card field that replaces each entry point group of attn 0.4."""
SECTION = "attncli."
PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_-]*")
PLUGIN_PLACE = re.compile(r"[\w.]+:[\w.]+")
DIST_INFO = ".dist-info"


class Plugin(NamedTuple):
    """An entry point of another package: its group and name, the place of its card, and the package."""

    group: str
    name: str
    place: str
    package: str

    def __str__(self) -> str:
        return f"{self.name} ({self.package})"


class BrokenPlugin(ImportError):
    """A part of another package cannot be imported, or one of its statistics raises an error."""


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return attn's entry points in installed packages, by package; the first copy of a package counts."""
    by_package: dict[str, list[Plugin]] = {}
    for folder in map(Path, dict.fromkeys(sys.path)):
        infos = folder.glob(f"*{DIST_INFO}/entry_points.txt") if folder.is_dir() else ()
        for file in sorted(infos):
            name, _, version = file.parent.name.removesuffix(DIST_INFO).partition("-")
            if name not in by_package:
                by_package[name] = list(_entry_points(file, f"{name.replace('_', '-')} {version}"))
    return tuple(plugin for name in sorted(by_package) for plugin in by_package[name])


def _entry_points(file: Path, package: str) -> list[Plugin]:
    try:
        text = file.read_text(encoding="utf-8")
        if f"[{SECTION}" not in text:
            return []
        parser = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # as configparser documents it
        parser.read_string(text)
    except (OSError, UnicodeDecodeError, NotEntryPoints):
        return []
    return [
        Plugin(group, name, place, package)
        for group in (GROUP, *FORMER_GROUPS)
        if parser.has_section(SECTION + group)
        for name, place in parser.items(SECTION + group)
        if PLUGIN_NAME.fullmatch(name) and PLUGIN_PLACE.fullmatch(place)
    ]


def added(built_in: Mapping[str, Feature]) -> dict[str, Plugin]:
    """Return the entry points of cards by feature name; built-in features take precedence."""
    by_name: dict[str, Plugin] = {}
    for plugin in plugins():
        if plugin.group == GROUP and plugin.name not in built_in:
            by_name.setdefault(plugin.name, plugin)
    return by_name


def plugin_of(place: str) -> Plugin | None:
    """Return the entry point of the package that contains a place, or None for attn itself."""
    package = re.split(r"[.:]", place, maxsplit=1)[0]
    if package == "attncli":
        return None
    matches = [each for each in plugins() if re.split(r"[.:]", each.place, maxsplit=1)[0] == package]
    nearest = (each for each in matches if place.startswith(each.place.partition(":")[0].rpartition(".")[0]))
    return next(nearest, next(iter(matches), None))


def load_place(place: str) -> Any:
    """Import and return the object at `module:name`.

    Raises BrokenPlugin, with a one-line reason, if the object is in another package and cannot be imported.
    """
    module, _, name = place.partition(":")
    try:
        return attrgetter(name)(import_module(module))
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        if (plugin := plugin_of(place)) is None:
            raise
        why = ascii(f"{type(error).__name__}: {error}")[1:-1]
        raise BrokenPlugin(f"plugin {plugin}: {place} cannot be imported: {why}") from error


def read_file(file: str) -> str:
    """Return the text of the file at `package:path`.

    Raises BrokenPlugin, with a one-line reason, if the file is in another package and cannot be read.
    """
    from importlib.resources import files

    package, _, path = file.partition(":")
    try:
        return (files(package) / path).read_text(encoding="utf-8")
    except (ImportError, OSError, UnicodeDecodeError) as error:
        if (plugin := plugin_of(file)) is None:
            raise
        why = ascii(f"{type(error).__name__}: {error}")[1:-1]
        raise BrokenPlugin(f"plugin {plugin}: {file} cannot be read: {why}") from error


def load_usable_place(place: str) -> Any:
    """Behave like `load_place`, but if a plugin's part is broken, print a message and return None."""
    return load_place(place) if plugin_of(place) is None else _value_or_why(load_place, place)


def read_usable_file(file: str) -> str | None:
    """Behave like `read_file`, but if a plugin's file is broken, print a message and return None."""
    return read_file(file) if plugin_of(file) is None else _value_or_why(read_file, file)


@cache
def _value_or_why(load: Callable[[str], T], place: str) -> T | None:
    try:
        return load(place)
    except BrokenPlugin as error:
        print_problem(str(error))
        return None


def print_problem(line: str) -> None:
    """Print a line to standard error, except in worker processes and during shell completion."""
    processes = sys.modules.get("multiprocessing.process")
    is_worker = processes is not None and processes.current_process().name != "MainProcess"
    if not is_worker and "_ATTN_COMPLETE" not in os.environ:
        print(line, file=sys.stderr)


class LoadedOnUse(Mapping[str, T]):
    """A mapping whose values are imported from their places, `module:name`, when they are looked up.

    A plugin's part that cannot be imported is left out, and a message is printed to standard error. Iteration
    imports only the parts of plugins.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = places

    def __getitem__(self, name: str) -> T:
        value: T | None = load_usable_place(self.places[name])
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.places if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        place = self.places.get(name) if isinstance(name, str) else None
        if place is None:
            return False
        return plugin_of(place) is None or load_usable_place(place) is not None


def names_switched_off() -> list[str]:
    """Return the names in `ATTN_OFF`."""
    return [name for name in map(str.strip, os.environ.get(SWITCH, "").split(",")) if name]


def switched_on(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the features that `ATTN_OFF` does not name and whose needs are all switched on."""
    off = {*names_switched_off()}
    on = {name: feature for name, feature in features.items() if name not in off}
    while lacking := [name for name, feature in on.items() if not {*feature.needs} <= on.keys()]:
        for name in lacking:
            del on[name]
    return on


def read_card(plugin: Plugin) -> Feature:
    """Return a plugin's card with absolute places. Raises BrokenPlugin, with a one-line reason."""
    card = load_place(plugin.place)
    module = sys.modules[plugin.place.partition(":")[0]]
    package = "" if module.__spec__ is None else module.__spec__.parent or ""
    try:
        if not isinstance(card, Feature):
            raise TypeError(f"{plugin.place} is not an attncli.feature.Feature")
        return with_absolute_places(card, package)
    except (AttributeError, TypeError) as error:
        raise BrokenPlugin(f"plugin {plugin}: its card is not valid: {error}") from error


def readable_cards(built_in: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return all readable cards, including those of features that are off or lack a needed feature."""
    cards = dict(built_in)
    for name, plugin in added(built_in).items():
        with suppress(BrokenPlugin):
            cards[name] = read_card(plugin)
    return cards


_cards_being_read: list[str] = []


def features_in_use(built_in: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the features that are on, by name, with built-in features before plugins.

    A card that cannot be read or that needs an unknown feature is left out, and a line is printed to standard
    error for each such card and for each unknown name in `ATTN_OFF`. Raises ImportError if importing a card
    requests all cards.
    """
    if _cards_being_read:
        rule = "a card and the __init__.py of its package may import only attncli.feature from attncli"
        raise ImportError(f"{_cards_being_read[0]}: {rule}")
    cards, plugin_cards = dict(built_in), added(built_in)
    off = names_switched_off()
    for name in off:
        if name not in built_in and name not in plugin_cards:
            print_problem(_unknown_feature_message(name, [*built_in, *plugin_cards], built_in))
    for name, plugin in plugin_cards.items():
        if name in off:
            continue
        _cards_being_read.append(plugin.place)
        try:
            cards[name] = read_card(plugin)
        except BrokenPlugin as error:
            print_problem(str(error))
        finally:
            _cards_being_read.pop()
    for name, plugin in plugin_cards.items():
        needs = cards[name].needs if name in cards else ()
        for needed in (needed for needed in needs if needed not in cards and needed not in off):
            print_problem(f"plugin {plugin}: needs the feature {needed}, which is not available")
    return switched_on(cards)


def _unknown_feature_message(name: str, features: list[str], built_in: Mapping[str, Feature]) -> str:
    """Return the message for an unknown name in `ATTN_OFF`, with the likely features or else all features."""
    from difflib import get_close_matches

    owners = [
        each for each, card in built_in.items() if name in (question.name for question in card.questions)
    ]
    near = owners or get_close_matches(name.lower().replace("-", "_"), features, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the features are {', '.join(features)}"
    return f"{SWITCH}: {ascii(name)[1:-1]} is not a feature: {hint}"
