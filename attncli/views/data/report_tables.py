"""The tables of a report by name, and the one that says what it found."""

from collections.abc import Mapping

from attncli.report import PLACES, NamedTensor, Numbers, Report, Row, Table, Tensors
from attncli.spec import SPECS
from attncli.views import NoSuchTable
from attncli.views.data.data_table import DataTable, table_of_rows, table_of_tensors
from attncli.views.data.long_form import long_form
from attncli.views.data.scaled_scores import with_scaled_scores

MATRIX = ("query", "key")
PLACE_TEXTS = ("module", "kind", "stack")
"""Where a head stands, beside its layer."""


def main_table(report: Report) -> DataTable:
    """The statistic that the Spec names, else the first of these that the report has.

    A table before other statistics; the weights, with all that has their axes; the statistics of rows;
    numbers of the same names, a row for each group; tensors.
    """
    named = SPECS[report.experiment].main_table if report.experiment in SPECS else None
    if named is not None and named in report.statistics:
        return table_named(report, named)
    first = next(iter(report.statistics), "")
    if report.table(first):
        return table_named(report, first)
    matrices = {name: tensor for name, tensor in report.tensors.items() if tensor.axes[-2:] == MATRIX}
    if matrices:
        return table_of_tensors(report, _of_equal_axes(with_scaled_scores(report, matrices)))
    if rows := report.tensors_of("rows"):
        return table_of_tensors(report, rows)
    kinds = _alike(report)
    if len(kinds) > 1 or not report.tensors:
        return table_of_rows(kinds)
    return table_of_tensors(report, _of_equal_axes(report.tensors))


def table_named(report: Report, name: str) -> DataTable:
    """A tensor, a statistic, all single numbers (`statistics`), or every number in long form (`all`).

    NoSuchTable for any other name.
    """
    tensors = with_scaled_scores(report, report.tensors)
    names = tuple(dict.fromkeys((*tensors, *report.statistics, "statistics", "all")))
    if name not in names:
        raise NoSuchTable(name, names)
    if name == "all":
        return long_form(report)
    if name in tensors:
        return table_of_tensors(report, {name: tensors[name]})
    if name == "statistics":
        return table_of_rows(
            [
                {"statistic": f"{group}.{member}", "value": number}
                for group, numbers in report.statistics.items()
                if isinstance(numbers, Numbers)
                for member, number in numbers.items()
            ]
        )
    match report.statistics[name]:
        case Tensors() as tensors:
            return table_of_tensors(report, tensors)
        case Numbers() as numbers:
            return table_of_rows([numbers])
        case table:
            return table_of_rows(_placed(table))


def _of_equal_axes(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    """The weights last, and all that has their axes, or those of the first where there are no weights."""
    like = tensors.get("weights", next(iter(tensors.values())))
    return {
        name: tensor
        for name, tensor in sorted(tensors.items(), key=lambda item: item[0] == "weights")
        if (tensor.axes, tensor.values.shape) == (like.axes, like.values.shape)
    }


def _alike(report: Report) -> list[Row]:
    """A row for each group of numbers that has the names of the first; numbers by group are a column."""
    groups = {name: group for name, group in report.statistics.items() if isinstance(group, Numbers)}
    names = next(iter(groups.values())).keys() if groups else ()
    kinds = {name: group for name, group in groups.items() if group.keys() == names}
    of_kinds = {name: group for name, group in groups.items() if group.keys() <= kinds.keys()}
    return [
        {"kind": kind, **group} | {name: column.get(kind) for name, column in of_kinds.items()}
        for kind, group in kinds.items()
    ]


def _placed(table: Table) -> list[Row]:
    """The rows; of a survey with layer and head first, and without texts that follow from the layer."""
    if not table or not {*PLACES, "stack"} <= table[0].keys():
        return [*table]
    num_layers = len({row["layer"] for row in table})
    follow = {
        name for name in PLACE_TEXTS if len({(row["layer"], row.get(name)) for row in table}) == num_layers
    }
    return [
        {name: row[name] for name in PLACES}
        | {name: cell for name, cell in row.items() if name not in follow}
        for row in table
    ]
