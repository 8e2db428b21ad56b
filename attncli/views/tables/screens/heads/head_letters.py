"""Heads as letters: one for each pattern, in a grid of layers and heads."""

from collections.abc import Iterator, Sequence
from typing import Any

from attncli.plain_text import plain_text
from attncli.report import Row
from attncli.views.numbers import NO_NUMBER
from attncli.views.tables.elements import Drawing

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
MOST_TEXT = 80
LETTERS_TITLE = "largest statistic above its threshold; U overrides the rest, F comes last"


def pattern_name(row: Row) -> str:
    """`P previous token`."""
    return plain_text(f"{LETTERS.get(str(row['pattern']), '?')} {row['pattern']}")


def head_count(row: Row) -> str:
    """`59 > 0.3`: how many heads are above the threshold."""
    if row["heads"] is None:
        return NO_NUMBER
    above = "      " if row["threshold"] is None else f" > {row['threshold']:.1f}"
    return f"{row['heads'] or NO_NUMBER}{above}"


def head_letters(title: str, heads: Sequence[Row], width: int | None) -> Iterator[Drawing]:
    """A grid of layers and heads, in as many parts as the width needs."""
    letters: dict[Any, str] = {
        (row["layer"], row["head"]): LETTERS.get(str(row.get("pattern")), "?") for row in heads
    }
    layers, count = sorted({layer for layer, _ in letters}), max(head for _, head in letters) + 1
    names = [f"layer {layer:>{len(str(layers[-1]))}} " for layer in layers]
    room = (width or MOST_TEXT) - len(names[0])
    cell = next((size for size in (3, 2) if count * size <= room), 1)
    for start in range(0, count, room // cell):
        columns = range(start, min(count, start + room // cell))
        lines = [" " * len(names[0]) + _head_numbers(columns, cell)]
        for layer, name in zip(layers, names, strict=True):
            lines.append(name + "".join(f"{letters.get((layer, head), ''):>{cell}}" for head in columns))
        yield Drawing(plain_text(title), lines, {})


def _head_numbers(columns: range, cell: int) -> str:
    """The numbers of the heads, each above the end of its column; some of them where all would touch."""
    step = 1 if cell > len(str(columns[-1])) else 5 if cell > 1 else 10
    line = [" "] * len(columns) * cell
    for place, head in enumerate(columns):
        if head % step == 0:
            end, number = (place + 1) * cell, str(head)
            line[max(0, end - len(number)) : end] = number
    return "".join(line)
