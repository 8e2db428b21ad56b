"""The door for features, built-in and from other packages: what a card declares, and how cards are found.

A feature is a package whose card, `FEATURE` in its feature.py, declares its parts. A card holds only
literals, so that listing features imports none of them:

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

A place is `module:name`, relative to the package of the card; a file is a path in its folder. Built-in cards
are copied into index.py by tools/write_index.py; another package names its card in the entry point group
`attncli.features`. A card and the `__init__.py` of its package import nothing of attncli but this module.

Entry points are read from the files of packages' metadata
(https://packaging.python.org/en/latest/specifications/entry-points/): `importlib.metadata` takes longer to
import than half of `attn --help` takes.
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
"""The environment variable that switches features off: their names, separated by commas."""


class Question(NamedTuple):
    """A command; with a Spec, also an experiment of config files.

    `summary` and `group` are its row in `attn --help`. `spec` is the place of the class of its settings,
    `page` of what runs it (default: PAGE beside the Spec) and `model_page` of what runs it with a model.
    `command` is the place of the function that makes the command from its name and summary (default: the
    fields of the Spec are its flags). `synonyms` are names for it in other tools, separated by blanks.
    `opens` are the suffixes of files that it reads, separated by blanks (`/`: a folder), by the flag that
    takes them, which is empty for its argument.

    With `form_of`, the name of a command, it is no command but a form of that one: where the settings that
    `asked_by` names, separated by blanks, are all given, the command has this Spec and this page. The fields
    of every form are flags of the command.
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
    """Something other than text that models read from a file.

    `setting` is the setting that names the file, and `spec` the place of the class that declares it, which
    extends attncli.settings.readings.FileSpec. `opener` is the place of an attncli.models.openers.Opener.
    `suffixes` are those of such files in a folder or a list, `inputs` what models call their numbers, and
    `reader` says which model is needed: `one that reads pictures`. `on_grid`: tokens have neighbours on all
    sides, so that none is before another. `in_time`: each begins at some second. `is_transcribed`: a model
    with a decoder writes what is in it, to its end.
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
    """A format in which reports are written, and the suffixes of files in that format.

    `write` is the place of a function `write(reports, stream, display)`, which writes reports as they come.
    `extra` is the extra of attn that it needs, and a package of that extra. `one_report`: a file holds a
    single report. `writes_bytes`: the stream takes bytes instead of text. `draws`: it shows what every head
    of a model looks at. `whole`: it holds every part of a report, so that `--show` is refused.
    `spells_tokens`: it gets tokens as the model's vocabulary spells them. `one_table`: it holds the report's
    main table, or the one that `--show` names, else it raises attncli.views.NoSuchTable. `has_steps`: it
    shows explanations. `has_title`: `--title` replaces its title. `for_other_programs`: it is no format for
    a person to open. `for_terminals`: it is written in the characters that a terminal has, not in UTF-8.
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


class LayerSource(NamedTuple):
    """What makes layers of modules that mix tokens without a softmax.

    `capture` is the place of a function of such modules, an attncli.models.layer_sources.Capture. `mixers`
    are what it makes layers of, as attn names it, each with a regular expression for the names of its classes
    in transformers; it is empty where attn knows the classes.
    """

    capture: str
    mixers: Mapping[str, str]


class Feature(NamedTuple):
    """A card: the parts that a feature adds to attn.

    questions: commands.
    results: the place of the class of each kind of result, by the kind's name in saved reports. The kinds of
        a command begin with its name: `spread`, `spread of texts`.
    screens: the place of the first screen of a class of results, by the place of the class.
    page: the place of a block of the page for a class of results, an attncli.views.page.blocks.PageBlock, by
        the place of the class.
    functions: the place of each function `attncli.NAME`, by its name.
    statistics: the place of each statistic of a row of weights, a function of attncli.core.formulas.Rows, by
        its name. It is measured where queries and keys are of one text.
    views: the formats that `--format` and the suffix of `-o` choose, by their names.
    engines: the place of each attncli.core.engines.Engine, by its name. Each is asked before attn's own.
    layer_sources: what makes layers of modules without a softmax, by name. The first that has a mixer makes
        the layers of it.
    readings: what models read besides text, by its name in messages. Each question whose Spec says that it
        reads it has its settings.
    needs: the features that it imports. It is switched off with them.
    extras: the extras of attn that the functions need.
    lessons: its lessons, files of Markdown called `NN-name.md`. One whose commands are not all there is not
        listed.
    docs: its page in docs/.
    papers: ids of papers, separated by blanks, by what they are cited for: a kind of results, a statistic of
        a row, a table or column, a setting, or `name=value` for a value of a setting or in a column. Tables,
        columns and settings are those of reports of the card's kinds; of any report if it has no kinds.
    bibliography: a BibTeX file with the papers that attncli/data/papers.bib does not have.
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
    """The card with places that begin with the package; one of attn itself stays as it is."""

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


def places_of(card: Feature) -> Iterator[str]:
    """Every place that a card names."""
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
"""The field of a card that replaces each group of entry points that attn read before there were cards."""
SECTION = "attncli."
PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_-]*")
PLUGIN_PLACE = re.compile(r"[\w.]+:[\w.]+")
DIST_INFO = ".dist-info"


class Plugin(NamedTuple):
    """An entry point of another package: its group and name, the place of the card, and the package."""

    group: str
    name: str
    place: str
    package: str

    def __str__(self) -> str:
        return f"{self.name} ({self.package})"


class BrokenPlugin(ImportError):
    """A part of another package cannot be imported, or a statistic of it raises an error."""


@cache
def plugins() -> tuple[Plugin, ...]:
    """The entry points for attn of all installed packages, by package; a package found twice counts once."""
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
    """The entry points of cards by the names of features: the built-in feature of a name wins."""
    by_name: dict[str, Plugin] = {}
    for plugin in plugins():
        if plugin.group == GROUP and plugin.name not in built_in:
            by_name.setdefault(plugin.name, plugin)
    return by_name


def plugin_of(place: str) -> Plugin | None:
    """The entry point of the package that a place is in; None for a place in attn itself."""
    package = re.split(r"[.:]", place, maxsplit=1)[0]
    if package == "attncli":
        return None
    fitting = [each for each in plugins() if re.split(r"[.:]", each.place, maxsplit=1)[0] == package]
    nearest = (each for each in fitting if place.startswith(each.place.partition(":")[0].rpartition(".")[0]))
    return next(nearest, next(iter(fitting), None))


def load_place(place: str) -> Any:
    """The object at `module:name`, imported now.

    Raises BrokenPlugin, with the reason in one line, if it is in another package and cannot be imported.
    """
    module, _, name = place.partition(":")
    try:
        return attrgetter(name)(import_module(module))
    except (Exception, SystemExit) as error:  # other people's code may fail in any way
        if (plugin := plugin_of(place)) is None:
            raise
        why = ascii(f"{type(error).__name__}: {error}")[1:-1]
        raise BrokenPlugin(f"plugin {plugin}: {place} cannot be imported: {why}") from error


def read_file(file: str) -> str:
    """The text of the file at `package:path`.

    Raises BrokenPlugin, with the reason in one line, if it is in another package and cannot be read.
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
    """As `load_place`; None, after one line on standard error, for a broken part of another package."""
    return load_place(place) if plugin_of(place) is None else _value_or_why(load_place, place)


def read_usable_file(file: str) -> str | None:
    """As `read_file`; None, after one line on standard error, for a broken file of another package."""
    return read_file(file) if plugin_of(file) is None else _value_or_why(read_file, file)


@cache
def _value_or_why(load: Callable[[str], T], place: str) -> T | None:
    try:
        return load(place)
    except BrokenPlugin as error:
        print_problem(str(error))
        return None


def print_problem(line: str) -> None:
    """Print a line on standard error, but not in worker processes nor while a shell completes a line."""
    processes = sys.modules.get("multiprocessing.process")
    is_worker = processes is not None and processes.current_process().name != "MainProcess"
    if not is_worker and "_ATTN_COMPLETE" not in os.environ:
        print(line, file=sys.stderr)


class LoadedOnUse(Mapping[str, T]):
    """Values by name, each imported from its place, `module:name`, when it is looked up.

    A part of another package that cannot be imported is left out, after one line on standard error. To
    iterate imports only parts of other packages.
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
    """The names in `ATTN_OFF`."""
    return [name for name in map(str.strip, os.environ.get(SWITCH, "").split(",")) if name]


def switched_on(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """The features that `ATTN_OFF` does not name and whose needs are all on."""
    off = {*names_switched_off()}
    on = {name: feature for name, feature in features.items() if name not in off}
    while lacking := [name for name, feature in on.items() if not {*feature.needs} <= on.keys()]:
        for name in lacking:
            del on[name]
    return on


def read_card(plugin: Plugin) -> Feature:
    """The card of another package, with absolute places. Raises BrokenPlugin, with the reason in one line."""
    card = load_place(plugin.place)
    module = sys.modules[plugin.place.partition(":")[0]]
    package = "" if module.__spec__ is None else module.__spec__.parent or ""
    try:
        if not isinstance(card, Feature):
            raise TypeError(f"{plugin.place} is not an attncli.feature.Feature")
        return with_absolute_places(card, package)
    except (AttributeError, TypeError) as error:
        raise BrokenPlugin(f"plugin {plugin}: has no valid card: {error}") from error


def readable_cards(built_in: Mapping[str, Feature]) -> dict[str, Feature]:
    """All cards that can be read, those that are switched off or lack what they need included."""
    cards = dict(built_in)
    for name, plugin in added(built_in).items():
        with suppress(BrokenPlugin):
            cards[name] = read_card(plugin)
    return cards


_being_read: list[str] = []


def features_in_use(built_in: Mapping[str, Feature]) -> dict[str, Feature]:
    """The features by name: built-in ones, then those of other packages, without those switched off.

    A card that cannot be read or that needs an unknown feature is left out, with one line on standard error;
    so is an unknown name in `ATTN_OFF`. Raises ImportError if the import of a card asks for all cards.
    """
    if _being_read:
        only = "a card and the __init__.py of its package import nothing of attncli but attncli.feature"
        raise ImportError(f"{_being_read[0]}: {only}")
    cards, others = dict(built_in), added(built_in)
    off = names_switched_off()
    for name in off:
        if name not in built_in and name not in others:
            print_problem(_unknown_feature(name, [*built_in, *others], built_in))
    for name, plugin in others.items():
        if name in off:
            continue
        _being_read.append(plugin.place)
        try:
            cards[name] = read_card(plugin)
        except BrokenPlugin as error:
            print_problem(str(error))
        finally:
            _being_read.pop()
    for name, plugin in others.items():
        needs = cards[name].needs if name in cards else ()
        for needed in (needed for needed in needs if needed not in cards and needed not in off):
            print_problem(f"plugin {plugin}: needs the feature {needed}, which is not available")
    return switched_on(cards)


def _unknown_feature(name: str, known: list[str], built_in: Mapping[str, Feature]) -> str:
    """The line for a name in `ATTN_OFF` that is no feature: the feature that is meant, else all of them."""
    from difflib import get_close_matches

    asking = [
        each for each, card in built_in.items() if name in (question.name for question in card.questions)
    ]
    near = asking or get_close_matches(name.lower().replace("-", "_"), known, n=3)
    meant = f"did you mean {' or '.join(near)}?" if near else f"the features are {', '.join(known)}"
    return f"{SWITCH}: {ascii(name)[1:-1]} is not a feature: {meant}"
