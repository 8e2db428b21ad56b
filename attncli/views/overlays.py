"""Weights over the picture on which their keys lie, painted the same way in every view.

A terminal shows half-blocks in mixed colours, or characters if it has no colours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
from rich.cells import cell_len

from attncli.errors import UserError
from attncli.records.report import PLACES, Box, NamedTensor, Picture, Report
from attncli.system.plain_text import counted, plain_text, readable_token
from attncli.views import Display
from attncli.views.colours import LEVELS, Shading, colour_map, picture_palette, shading
from attncli.views.matrices import axis_tokens, head_name, in_words, pictured, place_names
from attncli.views.terminal import character_lines, colour_bar, half_block_lines, map_lines
from attncli.views.texts import (
    BOLD,
    ScreenLine,
    beside,
    plain_line,
    range_ends,
    shortened,
    styled,
    weight_text,
)

if TYPE_CHECKING:
    from PIL import Image


EVERY_QUERY = "the mean of all tokens"
# The opacity of the colours over the picture, for a weight of 0 and for the largest weight.
FAINT, STRONG = 0.0, 0.9
LARGEST_SIDE, MOST_FINE = 4096, 16
BOX_FILTER = 4  # Pillow's filter: the mean over the area that a pixel covers


@dataclass(frozen=True)
class Look:
    """One query's weights on the tokens of a picture's side, from one head or several.

    `name` is the tensor's name, `place` its index on the leading axes, `query` the query token.
    """

    picture: Picture
    name: str
    place: tuple[tuple[str, int], ...]
    query: str
    tokens: tuple[str, ...]
    weights: np.ndarray

    @property
    def title(self) -> str:
        """A title like `where [CLS] looks, head 11:0`; the tensor's name if it does not hold the weights."""
        what = "" if self.name == "weights" else f": {in_words(self.name).replace('_', ' ')}"
        return ", ".join([f"where {self.query} looks", *place_names(self.place)]) + what

    @property
    def strongest(self) -> list[tuple[str, float]]:
        """The tokens on the picture and their weights, largest first."""
        return self._ranked(on_picture=True)

    @property
    def outside(self) -> list[tuple[str, float]]:
        """The tokens outside the picture ([CLS], registers, words) and their weights, largest first."""
        return self._ranked(on_picture=False)

    @property
    def query_box(self) -> Box | None:
        """The box of the query token on the picture, or None for words and tokens outside the picture."""
        named = (i for i, token in enumerate(self.tokens) if plain_text(token) == self.query)
        return next((self.picture.boxes[i] for i in named if self.picture.axis == "tokens"), None)

    @property
    def share(self) -> float:
        """The share of the weight that lies on the picture; NaN for a difference or if there is no weight."""
        total = np.nan if (self.weights < 0).any() else np.nansum(self.weights)
        return float(np.nansum(self.weights[self._on_picture]) / total) if total > 0 else np.nan

    @property
    def _on_picture(self) -> np.ndarray:
        return np.array([box is not None for box in self.picture.boxes])

    def _ranked(self, *, on_picture: bool) -> list[tuple[str, float]]:
        places = np.flatnonzero(self._on_picture == on_picture)
        order = places[np.argsort(-np.nan_to_num(self.weights[places]), kind="stable")].tolist()
        return [(plain_text(self.tokens[i]), float(self.weights[i])) for i in order]


def tensor_looks(report: Report, name: str) -> Iterator[Look]:
    """Return the looks of a tensor by picture, either for the chosen query or as the mean of all queries."""
    tensor, tokens = report.tensors[name], axis_tokens(report, "key")
    for picture in pictured(report).get(name, ()):
        query, values = _query_weights(report, tensor, picture)
        axes = [axis for axis in tensor.axes[:-1] if axis != "query"]
        for index in np.ndindex(values.shape[:-1]):
            weights = values[index]
            if not np.isnan(weights).all():  # some layers have fewer heads
                yield Look(picture, name, tuple(zip(axes, index, strict=True)), query, tokens, weights)


def _query_weights(report: Report, tensor: NamedTensor, picture: Picture) -> tuple[str, np.ndarray]:
    """Return the query's name, and either the weights of the chosen query or the mean of all."""
    chosen = chosen_queries(report, picture)
    name = ", ".join(plain_text(report.tokens[query]) for query in chosen) or EVERY_QUERY
    if "query" not in tensor.axes:
        return name, tensor.values
    rows = [query - report.first_query for query in chosen if query >= report.first_query]
    if not rows:
        return EVERY_QUERY, np.nanmean(tensor.values, axis=-2)
    weights = tensor.values[..., rows, :]
    return name, weights[..., 0, :] if len(rows) == 1 else np.nanmean(weights, axis=-2)


def chosen_queries(report: Report, picture: Picture) -> list[int]:
    """Return the tokens that `from` names, by their text or by a point of the picture (`0.6,0.4`).

    The result is empty if the report names no token, which means the mean of all tokens. A comparison uses
    A's tokens.
    """
    of_a = report.spec.get("a")  # a comparison of two texts has both as text
    asked = (of_a if isinstance(of_a, Mapping) else report.spec).get("from")
    names = asked if isinstance(asked, list | tuple) else [asked] if asked else []
    places = (_token_named(str(name), report, picture) for name in names)
    return [place for place in places if place is not None]


def _token_named(name: str, report: Report, picture: Picture) -> int | None:
    # The settings spell tokens as the vocabulary does, but a report for people spells them as text.
    for spelled in (name, readable_token(name, "byte-level"), readable_token(name, "metaspace")):
        if spelled in report.tokens:
            return report.tokens.index(spelled)
    point = [float(part) for part in name.split(",") if _is_number(part)]
    return token_at(picture, *point) if len(point) == 2 and picture.axis == "tokens" else None


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdecimal()


def token_at(picture: Picture, x: float, y: float) -> int | None:
    """Return the first token at a point, given as shares of the width and height, or None."""
    for token, box in enumerate(picture.boxes):
        if box and box[0] <= x <= box[2] and box[1] <= y <= box[3]:
            return token
    return None


def parts_of(picture: Picture) -> str:
    """Return the noun for the parts of the picture that are its tokens."""
    return "patches" if picture.seconds is None else "moments"


def kind_of(picture: Picture) -> str:
    """Return the name of the picture without weights: to people, a sound's spectrogram is not a picture."""
    return "picture" if picture.seconds is None else "sound"


class LookTile(NamedTuple):
    """One of several looks and its name: a head, the mean of a layer, or a word."""

    name: str
    look: Look
    is_picture: bool = False
    """True for the picture without weights, for screens on which weights hide the picture."""

    @property
    def caption(self) -> str:
        """A caption like `11:0 71%`: the name, and the share of the weight that lies on the picture."""
        share = self.look.share
        return f"{self.name} {100 * share:.0f}%" if np.isfinite(share) else self.name

    def caption_in(self, cells: int) -> str:
        """Return the caption in that many cells, as `11:2 all` if 100% does not fit, or just the name."""
        captions = (self.caption, self.caption.replace(" 100%", " all"))
        return next((caption for caption in captions if cell_len(caption) <= cells), self.name)


Tiles = Sequence[Sequence[LookTile]]


class Overlays(NamedTuple):
    """Related looks over one picture, grouped by layer or by word."""

    title: str
    picture: Picture
    groups: Tiles


MEAN, ROLLOUT = "mean_look", "rollout"


# The keys by which two reports are compared.
COMPARED = {"difference": "B minus A", "weights_a": "A", "weights_b": "B"}


def report_overlays(report: Report) -> Iterator[Overlays]:
    """For each picture, return the looks of the first tensor that has any: of all heads, or of each word.

    For a comparison, return the difference and the compared reports.
    """
    on_pictures = pictured(report)
    first = next(iter(on_pictures), "")
    names = [name for name in on_pictures if name == first or {name, first} <= COMPARED.keys()]
    for name, picture in ((each, picture) for each in names for picture in on_pictures[each]):
        at = f"looks in {plain_text(picture.name)}, and the share of its weight there"
        at = f"looks in {plain_text(picture.name)}: {COMPARED[name]}" if name in COMPARED else at
        is_of_words = report.first_query or picture.axis == "context_tokens"
        has_queries = "query" in report.tensors[name].axes
        if has_queries and is_of_words and not chosen_queries(report, picture):
            yield Overlays(
                f"where each word {at.replace('looks', 'looked')}", picture, [_words(report, name, picture)]
            )
        elif looks := [look for look in tensor_looks(report, name) if look.picture is picture]:
            yield Overlays(f"where {looks[0].query} {at}", picture, _layers(report, looks))


def _layers(report: Report, looks: Sequence[Look]) -> list[list[LookTile]]:
    """Return the heads of each layer, followed by their mean; the rollout goes with the last layer.

    Sorted heads keep the report's order; if there are several stacks, use the one that looks at the picture.
    """
    by_place: dict[tuple[object, ...], Look] = {
        tuple(dict(look.place).get(axis) for axis in PLACES): look for look in looks
    }
    if report.spec.get("sort") or report.spec.get("top"):
        stacks = ("cross",) if looks[0].picture.axis == "context_tokens" else ("self", "encoder")
        of_stack = (row for row in report.table("heads") if row.get("stack", "self") in stacks)
        rows = ((row, tuple(row[axis] for axis in PLACES)) for row in of_stack)
        if tiles := [LookTile(head_name(row), by_place[place]) for row, place in rows if place in by_place]:
            return [tiles]
    more = [
        look
        for name in (MEAN, ROLLOUT)
        if name in pictured(report) and looks[0].name not in (MEAN, ROLLOUT)
        for look in tensor_looks(report, name)
        if look.picture is looks[0].picture
    ]
    layers = layer_looks(looks)
    for tiles in layers:
        layer = dict(tiles[0].look.place).get("layer")
        tiles += [LookTile("mean", look) for look in more if look.place == (("layer", layer),)]
    layers[-1] += [LookTile(ROLLOUT, look) for look in more if not look.place]
    return layers


def layer_looks(looks: Sequence[Look]) -> list[list[LookTile]]:
    """Return the looks of each layer, named by their place, like `11:0`."""
    layers = groupby(looks, key=lambda look: dict(look.place).get("layer"))
    return [
        [LookTile(":".join(str(n) for _, n in look.place), look) for look in group] for _, group in layers
    ]


def _words(report: Report, name: str, picture: Picture) -> list[LookTile]:
    """Return the mean look of all heads for each query, named after the word it wrote, or else the query."""
    tensor, keys = report.tensors[name], axis_tokens(report, "key")
    heads = tuple(range(tensor.values.ndim - 2))
    values = np.nanmean(tensor.values, axis=heads) if heads else tensor.values
    written = report.result.query_words()
    words = written if len(written) == len(values) else axis_tokens(report, "query")
    return [
        LookTile(
            plain_text(word.strip()), Look(picture, name, (("query", i),), plain_text(word), keys, weights)
        )
        for i, (word, weights) in enumerate(zip(words, values, strict=False))
    ]


def about_picture(picture: Picture) -> str:
    """Return `cat.png: 640 × 427; the model sees 427 × 427 of it, from (107, 0), as 256 patches`."""
    left, top, right, bottom = picture.crop
    seen_size = round(right - left), round(bottom - top)
    seen = "{} × {} of it, from ({}, {}),".format(*seen_size, round(left), round(top))
    seen = "all of it" if seen_size == picture.size else seen
    count = sum(box is not None for box in picture.boxes)
    name, (width, height) = plain_text(picture.name), picture.size
    if picture.seconds is not None:
        tokens = f"{count} token" if count == 1 else f"{count} tokens"
        return f"{name}: {picture.seconds:.2f} s; the model hears it as {tokens}"
    patches = f"{count} patch" if count == 1 else f"{count} patches"
    return f"{name}: {width} × {height}; the model sees {seen} as {patches}"


def png_size(picture: Picture) -> tuple[int, int]:
    """Return the width and height given in the header of a PNG. Raises UserError for an impossible size."""
    width, height = (int.from_bytes(picture.png[start : start + 4]) for start in (16, 20))
    if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE):
        size = f"the picture in the report is {width} × {height} pixels"
        raise UserError(f"{plain_text(picture.name)}: {size}: each side must be at most {LARGEST_SIDE}")
    return width, height


@lru_cache(maxsize=8)
def in_colour(picture: Picture, width: int, height: int) -> np.ndarray:
    """Return the picture in RGB at that size. Raises UserError if it is damaged or if Pillow is missing."""
    return np.asarray(_decoded(picture).resize((width, height), BOX_FILTER), dtype=np.uint8)


@lru_cache(maxsize=8)
def grey(picture: Picture, width: int, height: int) -> np.ndarray:
    """Return the picture in grey at that size, from 0 (black) to 255 (white)."""
    return np.asarray(_decoded(picture).convert("L").resize((width, height), BOX_FILTER), dtype=np.uint8)


@lru_cache(maxsize=8)
def _decoded(picture: Picture) -> "Image.Image":
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise UserError('pictures: needs: pip install "attncli[images]"') from None
    png_size(picture)
    try:
        with Image.open(BytesIO(picture.png), formats=["PNG"]) as opened:
            return opened.convert("RGB")
    except (
        UnidentifiedImageError,
        OSError,
        SyntaxError,
        ValueError,
    ) as error:  # what Pillow raises for a PNG
        raise UserError(
            f"{plain_text(picture.name)}: the picture in the report is damaged: {error}"
        ) from None


def spread(boxes: Sequence[Box | None], weights: np.ndarray, width: int, height: int) -> np.ndarray:
    """Spread weights (…, token) over maps (…, height, width): each pixel sums the boxes that cover it.

    If boxes are smaller than pixels, a pixel is the mean of its boxes. Pixels outside all boxes are NaN.
    """
    places = [i for i, box in enumerate(boxes) if box is not None and box[0] < box[2] and box[1] < box[3]]
    leading = weights.shape[:-1]
    if not places:
        return np.full((*leading, height, width), np.nan)
    left, top, right, bottom = np.array([boxes[i] for i in places], dtype=np.float64).T
    across, down = (
        min(MOST_FINE, max(1, int(np.ceil(1 / (least * size) - 1e-6))))
        for least, size in (((right - left).min(), width), ((bottom - top).min(), height))
    )
    columns, rows = width * across, height * down
    # A pixel belongs to the boxes that cover its centre; they are summed cumulatively from their corners.
    x0, x1 = (np.ceil(edge * columns - 0.5 - 1e-6).astype(int) for edge in (left, right))
    y0, y1 = (np.ceil(edge * rows - 0.5 - 1e-6).astype(int) for edge in (top, bottom))
    numbers = np.concatenate(
        [np.nan_to_num(weights[..., places]).reshape(-1, len(places)), np.ones((1, len(places)))]
    )
    corners = np.zeros(((rows + 1) * (columns + 1), len(numbers)))
    for x, y, sign in ((x0, y0, 1), (x1, y0, -1), (x0, y1, -1), (x1, y1, 1)):
        np.add.at(corners, y * (columns + 1) + x, sign * numbers.T)
    sums = corners.T.reshape(-1, rows + 1, columns + 1).cumsum(axis=1).cumsum(axis=2)[:, :-1, :-1]
    sums = sums.reshape(-1, height, down, width, across).sum(axis=(2, 4))
    maps, counts = sums[:-1], sums[-1] / (across * down)
    maps = np.where(counts > 0.5 / (across * down), maps / (across * down), np.nan)
    return maps.reshape(*leading, height, width)


def shaded(look: Look, width: int, height: int, scale: str | None) -> Shading:
    """Return positions on the colour map, starting at 0, for the weights spread over the picture."""
    maps = spread(look.picture.boxes, look.weights, width, height)
    maps = np.where(np.abs(maps) < 1e-12, 0 * maps, maps)  # rounding errors of sums
    return shading(maps, "log" if scale == "log" else "linear", from_zero=True)


def painted(picture: Picture, shade: Shading) -> np.ndarray:
    """Return the picture, covered by the colours of the weights, as RGB from 0 to 255.

    The larger a weight, the more it covers the picture; a weight of 0 leaves it unchanged.
    """
    height, width = shade.places.shape
    back = in_colour(picture, width, height).astype(np.float64)
    places = np.nan_to_num(shade.places)
    colours = colour_map(shade.is_diverging)[
        np.minimum(np.rint(places * (LEVELS - 1)), LEVELS - 1).astype(int)
    ]
    size = np.abs(2 * places - 1) if shade.is_diverging else places
    cover = np.where(np.isnan(shade.places), 0, FAINT + (STRONG - FAINT) * size)[..., np.newaxis]
    mixed: np.ndarray = np.rint((1 - cover) * back + cover * colours).astype(np.uint8)
    return mixed


CellSize = tuple[int, int]
"""Columns and lines."""
GAP = 2
LINES, MOST_LINES = 14, 40
LIST_WIDTH, NAME_WIDTH = 22, 12
MOST_OUTSIDE = 3
BAR_CELLS = 10
RANGE_SIZE = 64, 64
# The columns of a small overlay, largest first, and the columns used if not even one layer would fit.
TILES = (24, 20, 16, 14, 12, 10, 9, 8)
TINY = (7, 6, 5)


def fitted_size(picture: Picture, columns: int, lines: int) -> CellSize:
    """Return the columns and lines in which a picture keeps its shape; a line is as high as two columns."""
    width, height = png_size(picture)
    lines = max(1, min(lines, round(columns * height / width / 2)))
    return max(1, min(columns, round(2 * lines * width / height))), lines


def overlay_lines(look: Look, size: CellSize, display: Display) -> list[ScreenLine]:
    """Draw the picture with the weights over it or, with 16 colours or none, only the weights."""
    columns, lines = size
    shade = shaded(look, columns, lines * (2 if display.has_color else 1), display.scale_colors)
    if display.colors in ("none", "16"):
        return map_lines(shade.places, display, is_diverging=shade.is_diverging, rows_per_line=2)
    texts = half_block_lines(*picture_palette(painted(look.picture, shade), display.colors))
    return [ScreenLine(text, columns) for text in texts]


def lines_with_range(look: Look, display: Display, most_lines: int) -> list[ScreenLine]:
    """Draw the overlay in that many lines, under its range; without colour, draw the picture beside it."""
    room = display.columns
    size = fitted_size(look.picture, room if display.has_color else room // 2 - GAP, most_lines)
    blocks = [overlay_lines(look, size, display)]
    if not display.has_color:
        blocks.append(_picture_lines(look.picture, size))
    return [_range(look, display), *beside(blocks, GAP)]


def lines_with_list(look: Look, display: Display, most_lines: int) -> list[ScreenLine]:
    """Draw the overlay in that many lines, with the strongest parts and the outside tokens beside it."""
    room = display.columns - LIST_WIDTH - GAP
    size = fitted_size(look.picture, room if display.has_color else room // 2 - GAP, most_lines)
    blocks = [overlay_lines(look, size, display)]
    if not display.has_color:
        blocks.append(_picture_lines(look.picture, size))
    return beside([*blocks, _list(look, display, size[1])], GAP)


def original_lines(picture: Picture, size: CellSize, display: Display) -> list[ScreenLine]:
    """Draw the picture without weights: in its colours or, with 16 colours or none, in characters."""
    columns, lines = size
    if display.colors in ("none", "16"):
        return _picture_lines(picture, size)
    texts = half_block_lines(*picture_palette(in_colour(picture, columns, 2 * lines), display.colors))
    return [ScreenLine(text, columns) for text in texts]


def _picture_lines(picture: Picture, size: CellSize) -> list[ScreenLine]:
    """Draw the picture without weights in characters, the largest for the lightest areas."""
    return [ScreenLine(text, size[0]) for text in character_lines(grey(picture, *size) / 255, 1)]


def with_picture(groups: Tiles, display: Display) -> Tiles:
    """If there is no colour, put the picture before the last group, because characters hide the picture."""
    if display.has_color:
        return groups
    *others, last = groups
    return [*others, [LookTile(kind_of(last[0].look.picture), last[0].look, is_picture=True), *last]]


def _list(look: Look, display: Display, lines: int) -> list[ScreenLine]:
    """Return the range of the colours, the strongest parts, and the tokens outside the picture."""
    outside = look.outside
    listed = outside if len(outside) <= MOST_OUTSIDE else outside[: MOST_OUTSIDE - 1]
    rest = outside[len(listed) :]
    total = float(np.nansum([weight for _, weight in outside]))
    below = [styled(f"outside {weight_text(total, display.precision)}", BOLD, display.has_color)]
    below += [_weight_line(*pair, display) for pair in listed]
    if rest:
        below.append(
            _weight_line(counted(len(rest), "other"), float(np.nansum([w for _, w in rest])), display)
        )
    if not outside or lines < len(below) + 3:
        below = below[:1] if outside and lines > 2 else []
    above = [_range(look, display)]
    if count := max(0, lines - len(above) - 1 - len(below)):
        above.append(styled(f"strongest {parts_of(look.picture)}", BOLD, display.has_color))
    return [*above, *(_weight_line(*pair, display) for pair in look.strongest[:count]), *below][:lines]


def _weight_line(name: str, weight: float, display: Display) -> ScreenLine:
    return plain_line(
        f"  {shortened(name, NAME_WIDTH):<{NAME_WIDTH}} {weight_text(weight, display.precision)}"
    )


def _range(look: Look, display: Display) -> ScreenLine:
    """Return the range with its colour bar, like `0 [bar] 0.08`."""
    shade = shaded(look, *RANGE_SIZE, display.scale_colors)
    if np.isnan(shade.low):
        return plain_line("no numbers")
    low, high = range_ends(shade.low, shade.high, 3, shade.scale)
    ends = "0" if float(low) == 0 else low, high
    return colour_bar(ends, BAR_CELLS, display, is_diverging=shade.is_diverging, rows_per_line=2)


class TileLines(Sequence[str]):
    """Lines of tiles that are drawn on access; their number is known in advance."""

    def __init__(self, groups: Tiles, columns: int, display: Display) -> None:
        self.rows = rows_of(groups, columns, display)
        self.columns, self.display = columns, display
        self.size = fitted_size(groups[0][0].look.picture, columns, MOST_LINES)

    def __len__(self) -> int:
        return len(self.rows) * (1 + self.size[1])

    @cached_property
    def _drawn(self) -> list[str]:
        return [line.text.rstrip() for row in self.rows for line in beside([*map(self._block, row)], 1)]

    def _block(self, tile: LookTile) -> list[ScreenLine]:
        """Return the name, or the caption if it fits, above the overlay, padded to the width of a tile."""
        across, picture = self.columns, tile.look.picture
        if tile.is_picture:
            name, drawn = tile.name, _picture_lines(picture, self.size)
        else:
            name = tile.caption_in(across)
            drawn = overlay_lines(tile.look, self.size, self.display)
        lines = [plain_line(shortened(name, across)), *drawn]
        return [ScreenLine(line.text + " " * (across - line.cells), across) for line in lines]

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._drawn[place]


def rows_of(groups: Tiles, columns: int, display: Display) -> list[list[LookTile]]:
    """The tiles from left to right: each group begins a row, or stands beside others that fit whole."""
    across = max(1, (display.columns + 1) // (columns + 1))
    each = max(1, across // max(map(len, groups)))
    rows: list[list[LookTile]] = []
    for start in range(0, len(groups), each):
        tiles = [tile for group in groups[start : start + each] for tile in group]
        in_row = -(-len(tiles) // -(-len(tiles) // across))  # the rows of one group are as even as possible
        rows += [tiles[i : i + in_row] for i in range(0, len(tiles), in_row)]
    return rows


def whole_lines(
    report: Report, name: str, display: Display, *, has_list: bool = True
) -> Iterator[tuple[str, Sequence[str]]]:
    """For each picture, return a title and lines with all looks of a tensor: one large, several as tiles.

    A large one has the strongest patches beside it or, without that list, the range of its colours below.
    """
    for picture, of_picture in groupby(tensor_looks(report, name), key=lambda look: look.picture):
        looks = list(of_picture)
        if len(looks) == 1:
            draw_one = lines_with_list if has_list else lines_with_range
            lines = draw_one(looks[0], display, LINES)
            yield (looks[0].title, [line.text.rstrip() for line in lines])
            continue
        by_layer = with_picture(layer_looks(looks), display)
        columns = next((each for each in TILES if len(rows_of(by_layer[-1:], each, display)) == 1), TILES[-1])
        title = (
            f"{in_words(name).replace('_', ' ')}: where {looks[0].query} looks in {plain_text(picture.name)}"
        )
        yield (title, TileLines(by_layer, columns, display))
