"""`attn results`: a summary table of a store."""

from pathlib import Path
from typing import Annotated, Any

import typer

from attncli.cli.export import AllRuns, StoreFile, tell_of_earlier_runs
from attncli.cli.output import Color, Debug, Destination, Format, Output, Precision, write_bytes
from attncli.report import Table

EXAMPLES = """
  attn results runs.db
  attn results runs.db --statistic entropy.mean --group-by num_heads --group-by causal
  attn results runs.db --where "head = 3" --where "entropy.mean < 1.5"
  attn results runs.db --format json -o summary.json"""

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Only figures where this holds: a setting, layer, head, id or statistic, a comparison and a "
        'value, as "causal = true"; repeatable.',
        metavar="CONDITION",
    ),
]
GroupBy = Annotated[
    list[str] | None,
    typer.Option(
        "--group-by",
        help="A row for each value of a setting, of layer, head or id; repeatable. [default: experiment]",
        metavar="NAME",
    ),
]
Statistic = Annotated[
    list[str] | None,
    typer.Option("--statistic", help="Only this statistic; repeatable.", metavar="NAME"),
]


def show_results(
    store: StoreFile,
    where: Where = None,
    group_by: GroupBy = None,
    statistic: Statistic = None,
    all_runs: AllRuns = False,
    format: Format = None,
    output: Output = None,
    precision: Precision = "4",
    color: Color = "auto",
    debug: Debug = False,
) -> None:
    """Count, mean, minimum and maximum of the figures, by group."""
    from attncli.batch.conditions import parse_conditions

    conditions = parse_conditions(where or [], "--where", numbers_only=False)
    to = Destination(format, output, precision, color, several=False)
    from attncli.batch.reading import reading
    from attncli.batch.results import results

    path = Path(store)
    # Two runs of one id are two sentences where they are of different plans.
    groups = list(dict.fromkeys([*(group_by or ["experiment"]), *(["plan"] if all_runs else [])]))
    with reading(path, all_runs=all_runs) as reader:
        report = results(path, reader, where=conditions, group_by=groups, statistics=statistic or [])
        if to.view == "csv":
            _write_rows(report.table("figures"), groups, to)
            tell_of_earlier_runs(store, reader)
        else:
            to.write([report])


def _write_rows(rows: Table, groups: list[str], to: Destination) -> None:
    """The summary as one table, where the view of reports would give a line a number."""
    from attncli.views.tidy import write_csv

    columns = dict.fromkeys(["statistic", *groups, "figures", "mean", "min", "max"], "text")
    blocks = [{name: [row[name] for row in rows] for name in columns}]
    write_bytes(to.path, lambda stream: write_csv(columns, blocks, stream))


def build(name: str, summary: str) -> Any:
    """The Typer command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n", no_args_is_help=True)(show_results)
    return typer.main.get_command(app)
