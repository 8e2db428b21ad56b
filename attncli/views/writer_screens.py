"""The first screen of models that write: where each token looked."""

from collections.abc import Sequence
from dataclasses import replace

from attncli.plain_text import counted, plain_text
from attncli.report import Cell, Report, Row
from attncli.views import Display
from attncli.views.model_screens import LEAST_ROWS, token_cell
from attncli.views.screens import screen_parts
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    TableLabels,
    heads_grid,
    model_name,
    notes_in,
    one_line,
)
from attncli.views.texts import (
    NO_NUMBER,
    fixed,
    place_text,
    shortened,
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
