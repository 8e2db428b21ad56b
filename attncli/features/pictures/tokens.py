"""The places of a picture's tokens, measured with the gradients of the first layer's inputs.

This works for any kind of model.
"""

import io
import re
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.core.layer import AttentionLayer
from attncli.errors import UserError
from attncli.features.pictures.image_processor import AxisSources, Processing, named_pixels
from attncli.models.architectures import BLOCK, GRID, PIXELS
from attncli.models.capture import model_errors, unchanged, with_eager_attention
from attncli.models.image_files import OpenedPicture
from attncli.models.layers import CannotShow, CapturedLayer, Consumer, Numbering, StopCapture, handing_over
from attncli.models.pretrained import Pretrained, part_that_takes
from attncli.models.token_places import MadeOf, Origin
from attncli.records.report import Axis, Box, Picture

MOST_PNG = 640
"""The largest side, in pixels, of a picture that is stored in a report."""


POINT = re.compile(r"([01]?\.?[0-9]*),([01]?\.?[0-9]*)")
"""A point in a picture: its position across and down, as shares of the width and the height."""
NON_PATCH_TOKENS = {
    **dict.fromkeys(("cls_token", "class_embedding", "class_token"), "[CLS]"),
    **dict.fromkeys(("register_tokens", "storage_tokens", "reg_token"), "reg"),
    "distillation_token": "[DIST]",
    "detection_tokens": "det",
}
"""The names of tokens that are not part of a picture, by the parameter that the tokens come from."""
PICTURE_INPUTS = (*PIXELS, GRID)
"""The inputs of model parts that read pictures."""
INPUT_AXES = 4
"""The number of axes of the pixels of whole pictures: picture, colour, row, column."""


def part_that_sees(pretrained: Pretrained) -> Pretrained:
    """Return the model, or its tower that only reads pixels. Raises UserError if the model has none."""
    part = part_that_takes(pretrained, PICTURE_INPUTS)
    if part is None:
        raise UserError(f"image: {pretrained.name} has no part that only reads pictures")
    return part


@dataclass(frozen=True, kw_only=True, eq=False)
class PictureTokens(Origin):
    """The places of a picture's tokens. If the picture is cut into parts, its tokens have no common grid."""

    what = "picture"

    pictures: tuple[Picture, ...]

    def reader(self, pretrained: Pretrained) -> Pretrained:
        return part_that_sees(pretrained)

    def made_of(self, part: Pretrained, inputs: Mapping[str, Tensor]) -> MadeOf:
        name, _ = named_pixels(inputs)
        return MadeOf(name, pixel_tokens(part.model, inputs, name))

    def token_at(self, name: str, tokens: Sequence[str]) -> int | None:
        point = POINT.fullmatch(name)
        if point is None:
            return None
        across, down = float(point[1]), float(point[2])
        for token, box in enumerate(self.pictures[0].boxes):
            if box is not None and box[0] <= across <= box[2] and box[1] <= down <= box[3]:
                return token
        raise ValueError(
            f"no patch is at this point: use shares of the width and height, such as 0.6,0.4 (got {name:.60})"
        )

    def drawn(self, axis: Axis) -> tuple[Picture, ...]:
        return tuple(replace(picture, axis=axis) for picture in self.pictures)

    def box(self, token: int) -> Box | None:
        return self.pictures[0].boxes[token]

    def check_lacks_heads(self, name: str, shapes: Sequence[Sequence[int]]) -> None:
        if any(len(shape) != INPUT_AXES for shape in shapes):
            raise UserError(
                f"image: {name} reads a sequence of patches, but attn ablate needs whole pictures"
            )


@dataclass(frozen=True)
class _FirstLayer:
    """The queries of a model's first layer or the inputs of its first block, and the pixels they depend on.

    There is one token per row.
    """

    rows: Float[Tensor, "token dim"]
    pixels: Tensor


def _first_layer(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str, part: str = ""
) -> _FirstLayer:
    """Run a model up to its first attention layer in `part`, and keep earlier layers from mixing tokens.

    In earlier layers, each token returns its own value, so that no token depends on the pixels of another
    token. `name` is the name of the pixels among the inputs.
    """
    pixels = inputs[name].detach().clone().requires_grad_(True)
    queries: list[Tensor] = []

    def consume(layer: CapturedLayer) -> Tensor:
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        if layer.module.startswith(part):
            queries.append(attention.query)
            raise StopCapture
        if attention.shape[2] != attention.shape[3]:
            raise CannotShow("it pools the picture by another attention, so no token has a place")
        return attention.expanded()[1]

    full_inputs = {**inputs, name: pixels}
    model.config.use_cache = False
    with model_errors(model.config.model_type, "read this picture"), torch.enable_grad():
        # In a text, the first block may have no attention (Qwen3.5) but still mix the tokens.
        vectors = _read_by_first_block(model, full_inputs, part, consume) if part else None
        if vectors is None:
            with (
                suppress(StopCapture),
                unchanged(model),
                handing_over(model, consume, Numbering(False, None)),
            ):
                model(**full_inputs)
            if queries:
                return _FirstLayer(queries[0].transpose(1, 2).flatten(0, 1).flatten(1).float(), pixels)
            vectors = None if part else _read_by_first_block(model, full_inputs, part, consume)
    if vectors is None:
        raise CannotShow("it computes its attention itself, so attn cannot locate its tokens")
    return _FirstLayer(vectors.flatten(0, 1).float(), pixels)


def _read_by_first_block(
    model: PreTrainedModel, given: Mapping[str, Tensor], part: str, consume: Consumer
) -> Tensor | None:
    """Return the token vectors that the first block in `part` reads, or None if no block reads vectors."""
    vectors_read: list[Tensor] = []

    def take(_module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        vectors = inputs[0] if inputs else named.get("hidden_states")
        if isinstance(vectors, Tensor) and vectors.ndim == 3 and vectors.is_floating_point():
            vectors_read.append(vectors)
            raise StopCapture

    with ExitStack() as hooks, suppress(StopCapture):
        hooks.enter_context(with_eager_attention(model))
        if part:
            hooks.enter_context(handing_over(model, consume, Numbering(False, None)))
        for name, module in model.named_modules():
            if name.startswith(part) and BLOCK.fullmatch(name):
                hooks.enter_context(module.register_forward_pre_hook(take, with_kwargs=True))
        model(**given)
    return vectors_read[0] if vectors_read else None


BASE = 8
"""The base of the digits that identify tokens. Gradients in half precision resolve this many values."""
FEW = 1e-2
"""The smallest gradient that counts, relative to the root mean square of the gradients."""
DIGIT_TOLERANCE, MOST_MIXED = 0.15, 0.01


def _contributing_tokens(first: _FirstLayer, sources: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
    """Return, for each tensor, the token that each number contributes to, and the share of mixed numbers.

    A mixed number contributes to several tokens. For such a number, and for one that contributes to no token,
    the token is -1. d/dx sum_t c_t f_t, divided by the same derivative with c = 1, is c_t for the token t
    that a number x contributes to, so each digit of t takes one gradient.
    """
    if not sources:
        return []
    count = len(first.rows)
    direction = torch.randn(first.rows.shape[1], generator=torch.Generator().manual_seed(0)).to(first.rows)
    outputs = first.rows @ direction

    def gradients(weights: Tensor) -> list[Tensor]:
        derivatives = torch.autograd.grad(
            (outputs * weights).sum(), [*sources], retain_graph=True, allow_unused=True
        )
        pairs = zip(derivatives, sources, strict=True)
        return [
            _one_colour(torch.zeros_like(source) if derivative is None else derivative).float()
            for derivative, source in pairs
        ]

    numbers = torch.arange(count, device=outputs.device)
    wholes = gradients(torch.ones_like(outputs))
    are_used = [(whole.abs() > FEW * whole.square().mean().sqrt()) & (whole != 0) for whole in wholes]
    tokens = [torch.zeros_like(whole, dtype=torch.long) for whole in wholes]
    are_mixed, power = [torch.zeros_like(used) for used in are_used], 1
    while power < count:
        digits = gradients((numbers // power % BASE).to(outputs))
        for place, (digit, whole) in enumerate(zip(digits, wholes, strict=True)):
            ratio = digit / whole
            rounded = ratio.round()
            are_mixed[place] |= are_used[place] & ~((ratio - rounded).abs() <= DIGIT_TOLERANCE)
            tokens[place] += rounded.nan_to_num(0.0).clamp(0, BASE - 1).long() * power
        power *= BASE
    return [
        (token.masked_fill(~used | mixed | (token >= count), -1).cpu(), float(mixed.sum() / used.sum()))
        for token, used, mixed in zip(tokens, are_used, are_mixed, strict=True)
    ]


def _one_colour(pixels: Tensor) -> Tensor:
    """Return the first of three colours, if a tensor has them. All three contribute to the same token."""
    return pixels[..., :1, :, :] if pixels.ndim > 3 else pixels


def _pixel_tokens(first: _FirstLayer) -> Int[Tensor, "..."]:
    """Return the token of each number in a picture, or -1.

    Raises CannotShow if a number contributes to several tokens.
    """
    ((tokens, mixed),) = _contributing_tokens(first, [first.pixels])
    if not (tokens >= 0).any():
        raise CannotShow("no token depends on the picture before its first attention layer")
    if mixed > MOST_MIXED:
        raise CannotShow(
            "it mixes parts of the picture before its first attention layer, so no token is one patch"
        )
    return tokens


def _names_elsewhere(model: PreTrainedModel, first: _FirstLayer, tokens: Sequence[int]) -> dict[int, str]:
    """Return the names of tokens outside the picture, based on the parameters that the tokens come from."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    named_parameters = {
        name: parameter
        for name, parameter in parameters.items()
        if name.rpartition(".")[2] in NON_PATCH_TOKENS
    }
    names: dict[int, str] = {}
    for name, (contributing, _) in zip(
        named_parameters, _contributing_tokens(first, [*named_parameters.values()]), strict=True
    ):
        title = NON_PATCH_TOKENS[name.rpartition(".")[2]]
        names |= dict.fromkeys({*contributing.flatten().tolist()} & {*tokens}, title)
    counts = Counter(names.values())
    numbers: Counter[str] = Counter()
    for token in tokens:
        name = names.get(token, "other")
        numbers[name] += 1
        is_alone = counts[name] == 1 and name.startswith("[")
        names[token] = name if is_alone else f"{name.strip('[]').lower()}{numbers[name]}"
    return names


@dataclass(frozen=True)
class _Made:
    """The first layer's token for each number of a picture, or -1, and the names of the other tokens."""

    pixel_tokens: Int[Tensor, "..."]
    count: int
    names: Mapping[int, str]


_made: MutableMapping[PreTrainedModel, dict[Any, _Made]] = WeakKeyDictionary()
"""Cached by the shapes of the inputs and the number of patches."""


def _tokens_made(model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str, part: str) -> _Made:
    few = {key: tensor.tolist() for key, tensor in inputs.items() if tensor.numel() < 64}
    words = inputs["input_ids"].tolist() if "input_ids" in inputs else []
    place = str((part, few, words, [(key, *tensor.shape) for key, tensor in inputs.items()]))
    cached = _made.setdefault(model, {})
    if place not in cached:
        with torch.enable_grad():  # a caller may have turned gradients off
            first, again = (_first_layer(model, inputs, name, part) for _ in range(2))
            if first.rows.shape != again.rows.shape or not torch.allclose(first.rows, again.rows, atol=1e-4):
                raise CannotShow(
                    "it reads different parts of the picture, or in a different order, each time"
                )
            pixel_tokens = _pixel_tokens(first)
            elsewhere = sorted({*range(len(first.rows))} - {*pixel_tokens.flatten().tolist()})
            names = _names_elsewhere(model, first, elsewhere) if elsewhere else {}
        if part:  # in a text, the vocabulary names the tokens outside the picture
            titles = {*NON_PATCH_TOKENS.values()}
            names = {
                token: text
                for token, text in names.items()
                if text in titles or text.rstrip("0123456789") in titles
            }
        cached[place] = _Made(pixel_tokens, len(first.rows), names)
    return cached[place]


def pixel_tokens(model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str) -> Int[Tensor, "..."]:
    """Return the first layer's token for each pixel of a picture, or -1."""
    return _tokens_made(model, inputs, name, "").pixel_tokens


@dataclass(frozen=True)
class _Grid:
    """Tokens in rows and columns: the place of each token, counted from 0, and its box in shares."""

    rows: Int[Tensor, " token"]
    columns: Int[Tensor, " token"]
    start: tuple[float, float]
    step: tuple[float, float]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return int(self.rows.max()) + 1, int(self.columns.max()) + 1

    def whole(self) -> Box:
        """Return the box of the whole grid, clipped to the picture."""
        (left, top), (wide, high), (num_rows, num_columns) = self.start, self.step, self.shape
        right, bottom = left + wide * num_columns, top + high * num_rows
        return _snapped(left), _snapped(top), _snapped(right), _snapped(bottom)

    def box(self, row: int, column: int) -> Box:
        """Return the box of a token as shares of the file. A box with padding extends beyond the file."""
        (left, top), (wide, high) = self.start, self.step
        right, bottom = left + wide * (column + 1), top + high * (row + 1)
        return left + wide * column, top + high * row, right, bottom


def _snapped(share: float) -> float:
    """Return a share clipped to the range from 0 to 1, and set to 0 or 1 if it is close to that number."""
    share = min(1.0, max(0.0, share))
    return float(round(share)) if abs(share - round(share)) < EDGE else share


EDGE = 4e-3
"""One of 255 colour steps."""


def _grid(spreads: Sequence[Float[Tensor, "token 3"]]) -> _Grid | None:
    """Return the rows and columns of tokens, or None if they form no grid.

    `spreads` contains the `_spreads` of the tokens across and down.
    """
    places, starts, steps = [], [], []
    for centres, widths, counts in (spread.unbind(dim=-1) for spread in spreads):
        are_whole = counts >= 0.9 * counts.max()  # the other tokens include padding
        width = float(widths[are_whole].median())
        if not width > 0:
            return None
        ranked, order = centres.sort()
        ranks = torch.cat([ranked.new_zeros(1), (ranked.diff() > width / 2).double().cumsum(0)])
        numbers = torch.empty_like(ranks)
        numbers[order] = ranks
        step, whole_numbers = width, numbers[are_whole]
        if (
            whole_numbers.max() > whole_numbers.min()
        ):  # a least-squares line through the centres gives the step
            deviation = whole_numbers - whole_numbers.mean()
            step = float((deviation * centres[are_whole]).sum() / deviation.square().sum())
        start = float((centres[are_whole] - step * whole_numbers).mean())
        off = (start + step * numbers - centres).abs() / step
        if (off > 0.6).any() or (off[are_whole] > 0.25).any():
            return None
        places.append(numbers.long())
        starts.append(start - step / 2)
        steps.append(step)
    grid = _Grid(places[1], places[0], (starts[0], starts[1]), (steps[0], steps[1]))
    num_tokens = len(spreads[0])
    is_full = len(set(zip(*map(Tensor.tolist, places), strict=True))) == num_tokens == np.prod(grid.shape)
    return grid if is_full else None


def _spreads(axis: AxisSources, tokens: Tensor, used: Tensor, count: int) -> Float[Tensor, "token 3"]:
    """Return the centre, width and count of the numbers of each token, or NaN for a token without numbers."""
    index, values = tokens[used], axis.shares[used]
    number = torch.zeros(count, dtype=torch.double).index_add_(0, index, torch.ones_like(values))
    mean = torch.zeros(count, dtype=torch.double).index_add_(0, index, values) / number
    squares = torch.zeros(count, dtype=torch.double).index_add_(0, index, (values - mean[index]).square())
    # Numbers spread evenly over a width w have variance w^2 / 12, and so does rounding to steps.
    width = (12 * squares / number - axis.step**2).clamp(min=0).sqrt()
    return torch.stack([mean, width, number], dim=-1)


@dataclass(frozen=True)
class PlacedTokens:
    """The tokens that a model makes from a picture, or from a picture and a text."""

    labels: tuple[str | None, ...]
    origin: PictureTokens


def placed_tokens(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    opened: OpenedPicture,
    processing: Processing,
    *,
    name: str,
    part: str = "",
) -> PlacedTokens:
    """Locate each token of the first layer in `part`. Tokens outside the picture get no label.

    `name` is the name of the pixels among the inputs. Raises UserError if the places cannot be found.
    """
    pixels = inputs[name]
    whole_shares = processing.sources(opened.image.size, pixels.cpu())
    with model_errors(model.config.model_type):
        made = _tokens_made(model, inputs, name, part)
        pixel_tokens, count = made.pixel_tokens, made.count
        sources = [replace(axis, shares=_one_colour(axis.shares)) for axis in whole_shares]
        used = (pixel_tokens >= 0) & sources[0].shares.isfinite()
        across, down = (_spreads(axis, pixel_tokens, used, count) for axis in sources)
        tiles = _tiles(pixel_tokens, used, count, pixels.shape)
        placed = [(tile, (tiles == tile).nonzero()[:, 0]) for tile in sorted({*tiles.tolist()}) if tile >= 0]
        if not placed:
            raise CannotShow("none of its tokens depends on the picture")
        grids = [(tile_tokens, _grid((across[tile_tokens], down[tile_tokens]))) for _, tile_tokens in placed]
    # A token made entirely of padding has no place and no name.
    unnamed = iter(range(1, count + 1))
    names = {
        token: made.names.get(token) or f"padding{next(unnamed)}"
        for token in (tiles < 0).nonzero()[:, 0].tolist()
        if not part or token in made.names
    }
    labels: list[str | None] = [names.get(token) for token in range(count)]
    places = torch.full((count, 2), torch.nan)
    boxes: list[Box | None] = [None] * count
    is_one = len(grids) == 1
    for number, (tile_tokens, grid) in enumerate(grids, start=1):
        if grid is None:
            problem = f"the {len(tile_tokens)} tokens of {processing.name} do not form rows and columns"
            sides = " × ".join(map(str, opened.image.size))
            raise UserError(f"image: {problem}: use a smaller or less elongated picture (got {sides})")
        for token, row, column in zip(
            *map(Tensor.tolist, (tile_tokens, grid.rows, grid.columns)), strict=True
        ):
            labels[token] = f"r{row + 1}c{column + 1}" if is_one else f"{number}/r{row + 1}c{column + 1}"
            boxes[token] = grid.box(row, column)
            places[token] = torch.tensor([float(row), float(column)])
    picture, note = _picture_read(opened, [grid for _, grid in grids if grid is not None], boxes, pixels)
    special = torch.tensor([label is not None and tiles[token] < 0 for token, label in enumerate(labels)])
    in_two_dimensions = None if part or not is_one else places
    return PlacedTokens(
        tuple(labels),
        PictureTokens(
            pictures=(picture,), grid=in_two_dimensions, special=special, notes=(*opened.notes, note)
        ),
    )


def _tiles(pixel_tokens: Tensor, used: Tensor, count: int, shape: torch.Size) -> Int[Tensor, " token"]:
    """Return the number of the picture part that each token is made from, or -1."""
    tiles = torch.full((count,), -1)
    if len(shape) < 4:
        tiles[pixel_tokens[used]] = 0
        return tiles
    parts = pixel_tokens.flatten(0, -4), used.flatten(0, -4)
    for number, (tokens, in_tile) in enumerate(zip(*parts, strict=True)):
        tiles[tokens[in_tile]] = number
    return tiles


def _picture_read(
    opened: OpenedPicture, grids: Sequence[_Grid], boxes: Sequence[Box | None], pixels: Tensor
) -> tuple[Picture, str]:
    """Return the cropped and resized picture, with all its parts, and a line of text about it.

    `boxes` are shares of the file; the boxes of the result are shares of the cropped picture.
    """
    width, height = opened.image.size
    corners = zip(*(grid.whole() for grid in grids), strict=True)
    left, top, right, bottom = (
        most(sides) for most, sides in zip((min, min, max, max), corners, strict=True)
    )
    crop = (left * width, top * height, right * width, bottom * height)
    sizes = (crop[2] - crop[0], crop[3] - crop[1])
    if pixels.ndim >= 4 and len(grids) == 1:  # the picture at the model's size, which may be distorted
        sizes = (float(pixels.shape[-1]), float(pixels.shape[-2]))
    most_rows, most_columns = (
        max(shape[axis] for shape in (grid.shape for grid in grids)) for axis in (0, 1)
    )
    scale = min(1.0, MOST_PNG / max(sizes)) if max(sizes) >= max(most_rows, most_columns) else 1.0
    size = max(most_columns, round(sizes[0] * scale)), max(most_rows, round(sizes[1] * scale))
    file = io.BytesIO()
    opened.image.resize(size, box=crop).save(file, format="PNG", optimize=False)
    left_out = (left, top, right - left, bottom - top)
    crop_boxes = tuple(None if box is None else _within(box, left_out) for box in boxes)
    rounded = round(crop[0], 2), round(crop[1], 2), round(crop[2], 2), round(crop[3], 2)
    picture = Picture(opened.name, (width, height), rounded, file.getvalue(), crop_boxes)
    return picture, _about(picture, grids)


def _within(box: Box, crop: Box) -> Box:
    """Return a box as shares of a crop, which is given as left, top, width and height."""
    left, top, wide, high = crop
    sides = ((box[0] - left) / wide, (box[1] - top) / high, (box[2] - left) / wide, (box[3] - top) / high)
    across, down, right, bottom = map(_snapped, sides)
    return across, down, right, bottom


def _about(picture: Picture, grids: Sequence[_Grid]) -> str:
    (width, height), (left, top, right, bottom) = picture.size, picture.crop
    part = "all of it"
    if (left, top, right, bottom) != (0, 0, width, height):
        part = f"{right - left:.0f} × {bottom - top:.0f} of it, from {left:.0f} across and {top:.0f} down,"
    num_rows, num_columns = grids[0].shape
    rows = "1 row" if num_rows == 1 else f"{num_rows} rows"
    patches = f"{rows} of {num_columns} patch{'es' * (num_columns > 1)}"
    if len(grids) > 1:
        count = sum(box is not None for box in picture.boxes)
        patches = f"{count} patches, in {len(grids)} parts"
    return f"{picture.name}: {width} × {height} pixels; the model sees {part} as {patches}."
