"""The patterns of a model's heads: how many heads follow each, and a letter for every head."""

from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import Report, Row
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import GAP, Column, Drawing, Grid, TableLabels

LETTERS = {
    "first token": "F",
    "previous token": "P",
    "next token": "N",
    "current token": "C",
    "duplicate token": "D",
    "induction": "I",
    "special tokens": "S",
    "one key for all": "K",
    "uniform": "U",
    "unnamed": NO_NUMBER,
}
SHORT_NAMES = {"special_mass - sink_mass": "special, not first"}
REPEATED = ("duplicate token", "induction")
MOST_TEXT = 80
DECIMALS = 2
MOST_LAYERS = 12
"""Layers up to which each has a line of its own."""
LETTERS_TITLE = "largest statistic above its threshold; U overrides the rest, F comes last"


def pattern_grid(
    title: str, patterns: Sequence[Row], report: Report, labels: TableLabels, width: int | None
) -> Grid:
    """Letter and pattern, how many heads are above the threshold, and the strongest of them.

    Over many texts also how much was measured, and how sure the numbers are.
    """
    letters = [f"{LETTERS.get(str(row['pattern']), '?')} {row['pattern']}" for row in patterns]
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
    return f"{count}: use {'--probe repeated, no text' if is_repeated else 'a longer text'}"


def head_letters(title: str, heads: Sequence[Row], width: int | None) -> Iterator[Drawing]:
    """A letter for each head, in as many parts as the width needs.

    Many layers go across where each has fewer heads, so that they stay on one screen.
    """
    letters: dict[Any, str] = {
        (row["layer"], row["head"]): LETTERS.get(str(row.get("pattern")), "?") for row in heads
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
