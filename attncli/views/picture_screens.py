"""The first screens of pictures: one look as large as there is room for, or the heads that fit."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from attncli.report import Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.overlay_lines import (
    LINES,
    MOST_LINES,
    TILES,
    TileLines,
    fitted_size,
    lines_with_list,
    rows_of,
    with_picture,
)
from attncli.views.overlays import Look, Tiles, overlays_of
from attncli.views.sections import Drawing, Elastic, Paragraph, Section
from attncli.views.texts import counted, wrap_cells

LEAST_LINES, TILE_LINES = 4, 12
# Columns of a small overlay where otherwise not one layer would fit.
TINY = (7, 6, 5)
REST = "--show weights or -o page.html has all."


def screen_parts(report: Report, display: Display, usual: int = TILE_LINES) -> Iterator[Elastic]:
    """What looks at each picture: one look large, several as a grid in so many lines."""
    for title, _, groups in overlays_of(report):
        tiles = [tile for group in groups for tile in group]
        yield (
            one_look(tiles[0].look, display)
            if len(tiles) == 1
            else tiles_part(title, with_picture(groups, display), display, usual)
        )


def one_look(look: Look, display: Display) -> Elastic:
    """The overlay as large as there is room for, beside it the strongest patches and what lies elsewhere."""

    def of(lines: int) -> Iterator[Section]:
        yield Drawing(look.title, [line.text.rstrip() for line in lines_with_list(look, display, lines)])

    return Elastic(of, LINES, LEAST_LINES, MOST_LINES)


def tiles_part(title: str, groups: Tiles, display: Display, usual: int) -> Elastic:
    """Groups of tiles in as many lines as there are; where not all fit some, evenly, the last one always."""
    width = display.width or TEXT_WIDTH
    whole = 1 + len(TileLines(groups, TILES[0], display))
    most = whole if display.height is None else min(whole, display.height)

    def of(lines: int) -> Iterator[Section]:
        if lines < LEAST_LINES:
            return
        shown, columns = _plan(groups, lines - 1, display)
        left_out = _layers_left_out(groups, shown)
        chosen = [groups[place] for place in shown]
        if not shown:
            rows, columns = rows_of(groups[-1:], TILES[-1], display), TILES[-1]
            height = 1 + fitted_size(groups[-1][0].look.picture, columns, MOST_LINES)[1]
            chosen = [[tile for row in rows[: max(1, (lines - 2) // height)] for tile in row]]
            left_out = counted(sum(map(len, groups)) - len(chosen[0]), "overlay")
        yield Drawing(title, TileLines(chosen, columns, display))
        if left_out:
            yield from (
                Paragraph(line, "note") for line in wrap_cells(f"Not shown: {left_out}. {REST}", width)
            )

    return Elastic(of, min(whole, usual), LEAST_LINES + 2, most)


def _plan(groups: Tiles, lines: int, display: Display) -> tuple[list[int], int]:
    """Which groups are shown, and the columns of a tile; no group where not one fits whole.

    Of a ranking of heads the first ones are of use, and are not made tiny.
    """
    is_ranking = len({dict(tile.look.place).get("layer") for tile in groups[-1]}) > 1
    for count in range(len(groups), 0, -1):
        is_whole = count == len(groups)
        places = np.linspace(len(groups) - 1, 0, count, endpoint=is_whole and count > 1)
        shown = sorted(round(place) for place in places.tolist())
        for columns in (*TILES, *(TINY if count == 1 and not is_ranking else ())):
            drawn = TileLines([groups[place] for place in shown], columns, display)
            if len(drawn) <= lines - (not is_whole):
                return shown, columns
    return [], TILES[-1]


def _layers_left_out(groups: Tiles, shown: Sequence[int]) -> str:
    """`layers 0-4, 6-10`."""
    missing = [place for place in range(len(groups)) if place not in shown]
    runs = []
    for _, run in groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
        places = [groups[place][0].look.place[0][1] for _, place in run]
        runs.append("-".join(dict.fromkeys((str(places[0]), str(places[-1])))))
    return f"layers {', '.join(runs)}" if shown and runs else ""
