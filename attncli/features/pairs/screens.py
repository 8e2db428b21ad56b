"""The first screen of `heads --pairs`: the best head of each measure on held-out texts, and an example."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from attncli.features.pairs.results import (
    BestOnPairs,
    CombinedHeads,
    ExampleOfPair,
    HeadOnMeasure,
    HeadsOnPairs,
    PairScore,
)
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import ends, named_head, number, percent
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
    SpecialCells,
    TextCells,
)
from attncli.views.matrices import head_name
from attncli.views.report_sections import model_name
from attncli.views.sections import Column
from attncli.views.texts import NO_NUMBER, file_name, fixed, shortened

DECIMALS = 2
MEASURES = {
    "hit": "hit",
    "precision": "precision, L",
    "precision_half": "precision, L/2",
    "precision_fifth": "precision, L/5",
    "mass": "mass",
}
EXAMPLE_ROWS, MOST_STRONGEST = 6, 5
MEDIUM = 30
"""On terminals with at most this many lines, only the first two measures are shown."""


def _read(report: Report) -> str:
    result = report.result_of(HeadsOnPairs)
    heads = counted(len(result.heads), "head")
    return f"heads: {model_name(report)}, {heads} on {counted(result.num_pairs, 'known pair')}"


def _texts(report: Report) -> str:
    result = report.result_of(HeadsOnPairs)
    groups = f" in {counted(result.num_groups, 'group')}" if result.num_groups < result.num_texts else ""
    return f"{counted(result.num_texts, 'text')}{groups}: {file_name(report.spec.get('pairs'))}"


def _directions(report: Report, rows: Records[PairScore], display: Display) -> list[Column]:
    """The direction in which each head looks; none for symmetric pairs and pairs of two texts."""
    directions = [plain_text(str(row.get("direction", ""))) for row in rows]
    if report.result_of(HeadsOnPairs).is_symmetric or report.context_tokens:
        return []
    return [Column(("", "looks"), directions, left=True)]


def _folds(report: Report, rows: Records[BestOnPairs], display: Display) -> list[Column]:
    """The number of folds that chose each head, if there are several folds."""
    if all(row.folds == 1 for row in rows):
        return []
    return [Column(("", "folds"), [f"{row.agreeing}/{row.folds}" for row in rows])]


def _offsets(report: Report, rows: Records[PairScore], display: Display) -> list[Column]:
    """The best fixed offset (signed if pairs have a direction) and its share."""
    sign = "" if report.result_of(HeadsOnPairs).is_symmetric else "+"
    offsets = [
        NO_NUMBER if row.offset is None else f"{row.offset:{sign}d}: {fixed(row.offset_share, DECIMALS)}"
        for row in rows
    ]
    return [Column(("best", "offset"), offsets)]


def _most_measures(report: Report, display: Display) -> int:
    """The number of measures to show: all, or two on a short terminal."""
    return len(MEASURES) if display.height is None or display.height > MEDIUM else 2


def _strongest_title(report: Report, rows: Records[HeadOnMeasure], total: int) -> str:
    by = MEASURES[report.result_of(HeadsOnPairs).best_head.measure]
    return f"The first {len(rows)} heads by {by}"


def _example_title(report: Report, rows: Records[ExampleOfPair], total: int) -> str:
    result = report.result_of(HeadsOnPairs)
    hits, positions = sum(row.is_hit for row in result.example), counted(len(result.example), "position")
    return f"Example: {head_name(result.best_head)} finds {hits} of {positions}"


def _finds(report: Report, rows: Records[ExampleOfPair], display: Display) -> list[Column]:
    most = max(8, (display.columns - 50) // 2)
    looked_at = [
        NO_NUMBER if row.looked_at is None else plain_text(f"{row.looked_at} {row.looked_at_token}")
        for row in rows
    ]
    return [
        Column(("", "finds"), [shortened(each, most) for each in looked_at], left=True),
        Column(("", "weight"), [fixed(row.weight, DECIMALS) for row in rows]),
        Column(("", ""), ["hit" if row.is_hit else "missed" for row in rows], left=True),
        Column(("", "partner"), [shortened(plain_text(row.partners), most) for row in rows], left=True),
    ]


def _combined_title(report: Report, rows: Records[CombinedHeads], total: int) -> str:
    if report.spec.get("method") == "logistic":
        return "Logistic regression over all heads"
    return "Mean of the best heads"


MEASURE = TextCells("measure", words=MEASURES)
CHOSEN_ON = NumberCells("choosing", ("chosen", "on"), DECIMALS)
HELD_OUT = NumberCells("held_out", ("held", "out"), DECIMALS)
SCORES = (
    CHOSEN_ON,
    HELD_OUT,
    IntervalCells(),
    SpecialCells(_offsets),
    NumberCells("chance", decimals=DECIMALS),
)
"""The share on both parts of the texts, with the best offset and chance."""


def _finding(report: Report) -> Iterator[str]:
    """Yield the best head beside the best fixed offset, on held-out texts, and several heads together."""
    result = report.result_of(HeadsOnPairs)
    best = result.best_head
    is_hit = best.measure == "hit"
    text: Callable[[float | None], str] = percent if is_hit else number
    share = best.choosing if best.held_out is None else best.held_out
    where = "" if best.held_out is None else " on texts that it was not chosen on"
    shares = f"{text(share)}{ends(best, text=text)}"
    finds = f"{shares} of known partners" if is_hit else f"known pairs with precision {shares}"
    offset = ""
    if best.offset is not None:
        offset = f"; the best fixed offset, {best.offset:+d}: {text(best.offset_share)}"
    yield f"Head {named_head(best)} finds {finds}{where}{offset}."
    for row in result.combined.where(lambda row: row.measure == best.measure):
        yield f"{counted(row.num_heads, 'head')} together: {text(row.held_out)}."


PAIRS_SCREEN = FirstScreen(
    HeadsOnPairs,
    (
        NamingLine(_read),
        NamingLine(_texts, ""),
        Ranked(
            "measures",
            (HeadLabel(), SpecialCells(_directions), SpecialCells(_folds), *SCORES),
            label=MEASURE,
            usual=_most_measures,
            least=_most_measures,
        ),
        Ranked(
            "combined",
            (RowCells(("heads", "used"), lambda row: f"{row.num_heads:,}"), *SCORES),
            label=MEASURE,
            title=_combined_title,
            usual=2,
            least=2,
            shows=lambda report: bool(report.result_of(HeadsOnPairs).combined),
        ),
        Ranked(
            "strongest",
            (
                SpecialCells(_directions),
                replace(CHOSEN_ON, if_any=True),
                replace(HELD_OUT, if_any=True),
                NumberCells("mean", ("all", "texts"), DECIMALS),
                IntervalCells(),
            ),
            title=_strongest_title,
            usual=MOST_STRONGEST,
            least=0,
            rank=1,
        ),
        Ranked(
            "example",
            (SpecialCells(_finds),),
            label=RowCells("position", lambda row: plain_text(f"{row.position} {row.token}")),
            title=_example_title,
            usual=EXAMPLE_ROWS,
            least=0,
            rank=2,
        ),
        Notes(apart=True, rank=0),
    ),
    page_table=lambda _: PageTable("strongest", ("statistic", "held_out", "choosing")),
    finding=_finding,
)
"""The input; the best head of each measure with the best fixed offset; its weights in one text."""
