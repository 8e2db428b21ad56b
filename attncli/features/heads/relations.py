"""`attn heads --relations FILE`: how often each head looks along syntactic relations."""

from collections.abc import Callable

from attncli.commands.surveys import ablated_notes, about_heads
from attncli.known_pairs import relations
from attncli.models.pretrained import Pretrained
from attncli.plain_text import counted
from attncli.report import Report
from attncli.report_parts import build_report
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts

HOW_NOTE = (
    "to head: the word that a dependent looks at most is its head; from head: the word that looks at it most "
    "is its head. Special tokens and the word itself do not count (Clark et al. 2019)."
)
BEST_NOTE = (
    "95 % intervals are Wilson's; more: the head beyond the offset, where the two intervals do not overlap. "
    "The best of {heads} heads was picked on these very words: expect a smaller share on others."
)


def report_relations(
    spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """The best head of each relation, and every head's share of every relation's words."""
    assert spec.relations is not None
    result = relations(
        pretrained, spec.relations, truncate=spec.truncate, ablate=spec.ablate, progress=progress
    )
    num_heads = len(result.heads)
    notes = [
        HOW_NOTE,
        BEST_NOTE.format(heads=f"{num_heads:,}"),
        *_unaligned(result.num_unaligned),
        *result.notes,
        *ablated_notes(spec.ablate),
    ]
    counts = f"{counted(result.num_relations, 'relation')} in {counted(result.num_sentences, 'sentence')}"
    about = about_heads(pretrained.name, num_heads, counts)
    return build_report(spec, Texts(), {}, result, notes, about=about)


def _unaligned(count: int) -> list[str]:
    relations = "1 relation is" if count == 1 else f"{count:,} relations are"
    why = "left out: inside one written word, of words without tokens of their own, or cut off."
    return [f"{relations} {why}"] if count else []
