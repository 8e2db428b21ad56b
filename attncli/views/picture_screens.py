"""Weights over pictures on a screen: half-blocks in mixed colours, characters where there is no colour."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, overload

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import PLACES, Picture, Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.colours import levels, palette, picture_palette
from attncli.views.matrices import head_name, in_words, place_names
from attncli.views.overlays import Look, grey, looks_of, looks_of_words, painted, pictured, shaded, size_of
from attncli.views.sections import GAP, Drawing, Elastic, Paragraph, Section
from attncli.views.terminal import RAMP, character_lines, half_block_lines
from attncli.views.texts import (
    BOLD,
    ScreenLine,
    beside,
    counted,
    joined,
    range_ends,
    shortened,
    styled,
    text_line,
    weight_text,
    wrap_cells,
)

Size = tuple[int, int]
"""Columns and lines."""
LINES, LEAST_LINES, MOST_LINES = 14, 4, 40
LIST_WIDTH, NAME_WIDTH = 22, 12
MOST_OUTSIDE = 3
BAR_CELLS = 10
# Columns of a small overlay, the largest that fit; the last ones where otherwise not one layer would fit.
TILES, TINY = (24, 20, 16, 14, 12, 10, 9, 8), (7, 6, 5)
TILE_LINES = 12
MEAN, ROLLOUT = "mean_look", "rollout"
REST = "--show weights or -o page.html has all."


def fitted_size(picture: Picture, columns: int, lines: int) -> Size:
    """The columns and lines in which a picture keeps its shape: a line is two columns high."""
    width, height = size_of(picture)
    lines = max(1, min(lines, round(columns * height / width / 2)))
    return max(1, min(columns, round(2 * lines * width / height))), lines


def overlay_lines(look: Look, size: Size, display: Display) -> list[ScreenLine]:
    """The picture with the weights above it; of 16 colours or none the weights alone."""
    columns, lines = size
    shade = shaded(look, columns, lines * (2 if display.has_color else 1), display.scale_colors)
    if not display.has_color:
        texts = character_lines(shade.places, 1)
    elif display.colors == "16":
        texts = half_block_lines(levels(shade.places), palette("16", shade.is_diverging))
    else:
        texts = half_block_lines(*picture_palette(painted(look.picture, shade), display.colors))
    return [ScreenLine(text, columns) for text in texts]


def screen_parts(report: Report, display: Display) -> Iterator[Section | Elastic]:
    """The looks of the first tensor that has any, picture by picture: one large, several as a grid."""
    name = next(iter(pictured(report)), None)
    for _, found in groupby(looks_of(report, name) if name else (), key=lambda look: look.picture):
        looks = list(found)
        yield one_look(looks[0], display) if len(looks) == 1 else grid_of(report, looks, display)


def one_look(look: Look, display: Display) -> Elastic:
    """The overlay as large as there is room for, beside it the strongest patches and what lies elsewhere."""

    def of(lines: int) -> Iterator[Section]:
        yield Drawing(_title(look), [line.text.rstrip() for line in _with_list(look, display, lines)])

    return Elastic(of, LINES, LEAST_LINES, MOST_LINES)


def _title(look: Look) -> str:
    of = ", ".join(place_names(look.place))
    what = "" if look.name == "weights" else f": {in_words(look.name).replace('_', ' ')}"
    return f"where {look.query} looks{f', {of}' if of else ''}{what}"


def _with_list(look: Look, display: Display, most_lines: int) -> list[ScreenLine]:
    room = (display.width or TEXT_WIDTH) - LIST_WIDTH - GAP
    size = fitted_size(look.picture, room if display.has_color else room // 2 - GAP, most_lines)
    blocks = [overlay_lines(look, size, display)]
    if not display.has_color:  # beside it, as nothing is seen through characters
        shades = character_lines(grey(look.picture, *size) / 255, 1)
        blocks.append([ScreenLine(text, size[0]) for text in shades])
    return beside([*blocks, _list(look, display, size[1])], GAP)


def _list(look: Look, display: Display, lines: int) -> list[ScreenLine]:
    """The range of the colours, the strongest patches, and what lies outside of the picture."""
    outside = look.outside
    shown = outside if len(outside) <= MOST_OUTSIDE else outside[: MOST_OUTSIDE - 1]
    rest = outside[len(shown) :]
    total = float(np.nansum([weight for _, weight in outside]))
    below = [styled(f"outside {weight_text(total, display.precision)}", BOLD, display.has_color)]
    below += [_weight_line(*pair, display) for pair in shown]
    if rest:
        below.append(
            _weight_line(counted(len(rest), "other"), float(np.nansum([w for _, w in rest])), display)
        )
    if not outside or lines < len(below) + 3:
        below = below[:1] if outside and lines > 2 else []
    above = [_range(look, display), styled("strongest patches", BOLD, display.has_color)]
    count = max(0, lines - len(above) - len(below))
    return [*above, *(_weight_line(*pair, display) for pair in look.strongest[:count]), *below][:lines]


def _weight_line(name: str, weight: float, display: Display) -> ScreenLine:
    return text_line(
        f"  {shortened(name, NAME_WIDTH):<{NAME_WIDTH}} {weight_text(weight, display.precision)}"
    )


def _range(look: Look, display: Display) -> ScreenLine:
    """`0 [bar] 0.08`."""
    shade = shaded(look, 64, 64, display.scale_colors)
    low, high = range_ends(shade.low, shade.high, 3, shade.scale)
    if not display.has_color:
        bar = text_line(f"[{RAMP}]")
    else:
        places = np.linspace(0, 1, BAR_CELLS)[np.newaxis].repeat(2, axis=0)
        (text,) = half_block_lines(levels(places), palette(display.colors, shade.is_diverging))
        bar = ScreenLine(text, BAR_CELLS)
    return joined([text_line(f"{'0' if float(low) == 0 else low} "), bar, text_line(f" {high}")])


class Tile(NamedTuple):
    """A small overlay and what it is of."""

    name: str
    look: Look

    def lines(self, size: Size, display: Display) -> list[ScreenLine]:
        """The name, the part of the weight that is on the picture, and the overlay."""
        share = f" {100 * self.look.share:.0f}%" if np.isfinite(self.look.share) else ""
        caption = self.name + share if len(self.name + share) <= size[0] else shortened(self.name, size[0])
        return [text_line(caption), *overlay_lines(self.look, size, display)]


def grid_of(report: Report, looks: Sequence[Look], display: Display) -> Elastic:
    """A small overlay for each head: those of all layers, or of some where there is no room for all."""
    query = looks[0].query
    title = f"where {query} looks: each head, and the part of its weight that is on the picture"
    return tiles_part(title, _layers(report, looks), display)


def _layers(report: Report, looks: Sequence[Look]) -> list[list[Tile]]:
    """The tiles of each layer, then their mean, and beside the last ones the rollout; in the report's order
    where heads are sorted.
    """
    by_place = {tuple(dict(look.place).get(axis) for axis in PLACES): look for look in looks}
    if report.spec.get("sort") or report.spec.get("top"):
        rows = [row for row in report.table("heads") if (row["layer"], row["head"]) in by_place]
        if rows:
            return [[Tile(head_name(row), by_place[row["layer"], row["head"]]) for row in rows]]
    picture = looks[0].picture
    more = {
        name: [look for look in looks_of(report, name) if look.picture is picture]
        for name in (MEAN, ROLLOUT)
        if name in pictured(report) and looks[0].name != name
    }
    layers = []
    for layer, heads in groupby(looks, key=lambda look: dict(look.place).get("layer")):
        tiles = [Tile(":".join(str(number) for _, number in look.place), look) for look in heads]
        tiles += [Tile("mean", one) for one in more.get(MEAN, ()) if dict(one.place).get("layer") == layer]
        layers.append(tiles)
    layers[-1] += [Tile(ROLLOUT, look) for look in more.get(ROLLOUT, ()) if not look.place]
    return layers


def words_part(report: Report, display: Display) -> Iterator[Elastic]:
    """Where each written word looked, in the order in which they were written."""
    name = next((name for name in pictured(report) if "query" in report.tensors[name].axes), None)
    for picture, looks in groupby(
        looks_of_words(report, name) if name else (), key=lambda look: look.picture
    ):
        written = [str(row["token"]) for row in report.table("written")]
        tiles = [
            Tile(plain_text(written[number]).strip() if number < len(written) else look.query, look)
            for number, look in enumerate(looks)
        ]
        title = (
            f"where each word looked in {plain_text(picture.name)}, and the part of its weight that is on it"
        )
        yield replace(tiles_part(title, [tiles], display), usual=0, least=0, rank=1)


Groups = Sequence[Sequence[Tile]]


class TileLines(Sequence[str]):
    """Lines of tiles, drawn when they are read: how many there are is known before."""

    def __init__(self, groups: Groups, columns: int, display: Display) -> None:
        self.rows = _rows(groups, columns, display)
        self.columns, self.display = columns, display
        self.size = fitted_size(groups[0][0].look.picture, columns, MOST_LINES)

    def __len__(self) -> int:
        return len(self.rows) * (1 + self.size[1])

    @cached_property
    def _drawn(self) -> list[str]:
        return [line.text.rstrip() for row in self.rows for line in beside([*map(self._block, row)], 1)]

    def _block(self, tile: Tile) -> list[ScreenLine]:
        """A tile, all of whose lines are as wide as it is, so that those of the next row stand below."""
        lines = tile.lines(self.size, self.display)
        return [ScreenLine(line.text + " " * (self.columns - line.cells), self.columns) for line in lines]

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._drawn[place]


def _rows(groups: Groups, columns: int, display: Display) -> list[list[Tile]]:
    """The tiles from left to right: each group begins a row, or stands beside others that fit whole."""
    across = max(1, ((display.width or TEXT_WIDTH) + 1) // (columns + 1))
    each = max(1, across // max(map(len, groups)))
    rows: list[list[Tile]] = []
    for start in range(0, len(groups), each):
        tiles = [tile for group in groups[start : start + each] for tile in group]
        in_row = -(-len(tiles) // -(-len(tiles) // across))  # of one group, as even as can be
        rows += [tiles[i : i + in_row] for i in range(0, len(tiles), in_row)]
    return rows


def tiles_part(title: str, groups: Groups, display: Display) -> Elastic:
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
            rows, columns = _rows(groups[-1:], TILES[-1], display), TILES[-1]
            height = 1 + fitted_size(groups[-1][0].look.picture, columns, MOST_LINES)[1]
            chosen = [[tile for row in rows[: max(1, (lines - 2) // height)] for tile in row]]
            left_out = counted(sum(map(len, groups)) - len(chosen[0]), "overlay")
        yield Drawing(title, TileLines(chosen, columns, display))
        if left_out:
            yield from (
                Paragraph(line, "note") for line in wrap_cells(f"Not shown: {left_out}. {REST}", width)
            )

    return Elastic(of, min(whole, TILE_LINES), LEAST_LINES + 2, most)


def _plan(groups: Groups, lines: int, display: Display) -> tuple[list[int], int]:
    """Which groups are shown, and the columns of a tile; no group where not one fits whole."""
    for count in range(len(groups), 0, -1):
        is_whole = count == len(groups)
        places = np.linspace(len(groups) - 1, 0, count, endpoint=is_whole and count > 1)
        shown = sorted(round(place) for place in places.tolist())
        for columns in (*TILES, *(TINY if count == 1 else ())):
            drawn = TileLines([groups[place] for place in shown], columns, display)
            if len(drawn) <= lines - (not is_whole):
                return shown, columns
    return [], TILES[-1]


def _layers_left_out(groups: Groups, shown: Sequence[int]) -> str:
    """`layers 0-4, 6-10`."""
    missing = [place for place in range(len(groups)) if place not in shown]
    runs = []
    for _, run in groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
        places = [groups[place][0].look.place[0][1] for _, place in run]
        runs.append("-".join(dict.fromkeys((str(places[0]), str(places[-1])))))
    return f"layers {', '.join(runs)}" if shown and runs else ""


def whole_parts(report: Report, name: str, display: Display) -> Iterator[Drawing]:
    """All looks of a tensor, for who asked for them: one large, several as tiles."""
    for picture, found in groupby(looks_of(report, name), key=lambda look: look.picture):
        looks = list(found)
        if len(looks) == 1:
            lines = _with_list(looks[0], display, LINES)
            yield Drawing(_title(looks[0]), [line.text.rstrip() for line in lines])
            continue
        by_layer = [
            [Tile(":".join(str(number) for _, number in look.place), look) for look in group]
            for _, group in groupby(looks, key=lambda look: dict(look.place).get("layer"))
        ]
        columns = next((each for each in TILES if len(_rows(by_layer[:1], each, display)) == 1), TILES[-1])
        title = (
            f"{in_words(name).replace('_', ' ')}: where {looks[0].query} looks in {plain_text(picture.name)}"
        )
        yield Drawing(title, TileLines(by_layer, columns, display))
