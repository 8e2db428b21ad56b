"""The first screen of `heads --relations`: the head that finds the most words of each relation."""

from collections.abc import Iterator

from attncli.features.pairs.relation_results import ALL, BestOfRelation, HeadRelations
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views.findings import percent
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    IntervalCells,
    NamingLine,
    Notes,
    NumberCells,
    PageTable,
    Ranked,
    RowCells,
    TextCells,
)
from attncli.views.matrices import head_name
from attncli.views.report_sections import model_name
from attncli.views.texts import NO_NUMBER, file_name, fixed

MOST_RELATIONS, MOST_NAME, DECIMALS = 12, 14, 2
DIRECTIONS = {"to_head": "to head", "from_head": "from head"}


def _heads(report: Report) -> str:
    heads = counted(len(report.result_of(HeadRelations).heads), "head")
    return f"heads: {model_name(report)}, {heads} along syntactic relations"


def _read(report: Report) -> str:
    result, name = report.result_of(HeadRelations), file_name(report.spec.get("relations"))
    return f"{result.num_sentences:,} sentences of {result.num_words:,} words: {name}"


def _left_out(rows: Records[BestOfRelation], total: int) -> str:
    return f"{counted(total - len(rows), 'relation')} with fewer words are not shown: use --show all."


def _beyond_offset(row: BestOfRelation) -> str:
    """The difference between head and offset, if their intervals do not overlap."""
    return f"+{fixed(row.share - row.offset_share, DECIMALS)}" if row.is_beyond_offset else NO_NUMBER


def _each_relation(report: Report) -> Records[BestOfRelation]:
    """Return the best head of each relation, without the row on all of them unless it is the only one."""
    best = report.result_of(HeadRelations).best
    return best.where(lambda row: row.relation != ALL) or best


def _clearest(report: Report) -> BestOfRelation:
    """Return the relation that a head finds best, relative to an offset."""
    return max(_each_relation(report), key=lambda row: (row.is_beyond_offset, row.share - row.offset_share))


def _main(report: Report) -> tuple[str, ...]:
    row = _clearest(report)
    return (f"{row.relation}.{row.direction}",)


def _page_table(report: Report) -> PageTable:
    columns = ("relation", "share", "offset_share")
    return PageTable("relations", columns, first=("relation", _clearest(report).relation))


def _finding(report: Report) -> Iterator[str]:
    """Yield the number of relations that a head finds better than an offset, and the clearest of them."""
    best = _each_relation(report)
    beyond = best.where(lambda row: row.is_beyond_offset)
    relations = counted(len(best), "relation")
    if beyond:
        yield f"For {len(beyond)} of {relations}, a head finds more words than any fixed offset."
    else:
        yield f"No head is shown to find more words than a fixed offset ({relations})."
    row = _clearest(report)
    name, finds = plain_text(row.relation), f"{percent(row.share)} of {counted(row.words, 'word')}"
    yield (
        f"The largest difference is for {name}: {head_name(row)} finds {finds}, "
        f"the offset {row.offset:+d} finds {percent(row.offset_share)}."
    )


RELATIONS_SCREEN = FirstScreen(
    HeadRelations,
    (
        NamingLine(_heads),
        NamingLine(_read, ""),
        Ranked(
            "best",
            (
                RowCells("words", lambda row: f"{row.words:,}"),
                HeadLabel(has_stacks=False),
                TextCells("direction", "looks", words=DIRECTIONS),
                NumberCells("share", decimals=DECIMALS),
                IntervalCells(),
                RowCells(("best", "offset"), lambda row: f"{row.offset:+d}"),
                NumberCells("offset_share", "share", DECIMALS),
                RowCells("gain", _beyond_offset),
            ),
            label=TextCells("relation", most=MOST_NAME),
            left_out=_left_out,
            usual=MOST_RELATIONS,
        ),
        Notes(),
    ),
    page_table=_page_table,
    main=_main,
    finding=_finding,
)
"""The input; for the most frequent relations, the best head with the best fixed offset."""
