"""Pictures on a first screen: looks at each picture, and the first pictures of a survey with their maps."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from attncli.records.report import PictureMaps, Report
from attncli.system.plain_text import counted
from attncli.views import Display
from attncli.views.overlays import (
    LINES,
    MOST_LINES,
    TILES,
    TINY,
    Look,
    TileLines,
    Tiles,
    fitted_size,
    lines_with_list,
    report_overlays,
    rows_of,
    with_picture,
)
from attncli.views.picture_maps import maps_header, maps_layout, rows_in, title_of
from attncli.views.sections import Drawing, Elastic, Paragraph, Section
from attncli.views.texts import wrap_cells

LEAST_LINES = 4
REST = "See --show weights or -o page.html."


def looks_at_pictures(report: Report, display: Display, usual: int) -> Iterator[Elastic]:
    """Show the looks at each picture: a single look large, several as a grid."""
    for title, _, groups in report_overlays(report):
        tiles = [tile for group in groups for tile in group]
        yield (
            one_look(tiles[0].look, display)
            if len(tiles) == 1
            else tiles_part(title, with_picture(groups, display), display, usual)
        )


def one_look(look: Look, display: Display) -> Elastic:
    """Draw the overlay as large as possible, with the strongest parts and the outside tokens beside it."""

    def of(lines: int) -> Iterator[Section]:
        yield Drawing(look.title, [line.text.rstrip() for line in lines_with_list(look, display, lines)])

    return Elastic(of, LINES, LEAST_LINES, MOST_LINES)


def tiles_part(title: str, groups: Tiles, display: Display, usual: int) -> Elastic:
    """Show groups of tiles in the available lines; if not all fit, evenly spaced ones including the last."""
    width = display.columns
    whole = 1 + len(TileLines(groups, TILES[0], display))
    most = whole if display.height is None else min(whole, display.height)

    def of(lines: int) -> Iterator[Section]:
        if lines < LEAST_LINES:
            return
        places, columns = _plan(groups, lines - 1, display)
        left_out = _layers_left_out(groups, places)
        chosen = [groups[place] for place in places]
        if not places:
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
    """Choose the groups to show and the columns of a tile; none if not even one group fits.

    For a ranking of heads, show the first heads at a readable size.
    """
    is_ranking = len({dict(tile.look.place).get("layer") for tile in groups[-1]}) > 1
    for count in range(len(groups), 0, -1):
        is_whole = count == len(groups)
        steps = np.linspace(len(groups) - 1, 0, count, endpoint=is_whole and count > 1)
        places = sorted(round(step) for step in steps.tolist())
        for columns in (*TILES, *(TINY if count == 1 and not is_ranking else ())):
            drawn = TileLines([groups[place] for place in places], columns, display)
            if len(drawn) <= lines - (not is_whole):
                return places, columns
    return [], TILES[-1]


def _layers_left_out(groups: Tiles, shown: Sequence[int]) -> str:
    """Return a phrase like `layers 0-4, 6-10`."""
    missing = [place for place in range(len(groups)) if place not in shown]
    runs = []
    for _, run in groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
        places = [groups[place][0].look.place[0][1] for _, place in run]
        runs.append("-".join(dict.fromkeys((str(places[0]), str(places[-1])))))
    return f"layers {', '.join(runs)}" if shown and runs else ""


MOST_PICTURES, MOST_COLUMNS = 3, 10
"""The number of pictures on a screen of unknown height, and the width of a map over one of several."""


def picture_rows(maps: PictureMaps, display: Display) -> Iterator[Elastic]:
    """Show as many of the first pictures as fit, with as many of the maps as fit side by side."""
    # Several pictures invite comparison: with small tiles, more of them fit.
    sizes = TILES if len(maps.rows) == 1 else [size for size in TILES if size <= MOST_COLUMNS]
    columns, (places, *others) = maps_layout(maps, display, (*sizes, *TINY))
    header, lines_of = maps_header(maps, columns, places), rows_in(maps, columns, places, display)
    most = len(maps.rows)

    def of(count: int) -> Iterator[Section]:
        lines = [line for number in range(count) for line in lines_of(number)]
        yield Drawing(title_of(maps), [header, *lines])
        hidden = {"picture": maps.num_pictures - count, "map": sum(map(len, others))}
        said = " and ".join(counted(number, what) for what, number in hidden.items() if number)
        kept = f" for the first {most} pictures" if most < maps.num_pictures else ""
        note = f"Not shown: {said}. See --show weights or -o page.html{kept}."
        lines = wrap_cells(note, display.columns) if said else []
        yield from (Paragraph(line, "note") for line in lines)

    yield Elastic(of, MOST_PICTURES, 1, most, rank=1)
