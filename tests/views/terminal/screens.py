"""Read the characters and colours of cells from lines written to a terminal."""

import re
from typing import NamedTuple

from rich.cells import cell_len

SEQUENCE = re.compile(r"\x1b\[([\d;]*)m|(.)")
Color = tuple[int, ...] | None


class Cell(NamedTuple):
    """A character, and its colours as the numbers that followed 38 or 48, or as one number of the 16."""

    character: str
    ink: Color
    paper: Color


def cells_of(line: str) -> list[Cell]:
    """The cells of a line of text and colours; a wide character is followed by an empty one."""
    found: list[Cell] = []
    ink: Color = None
    paper: Color = None
    for match in SEQUENCE.finditer(line):
        if match[2] is not None:
            found.append(Cell(match[2], ink, paper))
            found += [Cell("", ink, paper)] * (cell_len(match[2]) - 1)
            continue
        numbers = [int(n or 0) for n in match[1].split(";")]
        while numbers:
            first = numbers.pop(0)
            if first in (38, 48):
                size = 1 if numbers[0] == 5 else 3
                color, numbers = tuple(numbers[1 : 1 + size]), numbers[1 + size :]
                ink, paper = (color, paper) if first == 38 else (ink, color)
            elif first in (0, 39, 49):
                ink, paper = (None if first != 49 else ink), (None if first != 39 else paper)
            elif first % 60 // 10 == 3:
                ink = (first,)
            elif first % 60 // 10 == 4:
                paper = (first,)
            else:
                assert first in (1, 2), match[0]
    return found


def halves(line: str) -> tuple[list[Color], list[Color]]:
    """The colours of the upper and the lower half of each cell."""
    pairs = []
    for cell in cells_of(line):
        assert cell.character in "▀▄ /", cell
        pairs.append(
            {"▀": (cell.ink, cell.paper), "▄": (cell.paper, cell.ink)}.get(
                cell.character, (cell.paper, cell.paper)
            )
        )
    return [upper for upper, _ in pairs], [lower for _, lower in pairs]


def width_of(line: str) -> int:
    """The number of cells that a line takes."""
    return cell_len(re.sub(r"\x1b\[[\d;]*m", "", line))
