"""Where tokens lie of what a model reads: on pictures, in a sound."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

Corners = tuple[float, float, float, float]
"""Left, top, right and bottom."""
SAME_MOMENT = 1e-6
"""Seconds by which the begin of a token may be rounded."""


@dataclass(frozen=True)
class SeenPicture:
    """A picture as a model sees it: `png` is the picture after crop and resize.

    `boxes` has the place of each token as shares of it, None for a token outside. `size` is that of the file
    in pixels, `crop` the part of it that the model sees.
    """

    name: str
    size: tuple[int, int]
    crop: Corners
    png: bytes
    boxes: tuple[Corners | None, ...]


@dataclass(frozen=True)
class PictureTokens:
    """Where tokens lie: `places` are row and column on a picture, in patches; NaN for tokens outside it.

    Words have no places, nor have the tokens of a picture cut into parts. `special` marks the model's special
    tokens ([CLS], registers); `notes` say how the files were read.
    """

    pictures: tuple[SeenPicture, ...]
    places: Float[Tensor, "token 2"] | None
    special: Bool[Tensor, " token"]
    notes: tuple[str, ...] = ()

    def at(self, across: float, down: float) -> int | None:
        """The token whose box holds a point, given as shares of the first picture."""
        for token, box in enumerate(self.pictures[0].boxes):
            if box is not None and box[0] <= across <= box[2] and box[1] <= down <= box[3]:
                return token
        return None


@dataclass(frozen=True, eq=False)
class HeardSound:
    """A sound as a model hears it, and where its tokens lie: each from its `begins` on, for `step` seconds.

    `begins` is NaN for tokens that are no part of the sound. `seconds` is how long the sound is; tokens
    beyond lie in what fills it up. `samples` are of one channel, at `rate`; `notes` say how the file
    was read.
    """

    name: str
    file: str
    seconds: float
    step: float
    begins: Float[Tensor, " token"]
    notes: tuple[str, ...]
    samples: Any
    rate: int

    def at(self, seconds: float) -> int | None:
        """The first token that a moment lies in; None outside of them."""
        since = (seconds - self.begins + SAME_MOMENT).tolist()
        return next((token for token, time in enumerate(since) if 0 <= time < self.step), None)
