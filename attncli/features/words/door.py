"""Library functions for spoken words: their times, and the heads that time the words."""

from collections.abc import Callable, Sequence
from os import fspath
from typing import Annotated

from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.features.sound.reading import HeardSound, encoded_reading
from attncli.features.sound.windows import longer_than_heard, spoken_windows
from attncli.features.words.results import AligningHeads, SpokenWords
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model
from attncli.models.pretrained import Reading
from attncli.records.arguments import FilePath, by, checked, head_names_without_stack

WAYS = ("model", "found", "filter")


def _way_or_heads(value: object) -> object:
    """Accept one of WAYS or the names of heads. Raises ValueError for anything else."""
    if isinstance(value, str) and value in WAYS:
        return value
    names = head_names_without_stack(value)
    if not names:
        raise ValueError(f"must be {', '.join(WAYS)}, or heads such as 2:0 (got none)")
    return names


Aligners = Annotated[str | Sequence[str] | Sequence[tuple[int, int]], by(_way_or_heads)]
"""Heads that time words: a way to choose them, or their names."""


@checked
def spoken_words(
    model: Model,
    sound: FilePath | Reading,
    text: str = "",
    *,
    heads: Aligners = "model",
    progress: Callable[[float], None] | None = None,
) -> SpokenWords:
    """Time the words of a sound, with beginnings and ends in seconds, from cross-attention heads.

    `sound` is a file or a result of `read_sound` with words. `text` is the spoken text, which by default is
    the model's transcript. `heads` selects the heads in the model's generation_config.json or, if it names
    none, those found by `aligning_heads` (model); those found by `aligning_heads` (found); the most
    concentrated heads (filter; Yeh et al. 2025); or explicit heads. Times follow openai-whisper's
    find_alignment: dynamic time warping over the mean of the heads. A file that is too long for the model is
    read in the windows in which the model transcribes it. Raises UserError for a model that does not read
    sound, does not write, or has no such heads.
    """
    from attncli.features.words.spoken_words import spoken_words as measure_words
    from attncli.features.words.spoken_words import window_words

    chosen: str | list[tuple[int, int]] = str(heads)
    if heads not in WAYS:
        heads_by_name = (named_head(name) for name in head_names_without_stack(heads))
        chosen = [(place.layer, place.head) for place in heads_by_name]
    with in_use(model) as pretrained:
        if not isinstance(sound, Reading) and pretrained.has_decoder:
            long = longer_than_heard(pretrained, fspath(sound))
            if long is not None and text:
                problem = "a text must fit in one window: cut the sound, or omit the text"
                raise UserError(f"sound: {long.file} is {long.seconds:,.2f} s long: {problem}")
            if long is not None:
                windows = spoken_windows(pretrained, long.file, progress)
                return window_words(pretrained, windows, long.seconds, chosen, notes=long.notes)
        spoken = (
            text if text or pretrained.has_decoder else None
        )  # a model without a decoder is refused later
        if isinstance(sound, Reading):
            if not isinstance(sound.origin, HeardSound):
                raise UserError("sound: must be a file or a result of read_sound")
            return measure_words(pretrained, sound, chosen)
        reading, encoded = encoded_reading(pretrained, fspath(sound), spoken)
        return measure_words(pretrained, reading, chosen, encoded)


@checked
def aligning_heads(model: Model, *, progress: Callable[[float], None] | None = None) -> AligningHeads:
    """Rank the cross-attention heads by how well each of them times words in speech with known times.

    The speech is fifteen sentences by espeak-ng, shipped with the package, with silence between the words.
    The best heads are saved in the user's cache, under the digest of the model's weights. Raises UserError
    for a model that does not read sound or does not write.
    """
    from attncli.features.words.spoken_words import rank_heads, shipped_speech

    with in_use(model) as pretrained:
        return rank_heads(pretrained, shipped_speech(), progress)
