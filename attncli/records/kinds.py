"""The kinds of results, by the names that a report's JSON has for them.

The class of a kind is imported when a result of that kind is read or looked up.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from attncli.feature import LoadedOnUse
from attncli.index import installed_features
from attncli.records.columns import Result, UntypedResult
from attncli.records.values import NamedTensor, Statistic, is_table_of_heads

RESULT_CLASSES: dict[str, str] = {}
"""The place of the class of each kind.

A report whose kind has the name of its experiment does not name it; other kinds begin with that name.
"""
for feature in installed_features().values():
    RESULT_CLASSES |= {kind: place for kind, place in feature.results.items() if kind not in RESULT_CLASSES}


KINDS: LoadedOnUse[type[Result]] = LoadedOnUse(RESULT_CLASSES)


def kind_of(result: Result, experiment: str) -> str:
    """The name of the kind of a result of an experiment; empty where the class has none, as a plugin's."""
    if isinstance(result, UntypedResult):
        return result.kind
    place = place_of(type(result))
    names = [name for name in (*names_of(experiment), *RESULT_CLASSES) if RESULT_CLASSES[name] == place]
    return next(iter(names), "")


def place_of(kind: type[Result]) -> str:
    """The place of a class of results, as `RESULT_CLASSES` names it."""
    return f"{kind.__module__}:{kind.__qualname__}"


def result_of(
    kind: str, statistics: Mapping[str, Statistic], tensors: Mapping[str, NamedTensor] = MappingProxyType({})
) -> Result:
    """The result of a kind with these statistics; untyped if the kind is unknown or if they do not fit it."""
    try:
        if kind in KINDS:
            return KINDS[kind].read(statistics, tensors)
    except TypeError:  # of another tool, or edited
        pass
    return UntypedResult(undeclared=statistics, kind=kind)


def kinds_of(experiment: str) -> dict[str, type[Result]]:
    """The kinds of results that an experiment has."""
    return {name: KINDS[name] for name in names_of(experiment)}


def names_of(experiment: str) -> list[str]:
    """The names of the kinds that an experiment has."""
    return [name for name in RESULT_CLASSES if name.split(" of ")[0] == experiment and name in KINDS]


def may_lack_heads(kind: str) -> bool:
    """True for an unknown kind and for one whose table of heads may have no rows; false without a kind."""
    if kind and kind not in KINDS:
        return True
    groups = KINDS[kind].groups() if kind else ()
    return any(place.may_be_empty for place in groups if is_table_of_heads(place.name))


@cache
def units_of_heads() -> dict[str, str]:
    """The units of what is measured of heads, by the names of the columns, which are those of the grids."""
    return {
        name: column.unit
        for kind in KINDS.values()
        for group in kind.groups()
        if is_table_of_heads(group.name) and group.kind is not None
        for name, column in group.kind.columns.items()
        if column.unit
    }
