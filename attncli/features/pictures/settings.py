"""The setting `image` of every command that reads pictures."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from attncli.settings.fields import Everyday, Extra, Heading
from attncli.settings.readings import FileSpec, check_file_or_many

PictureName = Annotated[
    str, AfterValidator(partial(check_file_or_many, what="picture", takers="heads and source"))
]
"""The name of a picture, or of a folder of pictures."""
PICTURE_HELP = (
    "a picture for the model to read: PNG, JPEG, WebP, GIF, BMP, TIFF, PPM or AVIF; heads and source also "
    "take a folder of pictures, or a list (.txt)"
)


class ImageSpec(FileSpec):
    """Settings of a model that may read a picture."""

    off_keys = frozenset({"image"})

    image: Annotated[
        PictureName | None, Heading("Input"), Everyday("an image, for a model that takes images")
    ] = Field(None, description=PICTURE_HELP)

    def extras(self) -> Iterator[Extra]:
        yield from super().extras()
        if self.image is not None:
            yield Extra("image", "images", ("PIL",))
