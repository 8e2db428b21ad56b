"""Pictures whose sources are the cells of a grid of patches, and a model's output on a picture."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.errors import UserError
from attncli.models.encoders import EncoderOutput, Pooling, class_to_explain, run_encoder
from attncli.models.pretrained import CLS, ModelText, Pretrained, Reading

MOST_CELLS = 8
"""The largest number of cells per axis; each cell needs a separate run."""
AXES = 4
"""The number of axes of a model's pixels: picture, channel, height, width."""


class PatchCell(NamedTuple):
    """A cell of a picture, named by its row and column and, if it has several patches, by its patches.

    `place` is its row and column among the cells, counted from 0; `tokens` contains the tokens of its
    patches. Its pixels range from `top` to `bottom` and from `left` to `right`.
    """

    name: str
    text: str | None
    place: tuple[int, int]
    tokens: tuple[int, ...]
    top: int
    bottom: int
    left: int
    right: int


@dataclass(frozen=True, kw_only=True)
class PictureCells(Reading):
    """A picture as a model reads it, with the cells that are its sources, row by row.

    `made_of` is the name of the input that contains the pixels.
    """

    cells: tuple[PatchCell, ...]
    made_of: str

    @property
    def prompt(self) -> ModelText:
        """The tokens of the picture."""
        return self.text

    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each cell."""
        return tuple(cell.tokens for cell in self.cells)

    @property
    def pixels(self) -> Float[Tensor, "1 channel height width"]:
        """The pixels that the model reads."""
        return (self.inputs or {})[self.made_of]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns of cells."""
        row, column = self.cells[-1].place
        return row + 1, column + 1

    @property
    def most_patches(self) -> int:
        """The number of patches in the largest cell."""
        return max(len(cell.tokens) for cell in self.cells)

    def mean_colour(self) -> Float[Tensor, "channel 1 1"]:
        """Return the mean colour of all cells, by channel."""
        first, last = self.cells[0], self.cells[-1]
        cell_pixels = self.pixels[0, :, first.top : last.bottom, first.left : last.right]
        return cell_pixels.mean(dim=(1, 2), keepdim=True)

    def with_only(self, masks: Sequence[Sequence[bool]]) -> dict[str, Tensor]:
        """Return inputs of the model's forward with only some of the cells, one picture per mask.

        The other cells are filled with the mean colour of the picture.
        """
        inputs = dict(self.inputs or {})
        name, pixels = self.made_of, self.pixels
        colour = self.mean_colour()
        several = pixels.repeat(len(masks), 1, 1, 1)
        for picture, mask in zip(several, masks, strict=True):
            for cell, is_included in zip(self.cells, mask, strict=True):
                if not is_included:
                    picture[:, cell.top : cell.bottom, cell.left : cell.right] = colour
        other_inputs = {
            key: torch.cat([tensor] * len(masks)) for key, tensor in inputs.items() if key != name
        }
        return {**other_inputs, name: several}


def picture_cells(pretrained: Pretrained, reading: Reading) -> PictureCells:
    """Divide a picture into cells, at most eight per axis, with nearly equal numbers of patches.

    Raises UserError for a model that writes text, and for patches that are not arranged in rows and columns.
    """
    if pretrained.has_decoder or pretrained.predicts is not None:
        explains = "only picture classifiers and picture encoders can be explained"
        raise UserError(f"model: {pretrained.name} writes text: {explains}")
    origin, inputs = reading.origin, reading.inputs or {}
    assert origin is not None, "a picture is opened from a file"
    part, grid = origin.reader(pretrained), origin.grid
    key = origin.kind.setting
    if grid is None:
        raise UserError(
            f"{key}: the patches of {part.name} must be arranged in rows and columns to form cells"
        )
    name, tokens = origin.made_of(part, inputs)
    pixels = inputs[name]
    if pixels.ndim != AXES:
        raise UserError(f"{key}: {part.name} reads a sequence of patches, not pixels in rows and columns")
    pixel_tokens = tokens.reshape(pixels.shape[2:])
    on_picture = ~grid.isnan().any(dim=-1)
    number_at = {
        (int(row), int(column)): token
        for token, (row, column) in enumerate(grid.tolist())
        if on_picture[token]
    }
    num_rows, num_columns = (1 + max(place[axis] for place in number_at) for axis in (0, 1))
    step = ceil(max(num_rows, num_columns) / MOST_CELLS)
    rows, columns = (_bounds(count, ceil(count / step)) for count in (num_rows, num_columns))
    cells = []
    for down, (top, bottom) in enumerate(pairwise(rows)):
        for across, (left, right) in enumerate(pairwise(columns)):
            patches = [(row, column) for row in range(top, bottom) for column in range(left, right)]
            cell_tokens = tuple(number_at[place] for place in patches)
            first, last = (f"r{row + 1}c{column + 1}" for row, column in (patches[0], patches[-1]))
            text = None if first == last else f"{first} to {last}"
            box = _pixel_box(pixel_tokens, cell_tokens)
            cells.append(PatchCell(f"r{down + 1}c{across + 1}", text, (down, across), cell_tokens, *box))
    return PictureCells(
        reading.text, inputs=reading.inputs, part=reading.part, cells=tuple(cells), made_of=name
    )


def _bounds(count: int, num_cells: int) -> list[int]:
    """Return the boundaries of the cells among `count` patches. Cell sizes differ by at most one patch."""
    return [round(number * count / num_cells) for number in range(num_cells + 1)]


def _pixel_box(pixel_tokens: Int[Tensor, "height width"], tokens: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the top, bottom, left and right edges of the pixels that belong to some tokens."""
    inside: Bool[Tensor, "height width"] = torch.isin(pixel_tokens, torch.tensor(tokens))
    down, across = (inside.any(dim=axis).nonzero().flatten() for axis in (1, 0))
    return int(down[0]), int(down[-1]) + 1, int(across[0]), int(across[-1]) + 1


def picture_output(pretrained: Pretrained, reading: PictureCells, answer: str | None) -> EncoderOutput:
    """Return the output on a picture: the given or predicted class or, without a classifier, a vector.

    The vector is the pooled vector if only a norm produces it, otherwise the vector of [CLS] or the mean over
    the tokens. Raises UserError for an unknown class.
    """
    if pretrained.classifier is not None:
        return class_to_explain(pretrained.classifier, reading.inputs or {}, answer)
    if answer is not None:
        raise UserError(f"answer: {pretrained.name} has no classes: omit the answer")
    outputs = run_encoder(pretrained.model, reading.inputs or {})
    if "last_hidden_state" not in outputs:
        raise UserError(f"model: {pretrained.name} returns no token vectors, so the picture has no vector")
    # A pooler may be untrained; a pooling module with another name is part of the model (CLIP, SigLIP).
    has_pooled = outputs.get("pooler_output") is not None and not hasattr(pretrained.model, "pooler")
    has_cls = CLS in reading.text.tokens
    pooling = Pooling("pooled" if has_pooled else "cls" if has_cls else "mean")
    vector = pooling.text_vectors(outputs)[0]
    notes = () if has_pooled or has_cls else ("The picture's vector is the mean over its tokens.",)
    output = EncoderOutput("similarity", pretrained.model, pooling=pooling, compares_itself=True, notes=notes)
    return replace(output, toward=vector / vector.norm())
