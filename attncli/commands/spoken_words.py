"""The reports of `heads --sound --words` and `heads --find-heads`: words in time, and who says so."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from attncli.plain_text import counted
from attncli.report import Report
from attncli.report_parts import build_report
from attncli.settings.text import Texts
from attncli.sound import aligning_heads, spoken_words

if TYPE_CHECKING:
    from attncli.models.pretrained import Pretrained, Reading
    from attncli.settings.heads import HeadsSpec

HOW_TO_READ = (
    "error: the median distance of the begins of words from where they are, by each head alone. "
    "concentration: Yeh et al. 2025 (2509.09987)."
)


def report_words(spec: "HeadsSpec", reading: "Reading", pretrained: "Pretrained") -> Report:
    """The words of one sound, each with its begin and end."""
    result = spoken_words(pretrained, reading, heads=spec.by)
    about = f"{pretrained.name}: {counted(len(result.words), 'word')} in {result.seconds:.2f} s."
    return build_report(spec, Texts(), {}, result, [*result.notes, *reading.left_out_notes()], about=about)


def report_aligning(
    spec: "HeadsSpec", pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """Every head of cross-attention by how well it times words, the best first."""
    result = aligning_heads(pretrained, progress=progress)
    about = (
        f"{pretrained.name}: {counted(len(result.heads), 'head')} of cross-attention, "
        f"{result.num_words} words of synthetic speech."
    )
    return build_report(spec, Texts(), {}, result, [*result.notes], about=about, how_to_read=HOW_TO_READ)
