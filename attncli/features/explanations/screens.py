"""The first screens of `source --compare`: ways to read side by side, and ways compared over prompts."""

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
from attncli.views.findings import named_head
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    Notes,
    NumberCells,
    PageTable,
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

DECIMALS, COSINE_DECIMALS = 2, 3
MOST_SOURCES, LEAST_SOURCES, LEAST_TEXT = 9, 3, 10
MOST_WAYS = 15
MOST_HEADS, WEIGHT_DECIMALS = 10, 4
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
    "last": "(last first)",
    "centre": "(centre first)",
    "first": "(in order)",
    "longest": "(longest first)",
    "random": "(random)",
}


def _decimals(result: Explanations | ComparedWays) -> int:
    return COSINE_DECIMALS if result.kind == "similarity" else DECIMALS


def _title(report: Report, display: Display) -> Iterator[str]:
    yield plain_text(f"source: {report.about.rstrip('.')}")


def _question_line(report: Report, display: Display) -> Iterator[str]:
    question = plain_text(" ".join(str(report.spec.get("sentence") or "").split()))
    if maps := report.picture_maps:
        question = row_name(maps.rows[0])
    if output := plain_text(_encoder_output(report.result_of(Explanations))):
        ending = f" → {output}" if question else output
        yield shortened(question, max(LEAST_TEXT, display.columns - len(ending))) + ending
        return
    written = plain_text(" ".join((report.written or "").split()))
    yield shortened(f"{question} → {written}", display.width)


def _encoder_output(result: Explanations) -> str:
    """Return an encoder's output, such as `POSITIVE (0.98)` or `score 1.20`; empty for a decoder."""
    if result.explained is None or result.kind == "answer":
        return ""
    (row,) = result.explained
    value = row.value or 0.0
    if row.kind == "similarity":
        return "its own vector" if row.output else f"cosine {fixed(value, COSINE_DECIMALS)}"
    if row.kind == "score":
        return f"score {fixed(value, DECIMALS)}"
    return f"{row.output} ({fixed(exp(value), DECIMALS)})"


def _side_by_side(report: Report, display: Display) -> ScreenParts:
    """Yield one line per source and one column of ranks per way. A picture is also shown with maps."""
    count = len(report.result_of(Explanations).sources)
    yield Elastic(lambda most: _ranks(report, most, display), MOST_SOURCES, LEAST_SOURCES, count, rank=1)
    yield from _on_picture(report, display)


def _ranks(report: Report, count: int, display: Display) -> Iterator[Section]:
    result = report.result_of(Explanations)
    sources: Records[ExplainedSource] = result.sources
    some, is_picture = sources[:count], report.picture_maps is not None
    columns = [Column(("", "lost"), [fixed(row.lost, _decimals(result)) for row in some])]
    ways = result.ways
    if not result.has_single_source:
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
    grid = Grid(f"rank of each {what}, by the loss without it and in each way", label, columns)
    yield grid
    yield Paragraph("", "dim")
    yield from (Paragraph(line, "line") for line in _agreements(result, what))


TILE, TILE_GAP, MOST_TILES = 19, 1, 8


def _on_picture(report: Report, display: Display) -> ScreenParts:
    """Yield maps of the losses and of as many ways as fit over the picture, closest to the losses first."""
    if (maps := report.picture_maps) is None:
        return
    width = display.columns
    places = [*range(min(MOST_TILES, len(maps.names), (width + TILE_GAP) // (TILE + TILE_GAP) - 1))]
    names = [ORIGINAL, *(NAMES.get(maps.names[place], plain_text(maps.names[place])) for place in places)]
    header = " ".join(f"{shortened(name, TILE):<{TILE}}" for name in names).rstrip()

    def tiles(count: int) -> Iterator[Section]:
        if count and places:
            _, *lines = rows_in(maps, TILE, places, display)(0)
            yield Drawing("over the picture: values above 0, relative to the largest", [header, *lines])

    yield Elastic(tiles, 1, 0, 1, rank=0)


def _agreements(result: Explanations, what: str) -> Iterator[str]:
    """Yield sentences on which ways rank the source with the largest loss first, and which do not."""
    ways = result.ways
    if any(row.first_agrees is None for row in ways):
        yield f"Several {what}s are tied for the largest loss."
    elif all(row.first_agrees for row in ways):
        yield f"Every way ranks the {what} with the largest loss first."
    elif result.has_single_source:
        first = plain_text(result.sources[0].name)
        agreeing = _way_names(ways.where(lambda row: row.first_agrees == 1))
        yield f"Nearly everything is lost without {first}, which ranks first in: {agreeing or 'no way'}."
    if differing := _way_names(ways.where(lambda row: row.first_agrees == 0 and row.first is not None)):
        yield f"Another {what} ranks first in: {differing}."
    if undecided := _way_names(ways.where(lambda row: row.first is None)):
        yield f"Several {what}s are tied for first in: {undecided}."


def _way_names(rows: Records[WayOfReading] | Records[ComparedWay]) -> str:
    return ", ".join(NAMES.get(row.way, plain_text(row.way)) for row in rows)


def _explanations_finding(report: Report) -> Iterator[str]:
    """Yield the source with the largest loss, and the number of ways that rank it first."""
    result, what = report.result_of(Explanations), "source" if report.picture_maps is None else "cell"
    ranked = result.sources.where(lambda row: row.lost is not None).sorted(lambda row: -(row.lost or 0.0))
    for row in ranked[:1]:
        unit = "" if result.kind in ("score", "similarity") else " nats"
        lost = [f"{fixed(each.lost, _decimals(result))}{unit}" for each in ranked[:2]]
        after = f"; without {plain_text(ranked[1].name)}, {lost[1]}" if len(lost) > 1 else ""
        yield f"Without {plain_text(row.name)}, the {result.kind} loses the most: {lost[0]}{after}."
    ways = result.ways.where(lambda row: row.first_agrees is not None)
    agreeing = sum(row.first_agrees or 0 for row in ways)
    if ways:
        yield f"{agreeing} of {counted(len(ways), 'way')} to read the model rank this {what} first, too."
    else:
        yield f"Several {what}s are tied for the largest loss."


EXPLANATIONS_SCREEN = FirstScreen(
    Explanations,
    (
        TitleLine(said=("about", "how_to_read")),
        Sentences(_question_line),
        Special(_side_by_side, "one column per way, named by the data"),
        Notes(notes_and_how_to_read),
    ),
    page_table=lambda _: PageTable("ways", ("way", "spearman", "first_agrees"), by="spearman"),
    finding=_explanations_finding,
    main=("way_relevance",),
)
"""One line per source, with its rank in each way."""


def _interval(row: ComparedWay, name: str, decimals: int) -> str:
    """Return the interval as text, such as `0.61 to 0.83`, or a dash for a single prompt."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if not isinstance(low, float) or not isinstance(high, float):
        return NO_NUMBER
    return f"{fixed(low, decimals)} to {fixed(high, decimals)}"


def _gaps(report: Report, rows: Records[ComparedWay], display: Display) -> list[Column]:
    """Return columns with the gap and its interval, with as many decimals as the losses."""
    decimals = _decimals(report.result_of(ComparedWays))
    return [
        Column(("", "gap"), [fixed(row.gap, decimals) for row in rows]),
        Column(("", "95 %"), [_interval(row, "gap", decimals) for row in rows], left=True),
    ]


def _heading(report: Report, rows: Records[ComparedWay], total: int) -> str:
    return "ways to read, best first (brackets: removal, and orders that ignore the model)"


def _findings(report: Report, display: Display | None = None) -> Iterator[str]:
    """Yield sentences on the ways that do no better than the best order that ignores the model."""
    rows = report.result_of(ComparedWays).ways
    orders, ways = rows.where(lambda row: row.kind == "ordering"), rows.where(lambda row: row.kind == "way")
    what = "picture" if report.spec.get("image") else "prompt"
    if not orders or all(row.is_better is None for row in ways):
        yield f"A single {what} gives no intervals: use several {what}s."
        return
    order = NAMES.get(orders[0].way, plain_text(orders[0].way)).strip("()")
    no_better = ways.where(lambda row: not row.is_better and (row.over_position or 0.0) <= 0)
    unclear = ways.where(lambda row: not row.is_better and (row.over_position or 0.0) > 0)
    knows = "position or length" if "longest" in rows.column("way") else "position"
    baseline = f"an order by {knows} ({order})"
    prompts = counted(ways[0].prompts, what)
    if len(unclear) == len(ways):
        yield f"No way is shown to be better than {baseline} on {prompts}."
        return
    if no_better:
        yield f"No better than {baseline}: {_way_names(no_better)}."
    if unclear:
        than = "it" if no_better else baseline
        yield f"Not shown to be better than {than} on {prompts}: {_way_names(unclear)}."
    if not no_better and not unclear:
        yield f"Every way is better than {baseline}."


UNITS = {"answer": "nats per token", "score": "of the score", "similarity": "of the cosine"}


def _words(report: Report, display: Display) -> Iterator[str]:
    """Yield an explanation of the columns, for screens without room for more."""
    unit = UNITS.get(report.result_of(ComparedWays).kind, "nats")
    yield f"gap: MoRF - LeRF, {unit}; rank corr. and first agrees: with removal."


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
            left_out=lambda rows, total: f"{total - len(rows)} more rows, and the notes: --show all.",
        ),
        Sentences(_words),
        Notes(notes_and_how_to_read, apart=True),
    ),
    finding=_findings,
    page_table=lambda _: PageTable(
        "compared", ("way", "gap", "over_position", "over_position_low", "over_position_high")
    ),
)
"""One line per way: its gap, its agreement with the losses, and its cost."""


def _fit(report: Report, display: Display) -> Iterator[str]:
    """Yield the correlations between the scores and the answers used for learning."""
    fit = report.result_of(LearnedWeights).fit
    learned, equal = (fixed(number, DECIMALS) for number in (fit.correlation, fit.correlation_of_mean))
    yield f"Correlation of the scores with these answers' logits: {learned}; with equal weights: {equal}."


def _heads_title(report: Report, rows: Records[LearnedHead], total: int) -> str:
    return "heads with the largest weights (absolute weights sum to 1)"


def _weights_finding(report: Report) -> Iterator[str]:
    """Yield the head with the largest weight, and the correlations with learned and with equal weights."""
    result = report.result_of(LearnedWeights)
    head = max(result.rows, key=lambda row: abs(row.weight))
    weight, total = fixed(head.weight, WEIGHT_DECIMALS), counted(len(result.rows), "head")
    yield f"Head {named_head(head)} has the largest learned weight of {total}: {weight}."
    fit = result.fit
    learned, equal = (fixed(value, DECIMALS) for value in (fit.correlation, fit.correlation_of_mean))
    yield f"With these weights, heads predict what answers lose (correlation {learned}; equal ones: {equal})."


WEIGHTS_SCREEN = FirstScreen(
    LearnedWeights,
    (
        TitleLine(said=("about", "how_to_read")),
        Sentences(_fit, "line"),
        Ranked(
            "rows",
            (PlaceCells(), NumberCells("weight", decimals=WEIGHT_DECIMALS)),
            title=_heads_title,
            label=HeadLabel(has_stacks=False),
            usual=MOST_HEADS,
            least=3,
        ),
        Notes(notes_and_how_to_read, apart=True),
    ),
    page_table=lambda _: PageTable("heads", ("weight",)),
    finding=_weights_finding,
)
"""The heads whose attention best predicts answer losses."""
