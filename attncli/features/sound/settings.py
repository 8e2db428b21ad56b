"""The setting `sound` of every question that hears one."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from attncli.settings.fields import Everyday, Extra, Heading
from attncli.settings.readings import FileSpec, check_file_or_many

SoundName = Annotated[str, AfterValidator(partial(check_file_or_many, what="sound", takers="heads"))]
"""The name of a sound, or of a folder of sounds."""
SOUND_HELP = (
    "a sound that the model hears: WAV, FLAC or OGG; for heads also a folder of them, or a list (.txt)"
)


class SoundSpec(FileSpec):
    """A model that may hear a sound."""

    off_keys = frozenset({"sound"})

    sound: Annotated[SoundName | None, Heading("Input"), Everyday("a sound, for a model that hears")] = Field(
        None, description=SOUND_HELP
    )

    def extras(self) -> Iterator[Extra]:
        yield from super().extras()
        if self.sound is not None:
            yield Extra("sound", "sound", ("soundfile", "scipy"))

    def wants_head(self) -> bool:
        return super().wants_head() or self.sound is not None  # it writes what is said
