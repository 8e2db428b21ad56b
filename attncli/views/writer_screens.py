"""The first screens of models that write: where each token looked, sources of an answer."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from attncli.plain_text import counted, plain_text
from attncli.report import Cell, Report, Row
from attncli.views import TEXT_WIDTH, Display
from attncli.views.model_screens import LEAST_ROWS, token_cell
from attncli.views.screens import screen_parts
from attncli.views.sections import (
    GAP,
    Column,
    Drawing,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    TableLabels,
    heads_grid,
    model_name,
    notes_in,
    one_line,
)
from attncli.views.texts import (
    NO_NUMBER,
    ScreenLine,
    fixed,
    joined,
    place_text,
    plain_line,
    shortened,
    styled,
    wrap_cells,
)

MOST_TOKENS = 9
LINES_OF_ALL = 12  # of 30: for the text, the tokens and the notes
MOST_WRITERS = 5
TEXT_LINES = 3
SHARES = {"first_key": "first", "written_mass": "written", "needle_mass": "needle"}
HEAD_PLACES = ("layer", "head", "stack", "module")
HEAD_ORDER = (
    *("retrieval", "needle_mass", "text_mass", "prompt_mass", "written_mass"),
    *("lookback_ratio", "sink_mass", "distance", "entropy", "special_mass"),
)


def generate_screen(report: Report, display: Display) -> ScreenParts:
    """What was read and written; the first tokens with the keys that were looked at; the strongest heads."""
    width = display.width or 0
    labels = TableLabels(report, replace(display, width=min(width, 100)))
    yield Paragraph(_written_title(report), "title")
    file = report.spec.get("file")
    prompt = report.spec.get("sentence") or (f"file {file}" if file else "")
    names = " ".join(picture.name for picture in report.pictures)
    words = f"{names} {prompt} {report.spec.get('question') or ''}".split()
    yield one_line(f"prompt: {' '.join(words)}", display)
    said = "answer" if report.spec.get("answer") else "wrote"
    lines = wrap_cells(f"{said}: {plain_text(' '.join((report.written or '').split()))}", width)
    if len(lines) > TEXT_LINES:
        lines = [*lines[: TEXT_LINES - 1], shortened(" ".join(lines[TEXT_LINES - 1 :]), width)]
    yield from (Paragraph(line, "") for line in lines)
    notes = [plain_text(note) for note in report.notes]
    room = LINES_OF_ALL - len(lines) - sum(len(wrap_cells(note, width)) for note in notes)
    room -= len(wrap_cells(_tokens_title(report, MOST_TOKENS), width)) - 1
    num_tokens, num_heads = len(report.table("written")), len(report.table("heads"))
    overlays = [*screen_parts(report, display)]
    yield from overlays
    # Below where its words looked in a picture, few of the tokens and heads.
    usual = min(LEAST_ROWS if overlays else MOST_TOKENS, room)
    least, rank = (0, 1) if overlays else (min(LEAST_ROWS, usual), 0)
    yield Elastic(
        lambda count: [_tokens(report, labels, display, count)] if count else [],
        usual,
        least,
        num_tokens,
        rank,
    )
    yield Elastic(
        lambda count: [_strongest_heads(report, display, count)] if count else [],
        LEAST_ROWS if overlays else MOST_WRITERS,
        0 if overlays else LEAST_ROWS,
        num_heads,
        rank=1,
    )
    yield notes_in(notes, display)


def _written_title(report: Report) -> str:
    """`generate: SmolLM2, 30 layers × 9 heads, 366 tokens, 24 new ones`"""
    counts = report.numbers("writing")
    new = "in the answer" if report.spec.get("answer") else "new"
    sizes = [counted(int(counts["prompt_tokens"] or 0), "token"), f"{counts['new_tokens']} {new}"]
    parts = [model_name(report), place_text(report.spec), *sizes]
    return plain_text(f"generate: {', '.join(filter(None, parts))}")


def _tokens(report: Report, labels: TableLabels, display: Display, most: int) -> Grid:
    """One line per token: the query that chose it, shares of the row, the keys beside the first."""
    rows = report.table("written")
    places = _chosen(rows, most)
    shown = [rows[place] for place in places]
    precision = display.precision
    label = labels.rows("query", len(rows))
    columns = [Column(("", "chose"), [token_cell(row["token"]) for row in shown], left=True)]
    columns += [
        Column(("", name), [fixed(row[key], precision) for row in shown])
        for key, name in SHARES.items()
        if key in shown[0]
    ]
    for rank in range(len(_list(shown[0], "keys"))):
        cells = [_key_seen(row, rank, labels, precision) for row in shown]
        columns.append(Column(("", "looks at" if rank == 0 else "and"), cells, left=True))
    label = Column(("", "query"), [label.cells[place] for place in places], left=True)
    return Grid(_tokens_title(report, len(shown)), label, columns).first_group(display.width)


def _tokens_title(report: Report, most: int) -> str:
    rows = report.table("written")
    left = f" ({most} of {len(rows)})" if most < len(rows) else ""
    of = "this head" if report.spec.get("head") is not None else "the heads' mean"
    if report.spec.get("head") is None and "head" in rows[0]:
        best = plain_text(str(rows[0]["head"]))
        return f"where the best head, {best}, looked{left}, without the first key"
    return f"where it looked for each token{left}: {of}, without the first key"


def _chosen(rows: Sequence[Row], most: int) -> list[int]:
    """The first tokens; of those that look for a needle the ones that looked at it most."""

    def on_needle(place: int) -> float:
        share = rows[place].get("needle_mass")
        return -share if isinstance(share, float) else 0.0

    return sorted(sorted(range(len(rows)), key=on_needle)[:most])


def _list(row: Row, name: str) -> Sequence[Cell]:
    cells = row[name]
    assert isinstance(cells, list)
    return cells


def _key_seen(row: Row, rank: int, labels: TableLabels, precision: int) -> str:
    key, weight = _list(row, "keys")[rank], _list(row, "weights")[rank]
    if not isinstance(key, int):
        return NO_NUMBER
    return f"{labels.place('key', key)} {fixed(weight, precision)}"


def _strongest_heads(report: Report, display: Display, count: int) -> Grid:
    """The heads with the most of what they are sorted by, with as many statistics as fit."""
    heads = report.table("heads")
    sort = str(report.spec.get("sort"))
    if sort == "retrieval" and all(row[sort] != row[sort] for row in heads):
        sort = "needle_mass"  # nothing was copied
    least = "smallest" if report.spec.get("ascending") else "largest"
    names = [*HEAD_PLACES, *dict.fromkeys([sort, *HEAD_ORDER])]
    shown = [{name: row[name] for name in names if name in row} for row in heads[:count]]
    title = plain_text(f"heads with the {least} {sort}, means over the new tokens")
    return heads_grid(title, shown, display.precision).first_group(display.width)


MOST_SOURCES, LEAST_SOURCES = 8, 2
ANSWER_LINES, LEAST_LINES = 3, 1
MOST_CHOSEN = 8
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
    yield Paragraph(plain_text(f"source: {report.about.rstrip('.')}"), "title")
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
    title = f"the answer, each part with the source {_coloured_by(report)}"

    def answer(count: int) -> Iterator[Section]:
        shown = lines if count >= len(lines) else [*lines[: max(count - 1, 0)], plain_line("…")]
        yield Drawing(title, [line.text for line in shown])

    yield Elastic(answer, min(ANSWER_LINES, len(lines)), LEAST_LINES, len(lines))
    yield Paragraph("", "dim")
    if len(rows) > 1:
        yield Paragraph(_rankings(report.table("rankings"), len(rows)), "line")
    yield notes_in([*report.notes, report.how_to_read], display)


def _chosen_heads(report: Report, count: int, display: Display) -> ScreenParts:
    heads = report.table("heads")
    title = f"the heads with the largest found × weight, the first {count} are chosen"
    yield Elastic(
        lambda most: [heads_grid(title, heads[:most], display.precision)], MOST_CHOSEN, count, len(heads)
    )
    yield notes_in([*report.notes, report.how_to_read], display, apart=True)


def knows_heads(report: Report) -> bool:
    """Whether the heads that retrieve are chosen here, or were, or named."""
    return bool(report.table("chosen")) or any(
        row["retrieving_heads"] is not None for row in report.table("sources")
    )


PARTS_OF_TEXT = {"paragraph": re.compile(r"\n\s*\n"), "sentence": re.compile(r"[.!?]\s|\n")}
"""What stands between the parts of a text that `split` makes sources."""


def split_further(report: Report) -> str | None:
    """`"QUESTION" --file a.md --split paragraph`, where the only source has parts to be told apart."""
    sources, spec = report.table("sources"), report.spec
    files = [str(file) for file in spec.get("document") or [spec.get("file")] if file not in (None, "-")]
    if len(sources) != 1 or len(files) != 1 or spec.get("chat"):
        return None
    text = str(sources[0]["text"]).strip()
    split = next((name for name, between in PARTS_OF_TEXT.items() if between.search(text)), None)
    return None if split is None else f'"QUESTION" --file {shlex.quote(plain_text(files[0]))} --split {split}'


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
    label = Column(("", "source"), [_source_name(row) for row in shown], left=True)
    taken = label.width + sum(GAP + column.width for column in columns) + GAP
    room = max((display.width or TEXT_WIDTH) - taken, LEAST_TEXT)
    texts = [shortened(plain_text(" ".join(str(row["text"]).split())), room) for row in shown]
    grid = Grid("", label, [*columns, Column(("", "text"), texts, left=True)])
    yield grid.first_group(display.width)
    if len(rows) > count:
        yield Paragraph(f"Not shown: {counted(len(rows) - count, 'source')}: --show statistics.", "note")


def _source_name(row: Row) -> str:
    """`doc2 b.md`: as --expect calls it, and its title."""
    return plain_text(f"{row['name']} {shortened(str(row['title']), 16)}".strip())


def _coloured_by(report: Report) -> str:
    """What tells of which source a part of the answer is; in reports of before the weight did."""
    if "measured_source" not in report.table("answer")[0]:
        return "that has most of its weight"
    is_fit = report.table("sources")[0]["ranked_by"] == "effect"
    return "that adds most to it" if is_fit else "without which it loses most"


def _rankings(rows: Sequence[Row], num_sources: int) -> str:
    """`Weights beside what is lost without 5 of 21 sources: all heads, rank correlation 0.10, first wrong`"""
    removed = rows[0]["removed"]
    sources = "each source" if removed == num_sources else f"{removed} of {num_sources} sources"
    what = f"what is lost without {sources}" if rows[0]["predicts"] == "lost" else "the effect of each source"
    said = []
    for row in rows:
        spearman = "" if row["spearman"] is None else f"rank correlation {fixed(row['spearman'], 2)}, "
        first = "first right" if row["first_right"] else "first wrong"
        said.append(f"{str(row['ranking']).replace('_', ' ')}, {spearman}{first}")
    return plain_text(f"Weights beside {what}: {'; '.join(said)}.")


def _measured_source(row: Row) -> object:
    return row["measured_source"] if "measured_source" in row else row["source"]


def _answer_lines(report: Report, display: Display) -> list[ScreenLine]:
    """The answer in lines: behind each part the number of its source; the first sources have colours, too."""
    numbers = [row["source"] for row in report.table("sources")]
    colours: Mapping[object, str] = dict(zip(numbers, COLOURS, strict=False)) if display.has_color else {}
    words: list[list[ScreenLine]] = [[]]
    for source, tokens in groupby(report.table("answer"), key=_measured_source):
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
