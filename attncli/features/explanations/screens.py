"""The first screens of `source --compare`: ways to read side by side, and against removal over prompts."""

from collections.abc import Iterator
from math import exp

from attncli.features.explanations.results import (
    ComparedWay,
    ComparedWays,
    ExplainedSource,
    Explanations,
    LearnedHead,
    LearnedWeights,
    WayOfReading,
)
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    Notes,
    NumberCells,
    PlaceCells,
    Ranked,
    Sentences,
    Special,
    SpecialCells,
    TextCells,
    TitleLine,
    notes_and_how_to_read,
)
from attncli.views.picture_maps import ORIGINAL, row_name, rows_in
from attncli.views.sections import GAP, Column, Drawing, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import NO_NUMBER, fixed, shortened

DECIMALS, OF_COSINES = 2, 3
MOST_SOURCES, LEAST_SOURCES, LEAST_TEXT = 9, 3, 10
MOST_WAYS = 15
MOST_HEADS, WEIGHT_STATISTICS = 10, 4
HEADERS = {
    "all_heads": ("all", "mean"),
    "best_heads": ("best", "mean"),
    "at2": ("", "AT2"),
    "rollout": ("roll", "out"),
    "value_norms": ("val.", "norm"),
    "alti": ("", "ALTI"),
    "attention_gradient": ("attn", "grad"),
    "gradient_input": ("grad", "inp."),
    "attnlrp": ("Attn", "LRP"),
    "direct_logit": ("to", "logit"),
    "context_cite": ("Ctx", "Cite"),
}
NAMES = {
    "lost": "lost without it",
    "all_heads": "mean of heads",
    "best_heads": "retrieving heads",
    "at2": "AT2",
    "rollout": "rollout",
    "value_norms": "value norms",
    "alti": "ALTI",
    "attention_gradient": "attention x gradient",
    "gradient_input": "gradient x input",
    "attnlrp": "AttnLRP",
    "direct_logit": "direct logit",
    "context_cite": "ContextCite",
    "removal": "(removal of each)",
    "last": "(the last first)",
    "centre": "(the centre first)",
    "first": "(the first first)",
    "longest": "(the longest first)",
    "random": "(random)",
}


def _decimals(result: Explanations | ComparedWays) -> int:
    return OF_COSINES if result.kind == "similarity" else DECIMALS


def _title(report: Report, display: Display) -> Iterator[str]:
    yield plain_text(f"source: {report.about.rstrip('.')}")


def _asked(report: Report, display: Display) -> Iterator[str]:
    asked = plain_text(" ".join(str(report.spec.get("sentence") or "").split()))
    if maps := report.picture_maps:
        asked = row_name(maps.rows[0])
    if said := plain_text(_said(report.result_of(Explanations))):
        ending = f" → {said}" if asked else said
        yield shortened(asked, max(LEAST_TEXT, display.columns - len(ending))) + ending
        return
    written = plain_text(" ".join((report.written or "").split()))
    yield shortened(f"{asked} → {written}", display.width)


def _said(result: Explanations) -> str:
    """What an encoder says: `POSITIVE (0.98)`, `score 1.20`, `cosine 0.202`; nothing for a decoder."""
    if result.explained is None or result.kind == "answer":
        return ""
    (row,) = result.explained
    value = row.value or 0.0
    if row.kind == "similarity":
        return "its own vector" if row.output else f"cosine {fixed(value, OF_COSINES)}"
    if row.kind == "score":
        return f"score {fixed(value, DECIMALS)}"
    return f"{row.output} ({fixed(exp(value), DECIMALS)})"


def _side_by_side(report: Report, display: Display) -> ScreenParts:
    """One line per source, a column per way: the rank that each gives it; of a picture also over it."""
    count = len(report.result_of(Explanations).sources)
    yield Elastic(lambda most: _ranks(report, most, display), MOST_SOURCES, LEAST_SOURCES, count, rank=1)
    yield from _on_picture(report, display)


def _ranks(report: Report, count: int, display: Display) -> Iterator[Section]:
    result = report.result_of(Explanations)
    sources: Records[ExplainedSource] = result.sources
    some, is_picture = sources[:count], report.picture_maps is not None
    columns = [Column(("", "lost"), [fixed(row.lost, _decimals(result)) for row in some])]
    ways = result.ways
    if not result.is_of_one_source:
        ways = ways.sorted(lambda row: 2.0 if row.spearman is None else -row.spearman)
    for row in ways:
        ranks = [NO_NUMBER if rank is None else str(rank) for rank in result.ranks(row.way)]
        columns.append(Column(HEADERS.get(row.way, ("", plain_text(row.way))), ranks[:count]))
    what = "cell" if is_picture else "source"
    label = Column(("", what), [plain_text(row.name) for row in some], left=True)
    room = display.columns - label.width - sum(GAP + column.width for column in columns) - GAP
    if room >= LEAST_TEXT and any(row.text for row in some):
        texts = [shortened(plain_text(" ".join(str(row.text).split())), room) for row in some]
        columns.append(Column(("", "patches" if is_picture else "text"), texts, left=True))
    grid = Grid(f"the rank of each {what}, by what is lost without it and in each way", label, columns)
    yield grid
    yield Paragraph("", "dim")
    yield from (Paragraph(line, "line") for line in _agreements(result, what))


TILE, TILE_GAP, MOST_TILES = 19, 1, 8


def _on_picture(report: Report, display: Display) -> ScreenParts:
    """The picture, what is lost over it, and the ways that are nearest to that, as many as fit."""
    if (maps := report.picture_maps) is None:
        return
    width = display.columns
    places = [*range(min(MOST_TILES, len(maps.names), (width + TILE_GAP) // (TILE + TILE_GAP) - 1))]
    names = [ORIGINAL, *(NAMES.get(maps.names[place], plain_text(maps.names[place])) for place in places)]
    header = " ".join(f"{shortened(name, TILE):<{TILE}}" for name in names).rstrip()

    def of(count: int) -> Iterator[Section]:
        if count and places:
            _, *lines = rows_in(maps, TILE, places, display)(0)
            yield Drawing("over the picture: what is above 0, each by its largest", [header, *lines])

    yield Elastic(of, 1, 0, 1, rank=0)


def _agreements(result: Explanations, what: str) -> Iterator[str]:
    """Which ways put first the source without which most is lost, and which another, or none."""
    ways = result.ways
    if any(row.first_agrees is None for row in ways):
        yield f"No {what} is the first by what is lost: several lose as much."
    elif all(row.first_agrees for row in ways):
        yield f"Every way puts first the {what} without which most is lost."
    elif result.is_of_one_source:
        first = plain_text(result.sources[0].name)
        agreeing = _named(ways.where(lambda row: row.first_agrees == 1))
        yield f"Nearly all is lost without {first}, which is first in: {agreeing or 'no way'}."
    if differing := _named(ways.where(lambda row: row.first_agrees == 0 and row.first is not None)):
        yield f"Another {what} first: {differing}."
    if undecided := _named(ways.where(lambda row: row.first is None)):
        yield f"No {what} first: {undecided}."


def _named(rows: Records[WayOfReading] | Records[ComparedWay]) -> str:
    return ", ".join(NAMES.get(row.way, plain_text(row.way)) for row in rows)


EXPLANATIONS_SCREEN = FirstScreen(
    Explanations,
    (
        TitleLine(said=("about", "how_to_read")),
        Sentences(_asked),
        Special(_side_by_side, "its columns are the ways, which data name"),
        Notes(notes_and_how_to_read),
    ),
)
"""One line per source, and its rank in each way."""


def _interval(row: ComparedWay, name: str, decimals: int) -> str:
    """`0.61-0.83`, or nothing for one prompt."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if not isinstance(low, float) or not isinstance(high, float):
        return NO_NUMBER
    return f"{fixed(low, decimals)} to {fixed(high, decimals)}"


def _gaps(report: Report, rows: Records[ComparedWay], display: Display) -> list[Column]:
    """The gap and its interval, in as many decimals as losses have."""
    decimals = _decimals(report.result_of(ComparedWays))
    return [
        Column(("", "gap"), [fixed(row.gap, decimals) for row in rows]),
        Column(("", "95 %"), [_interval(row, "gap", decimals) for row in rows], left=True),
    ]


def _heading(report: Report, rows: Records[ComparedWay], total: int) -> str:
    return "ways to read, the best first; (orders that read nothing, and removal itself)"


def _findings(report: Report, display: Display | None = None) -> Iterator[str]:
    """Which ways are no better than the best order that reads nothing."""
    rows = report.result_of(ComparedWays).ways
    orders, ways = rows.where(lambda row: row.kind == "ordering"), rows.where(lambda row: row.kind == "way")
    what = "picture" if report.spec.get("image") else "prompt"
    if not orders or all(row.is_better is None for row in ways):
        yield f"One {what} has no intervals: give several."
        return
    order = NAMES.get(orders[0].way, plain_text(orders[0].way)).strip("()")
    no_better = ways.where(lambda row: not row.is_better and (row.over_position or 0.0) <= 0)
    unclear = ways.where(lambda row: not row.is_better and (row.over_position or 0.0) > 0)
    knows = "position or length" if "longest" in rows.column("way") else "position"
    alone = f"{knows} alone ({order})"
    prompts = counted(ways[0].prompts, what)
    if len(unclear) == len(ways):
        yield f"No way is shown to be better than {alone} on {prompts}."
        return
    if no_better:
        yield f"No better than {alone}: {_named(no_better)}."
    if unclear:
        than = "it" if no_better else alone
        yield f"Not shown to be better than {than} on {prompts}: {_named(unclear)}."
    if not no_better and not unclear:
        yield f"Every way is better than {alone}."


UNITS = {"answer": "nats per token", "score": "of the score", "similarity": "of the cosine"}


def _words(report: Report, display: Display) -> Iterator[str]:
    """What the columns are, where there is no room for how to read them."""
    unit = UNITS.get(report.result_of(ComparedWays).kind, "nats")
    yield f"gap: {unit}, MoRF - LeRF; rank corr., first agrees: with removal."


WAYS_SCREEN = FirstScreen(
    ComparedWays,
    (
        TitleLine(said=("about", "how_to_read")),
        Sentences(_findings, "line"),
        Ranked(
            "ways",
            (
                SpecialCells(_gaps),
                NumberCells("spearman", ("rank", "corr."), DECIMALS),
                NumberCells("first", ("first", "agrees"), DECIMALS),
                NumberCells("right", ("first", "right"), DECIMALS, if_any=True),
                NumberCells("runs", decimals=0),
            ),
            title=_heading,
            label=TextCells("way", words=NAMES),
            usual=MOST_WAYS + 1,
            least=6,
            is_cut=True,
            left_out=lambda rows, total: f"{total - len(rows)} more rows, and notes: --show all.",
        ),
        Sentences(_words),
        Notes(notes_and_how_to_read, apart=True),
    ),
    finding=_findings,
)
"""One line per way: how much more is lost by its first sources than by its last, and what it costs."""


def _fit(report: Report, display: Display) -> Iterator[str]:
    """How well scores by the weights follow the answers that they were learned from."""
    fit = report.result_of(LearnedWeights).fit
    learned, equal = (fixed(number, DECIMALS) for number in (fit.correlation, fit.correlation_of_mean))
    yield f"Correlation of scores with these answers' logits: {learned}, of equal weights {equal}."


def _heads_title(report: Report, rows: Records[LearnedHead], total: int) -> str:
    return "the heads with the largest weights, which add up to 1, signs aside"


WEIGHTS_SCREEN = FirstScreen(
    LearnedWeights,
    (
        TitleLine(said=("about", "how_to_read")),
        Sentences(_fit, "line"),
        Ranked(
            "rows",
            (PlaceCells(), NumberCells("weight", decimals=WEIGHT_STATISTICS)),
            title=_heads_title,
            label=HeadLabel(has_stacks=False),
            usual=MOST_HEADS,
            least=3,
        ),
        Notes(notes_and_how_to_read, apart=True),
    ),
)
"""The heads whose attention says most of what answers lose."""
