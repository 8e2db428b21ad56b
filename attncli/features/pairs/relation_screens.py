"""The first screen of `heads --relations`: the head that finds most of each syntactic relation."""

from collections.abc import Iterator

from attncli.features.pairs.relation_results import BestOfRelation, HeadRelations
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.first_screen import FirstScreen, HeadLabel, Notes, Ranked, Sentences, SpecialCells
from attncli.views.report_sections import model_name
from attncli.views.sections import Column
from attncli.views.texts import NO_NUMBER, file_name, fixed, shortened, shortened_heading

MOST_RELATIONS, MOST_NAME, DECIMALS = 12, 14, 2
DIRECTIONS = {"to_head": "to head", "from_head": "from head"}


def _heads(report: Report, display: Display) -> Iterator[str]:
    heads = counted(len(report.result_of(HeadRelations).heads), "head")
    title = f"heads: {model_name(report)}, {heads} along syntactic relations"
    yield shortened_heading(plain_text(title), display.width, plain_text(model_name(report)))


def _read(report: Report, display: Display) -> Iterator[str]:
    result, file = report.result_of(HeadRelations), str(report.spec.get("relations"))
    name = file_name(file)
    read = f"{result.num_sentences:,} sentences of {result.num_words:,} words: {name}"
    yield shortened_heading(plain_text(read), display.width, plain_text(name))


def _directions(report: Report, rows: Records[BestOfRelation], display: Display) -> list[Column]:
    """From where to where the head looks, and the interval of how often it does."""
    looks = [DIRECTIONS.get(row.direction, plain_text(row.direction)) for row in rows]
    intervals = [f"{fixed(row.lower, DECIMALS)}-{fixed(row.upper, DECIMALS)}" for row in rows]
    return [
        Column(("", "looks"), looks, left=True),
        Column(("", "share"), [fixed(row.share, DECIMALS) for row in rows]),
        Column(("", "95 %"), intervals, left=True),
    ]


def _offsets(report: Report, rows: Records[BestOfRelation], display: Display) -> list[Column]:
    """The best fixed offset, and by how much the head is better."""
    return [
        Column(("best", "offset"), [f"{row.offset:+d}" for row in rows]),
        Column(("", "share"), [fixed(row.offset_share, DECIMALS) for row in rows]),
        Column(("", "more"), [_beyond_offset(row) for row in rows]),
    ]


def _names(report: Report, rows: Records[BestOfRelation], display: Display) -> list[Column]:
    names = [shortened(plain_text(row.relation), MOST_NAME) for row in rows]
    return [Column(("", "relation"), names, left=True)]


def _words(report: Report, rows: Records[BestOfRelation], display: Display) -> list[Column]:
    return [Column(("", "words"), [f"{row.words:,}" for row in rows])]


def _left_out(rows: Records[BestOfRelation], total: int) -> str:
    return f"{counted(total - len(rows), 'relation')} with fewer words: --show all."


def _beyond_offset(row: BestOfRelation) -> str:
    """By how much the head is better than the offset, where their intervals do not overlap."""
    return f"+{fixed(row.share - row.offset_share, DECIMALS)}" if row.is_beyond_offset else NO_NUMBER


RELATIONS_SCREEN = FirstScreen(
    HeadRelations,
    (
        Sentences(_heads, "title"),
        Sentences(_read),
        Ranked(
            "best",
            (
                SpecialCells(_words),
                HeadLabel(has_stacks=False),
                SpecialCells(_directions),
                SpecialCells(_offsets),
            ),
            label=SpecialCells(_names),
            title=lambda *_: "",
            left_out=_left_out,
            usual=MOST_RELATIONS,
        ),
        Notes(),
    ),
)
"""What was read; of the most frequent relations the best head beside the best fixed offset."""
