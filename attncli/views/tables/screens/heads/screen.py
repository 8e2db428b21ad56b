"""What the heads of a model do: a line for each pattern, and a letter for each head."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import Report, Row, Table
from attncli.spec import SPECS
from attncli.views import Display
from attncli.views.heading import counted, token_name
from attncli.views.labels import shortened
from attncli.views.numbers import fixed
from attncli.views.tables.elements import GAP, Column, Grid, Paragraph, Section
from attncli.views.tables.heads_table import heads_grid
from attncli.views.tables.labels import TableLabels
from attncli.views.tables.screens.heads.examples import examples_screen
from attncli.views.tables.screens.heads.head_letters import (
    LETTERS_TITLE,
    MOST_TEXT,
    SHORT_NAMES,
    head_count,
    head_letters,
    pattern_name,
)
from attncli.views.tables.screens.heads.many_texts import half_widths, survey_grid
from attncli.views.tables.screens.heads.relations import relations_screen
from attncli.views.tables.tensor_tables import TensorTables

REPEATED = ("duplicate token", "induction")
DECIMALS = 2
PLACE_WIDTH = len("29:8 0.90")
MOST_HEADS = 16
FEW_ROWS = 5


def heads_screen(report: Report, display: Display) -> Iterator[Section]:
    """The patterns; the heads themselves where they are sorted, or asked for; a statistic's grid."""
    if report.table("examples"):
        yield from examples_screen(report, display)
        return
    if report.table("relations"):
        yield from relations_screen(report, display)
        return
    labels = TableLabels(report, display)
    heads, patterns, spec = report.table("heads"), report.table("patterns"), report.spec
    yield Paragraph(_title(report, heads), "title")
    width = display.width or MOST_TEXT
    yield Paragraph(text_line(report, width), "")
    if context := spec.get("context"):
        line = plain_text(f"encoder reads: {' '.join(str(context).split())}")
        yield Paragraph(shortened(line, width), "")
    if heads and (not patterns or spec.get("table") or spec.get("sort") or spec.get("top")):
        yield _sorted_heads(report, heads, display)
    elif heads:
        for stack, rows in groupby(patterns, key=lambda row: str(row["stack"])):
            of_stack = [row for row in heads if row["stack"] == stack]
            is_only = len(of_stack) == len(heads)
            title = "" if is_only else stack
            if report.table("intervals"):
                yield survey_grid(title, list(rows), report, display.width)
            else:
                yield _pattern_grid(title, list(rows), report, labels, display.width)
            letters_title = LETTERS_TITLE if is_only else f"{stack}: {LETTERS_TITLE}"
            yield from head_letters(letters_title, of_stack, display.width)
    asked = {name: tensor for name, tensor in report.tensors.items() if name == "rollout" or not heads}
    if asked:
        yield from TensorTables(replace(report, tensors=asked), display, labels).sections()
    # The first note says what the title does.
    notes = [*map(plain_text, report.notes[1:]), *_few_rows(report)]
    for line, style in [("", "dim"), *((note, "note") for note in notes)] if notes else []:
        yield Paragraph(line, style)


def _title(report: Report, heads: Table) -> str:
    """`heads: minilm, 6 layers × 12 heads, 17 tokens`; of some heads what the first note says of all."""
    if _is_cut(report) and report.notes:
        return plain_text(f"heads: {report.notes[0].rstrip('.')}")
    model = str(report.spec.get("model") or getattr(SPECS["heads"], "default_model", ""))
    stacks = dict.fromkeys(str(row["stack"]) for row in heads)
    sizes = [_size(stack, [row for row in heads if row["stack"] == stack]) for stack in stacks]
    texts = report.numbers("texts").get("num_texts")
    read = counted(len(report.tokens), token_name(report)) if texts is None else counted(int(texts), "text")
    return plain_text(f"heads: {', '.join([Path(model).name, *sizes, read])}")


def _size(stack: str, rows: Sequence[Row]) -> str:
    """How many layers, and heads in each; a stack's name where there are several."""
    layers = {row["layer"] for row in rows}
    each = {sum(row["layer"] == layer for row in rows) for layer in layers}
    of_one = str(each.pop()) if len(each) == 1 else f"{min(each)} to {max(each)}"
    name = "" if stack == "self" else f"{stack} "
    return f"{name}{len(layers)} layer{'s' * (len(layers) > 1)} × {of_one} head{'s' * (of_one != '1')}"


def _is_cut(report: Report) -> bool:
    """Whether the report holds some of the heads alone, or their order is another one."""
    return bool(report.spec.get("top") or report.spec.get("sort"))


def text_line(report: Report, width: int) -> str:
    """What the model read, in a line."""
    spec = report.spec
    if spec.get("probe"):
        return f"probe: {spec.get('num_tokens')} random tokens, twice"
    group = f", group {spec['text_group']}" if spec.get("text_group") else ""
    many = f"texts {spec['texts']}{group}" if spec.get("texts") else ""
    text = many or spec.get("sentence") or f"file {spec.get('file')}"
    return shortened(plain_text(" ".join(str(text).split())), width)


def _sorted_heads(report: Report, heads: Table, display: Display) -> Grid:
    """The first heads with as many statistics as fit beside each other; with `table` everything."""
    spec, sort = report.spec, report.spec.get("sort")
    shown = heads if spec.get("table") or not _is_cut(report) else heads[: spec.get("top") or MOST_HEADS]
    count = (
        f"the first {len(shown)} of {len(heads)} heads" if len(shown) < len(heads) else f"{len(heads)} heads"
    )
    halves = half_widths(report, shown, sort, display.precision)
    grid = heads_grid(f"{count}{_order(spec)}", shown, display.precision, first=sort, halves=halves)
    return (
        grid
        if spec.get("table") or not _is_cut(report)
        else replace(grid, columns=grid.groups(display.width)[0])
    )


def _order(spec: Mapping[str, Any]) -> str:
    """What heads are sorted by, in words where it is the weight between tokens that the user named."""
    if not spec.get("sort"):
        return ""
    name = str(spec["sort"])
    if name == "from_to_weight":
        sides = {side: ", ".join(map(str, spec.get(side) or ())) for side in ("from", "to")}
        name = f"the weight {' '.join(f'{side} {names}' for side, names in sides.items() if names)}"
    return plain_text(f" by {name}, {'smallest' if spec.get('ascending') else 'largest'} first")


def _few_rows(report: Report) -> Iterator[str]:
    """That what heads are sorted by stands on few rows of some stack."""
    sort = report.spec.get("sort")
    for row in report.table("pattern_rows"):
        count = row.get(sort) if isinstance(sort, str) and sort != "from_to_weight" else None
        if isinstance(count, int) and count < FEW_ROWS:
            yield plain_text(f"{sort} rests on {count} row{'s' * (count != 1)} of this text.")


def _pattern_grid(
    title: str, patterns: Sequence[Row], report: Report, labels: TableLabels, width: int | None
) -> Grid:
    """Letter and pattern, how many heads are above the threshold, and the strongest of them."""
    names = [pattern_name(row) for row in patterns]
    counts = [head_count(row) for row in patterns]
    statistics = [
        plain_text(SHORT_NAMES.get(str(row["statistic"]), str(row["statistic"]))) for row in patterns
    ]
    room = max(map(len, statistics)) + 1
    left = None if width is None else width - max(map(len, names)) - max(map(len, counts)) - room - 2 * GAP
    told = [
        _too_few(row, report)
        if row["heads"] is None
        else f"{name:<{room}}{_strongest(row, report, labels, left)}"
        for name, row in zip(statistics, patterns, strict=True)
    ]
    header = f"{'statistic':<{room}}strongest (layer:head)"
    columns = [Column(("", "heads"), counts), Column(("", header), told, left=True)]
    return Grid(plain_text(title), Column(("", ""), names, left=True), columns)


def _strongest(row: Row, report: Report, labels: TableLabels, room: int | None) -> str:
    """The strongest heads, with their numbers and keys: as many as fit."""
    told = ""
    for head in report.table("strongest"):
        value, key = head["value"], head["key"]
        is_seen = isinstance(value, float) and value >= 0.5 * 10**-DECIMALS
        if not is_seen or any(head[name] != row[name] for name in ("stack", "pattern")):
            continue
        one = f"{head['layer']}:{head['head']} {fixed(value, DECIMALS)}"
        one += f" → {_key(key, str(row['stack']), report, labels)}" if isinstance(key, int) else ""
        longer = f"{told}  {one:<{PLACE_WIDTH}}" if told else f"{one:<{PLACE_WIDTH}}"
        if told and room is not None and cell_len(longer.rstrip()) > room:
            break
        told = longer
    return told.rstrip()


def _key(key: int, stack: str, report: Report, labels: TableLabels) -> str:
    """Position and token: a decoder reads the text; beside maps a report has the tokens of one side."""
    if stack != "self" and report.spec.get("maps") != "none":
        return str(key)
    return labels.place("query" if stack == "decoder" else "key", key)


def _too_few(row: Row, report: Report) -> str:
    """That a pattern stands on too few rows, and what would measure it."""
    num_rows = row["rows"]
    if row["pattern"] == "special tokens" and not num_rows:
        return f"no special token {'is left' if report.spec.get('skip_sink') else 'in this text'}"
    told = {0: "no row", 1: "one row only"}.get(
        num_rows if isinstance(num_rows, int) else 0, f"{num_rows} rows only"
    )
    is_a_text_of_tokens = not (report.spec.get("probe") or report.spec.get("words"))
    is_repeated = row["pattern"] in REPEATED and is_a_text_of_tokens
    return f"{told}: use {'--probe repeated, no text' if is_repeated else 'a longer text'}"
