"""The door for features, built-in and from other packages: what a card declares.

A feature is a package whose card, `FEATURE` in its feature.py, declares its parts. A card holds only
literals, so that listing features imports none of them:

    FEATURE = Feature(
        questions=(Question("spread", "How far each head looks", "Models", "settings:SpreadSpec"),),
        results={"spread": "results:HeadSpreads"},
        screens={"results:HeadSpreads": "screens:SCREEN"},
        functions={"spread": "door:spread"},
        extras=("models",),
        docs="spread.md",
    )

A place is `module:name`, relative to the package of the card. Built-in cards are copied into index.py by
tools/write_index.py; another package names its card in the entry point group `attncli.features`. A card and
the `__init__.py` of its package import nothing of attncli but this module.
"""

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from attncli.core.runtime import BrokenPlugin, Plugin, added, imported

SWITCH = "ATTN_OFF"
"""The environment variable that switches features off: their names, separated by commas."""
GROUP = "features"


class Question(NamedTuple):
    """A command; with a Spec, also an experiment of config files.

    `summary` and `group` are its row in `attn --help`. `spec` is the place of the class of its settings,
    `page` of what runs it (default: PAGE beside the Spec) and `model_page` of what runs it with a model.
    `command` is the place of the function that makes the command from its name and summary (default: the
    fields of the Spec are its flags). `synonyms` are names for it in other tools, separated by blanks.
    """

    name: str
    summary: str
    group: str
    spec: str = ""
    page: str = ""
    model_page: str = ""
    command: str = ""
    synonyms: str = ""


class Feature(NamedTuple):
    """A card: the parts that a feature adds to attn.

    questions: commands.
    results: the place of the class of each kind of result, by the kind's name in saved reports. The kinds of
        a command begin with its name: `spread`, `spread of texts`.
    screens: the place of the first screen of a class of results, by the place of the class.
    functions: the place of each function `attncli.NAME`, by its name.
    needs: the features that it imports. It is switched off with them.
    extras: the extras of attn that the functions need.
    docs: its page in docs/.
    """

    questions: tuple[Question, ...] = ()
    results: Mapping[str, str] = {}
    screens: Mapping[str, str] = {}
    functions: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    docs: str = ""


def with_absolute_places(card: Feature, package: str) -> Feature:
    """The card with places that begin with the package; one of attn itself stays as it is."""

    def absolute(place: str) -> str:
        return f"{package}.{place}" if package and place and not place.startswith("attncli.") else place

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
        functions=values(card.functions),
    )


def names_switched_off() -> list[str]:
    """The names in `ATTN_OFF`."""
    return [name for name in map(str.strip, os.environ.get(SWITCH, "").split(",")) if name]


def switched_on(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """The features that `ATTN_OFF` does not name and that need none that it names."""
    off = {*names_switched_off()}
    on = {name: feature for name, feature in features.items() if name not in off}
    while lacking := [name for name, feature in on.items() if not {*feature.needs} <= on.keys()]:
        for name in lacking:
            del on[name]
    return on


def read_card(plugin: Plugin) -> Feature:
    """The card of another package, with absolute places. Raises BrokenPlugin, with the reason in one line."""
    card = imported(plugin)
    module = sys.modules[plugin.place.partition(":")[0]]
    package = "" if module.__spec__ is None else module.__spec__.parent or ""
    try:
        if not isinstance(card, Feature):
            raise TypeError(f"{plugin.place} is not an attncli.feature.Feature")
        return with_absolute_places(card, package)
    except (AttributeError, TypeError) as error:
        raise BrokenPlugin(f"plugin {plugin} has no valid card: {error}") from error


_being_read: list[str] = []


def features_in_use(built_in: Mapping[str, Feature]) -> dict[str, Feature]:
    """The features by name: built-in ones, then those of other packages, without those switched off.

    A card that cannot be read is left out, with one line on standard error. Raises ImportError if the import
    of a card asks for all cards.
    """
    if _being_read:
        only = "a card and the __init__.py of its package import nothing of attncli but attncli.feature"
        raise ImportError(f"{_being_read[0]}: {only}")
    features = switched_on(built_in)
    off = names_switched_off()
    for name, plugin in added(GROUP, {*built_in}).items():
        if name in off:
            continue
        _being_read.append(plugin.place)
        try:
            features[name] = read_card(plugin)
        except BrokenPlugin as error:
            if "_ATTN_COMPLETE" not in os.environ:  # a shell completes a line
                print(error, file=sys.stderr)
        finally:
            _being_read.pop()
    return features
