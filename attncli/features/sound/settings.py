"""The setting `sound` of every command that reads sound."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from attncli.settings.fields import Everyday, Extra, Heading
from attncli.settings.readings import FileSpec, check_file_or_many

SoundName = Annotated[str, AfterValidator(partial(check_file_or_many, what="sound", takers="heads"))]
"""The name of a sound, or of a folder of sounds."""
SOUND_HELP = (
    "a sound for the model to read: WAV, FLAC or OGG; heads also takes a folder of sounds, or a list (.txt)"
)


class SoundSpec(FileSpec):
    """Settings of a model that may read a sound."""

    off_keys = frozenset({"sound"})

    sound: Annotated[
        SoundName | None, Heading("Input"), Everyday("an audio file, for a model that takes audio")
    ] = Field(None, description=SOUND_HELP)

    def extras(self) -> Iterator[Extra]:
        yield from super().extras()
        if self.sound is not None:
            yield Extra("sound", "sound", ("soundfile", "scipy"))

    def wants_head(self) -> bool:
        return super().wants_head() or self.sound is not None  # the model writes the words
