"""Kinds of results, by their names in a report's JSON.

A kind's class is imported when a result of that kind is read or looked up.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from attncli.feature import LoadedOnUse
from attncli.index import installed_features
from attncli.records.columns import Result, UntypedResult
from attncli.records.values import NamedTensor, Statistic, has_head_rows

RESULT_CLASSES: dict[str, str] = {}
"""The place of the class of each kind.

A report does not name a kind called like its experiment; the names of other kinds begin with the
experiment's.
"""
for feature in installed_features().values():
    RESULT_CLASSES |= {kind: place for kind, place in feature.results.items() if kind not in RESULT_CLASSES}


KINDS: LoadedOnUse[type[Result]] = LoadedOnUse(RESULT_CLASSES)


def kind_name(result: Result, experiment: str) -> str:
    """Return the name of a result's kind in an experiment; empty for a plugin's class that has none."""
    if isinstance(result, UntypedResult):
        return result.kind
    place = class_place(type(result))
    names = [name for name in (*kind_names(experiment), *RESULT_CLASSES) if RESULT_CLASSES[name] == place]
    return next(iter(names), "")


def class_place(kind: type[Result]) -> str:
    """Return the place of a class of results, in the form used by `RESULT_CLASSES`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def read_result(
    kind: str, statistics: Mapping[str, Statistic], tensors: Mapping[str, NamedTensor] = MappingProxyType({})
) -> Result:
    """Return the result of a kind with these statistics; it is untyped if they do not fit a known kind."""
    try:
        if kind in KINDS:
            return KINDS[kind].read(statistics, tensors)
    except TypeError:  # made by another tool, or edited
        pass
    return UntypedResult(undeclared=statistics, kind=kind)


def experiment_kinds(experiment: str) -> dict[str, type[Result]]:
    """Return the kinds of results that an experiment has."""
    return {name: KINDS[name] for name in kind_names(experiment)}


def kind_names(experiment: str) -> list[str]:
    """Return the names of the kinds that an experiment has."""
    return [name for name in RESULT_CLASSES if name.split(" of ")[0] == experiment and name in KINDS]


def may_lack_heads(kind: str) -> bool:
    """Return True if the kind is unknown or its table of heads may be empty; False if there is no kind."""
    if kind and kind not in KINDS:
        return True
    groups = KINDS[kind].groups() if kind else ()
    return any(place.may_be_empty for place in groups if has_head_rows(place.name))


@cache
def head_units() -> dict[str, str]:
    """Return the units of head statistics by column name, which is also the name of their grid."""
    return {
        name: column.unit
        for kind in KINDS.values()
        for group in kind.groups()
        if has_head_rows(group.name) and group.kind is not None
        for name, column in group.kind.columns.items()
        if column.unit
    }
