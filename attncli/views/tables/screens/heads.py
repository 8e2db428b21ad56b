"""What the heads of a model do: their patterns, their statistics, or the syntactic relations they follow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from attncli.plain_text import plain_text
from attncli.report import Report, Row, Table
from attncli.views import Display
from attncli.views.heading import counted, token_name
from attncli.views.labels import shortened
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import Column, Grid, Paragraph, Section, TableLabels
from attncli.views.tables.screens.head_examples import examples_screen
from attncli.views.tables.screens.head_patterns import LETTERS_TITLE, half_width, head_letters, pattern_grid
from attncli.views.tables.screens.headlines import closing_notes, model_name, one_line, text_line
from attncli.views.tables.statistic_tables import heads_grid
from attncli.views.tables.tensor_tables import TensorTables

MOST_HEADS = 16
FEW_ROWS = 5
MOST_RELATIONS, MOST_NAME = 12, 14
DIRECTIONS = {"to_head": "to head", "from_head": "from head"}


def heads_screen(report: Report, display: Display) -> Iterator[Section]:
    """The patterns; the heads themselves where they are sorted, or asked for; a statistic's grid."""
    if report.table("examples"):
        yield from examples_screen(report, display)
        return
    if report.table("relations"):
        yield from _relations(report, display)
        return
    labels = TableLabels(report, display)
    heads, patterns, spec = report.table("heads"), report.table("patterns"), report.spec
    yield Paragraph(_title(report, heads), "title")
    yield text_line(report, display)
    if context := spec.get("context"):
        yield one_line(f"encoder reads: {' '.join(str(context).split())}", display)
    if heads and (not patterns or spec.get("table") or _is_cut(report)):
        yield _sorted_heads(report, heads, display)
    elif heads:
        for stack, rows in groupby(patterns, key=lambda row: str(row["stack"])):
            stack_heads = [row for row in heads if row["stack"] == stack]
            is_only = len(stack_heads) == len(heads)
            yield pattern_grid("" if is_only else stack, list(rows), report, labels, display.width)
            letters_title = LETTERS_TITLE if is_only else f"{stack}: {LETTERS_TITLE}"
            if stack_heads:
                yield from head_letters(letters_title, stack_heads, display.width)
    tensors = {name: tensor for name, tensor in report.tensors.items() if name == "rollout" or not heads}
    if tensors:
        yield from TensorTables(replace(report, tensors=tensors), display, labels).sections()
    # The title says what the first note does.
    if notes := [*report.notes[1:], *_few_rows(report)]:
        yield from closing_notes(notes)


def _title(report: Report, heads: Table) -> str:
    """`heads: minilm, 6 layers × 12 heads, 17 tokens`; of some heads what the first note says of all."""
    if _is_cut(report) and report.notes:
        return plain_text(f"heads: {report.notes[0].rstrip('.')}")
    stacks = dict.fromkeys(str(row["stack"]) for row in heads)
    sizes = [_size(stack, [row for row in heads if row["stack"] == stack]) for stack in stacks]
    texts = report.numbers("texts").get("num_texts")
    read = counted(len(report.tokens), token_name(report)) if texts is None else counted(int(texts), "text")
    return plain_text(f"heads: {', '.join([model_name(report), *sizes, read])}")


def _size(stack: str, rows: Sequence[Row]) -> str:
    """How many layers, and heads in each; a stack's name where there are several."""
    layers = {row["layer"] for row in rows}
    num_heads = {sum(row["layer"] == layer for row in rows) for layer in layers}
    least, most = min(num_heads), max(num_heads)
    heads = counted(most, "head") if least == most else f"{least} to {most} heads"
    name = "" if stack == "self" else f"{stack} "
    return f"{name}{counted(len(layers), 'layer')} × {heads}"


def _is_cut(report: Report) -> bool:
    """Whether the report holds only some of the heads, or has them in another order."""
    return bool(report.spec.get("top") or report.spec.get("sort"))


def _sorted_heads(report: Report, heads: Table, display: Display) -> Grid:
    """The first heads with as many statistics as fit beside each other; with `table` everything."""
    spec, sort = report.spec, report.spec.get("sort")
    is_whole = bool(spec.get("table")) or not _is_cut(report)
    shown = heads if is_whole else heads[: spec.get("top") or MOST_HEADS]
    count = f"the first {len(shown)} of {len(heads)}" if len(shown) < len(heads) else str(len(heads))
    halves = _half_widths(report, shown, sort, display.precision)
    title = f"{count} heads{_order(spec)}"
    grid = heads_grid(title, shown, display.precision, first=sort, halves=halves)
    return grid if is_whole else grid.first_group(display.width)


def _half_widths(report: Report, heads: Sequence[Row], statistic: Any, precision: int) -> list[str] | None:
    """Half of the interval of a statistic of each of these heads; None where a report has no intervals."""
    place = ("stack", "layer", "head")
    halves = {
        tuple(row[name] for name in place): half_width(row.get("mean"), row.get("upper"), precision)
        for row in report.table("intervals")
        if row["statistic"] == statistic
    }
    return [halves.get(tuple(map(head.get, place))) or NO_NUMBER for head in heads] if halves else None


def _order(spec: Mapping[str, Any]) -> str:
    """What heads are sorted by, in words where it is the weight between tokens that the user named."""
    if not spec.get("sort"):
        return ""
    name = str(spec["sort"])
    if name == "from_to_weight":
        ends = {end: ", ".join(map(str, spec.get(end) or ())) for end in ("from", "to")}
        name = f"the weight {' '.join(f'{end} {tokens}' for end, tokens in ends.items() if tokens)}"
    return plain_text(f" by {name}, {'smallest' if spec.get('ascending') else 'largest'} first")


def _few_rows(report: Report) -> Iterator[str]:
    """A warning where few rows of some stack have what heads are sorted by."""
    sort = report.spec.get("sort")
    for row in report.table("pattern_rows"):
        count = row.get(sort) if isinstance(sort, str) and sort != "from_to_weight" else None
        if isinstance(count, int) and count < FEW_ROWS:
            rows = f"only {counted(count, 'row')} of this text" if count else "no row of this text: no order"
            yield f"{sort} is measured on {rows}."


def _relations(report: Report, display: Display) -> Iterator[Section]:
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
        Column(("", "looks"), [_direction(row) for row in shown], left=True),
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


def _direction(row: Row) -> str:
    name = str(row["direction"])
    return DIRECTIONS.get(name, plain_text(name))


def _share(row: Row, name: str) -> str:
    return fixed(float(str(row[name])), 2)


def _more(row: Row) -> str:
    """By how much the head is better than the offset, where their intervals do not overlap."""
    if float(str(row["lower"])) <= float(str(row["offset_upper"])):
        return NO_NUMBER
    return f"+{fixed(float(str(row['share'])) - float(str(row['offset_share'])), 2)}"
