"""The first screen of `results`: the summary of a store."""

from collections.abc import Iterator, Sequence

from attncli.core.names import ROW_STATISTICS, WITHOUT_FIRST
from attncli.features.results.results import GroupSummary, StoreSummary
from attncli.records.columns import Records
from attncli.records.report import PLACES, Report, Row, Table
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import number
from attncli.views.first_screen import FirstScreen, PageTable, Sentences, ShortenedLine, Special
from attncli.views.matrices import head_name
from attncli.views.report_sections import TableLabels, statistic_tables
from attncli.views.screens import LEAST_ROWS
from attncli.views.sections import Elastic, Paragraph, ScreenParts, Section

MOST_SUMMARY_ROWS, MOST_FAILED = 18, 2
STRONGEST = 10
HEADS_TITLE = "the head with the largest mean of each statistic"


def _store(report: Report) -> str:
    return f"results: {report.spec.get('store')}"


def _notes(report: Report, display: Display) -> Iterator[str]:
    yield from map(plain_text, report.notes)


def _summary(report: Report, display: Display) -> ScreenParts:
    """Show the most informative rows without constant group columns, and some failed runs; count the rest."""
    result = report.result_of(StoreSummary)
    summary, failed = result.summary, result.failed or ()
    group_by: Sequence[str] = report.spec.get("group_by", ())
    same = {name for name in group_by if len({repr(row[name]) for row in summary}) == 1}

    def of(most: int) -> Iterator[Section]:
        telling: Sequence[Row]
        if len(summary) <= most or report.spec.get("sort"):
            title, telling = "summary", summary[:most]
        else:
            title, telling = _telling_rows(summary, group_by, most)
        rows = [{name: cell for name, cell in row.items() if name not in same} for row in telling]
        tables = {title: Table(rows), "failed": Table(failed[:MOST_FAILED])}
        for grid in statistic_tables(tables, display, TableLabels(report, display)):
            yield grid.first_group(display.width)
        left_out = {"rows": len(summary) - len(rows), "failed runs": max(len(failed) - MOST_FAILED, 0)}
        if counts := ", ".join(f"{count:,} {name}" for name, count in left_out.items() if count > 0):
            yield Paragraph(
                f"Not shown: {counts}. See --statistic, --group-by, --top or -o summary.csv.", "note"
            )

    # A second table takes four lines besides its rows: a blank line, a title, a header and a rule.
    most = MOST_SUMMARY_ROWS - bool(failed) * (min(len(failed), MOST_FAILED) + 4)
    yield Elastic(of, most, min(LEAST_ROWS, len(summary)), len(summary))


def _telling_rows(
    summary: Records[GroupSummary], group_by: Sequence[str], most: int
) -> tuple[str, Sequence[Row]]:
    """Return a title and up to `most` rows: the strongest heads, or the means of row statistics first."""
    by_statistic: dict[str, list[GroupSummary]] = {}
    for row in summary:
        by_statistic.setdefault(row.statistic, []).append(row)
    if not {*PLACES} <= {*group_by}:
        row_means = [f"{name}.mean" for name in ROW_STATISTICS]
        names = [*(name for name in row_means if name in by_statistic)]
        names += [name for name in by_statistic if name not in row_means]
        return "summary", [row for name in names for row in by_statistic[name]][:most]
    ranked = [sorted(rows, key=lambda row: -row.mean) for rows in by_statistic.values()]
    ranked = [rows for rows in ranked if _is_strong_head(rows[0])]
    if len(ranked) == 1:
        count = min(STRONGEST, most)
        return f"the {count} heads with the largest mean", list(map(_head_row, ranked[0][:count]))
    return HEADS_TITLE, [_head_row(rows[0]) for rows in ranked[:most]]


def _is_strong_head(row: GroupSummary) -> bool:
    """Return True for a row about a head that includes all its keys and whose mean is not 0."""
    return row.get("head") is not None and row.mean != 0 and f"{WITHOUT_FIRST}." not in row.statistic


def _head_row(row: GroupSummary) -> Row:
    """Return the row with its head written like 24:4."""
    numbers = {name: cell for name, cell in row.items() if name not in ("statistic", *PLACES)}
    return {"statistic": row.statistic, "head": head_name(row), **numbers}


SUMMARY_STEPS = ("--statistic NAME", "--group-by none", "-o summary.csv")


def _main_statistic(report: Report) -> str:
    """Return the statistic that comes first, or an empty string for an empty store."""
    _, rows = _telling_rows(report.result_of(StoreSummary).summary, report.spec.get("group_by") or (), 1)
    return str(rows[0]["statistic"]) if rows else ""


def _finding(report: Report) -> Iterator[str]:
    """Yield the groups with the largest and the smallest mean of the first statistic, and the failed runs."""
    result = report.result_of(StoreSummary)
    group_by: Sequence[str] = report.spec.get("group_by") or ()
    if statistic := _main_statistic(report):
        rows = result.summary.where(lambda row: row.statistic == statistic)
        most, least = (choose(rows, key=lambda row: row.mean) for choose in (max, min))
        name = plain_text(statistic)
        if most.mean == least.mean:
            yield f"The mean of {name} is {number(most.mean)}."
        else:
            high, low = (f"{number(row.mean)} ({_group(row, group_by, rows)})" for row in (most, least))
            yield f"The mean of {name} goes from {low} to {high}."
    if result.failed:
        yield f"{counted(len(result.failed), 'run')} failed."


def _group(row: GroupSummary, group_by: Sequence[str], rows: Sequence[GroupSummary]) -> str:
    """Return the settings of a group that differ between the groups, such as `num_heads 8`."""
    if {*PLACES} <= {*group_by} and row.get("head") is not None:
        return f"head {head_name(row)}"
    names = [name for name in group_by if len({repr(each[name]) for each in rows}) > 1]
    return plain_text(", ".join(f"{name} {row[name]}" for name in names)) or "this group"


SUMMARY_SCREEN = FirstScreen(
    StoreSummary,
    (
        ShortenedLine(_store, "title", settings={"store": str, "group_by": list}),
        Sentences(_notes, "line"),
        Special(_summary, "the choice of rows depends on the groups"),
    ),
    next_steps=lambda *_: SUMMARY_STEPS,
    page_table=lambda report: PageTable("summary", (), first=("statistic", _main_statistic(report))),
    finding=_finding,
)
"""The most informative rows of a store."""
