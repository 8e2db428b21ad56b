"""What is asked about words that are spoken: when each one is, and which heads say so.

The doors of `measure`, as in `library`.
"""

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
    """One of WAYS, or the names of heads. Raises ValueError for anything else."""
    if isinstance(value, str) and value in WAYS:
        return value
    names = head_names_without_stack(value)
    if not names:
        raise ValueError(f"must be {', '.join(WAYS)}, or heads as 2:0 (got none)")
    return names


Aligners = Annotated[str | Sequence[str] | Sequence[tuple[int, int]], by(_way_or_heads)]
"""Which heads time words."""


@checked
def spoken_words(
    model: Model,
    sound: FilePath | Reading,
    text: str = "",
    *,
    heads: Aligners = "model",
    progress: Callable[[float], None] | None = None,
) -> SpokenWords:
    """Each word of a sound with its begin and end in seconds, by heads of cross-attention.

    `sound` is a file, or what `read_sound` made of one with its words. `text` is what is spoken; without it
    the model writes that. `heads` are those of the model's generation_config.json (model), else those that
    `aligning_heads` found (found), the most concentrated (filter; Yeh et al. 2025), or some. Times come as in
    openai-whisper's find_alignment, by dynamic time warping over the mean of the heads. A file that is longer
    than the model hears at once is read by the windows in which the model itself writes it. UserError for a
    model that does not hear or write, and where it has no such heads.
    """
    from attncli.features.words.spoken_words import spoken_words as words_of
    from attncli.features.words.spoken_words import words_of_windows

    chosen: str | list[tuple[int, int]] = str(heads)
    if heads not in WAYS:
        named = (named_head(name) for name in head_names_without_stack(heads))
        chosen = [(place.layer, place.head) for place in named]
    with in_use(model) as pretrained:
        if not isinstance(sound, Reading) and pretrained.has_decoder:
            long = longer_than_heard(pretrained, fspath(sound))
            if long is not None and text:
                one = "given words are looked for in one window: cut it, or leave them out"
                raise UserError(f"sound: {long.file}: is {long.seconds:,.2f} s long: {one}")
            if long is not None:
                windows = spoken_windows(pretrained, long.file, progress)
                return words_of_windows(pretrained, windows, long.seconds, chosen, notes=long.notes)
        spoken = text if text or pretrained.has_decoder else None  # who has no decoder is told so
        if isinstance(sound, Reading):
            if not isinstance(sound.origin, HeardSound):
                raise UserError("sound: must be what read_sound made, or a file")
            return words_of(pretrained, sound, chosen)
        reading, encoded = encoded_reading(pretrained, fspath(sound), spoken)
        return words_of(pretrained, reading, chosen, encoded)


@checked
def aligning_heads(model: Model, *, progress: Callable[[float], None] | None = None) -> AligningHeads:
    """Every head of cross-attention by how well it alone times words, on speech whose times are known.

    Fifteen sentences by espeak-ng, which ship, with silence between their words. The best heads are kept in
    the user's cache, under the digest of the model's weights. UserError for a model that does not hear or
    write.
    """
    from attncli.features.words.spoken_words import found_heads, shipped_speech

    with in_use(model) as pretrained:
        return found_heads(pretrained, shipped_speech(), progress)
