"""The first screen of `heads --relations`: the head that finds most of each syntactic relation."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attncli.plain_text import counted, plain_text
from attncli.records.columns import Records
from attncli.records.relations import BestOfRelation, HeadRelations
from attncli.report import Report
from attncli.views import Display
from attncli.views.model_screens import LEAST_ROWS, head_names
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    model_name,
    notes_in,
    one_line,
)
from attncli.views.texts import NO_NUMBER, fixed, shortened

MOST_RELATIONS, MOST_NAME, DECIMALS = 12, 14, 2
DIRECTIONS = {"to_head": "to head", "from_head": "from head"}


def relations_screen(report: Report, display: Display) -> ScreenParts:
    """What was read; of the most frequent relations the best head beside the best fixed offset."""
    result = report.result_of(HeadRelations)
    heads = counted(len(result.heads), "head")
    yield one_line(f"heads: {model_name(report)}, {heads} along syntactic relations", display, "title")
    file = str(report.spec.get("relations"))
    name = "standard input" if file == "-" else Path(file).name
    yield one_line(f"{result.num_sentences:,} sentences of {result.num_words:,} words: {name}", display)
    count = len(result.best)
    yield Elastic(partial(_relations, result.best, display), MOST_RELATIONS, LEAST_ROWS, count)
    yield notes_in(report.notes, display)


def _relations(relations: Records[BestOfRelation], display: Display, most: int) -> Iterator[Section]:
    rows = relations[:most]
    names = [shortened(plain_text(row.relation), MOST_NAME) for row in rows]
    intervals = [f"{fixed(row.lower, DECIMALS)}-{fixed(row.upper, DECIMALS)}" for row in rows]
    columns = [
        Column(("", "words"), [f"{row.words:,}" for row in rows]),
        head_names(rows),
        Column(
            ("", "looks"),
            [DIRECTIONS.get(row.direction, plain_text(row.direction)) for row in rows],
            left=True,
        ),
        Column(("", "share"), [fixed(row.share, DECIMALS) for row in rows]),
        Column(("", "95 %"), intervals, left=True),
        Column(("best", "offset"), [f"{row.offset:+d}" for row in rows]),
        Column(("", "share"), [fixed(row.offset_share, DECIMALS) for row in rows]),
        Column(("", "more"), [_beyond_offset(row) for row in rows]),
    ]
    yield Grid("", Column(("", "relation"), names, left=True), columns)
    yield Paragraph("", "dim")
    if left_out := len(relations) - len(rows):
        yield Paragraph(f"{counted(left_out, 'relation')} with fewer words: --show all.", "note")


def _beyond_offset(row: BestOfRelation) -> str:
    """By how much the head is better than the offset, where their intervals do not overlap."""
    return f"+{fixed(row.share - row.offset_share, DECIMALS)}" if row.is_beyond_offset else NO_NUMBER
