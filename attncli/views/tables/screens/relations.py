"""The heads that look along syntactic relations: one relation per line, with its best head."""

from collections.abc import Iterator
from pathlib import Path

from attncli.plain_text import plain_text
from attncli.report import Report, Row
from attncli.views import Display
from attncli.views.heading import counted
from attncli.views.labels import shortened
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import Column, Grid, Section
from attncli.views.tables.screens.headlines import closing_notes, model_name, one_line

DECIMALS = 2
MOST_RELATIONS = 12
DIRECTIONS = {"to_head": "to head", "from_head": "from head"}
MOST_NAME = 14


def relations_screen(report: Report, display: Display) -> Iterator[Section]:
    """What was read; of the most frequent relations the best head beside the best fixed offset."""
    sizes, relations = report.numbers("sentences"), report.table("relations")
    num_heads = counted(len(report.table("heads")), "head")
    title = f"heads: {model_name(report)}, {num_heads} along syntactic relations"
    yield one_line(title, display, "title")
    counts = [f"{sizes[f'num_{name}s'] or 0:,} {name}s" for name in ("sentence", "word")]
    file = str(report.spec.get("relations"))
    yield one_line(f"{' of '.join(counts)}: {'standard input' if file == '-' else Path(file).name}", display)
    shown = relations[:MOST_RELATIONS]
    names = [shortened(plain_text(str(row["relation"])), MOST_NAME) for row in shown]
    columns = [
        Column(("", "words"), [f"{row['words']:,}" for row in shown]),
        Column(("", "head"), [f"{row['layer']}:{row['head']}" for row in shown]),
        Column(("", "looks"), [DIRECTIONS[str(row["direction"])] for row in shown], left=True),
        Column(("", "share"), [_share(row, "share") for row in shown]),
        Column(("", "95 %"), [f"{_share(row, 'lower')}-{_share(row, 'upper')}" for row in shown], left=True),
        Column(("best", "offset"), [f"{row['offset']:+d}" for row in shown]),
        Column(("", "share"), [_share(row, "offset_share") for row in shown]),
        Column(("", "more"), [_more(row) for row in shown]),
    ]
    yield Grid("", Column(("", "relation"), names, left=True), columns)
    left_out = len(relations) - len(shown)
    rest = [f"{counted(left_out, 'relation')} with fewer words: --show all."] if left_out else []
    yield from closing_notes([*rest, *report.notes[1:]])


def _share(row: Row, name: str) -> str:
    return fixed(float(str(row[name])), DECIMALS)


def _more(row: Row) -> str:
    """By how much the head is better than the offset, where their intervals do not overlap."""
    if float(str(row["lower"])) <= float(str(row["offset_upper"])):
        return NO_NUMBER
    return f"+{fixed(float(str(row['share'])) - float(str(row['offset_share'])), DECIMALS)}"
