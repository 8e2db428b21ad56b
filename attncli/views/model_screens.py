"""The first screens of models: what their heads do, what they add, what is lost without them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import isnan
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from attncli.core.names import EFFECTS, FIRST_TOKEN, HEAD_PATTERNS, LOOKED_AT, UNNAMED, Effect
from attncli.plain_text import counted, plain_text
from attncli.report import PLACES, NamedTensor, Report, Row, Table
from attncli.views import TEXT_WIDTH, Display
from attncli.views.matrices import head_name, matrices_of, pictured, unit_of
from attncli.views.screens import picture_maps_part, screen_parts, weights_part
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
    TensorTables,
    heads_grid,
    model_name,
    notes_in,
    one_line,
    text_line,
    titled,
)
from attncli.views.texts import (
    DIM,
    NO_NUMBER,
    ScreenLine,
    beside,
    fixed,
    joined,
    named_tokens,
    plain_line,
    shortened,
    styled,
    text_name,
    token_name,
    wrap_cells,
)

SHORT_NAMES = {"special_mass - sink_mass": "special, not first"}
REPEATED = ("duplicate token", "induction")
DECIMALS = 2
MOST_LAYERS = 12
"""Layers up to which each has a line of its own."""
MOST_PARTS, LEAST_LINES = 4, 3
NO_PATTERN = NO_NUMBER
LETTERS_TITLE = "Each head's pattern. Where several fit: U, then the largest statistic, F last."


def pattern_letter(pattern: object) -> str:
    """What stands for a pattern in a grid of heads; ? for one that is not known."""
    if pattern == UNNAMED:
        return NO_PATTERN
    return HEAD_PATTERNS[str(pattern)].letter if pattern in HEAD_PATTERNS else "?"


def pattern_part(title: str, patterns: Sequence[Row], report: Report, display: Display) -> Elastic:
    """The table of the patterns; those for which a terminal has no room, first those without heads, below."""
    labels = TableLabels(report, display)
    has_heads = [place for place, row in enumerate(patterns) if row["heads"]]
    # What says least about a model goes first; of what says as much, the pattern whose heads show it least.
    by_worth = sorted(
        has_heads, key=lambda place: (_worth(patterns[place]["pattern"]), -_clearest(patterns[place], report))
    )

    def of(count: int) -> Iterator[Section]:
        rows = [
            row for place, row in enumerate(patterns) if place in by_worth[:count] or count > len(has_heads)
        ]
        others = [row for row in patterns if row not in rows]
        if rows:
            yield pattern_grid(title, rows, report, labels, display.width)
        if others:
            texts = [f"{title}: " if title and not rows else "", "; ".join(_joined_patterns(others))]
            yield Paragraph("".join(texts), "line" if rows else "prose")

    return Elastic(of, len(has_heads) + 1, rank=1)


def _worth(pattern: object) -> int:
    """0 for what names few heads, 1 for what names many, 2 for none."""
    known = HEAD_PATTERNS.get(str(pattern))
    return 2 if known is None else int(known.precedence != 1)


def _clearest(row: Row, report: Report) -> float:
    """The statistic of a pattern's strongest head; -1 where none of them is a number."""
    heads = [head for head in report.table("strongest") if head["pattern"] == row["pattern"]]
    values = [head["value"] for head in heads if head["stack"] == row["stack"]]
    return max((value for value in values if isinstance(value, float)), default=-1.0)


def _joined_patterns(patterns: Sequence[Row]) -> Iterator[str]:
    """`8 C current token, 2 U uniform`, `none: N next token`, `not measured: I induction`."""
    kinds = {
        "": [row for row in patterns if row["heads"]],
        "none: ": [row for row in patterns if row["heads"] == 0],
        "not measured: ": [row for row in patterns if row["heads"] is None],
    }
    for name, rows in kinds.items():
        texts = [plain_text(f"{row['heads'] or ''} {_lettered(row)}").strip() for row in rows]
        if texts:
            yield f"{name}{', '.join(texts)}"


def _lettered(row: Row) -> str:
    return f"{pattern_letter(row['pattern'])} {row['pattern']}"


def pattern_grid(
    title: str, patterns: Sequence[Row], report: Report, labels: TableLabels, width: int | None
) -> Grid:
    """Letter and pattern, how many heads are above the threshold, and the strongest of them.

    Over many texts also how much was measured, and how sure the numbers are.
    """
    label = Column(("", ""), [plain_text(_lettered(row)) for row in patterns], left=True)
    columns = [Column(("", "heads"), [_head_count(row) for row in patterns])]
    if report.table("intervals"):
        for name, said in (("texts", f"{text_name(report)}s"), ("rows", "rows")):
            columns.append(Column(("", said), [_whole(row[name]) for row in patterns]))
        starts, header = [""] * len(patterns), "strongest, ± half of its interval"
    else:
        names = [SHORT_NAMES.get(str(row["statistic"]), str(row["statistic"])) for row in patterns]
        longest = max(len(plain_text(name)) for name in ("statistic", *names)) + 1
        starts = [f"{plain_text(name):<{longest}}" for name in names]
        header = f"{'statistic':<{longest}}strongest (layer:head)"
    taken = label.width + sum(GAP + column.width for column in columns) + GAP + len(starts[0])
    room = None if width is None else width - taken
    cells: list[list[str]] = []
    for start, row in zip(starts, patterns, strict=True):
        if row["heads"] is None:
            cells.append([_too_few(row, report)])
        else:
            first, *more = _named(row, report, labels, room)
            cells.append([start + first, *(" " * len(start) + names for names in more)])
    heights = [len(lines) for lines in cells]
    columns = [replace(column, cells=_with_blanks(column.cells, heights)) for column in columns]
    label = replace(label, cells=_with_blanks(label.cells, heights))
    strongest = Column(("", header), [line for lines in cells for line in lines], left=True)
    return Grid(plain_text(title), label, [*columns, strongest])


def _with_blanks(cells: Sequence[str], heights: Sequence[int]) -> list[str]:
    """The cells, each above as many empty ones as its row has more lines."""
    return [
        line for cell, height in zip(cells, heights, strict=True) for line in (cell, *[""] * (height - 1))
    ]


def _head_count(row: Row) -> str:
    """`59 > 0.3`: how many heads are above the threshold."""
    if row["heads"] is None:
        return NO_NUMBER
    above = "      " if row["threshold"] is None else f" > {row['threshold']:.1f}"
    return f"{row['heads']}{above}"


def _whole(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int) else NO_NUMBER


MOST_NAMED = 10
"""Heads of a pattern up to which each is named."""


def _named(row: Row, report: Report, labels: TableLabels, room: int | None) -> list[str]:
    """The strongest heads as far as they fit, with their numbers; where the heads of a pattern are few the
    names of the others, too, in a line with as many numbers as leave room for them, else in several.
    """
    strongest = list(_strongest(row, report, labels))
    names = _heads_of(row, report)
    fitting = [count for count in range(len(strongest), 0, -1) if _fits(_padded(strongest[:count]), room)]
    for count in fitting:
        shown = {text.partition(" ")[0] for text in strongest[:count]}
        others = [name for name in names if name not in shown]
        line = "  ".join(filter(None, (_padded(strongest[:count]), " ".join(others))))
        if _fits(line, room):
            return [line]
    first = _padded(strongest[: fitting[0] if fitting else 1])
    shown = {text.partition(" ")[0] for text in strongest[: fitting[0] if fitting else 1]}
    more = " ".join(name for name in names if name not in shown)
    return [first, *(wrap_cells(more, room or TEXT_WIDTH) if more else ())]


def _fits(line: str, room: int | None) -> bool:
    return room is None or cell_len(line) <= room


def _padded(texts: Sequence[str]) -> str:
    """Heads with their numbers side by side, in columns where they are short."""
    least_width = len("29:8 0.90 ±0.01" if any("±" in text for text in texts) else "29:8 0.90")
    return "  ".join(f"{text:<{least_width}}" for text in texts).rstrip()


def _heads_of(row: Row, report: Report) -> list[str]:
    """The heads that show a pattern, the strongest first; none where they are many, or not all known."""
    statistic, threshold = str(row["statistic"]), row["threshold"]
    heads = [head for head in report.table("heads") if head["stack"] == row["stack"]]
    lower = {
        (each["layer"], each["head"]): each.get("lower")
        for each in report.table("intervals")
        if each["stack"] == row["stack"] and each["statistic"] == statistic
    }
    found: list[tuple[float, Row]] = []
    for head in heads:
        names = statistic.split(" - ")  # as special_mass - sink_mass
        numbers = [head.get(name) for name in names]
        if not isinstance(threshold, float) or not all(isinstance(number, float) for number in numbers):
            return []
        value = float(str(numbers[0])) - sum(float(str(number)) for number in numbers[1:])
        least = lower.get((head["layer"], head["head"]), value)
        if isinstance(least, float) and least > threshold:
            found.append((value, head))
    is_whole = len(found) <= MOST_NAMED and len(found) == row["heads"]
    return [head_name(head) for _, head in sorted(found, key=lambda each: -each[0])] if is_whole else []


def _strongest(row: Row, report: Report, labels: TableLabels) -> Iterator[str]:
    """The strongest heads, each with half of its interval or the key that it looks at."""
    is_survey = bool(report.table("intervals"))
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
        yield text


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
    num_rows = num_rows if isinstance(num_rows, int) else 0
    is_repeated = row["pattern"] in REPEATED
    rows = {0: "no row", 1: "one row"}.get(num_rows, f"{num_rows} rows")
    what = "a word" if report.spec.get("words") else "a token"
    repeat = f"{rows} {'repeat' if num_rows > 1 else 'repeats'} {what}"
    count = repeat if is_repeated else rows if not num_rows else f"{rows} only"
    if text_name(report) == "picture":  # its model's own processor says how many patches there are
        return count
    is_of_tokens = not (report.spec.get("probe") or report.spec.get("words"))
    return f"{count}: {'without a text many do' if is_repeated and is_of_tokens else 'use a longer text'}"


HeadCells = Mapping[tuple[int, int], str]
"""One character for each head, by layer and head."""
NOT_ALL = "--show all or -o page.html has every head."


class HeadGrid(NamedTuple):
    """A way to lay out a character for each head: `down` and `across`, the one in parts side by side."""

    down: Sequence[int]
    across: Sequence[int]
    is_wide: bool
    cell: int
    num_parts: int

    @property
    def num_rows(self) -> int:
        """Of each part, with the numbers above it, but one."""
        return -(-len(self.down) // self.num_parts) + len(_column_numbers(self.across, self.cell)) - 1

    def fits(self, width: int, most_lines: int | None) -> bool:
        """Whether it fits that many columns of a terminal, and lines."""
        columns = self.num_parts * (len(self.name(0)) + len(self.across) * self.cell + GAP) - GAP
        return columns <= width and (most_lines is None or self.num_rows < most_lines)

    def name(self, place: int) -> str:
        """`layer  3`, or `L 3` where parts stand side by side; as wide as all of them."""
        axis = "head " if self.is_wide else "layer "
        return f"{axis if self.num_parts == 1 else axis[0].upper()}{place:>{len(str(self.down[-1]))}} "

    def lines(self, cells: HeadCells, dim: Collection[tuple[int, int]]) -> list[ScreenLine]:
        """The characters under the numbers of their columns, some of them dim."""
        corner = f"{'layer' if self.is_wide and self.num_parts == 1 else '':<{len(self.name(0))}}"
        blank = " " * len(corner)
        *above, last = _column_numbers(self.across, self.cell)
        header = [plain_line(f"{blank}{line}") for line in above] + [plain_line(f"{corner}{last}")]
        rows = [joined([plain_line(self.name(row)), *self._row(row, cells, dim)]) for row in self.down]
        in_part = -(-len(self.down) // self.num_parts)
        return beside(
            [[*header, *rows[start : start + in_part]] for start in range(0, len(rows), in_part)], GAP
        )

    def _row(self, row: int, cells: HeadCells, dim: Collection[tuple[int, int]]) -> Iterator[ScreenLine]:
        for column in self.across:
            place = (column, row) if self.is_wide else (row, column)
            yield styled(f"{cells.get(place, ''):>{self.cell}}", DIM, place in dim)


def head_grid(
    cells: HeadCells, display: Display, most_lines: int | None = None, dim: Collection[tuple[int, int]] = ()
) -> list[ScreenLine]:
    """A character for each head, in the widest cells that fit; many layers go across.

    In that many lines with the other side across, or in parts side by side, where no cell fits otherwise. Of
    a model with more heads than that as many of its first layers as fit, and a line that says so.
    """
    layers, heads = (sorted(set(places)) for places in zip(*cells, strict=True))
    width = display.width or TEXT_WIDTH
    for count in range(len(layers), 0, -1):
        more = _not_shown(counted(len(layers) - count, "layer"), width) if count < len(layers) else []
        room = most_lines - len(more) if most_lines is not None else None
        if way := next((way for way in _ways(layers[:count], heads) if way.fits(width, room)), None):
            return [*way.lines(cells, dim), *more]
    return _not_shown(counted(len(cells), "head"), width)


def _not_shown(what: str, width: int) -> list[ScreenLine]:
    return [plain_line(line) for line in wrap_cells(f"Not shown: {what}. {NOT_ALL}", width)]


def _ways(layers: Sequence[int], heads: Sequence[int]) -> Iterator[HeadGrid]:
    """The ways to lay out a grid, the most readable first."""
    is_wide = len(layers) > max(len(heads), MOST_LAYERS)
    for num_parts in range(1, MOST_PARTS + 1):
        for side in (is_wide, not is_wide):
            down, across = (heads, layers) if side else (layers, heads)
            for cell in (3, 2, 1):
                yield HeadGrid(down, across, side, cell, num_parts)


def _column_numbers(columns: Sequence[int], cell: int) -> list[str]:
    """The number of each column above its end; with a line for each digit where they would touch."""
    longest = len(str(columns[-1]))
    if longest < cell or longest == cell == 1:
        return ["".join(f"{column:>{cell}}" for column in columns)]
    numbers = [f"{column:>{longest}}" for column in columns]
    return ["".join(f"{number[place]:>{cell}}" for number in numbers) for place in range(longest)]


def head_letters(heads: Mapping[str, Sequence[Row]], display: Display) -> Elastic:
    """A letter for each head of each stack, one stack below the other, or beside it where lines are few.

    Where most heads look at the first token alone, these have the letter of the rest of their weight, dim
    or in lower case.
    """
    is_carpet = any(map(is_mostly_first, heads.values()))
    title = REST_TITLE if is_carpet else LETTERS_TITLE

    def grid(rows: Sequence[Row], display: Display, most_lines: int | None) -> list[ScreenLine]:
        letters = {place_of(row): head_letter(row, is_carpet) for row in rows}
        first = {place_of(row) for row in rows if row.get("pattern") == FIRST_TOKEN}
        return head_grid(letters, display, most_lines, first if is_carpet and display.has_color else ())

    whole = {stack: grid(rows, display, None) for stack, rows in heads.items()}
    usual = sum(map(len, whole.values()))

    def of(lines: int) -> Iterator[Section]:
        if len(heads) == 1:
            ((_, rows),) = heads.items()
            yield Drawing(title, [line.text.rstrip() for line in grid(rows, display, lines)])
        elif lines >= usual:
            for stack, drawn in whole.items():
                yield Drawing(f"{stack}: {title}", [line.text.rstrip() for line in drawn])
        else:
            part = replace(display, width=((display.width or TEXT_WIDTH) + GAP) // len(heads) - GAP)
            blocks = [[plain_line(stack), *grid(rows, part, lines - 1)] for stack, rows in heads.items()]
            yield Drawing(title, [line.text.rstrip() for line in beside(blocks, GAP)])

    return Elastic(of, usual, min(usual, LEAST_LINES))


def _where_there_is_room(grid: Elastic) -> Elastic:
    """A grid of heads that leaves its lines to what the user asked for."""
    return replace(grid, of=lambda lines: grid.of(lines) if lines >= LEAST_LINES else [], least=0, rank=1)


def place_of(row: Row) -> tuple[int, int]:
    """Layer and head."""
    return int(str(row["layer"])), int(str(row["head"]))


def head_letter(row: Row, is_carpet: bool) -> str:
    """The letter of a head; a small one, of the rest of its weight, where many look at the first token."""
    if not is_carpet or row.get("pattern") != FIRST_TOKEN:
        return pattern_letter(row.get("pattern"))
    rest = row.get("rest_pattern")
    return pattern_letter(FIRST_TOKEN if rest in (None, UNNAMED) else rest).lower()


REST_TITLE = "Lower case: F heads, by the rest of their weight (f: that has no pattern)."


def looks_at_first(report: Report) -> bool:
    """Whether a stack of the model looks at its first token most, so that the rest is worth a look."""
    heads = report.table("heads")
    stacks = {
        str(row.get("stack")): [head for head in heads if head.get("stack") == row.get("stack")]
        for row in heads
    }
    return any(map(is_mostly_first, stacks.values()))


def is_mostly_first(heads: Sequence[Row]) -> bool:
    """Whether more than half of the heads look at the first token, and the rest of their weight is known."""
    first = [row for row in heads if row.get("pattern") == FIRST_TOKEN]
    return 2 * len(first) > len(heads) and all("rest_pattern" in row for row in first)


MOST_HEADS = 16
FEW_ROWS = 5
LEAST_ROWS = 3


def heads_screen(report: Report, display: Display) -> ScreenParts:
    """The patterns; the heads themselves where they are sorted, or asked for; a statistic's grid."""
    heads, patterns, spec = report.table("heads"), report.table("patterns"), report.spec
    yield Paragraph(_title(report, heads), "title")
    yield text_line(report, display)
    if context := spec.get("context"):
        yield one_line(f"encoder reads: {' '.join(str(context).split())}", display)
    if report.how_to_read:
        yield Paragraph(plain_text(report.how_to_read), "note")
    if heads and (not patterns or spec.get("table") or _is_cut(report)):
        yield _sorted_heads(report, heads, display)
    elif heads:
        stacks = {
            str(row["stack"]): [head for head in heads if head["stack"] == row["stack"]] for row in patterns
        }
        for stack, rows in groupby(patterns, key=lambda row: str(row["stack"])):
            yield pattern_part(stack if len(stacks) > 1 else "", list(rows), report, display)
        if stacks := {plain_text(stack): rows for stack, rows in stacks.items() if rows}:
            letters = head_letters(stacks, display)
            is_below = "rollout" in report.tensors
            yield _where_there_is_room(letters) if is_below else letters
    if pictured(report):
        yield from screen_parts(report, display)
    elif report.picture_maps is not None:
        yield from picture_maps_part(report, display)
    elif "rollout" in report.tensors:
        (rollout,) = matrices_of(report, "rollout", report.tensors["rollout"])
        yield weights_part(report, rollout, ROLLOUT_TITLE, display)
    for name, tensor in report.tensors.items():
        if tensor.axes == PLACES:
            yield _statistic_grid(report, name, display)
    few = [Paragraph(note, "note") for note in _few_rows(report)]
    yield notes_in(report.notes, display, apart=True)
    if few and not report.notes:
        yield Paragraph("", "dim")
    yield from few


ROLLOUT_TITLE = "rollout: attention multiplied over all layers (query × key)"


def _statistic_grid(report: Report, name: str, display: Display) -> Elastic:
    """The number of each head, by layer and head; tenths of the largest where lines are few."""
    tensor = report.tensors[name]
    in_tenths = tenths(name, tensor, "", display)
    tables = TensorTables(replace(report, tensors={name: tensor}), display, TableLabels(report, display))

    def of(lines: int) -> Iterable[Section]:
        return tables.sections() if lines >= num_layers else in_tenths.of(lines)

    num_layers = len(tensor.values)
    return Elastic(of, num_layers, min(LEAST_LINES, num_layers))


def _title(report: Report, heads: Table) -> str:
    """`heads: minilm, 6 layers × 12 heads, 17 tokens`; of some heads what the report is about."""
    if _is_cut(report) and report.about:
        return titled(report)
    stacks = dict.fromkeys(str(row["stack"]) for row in heads)
    sizes = [_size(stack, [row for row in heads if row["stack"] == stack]) for stack in stacks]
    texts = report.numbers("texts").get("num_texts")
    count = (len(report.tokens), token_name(report)) if texts is None else (int(texts), text_name(report))
    read = counted(*count)
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
    return bool(report.spec.get("top") or report.spec.get("sort") or report.spec.get("pattern"))


def _sorted_heads(report: Report, heads: Table, display: Display) -> Elastic:
    """The first heads with as many statistics as fit beside each other; with `table` everything."""
    spec, sort = report.spec, report.spec.get("sort")
    is_whole = bool(spec.get("table")) or not _is_cut(report)

    def of(count: int) -> list[Section]:
        shown = heads if is_whole else [_known_well(head, sort) for head in heads[:count]]
        halves = _half_widths(report, shown, sort, display.precision)
        title = f"{some_of(len(shown), len(heads), 'head')}{_order(report)}"
        grid = heads_grid(title, shown, display.precision, first=sort, halves=halves)
        return [grid if is_whole else grid.first_group(display.width)]

    return Elastic(of, spec.get("top") or MOST_HEADS, LEAST_ROWS, len(heads))


LITTLE_KNOWN = ("participation", "local_mass")
"""Statistics that a first screen leaves to the table, unless heads are sorted by them."""


def _known_well(head: Row, sort: object) -> Row:
    return {name: cell for name, cell in head.items() if name not in LITTLE_KNOWN or name == sort}


def some_of(count: int, total: int, name: str) -> str:
    """`16 of 270 heads`, `1 head`."""
    return f"{count} of {counted(total, name)}" if count < total else counted(total, name)


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
        name = f"weight from {of} to {to}" if queries else f"weight on {to}, mean over all tokens,"
    return plain_text(f", {'smallest' if spec.get('ascending') else 'largest'} {name} first")


def _few_rows(report: Report) -> Iterator[str]:
    """A warning where few rows of some stack have what heads are sorted by."""
    sort = report.spec.get("sort")
    for row in report.table("pattern_rows"):
        count = row.get(sort) if isinstance(sort, str) and sort != "from_to_weight" else None
        if isinstance(count, int) and count < FEW_ROWS:
            rows = f"only {counted(count, 'row')} of this text" if count else "no row of this text: no order"
            yield f"{sort} is measured on {rows}."


LITTLE, NATS = ".", "nats"


def effect_named(name: object) -> Effect:
    """What is known of an effect; a saved report may be sorted by one that is not."""
    return EFFECTS.get(str(name), Effect())


def nats(name: str) -> str:
    """The unit of an effect that is a number of nats."""
    return NATS if unit_of(name, PLACES) == NATS else ""


def head_names(rows: Sequence[Row]) -> Column:
    return Column(("", "head"), [head_name(row) for row in rows])


def patterns_on_average(rows: Sequence[Row]) -> Column:
    """What each head does over the whole text, beside what it looks at from one token."""
    return Column(("pattern,", "on average"), [plain_text(str(row["pattern"])) for row in rows], left=True)


def looked_at_columns(rows: Sequence[Row], display: Display, does: str = "looks at") -> list[Column]:
    """The key that each head looks at most, and its weight, from the one token that all are about.

    Where that is another token for each head, the one where it is missed most, a column of these leads.
    """
    is_known = all(name in row for row in rows for name in LOOKED_AT)
    if not is_known or all(row["key"] is None for row in rows):
        return []
    queries, keys = ([_placed_token(row, side) for row in rows] for side in ("query", "key"))
    weights = [fixed(row["key_weight"], display.precision) for row in rows]
    looks_at = [key if key == NO_NUMBER else f"{key} {of}" for key, of in zip(keys, weights, strict=True)]
    if len({*queries}) == 1:
        return [Column((f"from {queries[0]}", does), looks_at, left=True)]
    return [
        Column(("missed", "most at"), queries, left=True),
        Column(("from there", does), looks_at, left=True),
    ]


MOST_TOKEN = 14


def token_cell(token: object) -> str:
    """A token among the columns of a table."""
    return shortened(plain_text(str(token)), MOST_TOKEN)


def _placed_token(row: Row, side: str) -> str:
    """`13 ·to`: a position and the token at it."""
    return NO_NUMBER if row[side] is None else f"{row[side]} {token_cell(row[f'{side}_token'])}"


def tenths(name: str, tensor: NamedTensor, sort: str, display: Display) -> Elastic:
    """A digit for each head: tenths of the largest effect."""
    values = -tensor.values if effect_named(sort).falls else tensor.values
    largest = np.nanmax(values, initial=0.0)
    cells = {place: _tenth(value, largest) for place, value in np.ndenumerate(values) if np.isfinite(value)}
    marks = {
        "-": "- the other way" if sort == "restored" else "- better without the head",
        LITTLE: f"{LITTLE} next to nothing",
    }
    said = [text for mark, text in marks.items() if mark in cells.values()]
    size = f"{fixed(largest, 2)} {nats(name.partition(' ')[0])}".rstrip()
    title = plain_text("; ".join([f"{name}: 9 is the largest, {size}", *said]))
    num_lines = len(head_grid(cells, display)) if cells else 0

    def of(lines: int) -> Iterator[Section]:
        if lines >= min(LEAST_LINES, num_lines) > 0:
            yield Drawing(title, [line.text.rstrip() for line in head_grid(cells, display, lines)])

    return Elastic(of, num_lines, most=num_lines)


def _tenth(value: float, largest: float) -> str:
    share = 10 * value / largest if largest else 0.0
    return "-" if share <= -0.5 else LITTLE if share < 0.5 else str(min(9, round(share)))
