"""Recordings too long for a model to read at once, in the windows in which the model transcribes them.

As in the long-form generation of transformers and the transcribe function of openai-whisper, the model writes
a window with timestamps, and the next window starts where the last complete sentence ended. The file is read
once per pass, one window at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from attncli.errors import UserError
from attncli.features.sound.files import (
    OpenedSound,
    SoundStream,
    feature_extractor,
    max_seconds,
    sound_features,
    too_long,
)
from attncli.features.sound.reading import (
    decoder_prefix,
    detected_language,
    generated,
    heard_text,
    knows_languages,
    no_times_token,
    num_before_words,
    part_that_hears,
    token_times,
)
from attncli.models.pretrained import ModelText, Pretrained, Reading

FLOOR = 2.0
"""The range of log-mel features below the loudest point: eight powers of ten, divided by four."""
TO_LISTEN = 0.05
"""The share of the work that is spent on finding the loudest point, before the first window."""
CONTEXT = 2
"""The number of neighbours on either side that share samples with a frame.

Half a Fourier window is 1.25 frames.
"""


@dataclass(frozen=True)
class SpokenWindow:
    """A window of a recording that begins at second `begin`, with the model's transcript of the window."""

    begin: float
    reading: Reading
    encoded: Float[Tensor, "1 place dim"] | None = None
    """The encoder's output when the model wrote the window, if known."""


class _Frames:
    """The features of a recording, read from beginning to end. Unneeded samples are dropped."""

    def __init__(self, extractor: Any, stream: SoundStream, name: str) -> None:
        self.extractor, self.name, self.hop = extractor, name, int(extractor.hop_length)
        self.count = stream.num_samples // self.hop
        self.num_samples = stream.num_samples
        self._pieces = stream.pieces()
        self._buffer, self._first = torch.zeros(0), 0

    def samples(self, first: int, last: int) -> Float[Tensor, " sample"]:
        """Return the samples from `first` up to `last`. `first` must not decrease."""
        self._buffer, self._first = self._buffer[first - self._first :], first
        while self._first + len(self._buffer) < last:
            self._buffer = torch.cat([self._buffer, torch.from_numpy(next(self._pieces))])
        return self._buffer[first - self._first : last - self._first]

    def features(self, first: int, last: int) -> Float[Tensor, "1 band frame"]:
        """Return the frames from `first` up to `last`, which are equal to those of the whole recording."""
        begin, end = max(0, first - CONTEXT), min((last + CONTEXT) * self.hop, self.num_samples)
        samples = self.samples(begin * self.hop, end).numpy()
        how = {"truncation": False, "padding": "longest"}
        (features,) = sound_features(self.extractor, samples, self.name, **how).values()
        return features[..., first - begin : last - begin]


def longer_than_heard(pretrained: Pretrained, file: str) -> SoundStream | None:
    """Return the closed stream of a sound that must be read in windows, or None for a shorter sound.

    Raises UserError for a sound that is too long if the model does not write the timestamps that windows
    need.
    """
    extractor = feature_extractor(pretrained)
    most, name = max_seconds(extractor), pretrained.name
    with SoundStream(file, int(extractor.sampling_rate)) as stream:
        pass
    if most is None or stream.seconds <= most:
        return None
    if no_times_token(pretrained) is None or not hasattr(extractor, "nb_max_frames"):
        raise UserError(f"sound: {file}: {too_long(file, stream.seconds, most, name)}")
    return stream


def spoken_windows(
    pretrained: Pretrained, file: str, progress: Callable[[float], None] | None = None
) -> Iterator[SpokenWindow]:
    """Yield the windows of a recording in which the model hears words, with the words.

    The features of a window are those of the whole recording, whose loudest point determines what counts as
    silence, so the file is read twice. The first window determines the language. Raises UserError in the same
    cases as `read_sound`.
    """
    extractor, part = feature_extractor(pretrained), part_that_hears(pretrained)
    times, rate = token_times(part, extractor), int(extractor.sampling_rate)
    size = int(extractor.nb_max_frames)
    with SoundStream(file, rate) as stream:
        frames = _Frames(extractor, stream, part.name)
        loudest = -inf
        for at in range(0, frames.count, size):
            loudest = max(loudest, float(frames.features(at, min(at + size, frames.count)).max()))
            if progress is not None:
                progress(TO_LISTEN * at / frames.count)
    language: int | None = None
    with SoundStream(file, rate) as stream:
        frames, place = _Frames(extractor, stream, part.name), 0
        while place < frames.count:
            length = min(size, frames.count - place)
            features = frames.features(place, place + length).clamp(min=loudest - FLOOR)
            features = pad(features, (0, size - length)).to(part.device, part.model.dtype)
            inputs = {part.model.main_input_name: features}
            if language is None and knows_languages(pretrained):
                language = detected_language(pretrained, inputs)
            words, step, encoded = _written(pretrained, inputs, language, length)
            if words:
                samples = frames.samples(place * frames.hop, (place + length) * frames.hop).numpy()
                sound = heard_text(part, times, inputs, OpenedSound(samples, rate, stream.name), file)
                ids = [*decoder_prefix(pretrained, language), *words]
                text = ModelText(pretrained.labels(ids), torch.tensor(ids))
                decoder = {"decoder_input_ids": text.ids.unsqueeze(0).to(pretrained.device)}
                reading = Reading(text, sound, inputs={**inputs, **decoder})
                yield SpokenWindow(place * frames.hop / rate, reading, encoded)
            place += step
            if progress is not None:
                progress(min(1.0, TO_LISTEN + (1 - TO_LISTEN) * place / frames.count))


def _written(
    pretrained: Pretrained, inputs: dict[str, Tensor], language: int | None, length: int
) -> tuple[list[int], int, Tensor | None]:
    """Return the words of a window's complete sentences, the next window's start, and the encoder's output.

    The start is counted in frames from this window, `length` of whose frames belong to the recording.
    """
    # Otherwise, generate itself would continue in the window after the last complete sentence.
    how = {"return_timestamps": True, "force_unique_generate_call": True}
    no_times, special = no_times_token(pretrained), pretrained.special_ids
    assert no_times is not None, "models without timestamps have no windows"
    num_before = num_before_words(pretrained)
    ids, encoded = generated(pretrained, inputs, language, **how)
    ids = ids[num_before - 1 :]  # without the no-timestamps token
    settings: Any = pretrained.whole.generation_config
    while ids and ids[-1] in (settings.eos_token_id, settings.pad_token_id):
        ids.pop()
    are_times = [each > no_times for each in ids]
    pairs = [place for place, both in enumerate(pairwise(are_times)) if all(both)]
    step = length
    if pairs and are_times[-2:] != [False, True]:  # the sentence after the last pair is incomplete
        most = pretrained.model.config.max_source_positions
        stride = inputs[pretrained.model.main_input_name].shape[-1] // most
        step = (ids[pairs[-1]] - no_times - 1) * stride or length
        ids = ids[: pairs[-1] + 1]
    words = [each for each in ids if each < no_times and each not in special]
    return words[: pretrained.model.config.max_target_positions - num_before - 1], step, encoded
