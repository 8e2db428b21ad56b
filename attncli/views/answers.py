"""The first screen of an answer and its sources, or of the heads that were chosen to find them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from attncli.plain_text import plain_text
from attncli.report import Report, Row
from attncli.views import TEXT_WIDTH, Display
from attncli.views.sections import (
    GAP,
    Column,
    Drawing,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    heads_grid,
    notes_in,
    one_line,
)
from attncli.views.texts import ScreenLine, counted, fixed, joined, shortened, styled
from attncli.views.texts import text_line as plain_line

MOST_SOURCES, LEAST_SOURCES = 8, 2
ANSWER_LINES, LEAST_LINES = 3, 1
MOST_HEADS = 8
LEAST_TEXT = 12
COLOURS = ("\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[31m")
"""Of the sources in their order."""
HEADERS = {
    "all_heads": ("all", "heads"),
    "retrieving_heads": ("retrieving", "heads"),
    "lost": ("lost", "without"),
    "effect": ("", "effect"),
}


def source_screen(report: Report, display: Display) -> ScreenParts:
    """One line per source; the answer, its tokens with their source; how well weights predict removal."""
    yield one_line(f"source: {report.about.rstrip('.')}", display, "title")
    if chosen := report.table("chosen"):
        yield from _chosen_heads(report, len(chosen), display)
        return
    yield one_line(_question(report), display)
    rows = report.table("sources")
    usual = min(MOST_SOURCES, len(rows))
    yield Elastic(
        lambda count: _sources(rows, count, display), usual, min(LEAST_SOURCES, usual), len(rows), rank=1
    )
    lines = _answer_lines(report, display)
    title = "the answer, each part with the source that has most of its weight"

    def answer(count: int) -> Iterator[Section]:
        shown = lines if count >= len(lines) else [*lines[: max(count - 1, 0)], plain_line("…")]
        yield Drawing(title, [line.text for line in shown])

    yield Elastic(answer, min(ANSWER_LINES, len(lines)), LEAST_LINES, len(lines))
    yield Paragraph("", "dim")
    yield Paragraph(_rankings(report.table("rankings"), len(rows)), "line")
    yield notes_in([*report.notes, report.how_to_read], display)


def _chosen_heads(report: Report, count: int, display: Display) -> ScreenParts:
    heads = report.table("heads")
    title = f"the heads with the largest found × weight, the first {count} are chosen"
    yield Elastic(
        lambda most: [heads_grid(title, heads[:most], display.precision)], MOST_HEADS, count, len(heads)
    )
    yield notes_in([*report.notes, report.how_to_read], display, apart=True)


def knows_heads(report: Report) -> bool:
    """Whether the heads that retrieve are chosen here, or were, or named."""
    return bool(report.table("chosen")) or any(
        row["retrieving_heads"] is not None for row in report.table("sources")
    )


def _question(report: Report) -> str:
    spec = report.spec
    where = ", ".join(map(str, spec.get("document") or ())) or spec.get("file") or ""
    text = " ".join(str(spec.get("sentence") or "").split())
    return ": ".join(filter(None, (f"file {where}" if where and not spec.get("document") else where, text)))


def _sources(rows: Sequence[Row], count: int, display: Display) -> Iterator[Section]:
    # Those that were removed are there before others.
    kept = sorted(range(len(rows)), key=lambda place: rows[place].get("lost") is None)[:count]
    shown = [rows[place] for place in sorted(kept)]
    columns = []
    for name in HEADERS:
        if not any(isinstance(row.get(name), float) for row in rows):
            continue
        cells = [fixed(row[name], display.precision) for row in shown]
        ranks = [fixed(row.get(f"{name}_rank"), 0) for row in shown]
        columns += [Column(HEADERS[name], cells), Column(("", "#"), ranks)]
    label = Column(("", "source"), [_name(row) for row in shown], left=True)
    taken = label.width + sum(GAP + column.width for column in columns) + GAP
    room = max((display.width or TEXT_WIDTH) - taken, LEAST_TEXT)
    texts = [shortened(plain_text(" ".join(str(row["text"]).split())), room) for row in shown]
    grid = Grid("", label, [*columns, Column(("", "text"), texts, left=True)])
    yield grid.first_group(display.width)
    if len(rows) > count:
        yield Paragraph(f"Not shown: {counted(len(rows) - count, 'source')}: --show statistics.", "note")


def _name(row: Row) -> str:
    """`doc2 b.md`: as --expect calls it, and its title."""
    return plain_text(f"{row['name']} {shortened(str(row['title']), 16)}".strip())


def _rankings(rows: Sequence[Row], num_sources: int) -> str:
    """`Against what is lost without 5 of 21 sources: all heads Spearman 0.10, first wrong; ...`"""
    removed = rows[0]["removed"]
    sources = "each source" if removed == num_sources else f"{removed} of {num_sources} sources"
    what = f"what is lost without {sources}" if rows[0]["predicts"] == "lost" else "the effect of each source"
    said = []
    for row in rows:
        spearman = "" if row["spearman"] is None else f"Spearman {fixed(row['spearman'], 2)}, "
        first = "first right" if row["first_right"] else "first wrong"
        said.append(f"{str(row['ranking']).replace('_', ' ')} {spearman}{first}")
    return plain_text(f"Against {what}: {'; '.join(said)}.")


def _answer_lines(report: Report, display: Display) -> list[ScreenLine]:
    """The answer in lines: behind each part the number of its source; the first sources have colours, too."""
    numbers = [row["source"] for row in report.table("sources")]
    colours: Mapping[object, str] = dict(zip(numbers, COLOURS, strict=False)) if display.has_color else {}
    words: list[list[ScreenLine]] = [[]]
    for source, tokens in groupby(report.table("answer"), key=lambda row: row["source"]):
        text = "".join(str(row["text"]) for row in tokens)
        colour = colours.get(source, "")
        end = f"[{source}]" if source is not None and text.strip() else ""
        kept = f"{text.rstrip()}{end}{text[len(text.rstrip()) :]}"
        for place, part in enumerate(kept.replace("\n", " ").split(" ")):
            if place:
                words.append([])
            if part:
                words[-1].append(styled(plain_text(part), colour, bool(colour)))
    width = display.width or TEXT_WIDTH
    lines: list[list[ScreenLine]] = []
    for word in filter(None, map(joined, filter(None, words))):
        if lines and sum(part.cells for part in lines[-1]) + 1 + word.cells <= width:
            lines[-1] += [plain_line(" "), word]
        else:
            lines.append([word])
    return [*map(joined, lines)]
