"""The reports of `heads --sound --words` and `heads --find-heads`: word times, and the heads that
give them.
"""

from collections.abc import Callable

from attncli.features.sound.files import SoundStream, sound_to_play, spectrogram
from attncli.features.words.door import aligning_heads, spoken_words
from attncli.features.words.settings import AlignmentSpec, SpokenWordsSpec
from attncli.models.pretrained import Pretrained
from attncli.records.report import Picture, Report
from attncli.runs.report_parts import build_report
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts, read_texts
from attncli.system.plain_text import counted

PICTURE_RATE = 16_000
"""The sampling rate of a spectrogram, independent of the model."""
HOW_TO_READ = (
    "The error of a head is the median distance between the word onsets that it finds and the known onsets. "
    "Concentration is defined in Yeh et al. 2025 (2509.09987)."
)


def report_words(
    spec: SpokenWordsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """Build the report on the words of one sound, with their beginnings and ends."""
    file = str(spec.sound)
    result = spoken_words(pretrained, file, read_texts(spec).text or "", heads=spec.by, progress=progress)
    about = f"{pretrained.name}: {counted(len(result.words), 'word')} in {result.seconds:.2f} s."
    with SoundStream(file, PICTURE_RATE) as stream:
        png, size = spectrogram(stream.pieces(), stream.rate, stream.num_samples)
        picture = Picture(
            *(stream.name, size, (0.0, 0.0, float(size[0]), float(size[1])), png, (), "tokens"),
            seconds=stream.seconds,
            sound=sound_to_play(file),
        )
    return build_report(spec, Texts(), {}, result, [*result.notes], about=about, pictures=(picture,))


def report_aligning(
    spec: AlignmentSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """Build the report on the cross-attention heads that time words, best first."""
    result = aligning_heads(pretrained, progress=progress)
    about = (
        f"{pretrained.name}: {counted(len(result.heads), 'cross-attention head')}, "
        f"{result.num_words} words of synthetic speech."
    )
    return build_report(spec, Texts(), {}, result, [*result.notes], about=about, how_to_read=HOW_TO_READ)


WORDS_PAGE = ModelPage(report_many=report_words)
ALIGNMENT_PAGE = ModelPage(report_many=report_aligning)
