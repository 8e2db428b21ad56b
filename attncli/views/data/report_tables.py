"""The tables of a report by name: the main one, every number in long form, and all between."""

from collections.abc import Iterator, Mapping

import numpy as np

from attncli.report import AXES, PLACES, Cell, NamedTensor, Numbers, Report, Row, Table, Tensors
from attncli.spec import SPECS
from attncli.views import NoSuchTable
from attncli.views.data.data_table import DataTable, stacked, table_of_rows, table_of_tensors

MATRIX = ("query", "key")
PLACE_TEXTS = ("module", "kind", "stack")
"""Where a head is, beside its layer."""
LONG_COLUMNS = ("name", "row", *(name for axis in AXES for name in (axis, f"{axis}_text")), "text", "value")
TOLERANCE = 1e-5


def main_table(report: Report) -> DataTable:
    """The statistic that the Spec names, else the first of these that the report has.

    A table before other statistics; the weights, with all that has their axes; the statistics of rows;
    numbers of the same names, one row per group; tensors.
    """
    named = SPECS[report.experiment].main_table if report.experiment in SPECS else None
    if named is not None and named in report.statistics:
        return table_named(report, named)
    first = next(iter(report.statistics), "")
    if report.table(first):
        return table_named(report, first)
    matrices = {name: tensor for name, tensor in report.tensors.items() if tensor.axes[-2:] == MATRIX}
    if matrices:
        return table_of_tensors(report, _of_equal_axes(_with_scaled_scores(report, matrices)))
    if rows := report.tensors_of("rows"):
        return table_of_tensors(report, rows)
    groups = _groups_of_same_names(report)
    if len(groups) > 1 or not report.tensors:
        return table_of_rows(groups)
    return table_of_tensors(report, _of_equal_axes(report.tensors))


def table_named(report: Report, name: str) -> DataTable:
    """A tensor, a statistic, all single numbers (`statistics`), or every number in long form (`all`).

    NoSuchTable for any other name.
    """
    tensors = _with_scaled_scores(report, report.tensors)
    names = tuple(dict.fromkeys((*tensors, *report.statistics, "statistics", "all")))
    if name not in names:
        raise NoSuchTable(name, names)
    if name == "all":
        return _long_form(report)
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
            return table_of_rows(_layer_and_head_first(table))


def _of_equal_axes(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    """The weights last, and all that has their axes, or those of the first where there are no weights."""
    like = tensors.get("weights", next(iter(tensors.values())))
    return {
        name: tensor
        for name, tensor in sorted(tensors.items(), key=lambda item: item[0] == "weights")
        if (tensor.axes, tensor.values.shape) == (like.axes, like.values.shape)
    }


def _groups_of_same_names(report: Report) -> list[Row]:
    """A row for each group of numbers that has the names of the first; numbers by group are a column."""
    groups = {name: group for name, group in report.statistics.items() if isinstance(group, Numbers)}
    names = next(iter(groups.values())).keys() if groups else ()
    kinds = {name: group for name, group in groups.items() if group.keys() == names}
    by_kind = {name: group for name, group in groups.items() if group.keys() <= kinds.keys()}
    return [
        {"kind": kind, **group} | {name: column.get(kind) for name, column in by_kind.items()}
        for kind, group in kinds.items()
    ]


def _layer_and_head_first(table: Table) -> list[Row]:
    """The rows; of a survey with layer and head first, and without texts that follow from the layer."""
    if not table or not {*PLACES, "stack"} <= table[0].keys():
        return [*table]
    num_layers = len({row["layer"] for row in table})
    implied = {
        name for name in PLACE_TEXTS if len({(row["layer"], row.get(name)) for row in table}) == num_layers
    }
    return [
        {name: row[name] for name in PLACES}
        | {name: cell for name, cell in row.items() if name not in implied}
        for row in table
    ]


def _long_form(report: Report) -> DataTable:
    """Every number as a row: its name, `statistics.scores.mean` or `tensors.weights`, its place, its value.

    Of a table its row is `row`, a place in a list `rank`. `value` is a number; text is in `text`.
    """
    table = stacked(list(_long_parts(report)))
    return table._replace(
        columns={name: table.columns[name] for name in LONG_COLUMNS if name in table.columns}
    )


def _long_parts(report: Report) -> Iterator[tuple[dict[str, Cell], DataTable]]:
    groups = {f"statistics.{name}": statistic for name, statistic in report.statistics.items()}
    for group, members in {**groups, "tensors": Tensors(report.tensors)}.items():
        match members:
            case Tensors():
                for name, tensor in members.items():
                    yield {"name": f"{group}.{name}"}, table_of_tensors(report, {"value": tensor})
            case Numbers():
                for name, number in members.items():
                    yield {"name": f"{group}.{name}"}, table_of_rows([{"value": number}])
            case Table():
                for name in dict.fromkeys(name for row in members for name in row):
                    yield {"name": f"{group}.{name}"}, table_of_rows(_long_column(members, name))


def _long_column(table: Table, name: str) -> list[Row]:
    """The cells of one column, one row each."""
    rows: list[Row] = []
    for number, row in enumerate(table):
        cell = row.get(name)
        if isinstance(cell, list):
            rows += [{"row": number, "rank": rank, "value": item} for rank, item in enumerate(cell)]
        else:
            rows.append({"row": number, ("text" if isinstance(cell, str) else "value"): cell})
    return rows


def _with_scaled_scores(report: Report, tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    """The tensors, and after scores the scaled ones, where scaling only multiplied them by a factor."""
    found: dict[str, NamedTensor] = {}
    for name, tensor in tensors.items():
        found[name] = tensor
        if not name.endswith("scores"):
            continue
        scaled = f"{name.removesuffix('scores')}scaled_scores"
        if scaled in tensors:
            found.pop(scaled, None)  # an explanation has them in front
            found[scaled] = tensors[scaled]
        elif (factor := _scale(report, name, scaled)) is not None:
            # In double precision, then rounded as scores are: a saved report gives the same.
            product = (tensor.values.astype(np.float64) * factor).astype(np.float32)
            found[scaled] = NamedTensor(tensor.axes, product)
    return found


def _scale(report: Report, name: str, scaled: str) -> float | None:
    """The factor between the moments of both, to float32; None where something else happened to the scores.

    A softcap or a bias changes smallest, mean and largest in different ways.
    """
    before, after = report.numbers(name), report.numbers(scaled)
    pairs = [(before.get(moment), after.get(moment)) for moment in ("min", "mean", "max")]
    if any(None in pair for pair in pairs):
        return None
    one, other = np.array(pairs, dtype=np.float64).T
    largest = np.abs(one).argmax()
    for after_scale in (other, other[::-1]):  # a negative factor makes the largest the smallest
        factor = after_scale[largest] / one[largest] if one[largest] else 0.0
        if factor and np.allclose(after_scale, one * factor, rtol=0, atol=TOLERANCE * np.abs(other).max()):
            return float(factor)
    return None
