"""`attn heads --pairs FILE`: which heads look from one position of known pairs to the other."""

from collections.abc import Callable, Iterator

from attncli.commands.surveys import ablated_notes, about_heads
from attncli.library import pairs
from attncli.models.pretrained import Pretrained
from attncli.plain_text import counted
from attncli.records.known_pairs import HeadsOnPairs
from attncli.report import Report
from attncli.report_parts import build_report
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts

MEASURES_NOTE = (
    "hit: the largest weight of a position is on its partner; precision: pairs among the L (L/2, L/5) "
    "largest weights of a text of L positions; mass: weight on partners."
)
DIRECTIONS_NOTE = "forward: the first of a pair looks at the second; backward: the second at the first."
HELD_OUT_NOTE = (
    "Chosen on some texts, tested on the others (held out), with 95 % intervals over {units}; offset: the "
    "best fixed distance, chosen likewise; chance: pairs drawn at random."
)
ONE_TEXT_NOTE = "There is one {unit}, none to hold out: expect a smaller number on others."


def report_pairs(spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """The best head of each measure, and every head's numbers."""
    assert spec.pairs is not None
    result = pairs(
        pretrained,
        spec.pairs,
        apart=spec.apart,
        symmetric=spec.symmetric,
        apc=spec.apc,
        method=spec.method,
        folds=spec.folds,
        seed=spec.seed,
        truncate=spec.truncate,
        ablate=spec.ablate,
        progress=progress,
    )
    read = f"{counted(result.num_pairs, 'pair')} in {counted(result.num_texts, 'text')}"
    about = about_heads(pretrained.name, len(result.heads), read)
    tokens = Texts(result.tokens, result.context_tokens, token_spelling=_spelling(result, pretrained))
    notes = [*_notes(spec, result), *result.notes, *ablated_notes(spec.ablate)]
    return build_report(spec, tokens, result.matrices(), result, notes, about=about)


def _spelling(result: HeadsOnPairs, pretrained: Pretrained) -> str | None:
    """How the tokens of the example are spelled; words are written as they are."""
    return None if result.unit == "word" else pretrained.token_spelling


def _notes(spec: HeadsSpec, result: HeadsOnPairs) -> Iterator[str]:
    yield MEASURES_NOTE
    has_directions = not spec.symmetric and not result.context_tokens
    yield from [DIRECTIONS_NOTE] * has_directions
    unit = "group" if result.num_groups < result.num_texts else "text"
    if result.num_groups < 2:
        yield ONE_TEXT_NOTE.format(unit=unit)
    else:
        yield HELD_OUT_NOTE.format(units=f"{unit}s")
    for row in result.left_out:
        are = "is" if row.pairs == 1 else "are"
        yield f"{counted(row.pairs, 'pair')} {are} left out, {row.why}: {row.first}."
