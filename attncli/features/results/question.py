"""`attn results`: a summary of a store, or all its values as a tidy table."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.commands.command import (
    COLOR,
    DEBUG,
    FORMAT,
    OUTPUT,
    PRECISION,
    Command,
    argument,
    flag,
    height,
    option,
    refuse_flags,
    refuse_unknown,
)
from attncli.commands.output import (
    Destination,
    checked_path,
    chosen_format,
    progress_line,
    with_write_progress,
    written_stream,
)
from attncli.errors import UserError
from attncli.records.report import Table
from attncli.runs.report_values import GROUP_SUMMARY, parse_conditions
from attncli.system.plain_text import plain_text
from attncli.views import VIEWS

if TYPE_CHECKING:
    from attncli.records.report import Report
    from attncli.runs.reading import Reader


FORMATS = ("csv", "jsonl", "parquet")
STORE = argument(
    "store", "The store that `attn batch -o` or `attn record -o` wrote.", "STORE", reads_file=True
)
ALL_RUNS = flag("--all", "Include runs of earlier plans; the column `plan` has the plan's number.")
TIDY = flag(
    "--tidy",
    "Write every statistic of every run instead of the summary, one row each, as csv, jsonl or parquet: "
    "run, id, layer, head, statistic, value.",
    everyday="write every statistic of every run: -o tidy.csv",
)


def write_tidy(store: str, output: str | None, format: str | None, all: bool) -> None:
    """Write one row per statistic of a run, with the columns run, id, layer, head, statistic and value."""
    from attncli.views.data import SUFFIXES, WRITERS

    path = checked_path(output)
    chosen = chosen_format(format, path, FORMATS, SUFFIXES, "csv")
    if chosen == "parquet" and path is None:
        raise UserError("--format parquet: needs -o FILE")
    if chosen == "parquet" and find_spec("pyarrow") is None:
        raise UserError('--format parquet: needs: pip install "attncli[parquet]"')
    with progress_line() as line:
        line.begin(f"reading {Path(store).name}")
        from attncli.features.results.summaries import tidy_blocks, tidy_columns
        from attncli.runs.reading import reading

        with reading(Path(store), all_runs=all) as reader:
            columns, blocks = tidy_columns(reader), tidy_blocks(reader)
            line.clear()
            with written_stream(path, VIEWS[chosen]) as stream:
                WRITERS[chosen](columns, with_write_progress(blocks, path, line), stream)
                line.clear()
            note_earlier_runs(store, reader)


def note_earlier_runs(store: str, reader: "Reader") -> None:
    """Print a note to standard error if the store has runs that the last batch did not plan."""
    if earlier := reader.earlier_runs():
        print(plain_text(f"{store}: {earlier}"), file=sys.stderr)


EXAMPLES = (
    "attn results runs.db",
    "attn results runs.db --statistic entropy.mean",
    "attn results runs.db --statistic entropy.mean --group-by num_heads --group-by causal",
    "attn results runs.db --tidy -o tidy.parquet",
    'attn results runs.db --where "head = 5:11" --where "entropy.mean < 1.5"',
    "attn results survey.db --statistic entropy --sort mean --top 10",
    "attn results runs.db --format json -o summary.json",
)
WHERE = option(
    "--where",
    "Show only values that meet this condition: a setting, layer, head, id or statistic, a comparison and "
    'a value, such as "causal = true", or "head = 5:11" in a model; repeatable.',
    "CONDITION",
    kind=list[str],
    everyday='keep only what meets a condition, such as "causal = true" or "head = 5:11"; may be repeated',
)
GROUP_BY = option(
    "--group-by",
    "Show one row per value of a setting, layer, head (in a model with its layer) or id; repeatable; "
    "the name none gives one row for all runs. "
    "[default: the swept settings, and layer and head of a model]",
    "NAME",
    kind=list[str],
    everyday="show one row per value of this setting; may be repeated",
)
NO_GROUPS = "none"
STATISTIC = option(
    "--statistic",
    "Show only this statistic; repeatable.",
    "NAME",
    kind=list[str],
    everyday="show only this statistic; may be repeated",
)
SORT = option(
    "--sort",
    "Sort the rows by this number, the largest first.",
    choices=GROUP_SUMMARY,
    everyday="sort by this number, largest first",
)
ASCENDING = flag(
    "--ascending", "With --sort: the smallest first.", everyday="with --sort, the smallest first"
)
TOP = option(
    "--top", "Show only the first N rows.", "N", kind=int, min=1, everyday="show only the first N rows"
)


def show_results(
    store: str,
    where: Sequence[str],
    group_by: Sequence[str],
    statistic: Sequence[str],
    sort: str | None,
    ascending: bool,
    top: int | None,
    all: bool,
    tidy: bool,
    **flags: Any,
) -> None:
    """Show the count, mean, standard deviation and extremes of each statistic by group, or every value."""
    if tidy:
        chosen = {"where": where, "group_by": group_by, "statistic": statistic, "sort": sort, "top": top}
        refuse_flags(chosen, "cannot be combined with --tidy, which writes every value")
        write_tidy(store, flags[OUTPUT.name], flags[FORMAT.name], all)
        return
    conditions = parse_conditions(where, "--where", numbers_only=False)
    if sort is not None:
        refuse_unknown("--sort", sort, GROUP_SUMMARY)
    elif ascending:
        raise UserError(f"--ascending: needs --sort {'|'.join(GROUP_SUMMARY)}")
    to = Destination(**flags, experiment="results")
    with progress_line() as line:
        line.begin(f"reading {Path(store).name}")
        from attncli.features.results.summaries import results, usual_groups, with_layers
        from attncli.runs.reading import reading

        path = Path(store)
        with reading(path, all_runs=all) as reader:
            groups = ["experiment"] if list(group_by) == [NO_GROUPS] else group_by or usual_groups(reader)
            # In different plans, runs with the same id may have different sentences.
            groups = with_layers(list(dict.fromkeys([*groups, *(["plan"] if all else [])])), reader)
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
            line.clear()
            if top or ((group_by or statistic) and not _is_higher_than_screen(report, to)):
                to.display = replace(to.display, show=("all",))
            if to.view.one_table:
                _write_rows(report.table("summary"), groups, to)
                note_earlier_runs(store, reader)
            else:
                to.write([report])


BESIDES = 14
"""Lines of a screen besides the rows of its table: title, notes, header and next steps."""


def _is_higher_than_screen(report: "Report", to: Destination) -> bool:
    is_screen = to.format == "table" and to.path is None and sys.stdout.isatty()
    lines = height(is_screen)
    return lines is not None and len(report.table("summary")) + BESIDES > lines


def _write_rows(rows: Table, groups: Sequence[str], to: Destination) -> None:
    """Write the summary as a single table with all its columns, even if it has no rows."""
    from attncli.views.data import WRITERS, rows_table

    table = rows_table(rows)
    summary = dict.fromkeys(GROUP_SUMMARY, "number")
    columns = {**dict.fromkeys(["statistic", *groups], "text"), **summary, **table.columns}
    blocks = ({name: block.get(name, [None] * len(rows)) for name in columns} for block in table.blocks())
    with written_stream(to.path, to.view) as stream:
        WRITERS[to.format](columns, blocks, stream)


command = partial(
    Command,
    run=show_results,
    parameters=[
        *(STORE, TIDY, WHERE, GROUP_BY, STATISTIC, SORT, ASCENDING, TOP, ALL_RUNS),
        *(FORMAT, OUTPUT, PRECISION, COLOR, DEBUG),
    ],
    examples=EXAMPLES,
)
