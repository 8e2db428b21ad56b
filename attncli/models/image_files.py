"""Image files, decoded as image viewers show them."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from attncli.core.process import quiet_warnings
from attncli.errors import UserError, one_line_reason, readable_bytes
from attncli.system.files import PICTURE_BYTES, most_unpacked, open_file

if TYPE_CHECKING:  # belongs to an extra
    from PIL.Image import Image


FORMATS = ("PNG", "JPEG", "WebP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""The supported formats. For some others, such as PostScript, Pillow would start external programs."""


PIXEL_BYTES = 4
COUNTED_BYTES = 2**24
"""The file size, in bytes, up to which the pictures in a file are counted."""


@dataclass(frozen=True)
class OpenedPicture:
    """An upright picture in RGB, with notes on how it was changed."""

    image: "Image"
    name: str
    notes: tuple[str, ...] = ()


def open_picture(file: str, key: str = "image") -> OpenedPicture:
    """Open the first frame of a picture in one of FORMATS. Raises UserError, at `key`, for any other file.

    The picture is rotated as EXIF specifies, transparent parts become white, and 16 bits become 8.
    """
    if find_spec("PIL") is None:
        raise UserError(f'{key}: needs: pip install "attncli[images]"')
    from PIL import Image, ImageOps, UnidentifiedImageError

    path, notes = Path(file), list[str]()
    try:
        with (
            quiet_warnings(Image.DecompressionBombWarning),
            open_file(path, PICTURE_BYTES) as content,
            Image.open(content, formats=FORMATS) as opened,
        ):
            size = os.fstat(content.fileno()).st_size
            if PIXEL_BYTES * prod(opened.size) > most_unpacked(size):
                pixels = f"{prod(opened.size) / 1e6:,.0f} million pixels in {readable_bytes(size)}"
                raise UserError(
                    f"{key}: {file}: has {pixels}, mostly of one colour: make the picture smaller"
                )
            if getattr(opened, "is_animated", False):
                notes.append(
                    f"{path.name}: only the first of its {_num_frames(opened, content)}pictures is shown."
                )
                opened.seek(0)
            opened.load()
            upright = ImageOps.exif_transpose(opened)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        most = f"{(Image.MAX_IMAGE_PIXELS or 0) / 1e6:,.0f} million pixels"
        most_in_total = f"must have at most {most} in total"
        raise UserError(f"{key}: {file}: {most_in_total}: make the picture smaller") from None
    except UnidentifiedImageError:
        names = ", ".join(FORMATS[:-1])
        raise UserError(f"{key}: {file}: must be a picture: {names} or {FORMATS[-1]}") from None
    except OSError as error:
        reason = error.strerror or one_line_reason(error)
        raise UserError(f"{key}: {file}: cannot be read: {reason}") from None
    except (ValueError, SyntaxError, EOFError, IndexError) as error:  # errors of Pillow's readers
        raise UserError(f"{key}: {file}: is damaged: {one_line_reason(error)}") from None
    return OpenedPicture(_as_rgb(upright, file, key), path.name, tuple(notes))


def _num_frames(opened: Any, content: BinaryIO) -> str:
    """Return the number of pictures in a file, or "" for a large file, which would have to be read whole."""
    is_small = os.fstat(content.fileno()).st_size <= COUNTED_BYTES
    return f"{opened.n_frames:,} " if is_small else ""


def _as_rgb(image: "Image", file: str, key: str) -> "Image":
    """Return the picture in RGB, on white."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, stored in 16 or 32
        numbers = np.asarray(image).astype(np.float64)
        scale = 255 / (65535 if image.mode != "I" or numbers.max() > 255 else 255)
        return Image.fromarray((numbers.clip(0) * scale).round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise UserError(f"{key}: {file}: has floating-point numbers: save it with 8 bits per colour")
    if image.mode in ("LA", "PA", "La", "RGBa", "RGBA") or "transparency" in image.info:
        above = image.convert("RGBA")
        white = Image.new("RGBA", above.size, "white")
        return Image.alpha_composite(white, above).convert("RGB")
    return image.convert("RGB")
