"""`attn results`: a summary table of a store."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attncli.batch.store.columns import GROUP_SUMMARY
from attncli.cli.batches.export import ALL_RUNS, STORE, note_earlier_runs
from attncli.cli.command import Command, flag, option
from attncli.cli.flags import COLOR, DEBUG, FORMAT, OUTPUT, PRECISION, refuse_unknown
from attncli.cli.output import Destination, written_stream
from attncli.errors import UserError
from attncli.report import Table

EXAMPLES = (
    "attn results runs.db",
    "attn results runs.db --statistic entropy.mean --group-by num_heads --group-by causal",
    'attn results runs.db --where "head = 3" --where "entropy.mean < 1.5"',
    "attn results runs.db --statistic entropy --group-by layer --group-by head",
    "attn results runs.db --statistic entropy --group-by layer --group-by head --sort mean --top 10",
    "attn results runs.db --format json -o summary.json",
)
WHERE = option(
    "--where",
    "Only statistics where this holds: a setting, layer, head, id or statistic, a comparison and a "
    'value, as "causal = true"; repeatable.',
    "CONDITION",
    kind=list[str],
)
GROUP_BY = option(
    "--group-by",
    "One row for each value of a setting, of layer, head or id; repeatable. [default: experiment]",
    "NAME",
    kind=list[str],
)
STATISTIC = option("--statistic", "Only this statistic; repeatable.", "NAME", kind=list[str])
SORT = option("--sort", "The rows with the largest of this first.", choices=GROUP_SUMMARY)
ASCENDING = flag("--ascending", "With --sort: the smallest first.")
TOP = option("--top", "Show only the first N rows.", "N", kind=int, min=1)


def show_results(
    store: str,
    where: Sequence[str],
    group_by: Sequence[str],
    statistic: Sequence[str],
    sort: str | None,
    ascending: bool,
    top: int | None,
    all: bool,
    **flags: Any,
) -> None:
    """Count, mean, standard deviation, minimum and maximum of the statistics, by group."""
    from attncli.batch.conditions import parse_conditions

    conditions = parse_conditions(where, "--where", numbers_only=False)
    if sort is not None:
        refuse_unknown("--sort", sort, GROUP_SUMMARY)
    elif ascending:
        raise UserError(f"--ascending: needs --sort {'|'.join(GROUP_SUMMARY)}")
    to = Destination(**flags)
    if group_by or statistic or top:
        to.display = replace(to.display, show=("all",))
    from attncli.batch.store.reading import reading
    from attncli.batch.store.results import results

    path = Path(store)
    # Two runs of one id are two sentences where they are of different plans.
    groups = list(dict.fromkeys([*(group_by or ["experiment"]), *(["plan"] if all else [])]))
    with reading(path, all_runs=all) as reader:
        report = results(
            path,
            reader,
            where=conditions,
            group_by=groups,
            statistics=statistic,
            sort=sort,
            ascending=ascending,
            top=top,
            drawn=to.view.draws,
        )
        if to.view.one_table:
            _write_rows(report.table("summary"), groups, to)
            note_earlier_runs(store, reader)
        else:
            to.write([report])


def _write_rows(rows: Table, groups: Sequence[str], to: Destination) -> None:
    """The summary as one table with all its columns, however few rows there are."""
    from attncli.views.data.data_table import table_of_rows
    from attncli.views.data.writers import WRITERS

    table = table_of_rows(rows)
    summary = dict.fromkeys(GROUP_SUMMARY, "number")
    columns = {**dict.fromkeys(["statistic", *groups], "text"), **summary, **table.columns}
    blocks = ({name: block.get(name, [None] * len(rows)) for name in columns} for block in table.blocks())
    with written_stream(to.path, is_binary=to.view.writes_bytes) as stream:
        WRITERS[to.format](columns, blocks, stream)


command = partial(
    Command,
    run=show_results,
    parameters=[
        *(STORE, WHERE, GROUP_BY, STATISTIC, SORT, ASCENDING, TOP, ALL_RUNS),
        *(FORMAT, OUTPUT, PRECISION, COLOR, DEBUG),
    ],
    examples=EXAMPLES,
)
