"""`attn heads --pairs FILE`: which heads look from one position of known pairs to the other."""

from collections.abc import Callable, Iterator

from attncli.commands.surveys import ablated_notes, about_heads
from attncli.known_pairs import pairs
from attncli.models.pretrained import Pretrained
from attncli.plain_text import counted
from attncli.records.known_pairs import HeadsOnPairs
from attncli.report import Report
from attncli.report_parts import build_report
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts

CHOSEN_NOTE = (
    "chosen on: the texts that picked this head; held out: the others, which tested it, with 95 % intervals "
    "over {units}. best offset: always looking so far. chance: random pairs."
)
MEASURES_NOTE = (
    "hit: the largest weight is on a partner. precision: pairs among the L (L/2, L/5) largest weights of a "
    "text of L. mass: weight on partners."
)
DIRECTIONS_NOTE = "forward: the first of a pair looks at the second; backward: the second at the first."
ONE_NOTE = "There is one {unit}, none to hold out: expect a smaller number on others."
ONE_HELD_OUT_NOTE = "One {unit} is held out, which has no interval."
NO_MORE = "{head} is no better than always looking at the same offset, {offset} ({share:.2f})"


def report_pairs(spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """The best head of each measure, and every head's numbers."""
    assert spec.pairs is not None
    result = pairs(
        pretrained,
        spec.pairs,
        apart=spec.apart,
        symmetric=spec.symmetric if "symmetric" in spec.model_fields_set else None,
        apc=spec.apc if "apc" in spec.model_fields_set else None,
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
    notes = [*_facts(spec, result), *result.notes, *ablated_notes(spec.ablate), *_words(result)]
    return build_report(spec, tokens, result.matrices(), result, notes, about=about)


def _spelling(result: HeadsOnPairs, pretrained: Pretrained) -> str | None:
    """How the tokens of the example are spelled; words are written as they are."""
    return None if result.unit == "word" else pretrained.token_spelling


def _facts(spec: HeadsSpec, result: HeadsOnPairs) -> Iterator[str]:
    """What a reader must know of these numbers."""
    best, unit = result.best_head, _unit(result)
    number = best.choosing if best.held_out is None else best.held_out
    if best.offset is not None and best.offset_share is not None and (number or 0.0) <= best.offset_share:
        further = (
            ""
            if spec.apart > abs(best.offset)
            else f": --apart {abs(best.offset) + 1} leaves nearer pairs out"
        )
        offset = f"{abs(best.offset)}" if result.is_symmetric else f"{best.offset:+d}"
        head = f"{best.layer}:{best.head}"
        yield NO_MORE.format(head=head, offset=offset, share=best.offset_share) + further + "."
    if result.num_groups < 2:
        yield ONE_NOTE.format(unit=unit)
    elif best.lower is None:
        yield ONE_HELD_OUT_NOTE.format(unit=unit)
    for row in result.left_out:
        are = "is" if row.pairs == 1 else "are"
        yield f"{counted(row.pairs, 'pair')} {are} left out, {row.why}; first: text {row.first}."


def _unit(result: HeadsOnPairs) -> str:
    return "group" if result.num_groups < result.num_texts else "text"


def _words(result: HeadsOnPairs) -> Iterator[str]:
    """What the headings mean."""
    yield CHOSEN_NOTE.format(units=f"{_unit(result)}s")
    yield MEASURES_NOTE
    if not result.is_symmetric and not result.context_tokens:
        yield DIRECTIONS_NOTE
