"""A model's image processor: the pixels that it makes from a picture, and their places in the picture.

This works for any kind of model. The crop and the places are inferred from the results of the processor on
four other pictures of the same size: black, white, and two that brighten from left to right and from top to
bottom.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attncli.core.process import quiet_warnings
from attncli.errors import UserError, one_line_reason
from attncli.models.architectures import PIXELS
from attncli.models.folder import PROCESSOR_FILES, opened_part
from attncli.models.pretrained import Pretrained

if TYPE_CHECKING:  # belongs to an extra
    from PIL.Image import Image


@lru_cache(maxsize=2)
def _opened_processor(source: str, name: str) -> Any:
    from transformers import AutoImageProcessor

    return opened_part(AutoImageProcessor, source, f"image: the image processor of {name}", backend="pil")


def image_processor(pretrained: Pretrained) -> Any:
    """Return the image processor of this model. Raises UserError if the model has none."""
    if find_spec("PIL") is None:
        raise UserError('image: needs: pip install "attncli[images]"')
    source = pretrained.source
    if source is None or (isinstance(source, str) and Path(source).is_file()):
        raise UserError(f"image: {pretrained.name} only reads text: it has no image processor")
    if not isinstance(source, str):
        return getattr(source, "image_processor", source)
    path = Path(source)
    if path.is_dir() and not any((path / file).is_file() for file in PROCESSOR_FILES):
        raise UserError(
            f"image: {pretrained.name} has no image processor: {PROCESSOR_FILES[0]} is missing in its folder"
        )
    return _opened_processor(source, pretrained.name)


@dataclass(frozen=True)
class AxisSources:
    """The positions of numbers along an axis of a picture, as shares of the axis, with NaN for padding."""

    shares: Tensor
    step: float
    """The resolution of the shares: apart from resampling, each share is a multiple of this number."""


class Processing:
    """A processor, and the places in a picture that its output numbers come from.

    `beside` contains further inputs of the processor, such as a text, which the processor tokenizes.
    """

    def __init__(self, processor: Any, name: str, beside: Mapping[str, Any] | None = None) -> None:
        self.processor, self.name = processor, name
        self.beside = {} if beside is None else beside
        self._sources: dict[tuple[int, int], tuple[AxisSources, AxisSources]] = {}

    def inputs(self, image: "Image") -> dict[str, Tensor]:
        """Return the tensors that the processor makes from a picture."""
        try:
            with quiet_warnings():
                outputs = self.processor(images=[image], return_tensors="pt", **self.beside)
        except Exception as error:  # on an unusual picture, a processor may fail in any way
            raise UserError(
                f"image: the processor of {self.name} failed: {one_line_reason(error):.200}"
            ) from None
        tensors = {name: tensor for name, tensor in outputs.items() if isinstance(tensor, Tensor)}
        if not any(name in tensors for name in PIXELS):
            raise UserError(f"image: the image processor of {self.name} returns no pixels")
        return tensors

    def sources(self, size: tuple[int, int], like: Tensor) -> tuple[AxisSources, AxisSources]:
        """Return the positions of the numbers, across and down, for pictures of this size.

        Raises UserError if the positions cannot be determined.
        """
        from PIL import Image

        if size in self._sources:
            return self._sources[size]
        black, white = (self._pixels(Image.new("RGB", size, colour), like) for colour in ("black", "white"))
        span = white - black
        is_padding = span.abs() <= 1e-3 * span.abs().max()

        def shares(axis: int, low: float, high: float) -> Tensor:
            """Return the positions between two shares of an axis.

            The positions are measured with a picture that brightens from one share to the other.
            """
            at = (np.arange(size[axis]) + 0.5) / size[axis]
            grey = (255 * ((at - low) / (high - low)).clip(0, 1)).round().astype(np.uint8)
            ramp = np.broadcast_to(grey if axis == 0 else grey[:, None], (size[1], size[0]))
            made = self._pixels(Image.fromarray(np.stack([ramp] * 3, axis=-1)), like)
            brightness = ((made - black) / span).masked_fill(is_padding, torch.nan)
            seen = brightness[~is_padding]
            if not len(seen) or seen.min() < -TOLERANCE or seen.max() > 1 + TOLERANCE:
                raise UserError(
                    f"image: {self.name} adapts colours to the picture, so attn cannot locate its tokens"
                )
            return low + (high - low) * brightness

        sources = []
        for axis in (0, 1):
            axis_shares, low, high = shares(axis, 0.0, 1.0), 0.0, 1.0
            # In a crop of a long picture, a patch may be one step of 255 wide: repeat on the crop with a
            # margin.
            while (high - low) > 4 / size[axis]:
                seen = axis_shares[~is_padding]
                step = 2 * (high - low) / 255
                lower, upper = max(low, float(seen.min()) - step), min(high, float(seen.max()) + step)
                if upper - lower > (high - low) / 2:
                    break
                low, high = lower, upper
                axis_shares = shares(axis, low, high)
            sources.append(AxisSources(axis_shares, (high - low) / 255))
        self._sources = {size: (sources[0], sources[1])}
        return sources[0], sources[1]

    def _pixels(self, image: "Image", like: Tensor) -> Tensor:
        pixels = named_pixels(self.inputs(image))[1].double()
        if pixels.shape != like.shape:
            raise UserError(
                f"image: {self.name} cuts each picture differently, so attn cannot locate its tokens"
            )
        return pixels


TOLERANCE = 0.1
"""The tolerance of a share, which is needed because resampling overshoots at edges."""


def named_pixels(inputs: Mapping[str, Tensor]) -> tuple[str, Tensor]:
    """Return the pixels among the inputs, and their name."""
    name = next(name for name in PIXELS if name in inputs)
    return name, inputs[name]


@lru_cache(maxsize=2)
def cached_processing(processor: Any, name: str) -> Processing:
    return Processing(processor, name)
