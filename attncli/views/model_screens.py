"""The first screens of models: what their heads do, what they add, what is lost without them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import isnan
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.cells import cell_len

from attncli.core.row_statistics import EFFECTS, HEAD_PATTERNS, UNNAMED, Effect
from attncli.plain_text import plain_text
from attncli.report import Cell, NamedTensor, Report, Row, Table
from attncli.views import Display
from attncli.views.matrices import head_name
from attncli.views.sections import (
    GAP,
    Column,
    Drawing,
    Grid,
    Paragraph,
    Section,
    TableLabels,
    TensorTables,
    closing_notes,
    heads_grid,
    model_name,
    one_line,
    split_header,
    text_line,
)
from attncli.views.texts import (
    NO_NUMBER,
    counted,
    fixed,
    named_tokens,
    place_text,
    shortened,
    token_name,
    wrap_cells,
)

SHORT_NAMES = {"special_mass - sink_mass": "special, not first"}
REPEATED = ("duplicate token", "induction")
MOST_TEXT = 80
DECIMALS = 2
MOST_LAYERS = 12
"""Layers up to which each has a line of its own."""
LETTERS_TITLE = "largest statistic above its threshold; U overrides the rest, F comes last"


def pattern_letter(pattern: object) -> str:
    """What stands for a pattern in a grid of heads; ? for one that is not known."""
    if pattern == UNNAMED:
        return NO_NUMBER
    return HEAD_PATTERNS[str(pattern)].letter if pattern in HEAD_PATTERNS else "?"


def pattern_grid(
    title: str, patterns: Sequence[Row], report: Report, labels: TableLabels, width: int | None
) -> Grid:
    """Letter and pattern, how many heads are above the threshold, and the strongest of them.

    Over many texts also how much was measured, and how sure the numbers are.
    """
    letters = [f"{pattern_letter(row['pattern'])} {row['pattern']}" for row in patterns]
    label = Column(("", ""), [plain_text(text) for text in letters], left=True)
    columns = [Column(("", "heads"), [_head_count(row) for row in patterns])]
    if report.table("intervals"):
        columns += [Column(("", name), [_whole(row[name]) for row in patterns]) for name in ("texts", "rows")]
        starts, header = [""] * len(patterns), "strongest, ± half of its interval"
    else:
        names = [SHORT_NAMES.get(str(row["statistic"]), str(row["statistic"])) for row in patterns]
        longest = max(len(plain_text(name)) for name in names) + 1
        starts = [f"{plain_text(name):<{longest}}" for name in names]
        header = f"{'statistic':<{longest}}strongest (layer:head)"
    taken = label.width + sum(GAP + column.width for column in columns) + GAP + len(starts[0])
    room = None if width is None else width - taken
    cells = [
        _too_few(row, report) if row["heads"] is None else start + _strongest(row, report, labels, room)
        for start, row in zip(starts, patterns, strict=True)
    ]
    return Grid(plain_text(title), label, [*columns, Column(("", header), cells, left=True)])


def _head_count(row: Row) -> str:
    """`59 > 0.3`: how many heads are above the threshold."""
    if row["heads"] is None:
        return NO_NUMBER
    above = "      " if row["threshold"] is None else f" > {row['threshold']:.1f}"
    return f"{row['heads'] or NO_NUMBER}{above}"


def _whole(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int) else NO_NUMBER


def _strongest(row: Row, report: Report, labels: TableLabels, room: int | None) -> str:
    """The strongest heads as far as they fit, with half of their intervals or the keys that they look at."""
    is_survey = bool(report.table("intervals"))
    least_width = len("29:8 0.90 ±0.01" if is_survey else "29:8 0.90")
    line = ""
    for head in report.table("strongest"):
        value, key = head["value"], head.get("key")
        is_seen = isinstance(value, float) and value >= 0.5 * 10**-DECIMALS
        if not is_seen or any(head[name] != row[name] for name in ("stack", "pattern")):
            continue
        text = f"{head['layer']}:{head['head']} {fixed(value, DECIMALS)}"
        if is_survey:
            text += f" {half_width(value, head['upper'])}".rstrip()
        elif isinstance(key, int):
            text += f" → {_key(key, str(row['stack']), report, labels)}"
        longer = f"{line}  {text:<{least_width}}" if line else f"{text:<{least_width}}"
        if line and room is not None and cell_len(longer.rstrip()) > room:
            break
        line = longer
    return line.rstrip()


def half_width(mean: Any, upper: Any, precision: int = DECIMALS) -> str:
    """`±0.01`, half of the interval of a mean; empty where it has none."""
    if not isinstance(mean, float) or not isinstance(upper, float) or isnan(upper - mean):
        return ""
    return f"±{fixed(upper - mean, precision)}"


def _key(key: int, stack: str, report: Report, labels: TableLabels) -> str:
    """Position and token: a decoder reads the text; beside maps a report has the tokens of one side."""
    if stack != "self" and report.spec.get("maps") != "none":
        return str(key)
    return labels.place("query" if stack == "decoder" else "key", key)


def _too_few(row: Row, report: Report) -> str:
    """A message that a pattern has too few rows, and what would measure it."""
    if report.table("intervals"):
        return "too few rows; more texts measure it"
    num_rows = row["rows"]
    if row["pattern"] == "special tokens" and not num_rows:
        return f"no special token {'is left' if report.spec.get('skip_sink') else 'in this text'}"
    count = {0: "no row", 1: "one row only"}.get(
        num_rows if isinstance(num_rows, int) else 0, f"{num_rows} rows only"
    )
    is_of_tokens = not (report.spec.get("probe") or report.spec.get("words"))
    is_repeated = row["pattern"] in REPEATED and is_of_tokens
    return (
        f"{count}: use {'random tokens, which are read without a text,' if is_repeated else 'a longer text'}"
    )


def head_letters(title: str, heads: Sequence[Row], width: int | None) -> Iterator[Drawing]:
    """A letter for each head, in as many parts as the width needs.

    Many layers go across where each has fewer heads, so that they stay on one screen.
    """
    letters: dict[Any, str] = {
        (row["layer"], row["head"]): pattern_letter(row.get("pattern")) for row in heads
    }
    layers, numbers = (sorted(set(places)) for places in zip(*letters, strict=True))
    is_wide = len(layers) > max(len(numbers), MOST_LAYERS)
    down, across = (numbers, layers) if is_wide else (layers, numbers)
    axis, corner = ("head", "layer") if is_wide else ("layer", "")
    names = [f"{axis} {place:>{len(str(down[-1]))}} " for place in down]
    room = (width or MOST_TEXT) - len(names[0])
    cell = next((size for size in (3, 2) if len(across) * size <= room), 1)
    for start in range(0, len(across), room // cell):
        columns = across[start : start + room // cell]
        lines = [f"{corner:<{len(names[0])}}{_column_numbers(columns, cell)}"]
        for name, place in zip(names, down, strict=True):
            places = [(column, place) if is_wide else (place, column) for column in columns]
            lines.append(name + "".join(f"{letters.get(where, ''):>{cell}}" for where in places))
        yield Drawing(plain_text(title), lines)


def _column_numbers(columns: Sequence[int], cell: int) -> str:
    """The number of each column above its end; only some where all would touch."""
    step = next(step for step in (1, 2, 5, 10, 50) if step * cell > len(str(columns[-1])))
    line = [" "] * len(columns) * cell
    for place, column in enumerate(columns):
        if column % step == 0:
            end, number = (place + 1) * cell, str(column)
            line[max(0, end - len(number)) : end] = number
    return "".join(line)


TYPICAL = "typical (nearest to the median)"
MOST_EACH = 5
LEAST_WEIGHT = 0.1
MOST_BESIDE = 8
"""Tokens on each side of a marked one."""
LEGEND = "value, text (its id or line): «query» and [key weight] of what it looks at most, the rest left out."


def examples_screen(report: Report, display: Display) -> Iterator[Section]:
    """What the head does on average; then some of its strongest, weakest and typical rows."""
    statistics, width = report.numbers("head"), display.width or 80
    yield one_line(f"heads: {report.about.rstrip('.')}", display, "title")
    mean = statistics.get("mean")
    average = f"{fixed(mean, 2)} {half_width(mean, statistics.get('upper'))}".rstrip()
    median = fixed(statistics["median"], 2)
    yield Paragraph(f"{report.spec['sort']} {average}, median of the rows {median}", "line")
    weights = report.table("example_weights")
    num_shown = 0
    for kind, rows in groupby(report.table("examples"), key=lambda row: str(row["kind"])):
        shown = list(rows)[:MOST_EACH]
        num_shown += len(shown)
        room = max(len(str(row["text"])) for row in shown)
        lines = []
        for row in shown:
            tokens = [one for one in weights if (one["kind"], one["rank"]) == (row["kind"], row["rank"])]
            start = f"{fixed(float(str(row['value'])), 2)}  {plain_text(str(row['text'])):<{room}}  "
            lines.append(_fitting(start, row, tokens, width))
        yield Drawing(TYPICAL if kind == "typical" else plain_text(kind), lines)
    left_out = len(report.table("examples")) - num_shown
    more = f" {left_out} more examples: --show all." if left_out else ""
    yield from closing_notes([LEGEND, f"{report.how_to_read}{more}", *report.notes])


def _fitting(start: str, example: Row, tokens: Sequence[Row], width: int) -> str:
    """A line with as many tokens beside the marked ones as fit."""
    lines = [start + _marked(example, tokens, beside) for beside in range(MOST_BESIDE, -1, -1)]
    return next((line for line in lines if cell_len(line) <= width), shortened(lines[-1], width))


def _marked(example: Row, tokens: Sequence[Row], beside: int) -> str:
    """The tokens near the query and near the keys that it looks at."""
    query = int(str(example["query"]))
    keys = {place for place, one in enumerate(tokens) if float(str(one["weight"])) >= LEAST_WEIGHT}
    keys.add(int(str(example["key"])))
    near = {place + step for place in (query, *keys) for step in range(-beside, beside + 1)}
    parts: list[str] = []
    for place, one in enumerate(tokens):
        text = plain_text(str(one["token"]))
        if place in keys:
            text = f"[{text} {fixed(float(str(one['weight'])), 2)}]"
        if place == query:
            text = f"«{text}»"
        if place in near:
            parts.append(text)
        elif not parts or parts[-1] != "…":
            parts.append("…")
    return " ".join(parts)


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
    if notes := [*report.notes, *_few_rows(report)]:
        yield from closing_notes(notes)


def _title(report: Report, heads: Table) -> str:
    """`heads: minilm, 6 layers × 12 heads, 17 tokens`; of some heads what the report is about."""
    if _is_cut(report) and report.about:
        return plain_text(f"heads: {report.about.rstrip('.')}")
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
    title = f"{count} heads{_order(report)}"
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


def _order(report: Report) -> str:
    """What heads are sorted by, in words where it is the weight between tokens that the user named."""
    spec = report.spec
    if not spec.get("sort"):
        return ""
    name = str(spec["sort"])
    if name == "from_to_weight":
        queries, keys = named_tokens(report, "from"), named_tokens(report, "to")
        to = ", ".join(keys) + " (summed)" * (len(keys) > 1)
        of = ", ".join(queries) + " (their mean)" * (len(queries) > 1)
        name = f"the weight from {of} to {to}" if queries else f"the weight on {to}, mean over all tokens"
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
        Column(("", "head"), [head_name(row) for row in shown]),
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
    yield from closing_notes([*rest, *report.notes])


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


MOST_LINES, FEWEST_HEADS = 30, 4
HIGHEST_GRID, CELL = 13, 2
OTHER_LINES = 9
"""The title, the text, the table's title, header and rule, what to type next, and blank lines between.

A header with names of two words has a second line.
"""

MOST_EFFECTS, MOST_KEYS = 6, 4
TERMS = {"embedding": "embedding", "heads": "heads", "mlps": "MLPs", "biases": "biases"}


def _effect(name: object) -> Effect:
    """What is known of an effect; a saved report may be sorted by one that is not."""
    return EFFECTS.get(str(name), Effect())


def ablate_screen(report: Report, display: Display) -> Iterator[Section]:
    """The model, what it read and how well it did; the heads in order; a grid; what was removed."""
    width, heads, sort = display.width or 0, report.table("heads"), str(report.spec["sort"])
    yield one_line(f"ablate: {report.about}", display, "title")
    yield text_line(report, display)
    summary = list(_summary(report, display.precision))
    yield from (Paragraph(line, "") for line in summary)
    is_whole = not report.spec.get("heads") or bool(report.spec.get("approximate"))
    grids = report.tensors.items() if is_whole else ()
    drawings = [_tenths(name, tensor, sort, width) for name, tensor in grids]
    height = sum(len(drawing.lines) + 2 for drawing in drawings)
    if height > HIGHEST_GRID:
        drawings, height = [], 0
    notes = [plain_text(note) for note in report.notes]
    has_second_header = bool(_looked_at(heads, display)) or any(
        "_" in effect for effect in _effects(heads, sort)
    )
    taken = OTHER_LINES + has_second_header + height
    taken += sum(-(-cell_len(line) // width) for line in (*summary, *notes))
    most = report.spec.get("top") or max(FEWEST_HEADS, MOST_LINES - taken)
    yield _ranked(heads[:most], len(heads), sort, display)
    yield from drawings
    yield from closing_notes(notes)


def _summary(report: Report, precision: int) -> Iterator[str]:
    """What was measured with all heads, and without several at once."""
    with_all, joint = report.numbers("baseline"), report.numbers("joint")
    if with_all:
        yield f"with all heads: {_numbers(with_all, precision)}"
    if joint:
        count = len(cast(list[str], report.spec["heads"]))
        yield f"without {count} heads at once: {_numbers(joint, precision, signed=True)}"
    if approximation := report.numbers("approximation"):
        correlation = fixed(approximation["rank_correlation"], precision)
        yield f"rank correlation of approximate and loss, on {approximation['heads']} heads: {correlation}"


def _numbers(numbers: Row, precision: int, *, signed: bool = False) -> str:
    names = (name for name in EFFECTS if name in numbers)
    return ", ".join(f"{name} {_number(name, numbers[name], precision, signed)}" for name in names)


def _number(name: str, value: object, precision: int, signed: bool = True) -> str:
    """A number with its sign where it is a difference."""
    is_more = _effect(_effect_of(name)).is_difference and isinstance(value, float) and value > 0
    return ("+" if signed and is_more else "") + fixed(value, precision)


def _effect_of(name: str) -> str:
    """`loss` of `loss_low`, the lower end of its interval."""
    return name.removesuffix("_low").removesuffix("_high")


def _ranked(rows: Sequence[Row], count: int, sort: str, display: Display) -> Grid:
    """The first heads: what each looks at, and its effects, starting with the one they are sorted by."""
    has_stacks = len({row["stack"] for row in rows}) > 1
    label = _head_names(rows)
    if has_stacks:
        names = [f"{row['stack']} {name}" for row, name in zip(rows, label.cells, strict=True)]
        label = Column(label.header, names)
    columns = [
        Column(split_header(name), [_number(name, row[name], display.precision) for row in rows])
        for name in _effects(rows, sort)
    ]
    shown = f"the first {len(rows)} of {count} heads" if len(rows) < count else counted(count, "head")
    order = "lowest" if _effect(sort).falls else "largest"
    title = f"{shown} by {sort}, {order} first"
    looks_at = _looked_at(rows, display)
    # Where every head is missed at one token, that is what the screen is about.
    first, last = (looks_at, []) if len(looks_at) == 1 else ([], looks_at)
    return Grid(title, label, [_patterns(rows), *first, *columns, *last]).first_group(display.width)


def _head_names(rows: Sequence[Row]) -> Column:
    return Column(("", "head"), [head_name(row) for row in rows])


def _patterns(rows: Sequence[Row]) -> Column:
    return Column(("", "pattern"), [plain_text(str(row["pattern"])) for row in rows], left=True)


def _looked_at(rows: Sequence[Row], display: Display) -> list[Column]:
    """The key that each head looks at most, and its weight, from the one token that all are about.

    Where that is another token for each head, the one where it is missed most, a column of these leads.
    """
    is_known = all(name in row for row in rows for name in LOOKED_AT)
    if not is_known or all(row["key"] is None for row in rows):
        return []
    queries, keys = ([_token_cell(row, side) for row in rows] for side in ("query", "key"))
    weights = [fixed(row["key_weight"], display.precision) for row in rows]
    looks_at = [key if key == NO_NUMBER else f"{key} {of}" for key, of in zip(keys, weights, strict=True)]
    if len({*queries}) == 1:
        return [Column((f"from {queries[0]}", "looks at"), looks_at, left=True)]
    return [
        Column(("missed", "most at"), queries, left=True),
        Column(("from there", "looks at"), looks_at, left=True),
    ]


LOOKED_AT = ("query", "query_token", "key", "key_token", "key_weight")
MOST_TOKEN = 14


def _token_cell(row: Row, side: str) -> str:
    """`13 ·to`: a position and the token at it."""
    if row[side] is None:
        return NO_NUMBER
    return f"{row[side]} {shortened(plain_text(str(row[f'{side}_token'])), MOST_TOKEN)}"


def _effects(rows: Sequence[Row], sort: str) -> list[str]:
    """The effects that were measured, starting with the one that the heads are sorted by."""
    effects = [name for name in rows[0] if _effect_of(name) in EFFECTS]
    return sorted(effects, key=lambda name: not name.startswith(sort))


def _tenths(name: str, tensor: NamedTensor, sort: str, width: int) -> Drawing:
    """A digit for each head: tenths of the largest effect. The longer side is horizontal."""
    values = -tensor.values if _effect(sort).falls else tensor.values
    largest = np.nanmax(values, initial=0.0)
    is_wide = values.shape[0] >= values.shape[1]
    across, down = ("layer", "head") if is_wide else ("head", "layer")
    cells = (values.T if is_wide else values)[:, : (width - len(down) - 4) // CELL]
    label = max(len(f"{down} {len(cells) - 1}"), len(across))
    numbers = "".join(f"{i:>{CELL}}" if i % 2 == 0 else " " * CELL for i in range(cells.shape[1]))
    lines = [f"{across:<{label}} {numbers}".rstrip()]
    for i, row in enumerate(cells):
        digits = "".join(f"{_tenth(cell, largest):>{CELL}}" for cell in row)
        lines.append(f"{f'{down} {i}':<{label}} {digits}")
    unit = f"{name}, in tenths of the largest ({fixed(largest, 2)})"
    return Drawing(plain_text(f"{unit}; - is the other way"), lines)


def _tenth(value: float, largest: float) -> str:
    if not np.isfinite(value):
        return " "
    share = 10 * value / largest if largest else 0.0
    return "-" if share <= -0.5 else NO_NUMBER if share < 0.5 else str(min(9, round(share)))


def why_screen(report: Report, display: Display) -> Iterator[Section]:
    """The sum; the heads and the MLPs that add most; the tokens whose values a head moved."""
    parts, precision = report.numbers("parts"), display.precision
    yield one_line(f"why: {report.about}", display, "title")
    yield text_line(report, display)
    yield Paragraph(plain_text(report.how_to_read), "note")
    terms = " + ".join(f"{term} {fixed(parts[name], precision)}" for name, term in TERMS.items())
    yield Paragraph(f"logit {fixed(parts['logit'], precision)} = {terms}", "")
    yield _heads_and_mlps(report, display)
    yield _keys(report, TableLabels(report, display), precision)
    yield from closing_notes(report.notes)


def _heads_and_mlps(report: Report, display: Display) -> Grid:
    """The heads that add most, up or down, and beside them the MLPs."""
    precision = display.precision
    heads = report.table("heads")[:MOST_EFFECTS]
    layers = sorted(report.table("layers"), key=lambda row: -abs(float(str(row["mlp"]))))[: len(heads)]
    mlps = [(f"MLP {row['layer']}", fixed(row["mlp"], precision)) for row in layers]
    mlps += [("", "")] * (len(heads) - len(mlps))
    columns = [
        _patterns(heads),
        *_looked_at(heads, display),
        Column(("", "adds"), [fixed(row["contribution"], precision) for row in heads]),
        Column(("", ""), [f"  {name}" for name, _ in mlps], left=True),
        Column(("", "adds"), [number for _, number in mlps]),
    ]
    return Grid(f"the first {len(heads)} heads and MLPs, largest first", _head_names(heads), columns)


def _keys(report: Report, labels: TableLabels, precision: int) -> Grid:
    """The tokens whose values the head moved most, by what that adds."""
    tensors = report.tensors_of("keys")
    places = np.argsort(-np.abs(tensors["contribution"].values), kind="stable")[:MOST_KEYS].tolist()
    columns = [
        Column(("", header), [fixed(float(tensors[name].values[place]), precision) for place in places])
        for header, name in (("weight", "weight"), ("adds", "contribution"))
    ]
    tokens = [labels.place("key", place) for place in places]
    title = f"head {report.spec['head']}, by the tokens that it looked at"
    return Grid(title, Column(("", "token"), tokens, left=True), columns)


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


def generate_screen(report: Report, display: Display) -> Iterator[Section]:
    """What was read and written; the first tokens with the keys that were looked at; the strongest heads."""
    width = display.width or 0
    labels = TableLabels(report, replace(display, width=min(width, 100)))
    yield Paragraph(_written_title(report), "title")
    prompt = report.spec.get("sentence") or f"file {report.spec.get('file')}"
    words = f"{prompt} {report.spec.get('question') or ''}".split()
    yield one_line(f"prompt: {' '.join(words)}", display)
    lines = wrap_cells(f"wrote: {plain_text(' '.join((report.written or '').split()))}", width)
    if len(lines) > TEXT_LINES:
        lines = [*lines[: TEXT_LINES - 1], shortened(" ".join(lines[TEXT_LINES - 1 :]), width)]
    yield from (Paragraph(line, "") for line in lines)
    notes = [plain_text(note) for note in report.notes]
    room = LINES_OF_ALL - len(lines) - sum(len(wrap_cells(note, width)) for note in notes)
    room -= len(wrap_cells(_tokens_title(report, MOST_TOKENS), width)) - 1
    yield _tokens(report, labels, display, min(MOST_TOKENS, room))
    yield _heads(report, display)
    yield from (Paragraph(note, "note") for note in notes)


def _written_title(report: Report) -> str:
    """`generate: SmolLM2, 30 layers × 9 heads, 366 tokens, 24 new ones`"""
    counts = report.numbers("writing")
    sizes = [f"{counts['prompt_tokens']} tokens", f"{counts['new_tokens']} new"]
    parts = [model_name(report), place_text(report.spec), *sizes]
    return plain_text(f"generate: {', '.join(filter(None, parts))}")


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


def _heads(report: Report, display: Display) -> Grid:
    """The heads with the most of what they are sorted by, with as many statistics as fit."""
    heads = report.table("heads")
    sort = str(report.spec.get("sort"))
    if sort == "retrieval" and all(row[sort] != row[sort] for row in heads):
        sort = "needle_mass"  # nothing was copied
    least = "smallest" if report.spec.get("ascending") else "largest"
    names = [*HEAD_PLACES, *dict.fromkeys([sort, *HEAD_ORDER])]
    shown = [{name: row[name] for name in names if name in row} for row in heads[:MOST_WRITERS]]
    title = plain_text(f"heads with the {least} {sort}, means over the new tokens")
    return heads_grid(title, shown, display.precision).first_group(display.width)
