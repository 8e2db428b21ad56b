"""The first screens of `attn source`: the sources of an answer, and the heads that find them."""

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import groupby

from attncli.features.source.results import (
    AnswerSources,
    RankedSource,
    RetrievingHead,
    RetrievingHeads,
)
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import listed, named_head, number, percent
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    Notes,
    PageTable,
    PlaceCells,
    Ranked,
    Sentences,
    ShortenedLine,
    Special,
    StatisticCells,
    TitleLine,
    notes_and_how_to_read,
)
from attncli.views.sections import GAP, Column, Drawing, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import ScreenLine, file_text, fixed, joined, plain_line, shortened, styled

MOST_SOURCES, LEAST_SOURCES = 8, 2
ANSWER_LINES, LEAST_LINES = 3, 1
MOST_CHOSEN = 8
LEAST_TEXT = 12
COLOURS = ("\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[31m")
"""The colours of the first sources."""
HEADERS = {
    "all_heads": ("all", "heads"),
    "retrieving_heads": ("retrieving", "heads"),
    "lost": ("lost", "without"),
    "effect": ("", "effect"),
}


def _title(report: Report, display: Display) -> Iterator[str]:
    yield plain_text(f"source: {report.about.rstrip('.')}")


def _ranked(report: Report, display: Display) -> ScreenParts:
    """A table with one line per source."""
    sources = report.result_of(AnswerSources).sources
    yield Elastic(
        lambda most: _sources(sources, most, display), MOST_SOURCES, LEAST_SOURCES, len(sources), rank=1
    )


def _answer(report: Report, display: Display) -> ScreenParts:
    """The answer, with the source of each part."""
    result = report.result_of(AnswerSources)
    lines = _answer_lines(result, display)
    title = f"the answer, each part with the source {_source_criterion(result)}"

    def answer(most: int) -> Iterator[Section]:
        some = lines if most >= len(lines) else [*lines[: max(most - 1, 0)], plain_line("…")]
        yield Drawing(title, [line.text for line in some])

    yield Elastic(answer, min(ANSWER_LINES, len(lines)), LEAST_LINES, len(lines))
    yield Paragraph("", "dim")


def _notes(report: Report) -> Iterator[str]:
    yield from report.notes
    yield report.how_to_read


def _heads_title(report: Report, heads: Records[RetrievingHead], total: int) -> str:
    count = len(report.result_of(RetrievingHeads).chosen)
    return f"the heads with the largest found × weight; the first {count} are chosen"


def knows_heads(report: Report) -> bool:
    """True if the report has retrieving heads, whether chosen here, cached or named."""
    result = report.result
    return isinstance(result, RetrievingHeads) or (
        isinstance(result, AnswerSources)
        and any(source.retrieving_heads is not None for source in result.sources)
    )


SEPARATORS = {"paragraph": re.compile(r"\n\s*\n"), "sentence": re.compile(r"[.!?]\s|\n")}
"""The separators between the sources of a text, by `split`."""


def split_further(report: Report) -> str | None:
    """`"QUESTION" --document a.md --split paragraph` if the only source can be split, otherwise None."""
    result, spec = report.result, report.spec
    files = [str(file) for file in spec.get("document") or [spec.get("file")] if file not in (None, "-")]
    if not isinstance(result, AnswerSources) or len(result.sources) != 1:
        return None
    if len(files) != 1 or spec.get("chat"):
        return None
    text = (result.sources[0].text or "").strip()
    split = next((name for name, between in SEPARATORS.items() if between.search(text)), None)
    flag = "--document" if spec.get("document") else "--file"
    file = shlex.join([plain_text(files[0])])
    return None if split is None else f'"QUESTION" {flag} {file} --split {split}'


def _question(report: Report) -> str:
    spec = report.spec
    where = ", ".join(map(str, spec.get("document") or ())) or spec.get("file") or ""
    name = where if spec.get("document") or not where else file_text("file", where)
    return ": ".join(filter(None, (name, str(spec.get("sentence") or ""))))


def _sources(sources: Records[RankedSource], count: int, display: Display) -> Iterator[Section]:
    # Removed sources take precedence.
    shown = sorted(range(len(sources)), key=lambda place: sources[place].lost is None)[:count]
    some = sources.taken(sorted(shown))
    columns = []
    for name in HEADERS:
        if name not in sources.cells or all(source[name] is None for source in sources):
            continue
        cells = [fixed(source[name], display.precision) for source in some]
        ranks = [fixed(source.get(f"{name}_rank"), 0) for source in some]
        columns += [Column(HEADERS[name], cells), Column(("", "#"), ranks)]
    label = Column(("", "source"), [_source_name(source) for source in some], left=True)
    taken = label.width + sum(GAP + column.width for column in columns) + GAP
    room = max(display.columns - taken, LEAST_TEXT)
    texts = [shortened(plain_text(" ".join(str(source.text).split())), room) for source in some]
    grid = Grid("", label, [*columns, Column(("", "text"), texts, left=True)])
    yield grid.first_group(display.width)
    if len(sources) > count:
        yield Paragraph(f"Not shown: {counted(len(sources) - count, 'source')}: --show statistics.", "note")


def _source_name(source: RankedSource) -> str:
    """The name of a source, as in --expect, and its title: `doc2 b.md`."""
    return plain_text(f"{source.name} {shortened(str(source.title), 16)}".strip())


def _source_criterion(result: AnswerSources) -> str:
    """The criterion by which a part of the answer is assigned to its source."""
    is_fit = result.sources[0].ranked_by == "effect"
    return "that contributes most to it" if is_fit else "whose removal lowers its probability most"


def _compared(report: Report, display: Display) -> Iterator[str]:
    """The line `Compared with the loss without each source, all heads have a rank correlation of ...`"""
    result = report.result_of(AnswerSources)
    rankings, num_sources = result.rankings, len(result.sources)
    if num_sources < 2 or not rankings:
        return
    removed = rankings[0].removed
    sources = "each source" if removed == num_sources else f"{removed} of {num_sources} sources"
    is_lost = rankings[0].predicts == "lost"
    measurement = f"the loss without {sources}" if is_lost else "the effect of each source"
    agreements = []
    for row in rankings:
        spearman = "" if row.spearman is None else f"have a rank correlation of {fixed(row.spearman, 2)} and "
        first = f"{spearman}rank {'the same' if row.first_right else 'another'} source first"
        agreements.append(f"{row.ranking.replace('_', ' ')} {first}")
    yield plain_text(f"Compared with {measurement}, {', and '.join(agreements)}.")


def _answer_lines(result: AnswerSources, display: Display) -> list[ScreenLine]:
    """The lines of the answer, in which each part has the number and colour of its source."""
    numbers = [source.source for source in result.sources]
    colours: Mapping[int | None, str] = dict(zip(numbers, COLOURS, strict=False)) if display.has_color else {}
    words: list[list[ScreenLine]] = [[]]
    for source, tokens in groupby(result.tokens, key=lambda token: token.measured_source):
        text = "".join(token.text for token in tokens)
        colour = colours.get(source, "")
        end = f"[{source}]" if source is not None and text.strip() else ""
        marked = f"{text.rstrip()}{end}{text[len(text.rstrip()) :]}"
        for place, part in enumerate(marked.replace("\n", " ").split(" ")):
            if place:
                words.append([])
            if part:
                words[-1].append(styled(plain_text(part), colour, bool(colour)))
    width = display.columns
    lines: list[list[ScreenLine]] = []
    for word in filter(None, map(joined, filter(None, words))):
        if lines and sum(part.cells for part in lines[-1]) + 1 + word.cells <= width:
            lines[-1] += [plain_line(" "), word]
        else:
            lines.append([word])
    return [*map(joined, lines)]


def _next_steps(report: Report, steps: tuple[str, ...]) -> tuple[str, ...]:
    """The next steps, plus --find-heads if there are no retrieving heads, and a split of the only source."""
    if (model := report.spec.get("model")) and not knows_heads(report):
        steps = (f"--find-heads --model {shlex.join([plain_text(str(model))])}", *steps)
    further = split_further(report)
    return (further, *steps) if further else steps


LITTLE_LOST = 0.1
"""A loss in nats below which the answer hardly depends on a source."""


def _finding(report: Report) -> Iterator[str]:
    """Yield the first source beside the next, and whether weights agree with it."""
    result = report.result_of(AnswerSources)
    first, *others = result.sources
    by, name = first.ranked_by or "all_heads", _source_name(first)
    value = number(first.number(by))
    after = next((source for source in others if source.number(by) is not None), None)
    compared = "" if after is None else f" ({_source_name(after)}: {number(after.number(by))})"
    if by == "lost":
        is_little = (first.lost or 0.0) < LITTLE_LOST
        start = "The answer hardly depends on one source" if is_little else f"The answer comes from {name}"
        yield f"{start}: without {name}, its log-probability falls by {value} nats{compared}."
    else:
        what = "contributes most to" if by == "effect" else "gets the most weight from"
        yield f"{name} {what} the answer: {value}{compared}."
    if first.number(by) is not None and by in ("lost", "effect") and others:
        measured = [row for row in result.rankings if row.first_right is not None]
        for row in measured[:1]:
            which = "this source, too" if row.first_right else "another source"
            yield f"{row.ranking.replace('_', ' ').capitalize()} together look most at {which}."


SOURCE_SCREEN = FirstScreen(
    AnswerSources,
    (
        TitleLine(said=("about", "how_to_read")),
        ShortenedLine(_question),
        Special(_ranked, "its texts fill the width left by the numbers"),
        Special(_answer, "each word has the colour of its source"),
        Sentences(_compared, "line"),
        Notes(notes_and_how_to_read),
    ),
    next_steps=_next_steps,
    page_table=lambda _: PageTable("sources", ("name", "lost", "all_heads")),
    finding=_finding,
    main=("source_weights",),
)
"""One line per source; the answer with its sources; the agreement of weights with removal."""


def _retrieval_finding(report: Report) -> Iterator[str]:
    """Yield the head that finds the right sentence best, and the chosen heads."""
    result = report.result_of(RetrievingHeads)
    head = result.rows[0]
    if not (share := head.share_found):
        yield "No head looks most at the right sentence."
        return
    weight = "" if head.weight is None else f", with {number(head.weight)} of its weight"
    contexts = f"{percent(share)} of the contexts"
    yield f"Head {named_head(head)} looks most at the right sentence in {contexts}{weight}."
    if len(result.chosen) > 1:
        yield f"The {len(result.chosen)} heads chosen: {listed(map(plain_text, result.heads))}."


RETRIEVAL_SCREEN = FirstScreen(
    RetrievingHeads,
    (
        TitleLine(said=("about", "how_to_read")),
        Ranked(
            "rows",
            (PlaceCells(), StatisticCells()),
            title=_heads_title,
            label=HeadLabel(has_stacks=False),
            usual=MOST_CHOSEN,
            least=lambda report, _: len(report.result_of(RetrievingHeads).chosen),
        ),
        Notes(notes_and_how_to_read, apart=True),
    ),
    next_steps=_next_steps,
    page_table=lambda _: PageTable("heads", ("found", "weight")),
    finding=_retrieval_finding,
)
"""The heads that find the right sentence most often."""
