"""A recording that is longer than a model hears at once, in the windows by which the model itself writes it.

As transformers' long-form generation and openai-whisper's transcribe: the model writes a window with the
times of its sentences, and the next one begins where the last whole sentence ends. The file is read from its
begin to its end, a window at a time.
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
    features_of,
    most_seconds_of,
    too_long,
)
from attncli.features.sound.reading import (
    generated,
    heard_text,
    knows_languages,
    language_of,
    no_times_token,
    num_before_words,
    part_that_hears,
    prefix_of,
    times_of,
)
from attncli.models.pretrained import ModelText, Pretrained, Reading

FLOOR = 2.0
"""How far below the loudest point of a recording its faintest is: eight powers of ten, by four."""
TO_LISTEN = 0.05
"""Of the work: to find the loudest point, before the first window is written."""
CONTEXT = 2
"""Frames on both sides that see samples of a frame: half a Fourier window is 1.25 of them."""


@dataclass(frozen=True)
class SpokenWindow:
    """A part of a recording from second `begin` on, and the words that the model writes of it."""

    begin: float
    reading: Reading
    encoded: Float[Tensor, "1 place dim"] | None = None
    """What the encoder made of it as the model wrote, where that is known."""


class _Frames:
    """The features of a recording, from its begin to its end: what lies before is forgotten."""

    def __init__(self, extractor: Any, stream: SoundStream, name: str) -> None:
        self.extractor, self.name, self.hop = extractor, name, int(extractor.hop_length)
        self.count = stream.num_samples // self.hop
        self.num_samples = stream.num_samples
        self._pieces = stream.pieces()
        self._kept, self._first = torch.zeros(0), 0

    def samples(self, first: int, last: int) -> Float[Tensor, " sample"]:
        """The samples from one to before another; `first` never goes back."""
        self._kept, self._first = self._kept[first - self._first :], first
        while self._first + len(self._kept) < last:
            self._kept = torch.cat([self._kept, torch.from_numpy(next(self._pieces))])
        return self._kept[first - self._first : last - self._first]

    def features(self, first: int, last: int) -> Float[Tensor, "1 band frame"]:
        """The frames from one to before another, each as in the features of the whole recording."""
        begin, end = max(0, first - CONTEXT), min((last + CONTEXT) * self.hop, self.num_samples)
        samples = self.samples(begin * self.hop, end).numpy()
        how = {"truncation": False, "padding": "longest"}
        (features,) = features_of(self.extractor, samples, self.name, **how).values()
        return features[..., first - begin : last - begin]


def longer_than_heard(pretrained: Pretrained, file: str) -> SoundStream | None:
    """What is known of a sound that a model reads by windows, closed; None for one that it hears at once.

    Raises UserError for a longer sound and a model that does not write the times by which windows go.
    """
    extractor = feature_extractor(pretrained)
    most, name = most_seconds_of(extractor), pretrained.name
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
    """The windows of a recording in which the model hears words, and its words in each.

    The features of a window are those of the whole recording, whose loudest point decides what is silence; it
    is read twice. The language is that of the first window. Raises UserError as `read_sound`.
    """
    extractor, part = feature_extractor(pretrained), part_that_hears(pretrained)
    times, rate = times_of(part, extractor), int(extractor.sampling_rate)
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
                language = language_of(pretrained, inputs)
            words, step, encoded = _written(pretrained, inputs, language, length)
            if words:
                samples = frames.samples(place * frames.hop, (place + length) * frames.hop).numpy()
                sound = heard_text(part, times, inputs, OpenedSound(samples, rate, stream.name), file)
                ids = [*prefix_of(pretrained, language), *words]
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
    """The words of the whole sentences that a model writes of a window, where the next one begins, and what
    the encoder made of it.

    In frames from the begin of this window, of which `length` are of the recording.
    """
    # Else generate itself goes on in the window, from the end of the last whole sentence.
    how = {"return_timestamps": True, "force_unique_generate_call": True}
    no_times, special = no_times_token(pretrained), pretrained.special_ids
    assert no_times is not None, "models without times have no windows"
    num_before = num_before_words(pretrained)
    ids, encoded = generated(pretrained, inputs, language, **how)
    ids = ids[num_before - 1 :]  # without the token for no times
    settings: Any = pretrained.whole.generation_config
    while ids and ids[-1] in (settings.eos_token_id, settings.pad_token_id):
        ids.pop()
    are_times = [each > no_times for each in ids]
    pairs = [place for place, both in enumerate(pairwise(are_times)) if all(both)]
    step = length
    if pairs and are_times[-2:] != [False, True]:  # what stands after the last pair has no end here
        most = pretrained.model.config.max_source_positions
        stride = inputs[pretrained.model.main_input_name].shape[-1] // most
        step = (ids[pairs[-1]] - no_times - 1) * stride or length
        ids = ids[: pairs[-1] + 1]
    words = [each for each in ids if each < no_times and each not in special]
    return words[: pretrained.model.config.max_target_positions - num_before - 1], step, encoded
