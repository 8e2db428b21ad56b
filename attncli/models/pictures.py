"""A picture as a model reads it: its pixels, by the model's own image processor, and where its tokens lie.

Nothing here goes by the name of a model. What a processor keeps of a picture, and where it puts it, is read
off from what it makes of four others of that size: black, white, and two that brighten from left to right and
from top to bottom. Which pixels a token is made of is read off from the gradients of the first layer.
"""

import io
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from inspect import signature
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from attncli.core.layer import AttentionLayer
from attncli.errors import UserError
from attncli.models.architectures import BLOCK, TOKENS_OF_PICTURES, layer_kind
from attncli.models.capture import model_errors, unchanged, with_eager_attention
from attncli.models.layers import (
    CannotShow,
    CapturedLayer,
    Consumer,
    Numbering,
    StopCapture,
    handing_over,
)
from attncli.models.pretrained import (
    FIRST_WORD_ID,
    Box,
    ModelText,
    PictureTokens,
    Pretrained,
    Reading,
    SeenPicture,
)
from attncli.models.text_files import PICTURE_SUFFIXES, TextLine, is_picture
from attncli.models.writing import PICTURE, in_chat_template, writer_of

if TYPE_CHECKING:  # an extra
    from PIL.Image import Image

PIXELS = ("pixel_values", "flattened_patches")
"""What models and processors call the numbers of a picture."""
MOST_PNG = 640
"""Pixels of a side of what a report keeps of a picture."""
LEAST_SIDE = 16
"""Pixels: what a processor makes of fewer does not tell where it puts them."""


@dataclass(frozen=True)
class OpenedPicture:
    """A picture as people see it: RGB, upright; `size` in pixels; `notes` say what was done to it."""

    image: "Image"
    name: str
    notes: tuple[str, ...] = ()


def open_picture(file: str, key: str = "image") -> OpenedPicture:
    """A picture of any kind that Pillow reads, its first frame; UserError, at `key`, for anything else.

    Turned as EXIF says; transparent parts are white; 16 bits become 8.
    """
    if find_spec("PIL") is None:
        raise UserError(f'{key}: needs: pip install "attncli[images]"')
    from PIL import Image, ImageOps, UnidentifiedImageError

    path, notes = Path(file), list[str]()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                frames = getattr(opened, "n_frames", 1)
                if frames > 1:
                    notes.append(f"{path.name}: the first of its {frames:,} pictures.")
                opened.load()
                upright = ImageOps.exif_transpose(opened)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = f"{(Image.MAX_IMAGE_PIXELS or 0) / 1e6:,.0f} million pixels"
        raise UserError(
            f"{key}: {file}: has more than {most}, as no photograph has: make it smaller"
        ) from None
    except UnidentifiedImageError:
        raise UserError(f"{key}: {file}: is not a picture that Pillow reads (PNG, JPEG, WebP, ...)") from None
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise UserError(f"{key}: {file}: cannot be read: {reason}") from None
    except (ValueError, SyntaxError, EOFError, IndexError) as error:  # what Pillow's readers raise
        raise UserError(f"{key}: {file}: is damaged: {' '.join(str(error).split())}") from None
    return OpenedPicture(_as_rgb(upright, file, key), path.name, tuple(notes))


def _as_rgb(image: "Image", file: str, key: str) -> "Image":
    """The picture in RGB, on white."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, in 16 or 32
        numbers = np.asarray(image).astype(np.float64)
        scale = 255 / (65535 if image.mode != "I" or numbers.max() > 255 else 255)
        return Image.fromarray((numbers.clip(0) * scale).round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise UserError(f"{key}: {file}: holds numbers in floating point: save it with 8 bits a colour")
    if image.mode in ("LA", "PA", "La", "RGBa", "RGBA") or "transparency" in image.info:
        above = image.convert("RGBA")
        white = Image.new("RGBA", above.size, "white")
        return Image.alpha_composite(white, above).convert("RGB")
    return image.convert("RGB")


@dataclass(frozen=True)
class PictureFolder:
    """The pictures of a folder by their names, in order, as many texts are: each the name of its file."""

    folder: str

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.folder

    def _files(self) -> list[Path]:
        files = Path(self.folder).iterdir()
        return sorted(filter(is_picture, files))

    def count(self) -> int:
        """How many pictures there are; UserError where there is none."""
        count = len(self._files())
        if not count:
            raise UserError(f"image: {self.folder}: holds no picture ({', '.join(PICTURE_SUFFIXES)})")
        return count

    def numbered(self) -> Iterator[tuple[int, TextLine]]:
        """Every picture with its number."""
        for number, file in enumerate(self._files(), start=1):
            yield number, TextLine(number, file.name, file.name, image=str(file))


@lru_cache(maxsize=2)
def _opened_processor(source: str, name: str) -> Any:
    from transformers import AutoImageProcessor

    opener: Any = AutoImageProcessor  # transformers leaves it without types
    is_here = Path(source).exists()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return opener.from_pretrained(
                source, backend="pil", trust_remote_code=False, local_files_only=is_here
            )
    except Exception as error:  # a damaged file may fail in any way; the reason is given in one line
        reason = " ".join(str(error).split())
        if "torchvision" in reason.lower():
            reason = "it takes torchvision, and there is none by Pillow"
        raise UserError(f"image: the image processor of {name} cannot be opened: {reason:.300}") from None


def image_processor(pretrained: Pretrained) -> Any:
    """What makes numbers of a picture for this model; UserError where there is none."""
    if find_spec("PIL") is None:
        raise UserError('image: needs: pip install "attncli[images]"')
    source = pretrained.source
    if source is None or (isinstance(source, str) and Path(source).is_file()):
        raise UserError(f"image: {pretrained.name} reads text: it has no image processor")
    if not isinstance(source, str):
        return getattr(source, "image_processor", source)
    path = Path(source)
    if path.is_dir() and not any((path / file).is_file() for file in PROCESSOR_FILES):
        raise UserError(
            f"image: {pretrained.name} has no image processor: {PROCESSOR_FILES[0]} is missing in its folder"
        )
    return _opened_processor(source, pretrained.name)


PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


class Processing:
    """What a processor makes of a picture, and where in the picture each of the numbers comes from.

    `beside` is what it is given beside a picture: a text, whose tokens it makes, too.
    """

    def __init__(self, processor: Any, name: str, beside: Mapping[str, Any] | None = None) -> None:
        self.processor, self.name = processor, name
        self.beside = {} if beside is None else beside
        self._sources: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def inputs(self, image: "Image") -> dict[str, Tensor]:
        """The tensors that it gives."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self.processor(images=[image], return_tensors="pt", **self.beside)
        except Exception as error:  # a processor may fail in any way on a picture that it does not like
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(f"image: the image processor of {self.name} fails: {reason}") from None
        tensors = {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
        if not any(name in tensors for name in PIXELS):
            raise UserError(f"image: the image processor of {self.name} gives no pixels")
        return tensors

    def sources(self, size: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """How far across and down a picture of that size each number comes from, as shares; NaN for padding.

        UserError where that cannot be told.
        """
        from PIL import Image

        if size in self._sources:
            return self._sources[size]
        width, height = size
        across, down = ((np.arange(count) + 0.5) / count for count in size)
        ramps = np.broadcast_to(across, (height, width)), np.broadcast_to(down[:, None], (height, width))
        made = [Image.new("RGB", size, "black"), Image.new("RGB", size, "white")]
        for ramp in ramps:
            grey = (255 * ramp).round().astype(np.uint8)
            made.append(Image.fromarray(np.stack([grey] * 3, axis=-1)))
        black, white, *brightening = (self._pixels(image).double() for image in made)
        if any(one.shape != like.shape for one in (black, white, *brightening)):
            raise UserError(
                f"image: {self.name} cuts each picture as it is: attn cannot tell where tokens lie"
            )
        span = white - black
        is_padding = span.abs() <= 1e-3 * span.abs().max()
        found = [((one - black) / span).masked_fill(is_padding, torch.nan) for one in brightening]
        for shares in found:
            kept = shares[~is_padding]
            if not len(kept) or kept.min() < -TOLERANCE or kept.max() > 1 + TOLERANCE:
                raise UserError(
                    f"image: {self.name} changes colours by the picture: attn cannot tell where tokens lie"
                )
        self._sources = {size: (found[0], found[1])}
        return found[0], found[1]

    def _pixels(self, image: "Image") -> Tensor:
        return pixels_of(self.inputs(image))[1]


TOLERANCE = 0.1
"""Of a share: resampling overshoots at edges."""


def pixels_of(inputs: Mapping[str, Tensor]) -> tuple[str, Tensor]:
    """The numbers of a picture among the inputs, and what they are called."""
    name = next(name for name in PIXELS if name in inputs)
    return name, inputs[name]


@lru_cache(maxsize=2)
def _processing(processor: Any, name: str) -> Processing:
    return Processing(processor, name)


def part_that_sees(pretrained: Pretrained) -> Pretrained:
    """The model, or the part of it that reads pixels alone, as one of two towers; UserError for none."""
    model = pretrained.model
    if _sees_alone(model):
        return pretrained
    for name, module in model.named_modules():
        if name and isinstance(module, PreTrainedModel) and _sees_alone(module):
            return replace(pretrained, name=f"{pretrained.name} ({name})", model=module, with_head=None)
    raise UserError(f"image: {pretrained.name} has no part that reads pictures alone")


def _sees_alone(model: PreTrainedModel) -> bool:
    """Whether a forward takes pixels, and no words beside them."""
    known = _arguments(model)
    reads_words = {"input_ids", "decoder_input_ids"} & known
    return not reads_words and bool({*PIXELS, GRID} & known)


def _arguments(model: PreTrainedModel) -> set[str]:
    """The names of what a forward takes; where that says nothing, of what the model mainly reads."""
    known = signature(model.forward).parameters
    is_named = any(one.kind == one.POSITIONAL_OR_KEYWORD for one in known.values())
    return {*known} if is_named else {model.main_input_name}


GRID, OF_GRID = "grid_thw", "hidden_states"
"""What a part takes that reads patches one after another: how many there are, and the patches."""


def _accepted(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str
) -> tuple[dict[str, Tensor], str]:
    """The inputs that a model's forward has names for, and what it calls the pixels."""
    known = _arguments(model) - {"labels"}  # which some processors make for training
    pixels, numbers = pixels_of(inputs)
    given = {**inputs, GRID: inputs.get(f"image_{GRID}")}
    if "noise" in known and hasattr(model.config, "mask_ratio"):  # MAE hides most patches, as it learns
        counts = (getattr(one, "num_patches", None) for one in model.modules())
        if (count := next((one for one in counts if one is not None), None)) is not None:
            model.config.mask_ratio = 0.0
            given["noise"] = torch.linspace(0, 1, count).unsqueeze(0)
    if pixels not in known and GRID in known:
        given[OF_GRID] = numbers
        pixels = OF_GRID
    found = {key: tensor for key, tensor in given.items() if key in known and tensor is not None}
    if pixels not in found:
        raise UserError(f"image: {name} takes no {pixels}")
    return found, pixels


@dataclass(frozen=True)
class _FirstLayer:
    """The queries of a model's first layer, or else what its first block reads, one token a row, and the
    pixels that they came of.
    """

    rows: Float[Tensor, "token dim"]
    pixels: Tensor


def _first_layer(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str, part: str = ""
) -> _FirstLayer:
    """Runs a model up to its first layer of attention in `part`, the layers before it looking nowhere.

    Each token of those gives its own value: so no token depends on pixels of another. `name` is that of the
    pixels among the inputs.
    """
    pixels = inputs[name].detach().clone().requires_grad_(True)
    found: list[Tensor] = []

    def consume(layer: CapturedLayer) -> Tensor:
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        if layer.module.startswith(part):
            found.append(attention.query)
            raise StopCapture
        if attention.shape[2] != attention.shape[3]:
            raise CannotShow("it gathers what it sees by another attention, so that no token has a place")
        return attention.expanded()[1]

    given = {**inputs, name: pixels}
    model.config.use_cache = False
    with model_errors(model.config.model_type, "read this picture"), torch.enable_grad():
        # Beside words the first block may have no attention (Qwen3.5), but mix the tokens all the same.
        vectors = _read_by_first_block(model, given, part, consume) if part else None
        if vectors is None:
            with (
                suppress(StopCapture),
                unchanged(model),
                handing_over(model, consume, Numbering(False, None)),
            ):
                model(**given)
            if found:
                return _FirstLayer(found[0].transpose(1, 2).flatten(0, 1).flatten(1).float(), pixels)
            vectors = None if part else _read_by_first_block(model, given, part, consume)
    if vectors is None:
        raise CannotShow("it computes its attention itself, so that attn cannot tell what a token is")
    return _FirstLayer(vectors.flatten(0, 1).float(), pixels)


def _read_by_first_block(
    model: PreTrainedModel, given: Mapping[str, Tensor], part: str, consume: Consumer
) -> Tensor | None:
    """The vectors of the tokens that the first block in `part` reads; None where no block reads such."""
    found: list[Tensor] = []

    def take(_module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        vectors = inputs[0] if inputs else named.get("hidden_states")
        if isinstance(vectors, Tensor) and vectors.ndim == 3 and vectors.is_floating_point():
            found.append(vectors)
            raise StopCapture

    with ExitStack() as hooks, suppress(StopCapture):
        hooks.enter_context(with_eager_attention(model))
        if part:
            hooks.enter_context(handing_over(model, consume, Numbering(False, None)))
        for name, module in model.named_modules():
            if name.startswith(part) and BLOCK.fullmatch(name):
                hooks.enter_context(module.register_forward_pre_hook(take, with_kwargs=True))
        model(**given)
    return found[0] if found else None


BASE = 8
"""Of the digits by which tokens are told apart: the gradients of half precision tell so many."""
FEW = 1e-2
"""Of the root mean square of the gradients: smaller ones tell nothing."""
DIGIT_TOLERANCE, MOST_MIXED = 0.15, 0.01


def _tokens_of(first: _FirstLayer, sources: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
    """The token that each number of some tensors goes into, or -1, and the share that goes into several.

    d/dx sum_t c_t f_t, over that with c = 1, is c_t of the token t that a number x goes into. So each digit
    of t is one gradient.
    """
    if not sources:
        return []
    count = len(first.rows)
    direction = torch.randn(first.rows.shape[1], generator=torch.Generator().manual_seed(0)).to(first.rows)
    outputs = first.rows @ direction

    def gradients(weights: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(
            (outputs * weights).sum(), [*sources], retain_graph=True, allow_unused=True
        )
        pairs = zip(found, sources, strict=True)
        return [
            _one_colour(torch.zeros_like(source) if one is None else one).float() for one, source in pairs
        ]

    numbers = torch.arange(count, device=outputs.device)
    wholes = gradients(torch.ones_like(outputs))
    are_used = [(one.abs() > FEW * one.square().mean().sqrt()) & (one != 0) for one in wholes]
    tokens = [torch.zeros_like(one, dtype=torch.long) for one in wholes]
    are_mixed, power = [torch.zeros_like(one) for one in are_used], 1
    while power < count:
        digits = gradients((numbers // power % BASE).to(outputs))
        for place, (digit, whole) in enumerate(zip(digits, wholes, strict=True)):
            ratio = digit / whole
            rounded = ratio.round()
            are_mixed[place] |= are_used[place] & ~((ratio - rounded).abs() <= DIGIT_TOLERANCE)
            tokens[place] += rounded.nan_to_num(0.0).clamp(0, BASE - 1).long() * power
        power *= BASE
    return [
        (found.masked_fill(~used | mixed | (found >= count), -1).cpu(), float(mixed.sum() / used.sum()))
        for found, used, mixed in zip(tokens, are_used, are_mixed, strict=True)
    ]


def _one_colour(pixels: Tensor) -> Tensor:
    """The first of three colours, where a tensor has them: all three go into one token."""
    return pixels[..., :1, :, :] if pixels.ndim > 3 else pixels


def _tokens_of_pixels(first: _FirstLayer) -> Int[Tensor, "..."]:
    """The token that each number of a picture goes into, or -1; CannotShow where numbers go into several."""
    ((found, mixed),) = _tokens_of(first, [first.pixels])
    if not (found >= 0).any():
        raise CannotShow("nothing of it depends on the picture before its first layer of attention")
    if mixed > MOST_MIXED:
        raise CannotShow("it mixes parts of the picture before its first attention, so that no token is one")
    return found


def _names_elsewhere(model: PreTrainedModel, first: _FirstLayer, tokens: Sequence[int]) -> dict[int, str]:
    """What tokens that are no part of the picture are called, by the parameters that they came of."""
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    known = {name: one for name, one in named.items() if name.rpartition(".")[2] in TOKENS_OF_PICTURES}
    found: dict[int, str] = {}
    for name, (of_numbers, _) in zip(known, _tokens_of(first, [*known.values()]), strict=True):
        own = TOKENS_OF_PICTURES[name.rpartition(".")[2]]
        found |= dict.fromkeys({*of_numbers.flatten().tolist()} & {*tokens}, own)
    counts = Counter(found.values())
    numbers: Counter[str] = Counter()
    for token in tokens:
        name = found.get(token, "other")
        numbers[name] += 1
        is_alone = counts[name] == 1 and name.startswith("[")
        found[token] = name if is_alone else f"{name.strip('[]').lower()}{numbers[name]}"
    return found


@dataclass(frozen=True)
class _Made:
    """The token of the first layer that each number of a picture goes into, -1 for none, and what tokens that
    are no part of it are called.
    """

    of_pixels: Int[Tensor, "..."]
    count: int
    names: Mapping[int, str]


_made: MutableMapping[PreTrainedModel, dict[Any, _Made]] = WeakKeyDictionary()
"""By the shapes of what a model reads, and how many patches it says there are."""


def _tokens_made(model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str, part: str) -> _Made:
    few = {key: one.tolist() for key, one in inputs.items() if one.numel() < 64}
    words = inputs["input_ids"].tolist() if "input_ids" in inputs else []
    place = str((part, few, words, [(key, *one.shape) for key, one in inputs.items()]))
    known = _made.setdefault(model, {})
    if place not in known:
        first, again = (_first_layer(model, inputs, name, part) for _ in range(2))
        if first.rows.shape != again.rows.shape or not torch.allclose(first.rows, again.rows, atol=1e-4):
            raise CannotShow("it reads other parts of the picture, or in another order, each time")
        of_pixels = _tokens_of_pixels(first)
        elsewhere = sorted({*range(len(first.rows))} - {*of_pixels.flatten().tolist()})
        names = _names_elsewhere(model, first, elsewhere) if elsewhere else {}
        if part:  # beside words what is no token of pictures has a name of the vocabulary
            own = {*TOKENS_OF_PICTURES.values()}
            names = {
                token: text
                for token, text in names.items()
                if text in own or text.rstrip("0123456789") in own
            }
        known[place] = _Made(of_pixels, len(first.rows), names)
    return known[place]


@dataclass(frozen=True)
class _Grid:
    """Tokens in rows and columns: the place of each from 0, and the box that each has as shares."""

    rows: Int[Tensor, " token"]
    columns: Int[Tensor, " token"]
    start: tuple[float, float]
    step: tuple[float, float]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.rows.max()) + 1, int(self.columns.max()) + 1

    def whole(self) -> Box:
        """All of it, within the picture."""
        (left, top), (wide, high), (num_rows, num_columns) = self.start, self.step, self.shape
        right, bottom = left + wide * num_columns, top + high * num_rows
        return _snapped(left), _snapped(top), _snapped(right), _snapped(bottom)

    def box(self, row: int, column: int) -> Box:
        """A token's place as shares of the file, which it goes beyond where it lies partly on padding."""
        (left, top), (wide, high) = self.start, self.step
        right, bottom = left + wide * (column + 1), top + high * (row + 1)
        return left + wide * column, top + high * row, right, bottom


def _snapped(share: float) -> float:
    """A share without what rounding made of 0 and 1."""
    share = min(1.0, max(0.0, share))
    return float(round(share)) if abs(share - round(share)) < EDGE else share


EDGE = 4e-3
"""A colour in 255."""


def _grid(spreads: Sequence[Float[Tensor, "token 3"]]) -> _Grid | None:
    """Rows and columns of tokens by what `_spreads` says across and down; None where they make no grid."""
    places, starts, steps = [], [], []
    for centres, widths, counts in (one.unbind(dim=-1) for one in spreads):
        are_whole = counts >= 0.9 * counts.max()  # others lie partly on padding
        width = float(widths[are_whole].median())
        if not width > 0:
            return None
        ranked, order = centres.sort()
        ranks = torch.cat([ranked.new_zeros(1), (ranked.diff() > width / 2).double().cumsum(0)])
        numbers = torch.empty_like(ranks)
        numbers[order] = ranks
        step, own = width, numbers[are_whole]
        if own.max() > own.min():  # the least squares line through the centres says how wide they are
            deviation = own - own.mean()
            step = float((deviation * centres[are_whole]).sum() / deviation.square().sum())
        start = float((centres[are_whole] - step * own).mean())
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


def _spreads(shares: Tensor, tokens: Tensor, used: Tensor, count: int) -> Float[Tensor, "token 3"]:
    """Centre, width and count of the numbers of each token; NaN where it has none."""
    index, values = tokens[used], shares[used]
    number = torch.zeros(count, dtype=torch.double).index_add_(0, index, torch.ones_like(values))
    mean = torch.zeros(count, dtype=torch.double).index_add_(0, index, values) / number
    squares = torch.zeros(count, dtype=torch.double).index_add_(0, index, (values - mean[index]).square())
    # Evenly spread between two ends, w apart, numbers have a variance of w^2 / 12; so has rounding to 1/255.
    width = (12 * squares / number - 255.0**-2).clamp(min=0).sqrt()
    return torch.stack([mean, width, number], dim=-1)


@dataclass(frozen=True)
class PlacedTokens:
    """The tokens of a picture that a model makes of it, or of a picture and a text."""

    labels: tuple[str | None, ...]
    seen: PictureTokens


def placed_tokens(
    model: PreTrainedModel,
    inputs: Mapping[str, Tensor],
    opened: OpenedPicture,
    processing: Processing,
    *,
    name: str,
    part: str = "",
) -> PlacedTokens:
    """Where each token of the first layer in `part` lies; a token that is none of the picture's has no label.

    `name` is that of the pixels among the inputs. UserError where that cannot be told.
    """
    pixels = inputs[name]
    whole_shares = processing.sources(opened.image.size, pixels.cpu())
    with model_errors(model.config.model_type):
        made = _tokens_made(model, inputs, name, part)
        of_pixels, count = made.of_pixels, made.count
        shares = [_one_colour(one) for one in whole_shares]
        used = (of_pixels >= 0) & shares[0].isfinite()
        across, down = (_spreads(one, of_pixels, used, count) for one in shares)
        tiles = _tiles(of_pixels, used, count, pixels.shape)
        placed = [(tile, (tiles == tile).nonzero()[:, 0]) for tile in sorted({*tiles.tolist()}) if tile >= 0]
        if not placed:
            raise CannotShow("none of its tokens is made of the picture")
        grids = [(of_tile, _grid((across[of_tile], down[of_tile]))) for _, of_tile in placed]
    # A token of padding alone has no place and no name of its own.
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
    for number, (of_tile, grid) in enumerate(grids, start=1):
        if grid is None:
            raise UserError(f"image: the tokens of {processing.name} do not lie in rows and columns")
        for token, row, column in zip(*map(Tensor.tolist, (of_tile, grid.rows, grid.columns)), strict=True):
            labels[token] = f"r{row + 1}c{column + 1}" if is_one else f"{number}/r{row + 1}c{column + 1}"
            boxes[token] = grid.box(row, column)
            places[token] = torch.tensor([float(row), float(column)])
    picture, note = _seen_picture(opened, [grid for _, grid in grids if grid is not None], boxes, pixels)
    special = torch.tensor([label is not None and tiles[token] < 0 for token, label in enumerate(labels)])
    in_two_dimensions = None if part or not is_one else places
    return PlacedTokens(
        tuple(labels), PictureTokens((picture,), in_two_dimensions, special, (*opened.notes, note))
    )


def _tiles(of_pixels: Tensor, used: Tensor, count: int, shape: torch.Size) -> Int[Tensor, " token"]:
    """The number of the part of the picture that each token is made of, -1 for none."""
    found = torch.full((count,), -1)
    if len(shape) < 4:
        found[of_pixels[used]] = 0
        return found
    parts = of_pixels.flatten(0, -4), used.flatten(0, -4)
    for number, (tokens, of_tile) in enumerate(zip(*parts, strict=True)):
        found[tokens[of_tile]] = number
    return found


def _seen_picture(
    opened: OpenedPicture, grids: Sequence[_Grid], boxes: Sequence[Box | None], pixels: Tensor
) -> tuple[SeenPicture, str]:
    """What is left of a picture after crop and resize, all its parts together, and a line about it.

    `boxes` are shares of the whole file; those of the picture are shares of what is left.
    """
    width, height = opened.image.size
    corners = zip(*(grid.whole() for grid in grids), strict=True)
    left, top, right, bottom = (
        most(sides) for most, sides in zip((min, min, max, max), corners, strict=True)
    )
    crop = (left * width, top * height, right * width, bottom * height)
    sizes = (crop[2] - crop[0], crop[3] - crop[1])
    if pixels.ndim >= 4 and len(grids) == 1:  # the picture as the model has it, which may be squeezed
        sizes = (float(pixels.shape[-1]), float(pixels.shape[-2]))
    most_rows, most_columns = (max(shape[axis] for shape in (one.shape for one in grids)) for axis in (0, 1))
    scale = min(1.0, MOST_PNG / max(sizes)) if max(sizes) >= max(most_rows, most_columns) else 1.0
    size = max(most_columns, round(sizes[0] * scale)), max(most_rows, round(sizes[1] * scale))
    file = io.BytesIO()
    opened.image.resize(size, box=crop).save(file, format="PNG", optimize=False)
    left_out = (left, top, right - left, bottom - top)
    of_crop = tuple(None if box is None else _within(box, left_out) for box in boxes)
    rounded = round(crop[0], 2), round(crop[1], 2), round(crop[2], 2), round(crop[3], 2)
    seen = SeenPicture(opened.name, (width, height), rounded, file.getvalue(), of_crop)
    return seen, _about(seen, grids)


def _within(box: Box, crop: Box) -> Box:
    """A box as shares of a crop: its left and top, width and height."""
    left, top, wide, high = crop
    sides = ((box[0] - left) / wide, (box[1] - top) / high, (box[2] - left) / wide, (box[3] - top) / high)
    across, down, right, bottom = map(_snapped, sides)
    return across, down, right, bottom


def _about(picture: SeenPicture, grids: Sequence[_Grid]) -> str:
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


def read_picture(
    pretrained: Pretrained,
    file: str | PathLike[str],
    text: str | None = None,
    *,
    is_whole: bool = False,
    is_open: bool = False,
) -> Reading:
    """A picture as the part of a model that sees reads it, or with a text as the whole model reads both.

    Beside a text the picture stands where its token does ("<image>", as the model calls it), else before it;
    a whole text has that token, and gets no special tokens around it; an open one, that a model goes on with,
    has no special token at its end where the picture stands before all words (GIT). With an encoder and a
    decoder the picture goes to the encoder, and the text is what the decoder writes. UserError for a file
    that is no picture, and for a model that reads none.
    """
    opened = open_picture(fspath(file))
    if min(opened.image.size) < LEAST_SIDE:
        sides = " × ".join(map(str, opened.image.size))
        raise UserError(f"image: {file}: must be at least {LEAST_SIDE} pixels high and wide (got {sides})")
    if text is None:
        return _read_picture(part_that_sees(pretrained), opened)
    if pretrained.has_decoder:
        words = pretrained.shifted_right(pretrained.read(text, "sentence", beside_picture=True))
        return _read_captioned(pretrained, opened, words)
    if writer_of(pretrained.model).model is not pretrained.model:
        only = "gives the weights of its words as it writes them, and not otherwise: use attn generate"
        raise UserError(f"image: {pretrained.name} {only}")
    return _read_both(pretrained, opened, text, is_whole=is_whole, is_open=is_open)


def read_picture_to_write(
    pretrained: Pretrained, file: str | PathLike[str], text: str, *, is_whole: bool = False
) -> Reading:
    """A picture and a text as a model reads both before it writes.

    A model whose decoder looks at the picture by cross-attention reads no text before it writes: UserError.
    """
    model = pretrained.model
    writer = writer_of(model)
    if not pretrained.has_decoder and writer.model is model:
        return read_picture(pretrained, file, text, is_whole=is_whole, is_open=True)
    if text:
        raise UserError(f"sentence: {pretrained.name} writes of the picture alone: leave the text out")
    if all(layer_kind(name) != "cross" for name, _ in writer.model.named_modules()):
        reason = "hands its decoder vectors that sum up the picture: none of them has a place in it"
        raise UserError(f"model: {model.config.model_type} {reason}")
    nothing = ModelText((), torch.empty(0, dtype=torch.long))
    return replace(_read_captioned(pretrained, open_picture(fspath(file)), nothing), part=writer.part)


def _read_captioned(pretrained: Pretrained, opened: OpenedPicture, words: ModelText) -> Reading:
    """A picture that an encoder reads, and the words that a decoder reads."""
    seen = _read_picture(part_that_sees(pretrained), opened)
    inputs = {**(seen.inputs or {})}
    if len(words.ids):
        inputs["decoder_input_ids"] = words.ids.unsqueeze(0).to(pretrained.device)
    if unknown := inputs.keys() - _arguments(pretrained.model):
        raise UserError(f"image: {pretrained.name} takes no {', '.join(sorted(unknown))}")
    return Reading(words, seen.text, inputs=inputs)


def reader_of(pretrained: Pretrained, reading: Reading) -> Pretrained:
    """The model, or the part of it that a reading is of."""
    if reading.inputs is None:
        return part_that_reads(pretrained)
    is_of_both = reading.part or reading.context is not None
    return pretrained if is_of_both else part_that_sees(pretrained)


def part_that_reads(pretrained: Pretrained) -> Pretrained:
    """The model, or of two towers (CLIP) the one that reads text."""
    text, sees = (getattr(pretrained.model, name, None) for name in TOWERS)
    if not isinstance(text, PreTrainedModel) or not isinstance(sees, PreTrainedModel):
        return pretrained
    if text.main_input_name != "input_ids" or "pixel_values" in _arguments(text):
        return pretrained
    if _decoder_name(pretrained.model) == TOWERS[0]:  # it writes after both (Idefics 3)
        return pretrained
    return replace(pretrained, name=f"{pretrained.name} ({TOWERS[0]})", model=text, with_head=None)


TOWERS = ("text_model", "vision_model")
"""What a model calls its parts that read a text and a picture apart."""


def _read_both(
    pretrained: Pretrained, opened: OpenedPicture, text: str, *, is_whole: bool, is_open: bool
) -> Reading:
    """A picture and a text, as a model reads both that writes after them."""
    model = pretrained.model
    has_towers = part_that_reads(pretrained) is not pretrained
    reads_both = {"input_ids", PIXELS[0]} <= _arguments(model) and not has_towers
    part = _decoder_name(model) or _stack_of_both(model) if reads_both else None
    if part is None or pretrained.own_tokenizer is None:
        lacks = "has no tokenizer, and reads" if pretrained.own_tokenizer is None else "reads"
        message = f"{lacks} no text beside a picture in one stack: give it one of them"
        raise UserError(f"image: {pretrained.name} {message}")
    processor = _opened_reader(pretrained)
    whole = text if is_whole else _with_picture(text, processor)
    beside = {"text": [whole]} | ({"add_special_tokens": False} if is_whole else {})
    processing = Processing(processor, pretrained.name, beside)
    inputs, name = _accepted(model, processing.inputs(opened.image), pretrained.name)
    inputs = {key: tensor.to(pretrained.device) for key, tensor in inputs.items()}
    inputs[name] = inputs[name].to(model.dtype)
    ends_in = inputs["input_ids"][0, -1] == pretrained.tokenizer.sep_token_id
    if is_open and ends_in and getattr(processor, "image_token", None) is None:
        inputs |= {key: inputs[key][:, :-1] for key in ("input_ids", "attention_mask") if key in inputs}
    placed = placed_tokens(model, inputs, opened, processing, name=name, part=f"{part}.")
    ids = _ids_of_all(inputs["input_ids"][0].cpu(), placed, pretrained)
    most = pretrained.most_tokens()
    if most is not None and len(inputs["input_ids"][0]) > most:
        raise UserError(f"sentence: must be at most {most} tokens with the picture (got {len(ids)})")
    words = pretrained.labels(ids.tolist())
    labels = tuple(word if label is None else label for word, label in zip(words, placed.labels, strict=True))
    on_picture = torch.tensor([label is not None for label in placed.labels])
    own = torch.where(on_picture, FIRST_WORD_ID * 2 + torch.arange(len(ids)), ids)
    seen = ModelText(labels, own, is_merged=True, seen=placed.seen)
    return Reading(seen, inputs=inputs, part=f"{part}.")


def _ids_of_all(
    ids: Int[Tensor, " word"], placed: PlacedTokens, pretrained: Pretrained
) -> Int[Tensor, " token"]:
    """The ids of words in their places among all tokens; those of the picture are 0 where it has none."""
    count = len(placed.labels)
    if len(ids) == count:
        return ids
    are_words = torch.tensor([label is None for label in placed.labels])
    if int(are_words.sum()) != len(ids):
        raise UserError(f"image: {pretrained.name} makes {count} tokens of a picture and {len(ids)} words")
    whole = torch.zeros(count, dtype=torch.long)
    whole[are_words] = ids
    return whole


def _stack_of_both(model: PreTrainedModel) -> str | None:
    """The name of the one stack of blocks that is no part of what sees alone; None where there are others."""
    parts = model.named_modules()
    sees = [name for name, one in parts if name and isinstance(one, PreTrainedModel) and _sees_alone(one)]
    names = [
        name
        for name, block in model.named_modules()
        if BLOCK.fullmatch(name) and any("att" in inner.lower() for inner, _ in block.named_modules())
    ]
    own = {name.rpartition(".")[0] for name in names if not any(name.startswith(f"{one}.") for one in sees)}
    return own.pop() if len(own) == 1 else None


def _decoder_name(model: PreTrainedModel) -> str | None:
    """The name of the part that reads words; None where it is not a part of its own."""
    own: Any = model  # transformers leaves the method without types
    decoder = own.get_decoder() if hasattr(model, "get_decoder") else None
    if not isinstance(decoder, nn.Module) or PIXELS[0] in signature(decoder.forward).parameters:
        return None
    return next((name for name, module in model.named_modules() if name and module is decoder), None)


def _with_picture(text: str, processor: Any) -> str:
    """The text with the token that stands for a picture in it: before it where it has none."""
    token = getattr(processor, "image_token", None)
    if not isinstance(token, str) or token in text:
        return text
    around = ("<|vision_start|>", "<|vision_end|>")  # as Qwen's models have it
    known = processor.tokenizer.get_vocab()
    start, end = around if all(mark in known for mark in around) else ("", "")
    return f"{start}{token}{end}{text}"


def picture_in_chat_template(text: str, pretrained: Pretrained) -> str:
    """A picture and a text below it as a user's message, in the template of the processor, or the tokenizer.

    UserError where the template has no place for a picture.
    """
    content = [PICTURE, *([{"type": "text", "text": text}] if text else [])]
    tokenizer = pretrained.tokenizer
    processor = _opened_reader(pretrained)
    own = getattr(processor, "chat_template", None) or _stored_template(pretrained)
    if own is not None:
        tokenizer = copy(tokenizer)
        tokenizer.chat_template = own
    written = in_chat_template(
        [{"role": "user", "content": content}], replace(pretrained, own_tokenizer=tokenizer)
    )
    if processor.image_token not in written:
        message = f"has no place for a picture, {processor.image_token}: leave `chat` out"
        raise UserError(f"chat: the chat template of {pretrained.name} {message}")
    return written


def _stored_template(pretrained: Pretrained) -> str | None:
    """The template of a processor in a folder, as earlier versions of transformers kept it."""
    path = Path(str(pretrained.source)) / "chat_template.json"
    template = json.loads(path.read_text()).get("chat_template") if path.is_file() else None
    return template if isinstance(template, str) else None


def _opened_reader(pretrained: Pretrained) -> Any:
    """What makes tokens of a text and numbers of a picture, of the class for this kind of model.

    Without the part for videos, which takes torchvision.
    """
    source = pretrained.source
    if not isinstance(source, str):
        return source
    from transformers.models.auto import processing_auto

    kind = pretrained.model.config.model_type
    names: Mapping[str, str] = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
    name, pixels = names.get(kind), image_processor(pretrained)
    try:
        own = getattr(transformers, str(name), None)
        if own is None:
            raise ValueError(f"transformers has no processor for {kind}")
        parts = ["image_processor", "tokenizer"]
        reader = type(str(name), (own,), {"get_attributes": classmethod(lambda _: parts)})
        path = Path(source) / PROCESSOR_FILES[1]
        settings = json.loads(path.read_text()) if path.is_file() else {}
        taken = signature(own.__init__).parameters.keys() - {*parts, "self"}
        given = {key: None for key in ("video_processor",) if key in taken}
        given |= {key: value for key, value in settings.items() if key in taken - given.keys()}
        return reader(image_processor=pixels, tokenizer=pretrained.tokenizer, **given)
    except Exception as error:  # a damaged file may fail in any way; the reason is given in one line
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"image: the processor of {pretrained.name} cannot be opened: {reason}") from None


def _read_picture(pretrained: Pretrained, opened: OpenedPicture) -> Reading:
    """An opened picture, as the part of a model that sees reads it."""
    processing = _processing(image_processor(pretrained), pretrained.name)
    model = pretrained.model
    inputs, name = _accepted(model, processing.inputs(opened.image), pretrained.name)
    inputs = {key: tensor.to(pretrained.device) for key, tensor in inputs.items()}
    inputs[name] = inputs[name].to(model.dtype)
    placed = placed_tokens(model, inputs, opened, processing, name=name)
    labels = tuple(str(label) for label in placed.labels)
    ids = FIRST_WORD_ID * 2 + torch.arange(len(labels))
    text = ModelText(labels, ids, is_merged=True, seen=placed.seen)
    return Reading(text, inputs=inputs)
