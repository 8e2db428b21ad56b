"""The first screen of a model that writes: its text, where it looked, the heads that looked back most."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attncli.plain_text import plain_text
from attncli.report import PLACES, Cell, Report, Row
from attncli.views import Display
from attncli.views.labels import shortened
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import Column, Grid, Paragraph, Section, TableLabels
from attncli.views.tables.screens.headlines import model_name, one_line
from attncli.views.tables.statistic_tables import heads_grid
from attncli.views.terminal.blocks import wrap_cells

MOST_TOKENS = 9
LINES_OF_ALL = 12  # of 30: for the text, the tokens and the notes
MOST_HEADS = 5
TEXT_LINES = 3
SHARES = {"first_key": "first", "written_mass": "written", "needle_mass": "needle"}
HEAD_PLACES = ("layer", "head", "stack", "module")
HEAD_ORDER = (
    *("retrieval", "needle_mass", "text_mass", "prompt_mass", "written_mass"),
    *("lookback_ratio", "sink_mass", "distance", "entropy", "special_mass"),
)
WRITTEN = "Written: "


def generate_screen(report: Report, display: Display) -> Iterator[Section]:
    """What was read and written; the first tokens with the keys that were looked at; the strongest heads."""
    width = display.width or 0
    labels = TableLabels(report, replace(display, width=min(width, 100)))
    yield Paragraph(_title(report), "title")
    prompt = report.spec.get("sentence") or f"file {report.spec.get('file')}"
    words = f"{prompt} {report.spec.get('question') or ''}".split()
    yield one_line(f"prompt: {' '.join(words)}", display)
    text = next((note for note in report.notes if note.startswith(WRITTEN)), "").removeprefix(WRITTEN)
    lines = wrap_cells(f"wrote: {plain_text(text)}", width)
    if len(lines) > TEXT_LINES:
        lines = [*lines[: TEXT_LINES - 1], shortened(" ".join(lines[TEXT_LINES - 1 :]), width)]
    yield from (Paragraph(line, "") for line in lines)
    notes = [plain_text(note) for note in report.notes[1:] if not note.startswith(WRITTEN)]
    room = LINES_OF_ALL - len(lines) - sum(len(wrap_cells(note, width)) for note in notes)
    room -= len(wrap_cells(_tokens_title(report, MOST_TOKENS), width)) - 1
    yield _tokens(report, labels, display, min(MOST_TOKENS, room))
    yield _heads(report, display)
    yield from (Paragraph(note, "note") for note in notes)


def _title(report: Report) -> str:
    """`generate: SmolLM2, 30 layers × 9 heads, 366 tokens, 24 new ones`"""
    counts = report.numbers("writing")
    places = [f"{name} {report.spec[name]}" for name in PLACES if report.spec.get(name) is not None]
    sizes = [f"{counts['prompt_tokens']} tokens", f"{counts['new_tokens']} new"]
    return plain_text(f"generate: {', '.join([model_name(report), *places, *sizes])}")


def _tokens(report: Report, labels: TableLabels, display: Display, most: int) -> Grid:
    """One line per token: the query that chose it, shares of the row, the keys beside the first."""
    rows = report.table("written")
    places = _chosen(rows, most)
    shown = [rows[place] for place in places]
    precision = display.precision
    label = labels.rows("query", len(rows))
    columns = [
        Column(("", "chose"), [shortened(plain_text(str(row["token"])), 14) for row in shown], left=True)
    ]
    columns += [
        Column(("", name), [fixed(row[key], precision) for row in shown])
        for key, name in SHARES.items()
        if key in shown[0]
    ]
    for rank in range(len(_list(shown[0], "keys"))):
        cells = [_key(row, rank, labels, precision) for row in shown]
        columns.append(Column(("", "looks at" if rank == 0 else "and"), cells, left=True))
    label = Column(("", "query"), [label.cells[place] for place in places], left=True)
    return Grid(_tokens_title(report, len(shown)), label, columns).first_group(display.width)


def _tokens_title(report: Report, most: int) -> str:
    count = len(report.table("written"))
    left = f" ({most} of {count})" if most < count else ""
    of = "this head" if report.spec.get("head") is not None else "the heads' mean"
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


def _key(row: Row, rank: int, labels: TableLabels, precision: int) -> str:
    key, weight = _list(row, "keys")[rank], _list(row, "weights")[rank]
    if not isinstance(key, int):
        return NO_NUMBER
    return f"{labels.place('key', key)} {fixed(weight, precision)}"


def _heads(report: Report, display: Display) -> Grid:
    """The heads with the most of what they are sorted by, with as many statistics as fit."""
    heads = report.table("heads")
    sort = str(report.spec.get("sort"))
    if sort == "retrieval" and all(row[sort] != row[sort] for row in heads):
        sort = "needle_mass"  # nothing was copied
    least = "smallest" if report.spec.get("ascending") else "largest"
    names = [*HEAD_PLACES, *dict.fromkeys([sort, *HEAD_ORDER])]
    shown = [{name: row[name] for name in names if name in row} for row in heads[:MOST_HEADS]]
    title = plain_text(f"heads with the {least} {sort}, means over the new tokens")
    return heads_grid(title, shown, display.precision).first_group(display.width)
