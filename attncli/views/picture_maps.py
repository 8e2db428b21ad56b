"""Rows of pictures with their maps, both for terminals and for all other views."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from attncli.core.names import named_head
from attncli.records.report import PictureMaps, PictureRow
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.overlays import (
    EVERY_QUERY,
    TILES,
    Look,
    LookTile,
    fitted_size,
    original_lines,
    overlay_lines,
)
from attncli.views.texts import ScreenLine, beside, plain_line, shortened

ORIGINAL = "picture"
"""The name of the first column."""


def tiles_of(maps: PictureMaps, row: PictureRow) -> list[LookTile]:
    """Return a row: the picture itself, followed by its maps in the order of their names."""
    query = ", ".join(map(plain_text, row.queries)) or EVERY_QUERY
    looks = [
        Look(row.picture, "looks", _place(name), query, row.tokens, weights)
        for name, weights in zip(maps.names, row.weights.values, strict=True)
    ]
    maps_of_row = [LookTile(plain_text(name), look) for name, look in zip(maps.names, looks, strict=True)]
    return [LookTile(ORIGINAL, looks[0], is_picture=True), *maps_of_row]


def _place(name: str) -> tuple[tuple[str, int], ...]:
    """Return the layer and head of a map; empty for a mean or the rollout."""
    try:
        _, layer, head = named_head(name)
    except ValueError:
        return ()
    return ("layer", layer), ("head", head)


def title_of(maps: PictureMaps) -> str:
    """Return `where [CLS] looks: the heads of layer 11, their mean and the rollout`, or the maps' title."""
    if maps.title:
        return plain_text(maps.title)
    named = {row.queries for row in maps.rows}
    queries = ", ".join(map(plain_text, named.pop())) or EVERY_QUERY
    who = "the same point" if named else queries
    return f"where {who} looks: {plain_text(maps.about)}"


def left_out(maps: PictureMaps) -> str:
    """Return a sentence about the pictures without a row, or an empty string if every picture has one."""
    num_rows = len(maps.rows)
    if num_rows == maps.num_pictures:
        return ""
    return f"Only the first {num_rows} of {counted(maps.num_pictures, 'picture')} are shown."


def row_name(row: PictureRow) -> str:
    """Return the file name, with every character visible."""
    return plain_text(row.picture.name)


def maps_lines(maps: PictureMaps, display: Display) -> Iterator[tuple[str, list[str]]]:
    """Return a title and lines: each picture with each map, in groups of maps that fit side by side."""
    columns, groups = maps_layout(maps, display, TILES)
    title = ". ".join(filter(None, (title_of(maps), left_out(maps))))
    for places in groups:
        lines_of = rows_in(maps, columns, places, display)
        rows = [line for number in range(len(maps.rows)) for line in lines_of(number)]
        yield title, [maps_header(maps, columns, places), *rows]


def maps_layout(maps: PictureMaps, display: Display, sizes: Sequence[int]) -> tuple[int, list[list[int]]]:
    """Return the largest tile width at which all maps fit beside the picture; otherwise, groups that fit."""
    width, count = display.columns, len(maps.names)
    fitting = (columns for columns in sizes if (1 + count) * (columns + 1) - 1 <= width)
    columns = next(fitting, sizes[-1])
    each = max(1, (width + 1) // (columns + 1) - 1)
    return columns, [[*range(count)][start : start + each] for start in range(0, count, each)]


def maps_header(maps: PictureMaps, columns: int, places: Sequence[int]) -> str:
    """Return the column names, each above its maps."""
    names = [ORIGINAL, *(plain_text(maps.names[place]) for place in places)]
    return " ".join(f"{shortened(name, columns):<{columns}}" for name in names).rstrip()


def rows_in(
    maps: PictureMaps, columns: int, places: Sequence[int], display: Display
) -> Callable[[int], list[str]]:
    """Return the function that draws a picture's row: its file name, then the picture and its maps."""
    width = display.columns

    @cache
    def lines_of(number: int) -> list[str]:
        row = maps.rows[number]
        size = fitted_size(row.picture, columns, columns)
        original, *tiles = tiles_of(maps, row)
        blocks = [original_lines(original.look.picture, size, display)]
        blocks += [overlay_lines(tiles[place].look, size, display) for place in places]
        padded = [[_padded(line, columns) for line in block] for block in blocks]
        lines = [plain_line(shortened(row_name(row), width)), *beside(padded, 1)]
        return [line.text.rstrip() for line in lines]

    return lines_of


def _padded(line: ScreenLine, columns: int) -> ScreenLine:
    """Pad a line to the width of a tile."""
    return ScreenLine(line.text + " " * (columns - line.cells), columns)
