"""The pictures of a report: those that a model saw, and the spectrogram of a sound that it heard."""

from typing import Literal

from attncli.models.pretrained import Reading
from attncli.models.sound_files import sound_to_play, spectrogram
from attncli.records.report import Picture


def pictures_of(reading: Reading) -> tuple[Picture, ...]:
    """The pictures of a reading, as a report has them."""
    axis: Literal["tokens", "context_tokens"] = "context_tokens" if reading.text.seen is None else "tokens"
    seen = () if reading.seen is None else reading.seen.pictures
    pictures = [Picture(each.name, each.size, each.crop, each.png, each.boxes, axis) for each in seen]
    if reading.heard is not None:
        pictures.append(picture_of_sound(reading))
    return tuple(pictures)


def picture_of_sound(reading: Reading) -> Picture:
    """The spectrogram of a sound, on which each token of it is a strip."""
    heard = reading.heard
    assert heard is not None
    png, size = spectrogram([heard.samples], heard.rate, len(heard.samples))
    begins, ends = heard.begins / heard.seconds, (heard.begins + heard.step) / heard.seconds
    strips = zip(begins.tolist(), ends.tolist(), strict=True)
    boxes = tuple((begin, 0.0, min(1.0, end), 1.0) if begin < 1.0 else None for begin, end in strips)
    axis: Literal["tokens", "context_tokens"] = "tokens" if reading.context is None else "context_tokens"
    crop = 0.0, 0.0, float(size[0]), float(size[1])
    seconds, sound = heard.seconds, sound_to_play(heard.file)
    return Picture(heard.name, size, crop, png, boxes, axis, seconds=seconds, sound=sound)
