"""`attn heads --pairs FILE` and `--relations FILE`: heads that look from one known position to another."""

from collections.abc import Callable, Iterator

from attncli.commands.surveys import ablated_notes, survey_title
from attncli.features.pairs.door import pairs, relations
from attncli.features.pairs.results import HeadsOnPairs
from attncli.features.pairs.settings import PairsSpec, RelationsSpec
from attncli.models.pretrained import Pretrained
from attncli.records.report import Report
from attncli.runs.report_parts import build_report
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts
from attncli.system.plain_text import counted

CHOSEN_NOTE = (
    "chosen on: the texts used to choose the head; held out: the other texts, which test the head, with 95 % "
    "intervals over {units}. best offset: a head that always looks at that distance. chance: random pairs."
)
MEASURES_NOTE = (
    "hit: the share of positions whose largest weight is on a partner. precision: the share of pairs "
    "among the L (L/2, L/5) largest weights of a text with L positions. mass: the mean weight on "
    "partners."
)
DIRECTIONS_NOTE = (
    "forward: the first position of a pair looks at the second; backward: the second looks at the first."
)
ONE_NOTE = "With only one {unit}, there is no held-out test: expect lower scores on new texts."
ONE_HELD_OUT_NOTE = "Only one {unit} is held out, so there is no interval."
NO_MORE = "Head {head} is no better than always looking at a fixed offset, {offset} ({share:.2f})"


def report_pairs(spec: PairsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """Build the report with the best head of each measure, and every head's numbers."""
    result = pairs(
        pretrained,
        str(spec.pairs),
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
    about = survey_title(pretrained.name, len(result.heads), read)
    tokens = Texts(result.tokens, result.context_tokens, token_spelling=_spelling(result, pretrained))
    notes = [*_facts(spec, result), *result.notes, *ablated_notes(spec.ablate), *_words(result)]
    return build_report(spec, tokens, result.matrices(), result, notes, about=about)


def _spelling(result: HeadsOnPairs, pretrained: Pretrained) -> str | None:
    """The spelling of the example's tokens, or None for words, which are written as they are."""
    return None if result.unit == "word" else pretrained.token_spelling


def _facts(spec: PairsSpec, result: HeadsOnPairs) -> Iterator[str]:
    """Caveats about the numbers in this report."""
    best, unit = result.best_head, _unit(result)
    number = best.choosing if best.held_out is None else best.held_out
    if best.offset is not None and best.offset_share is not None and (number or 0.0) <= best.offset_share:
        further = (
            "" if spec.apart > abs(best.offset) else f": --apart {abs(best.offset) + 1} excludes nearer pairs"
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
        yield f"{counted(row.pairs, 'pair')} {are} left out: {row.why}; the first is in text {row.first}."


def _unit(result: HeadsOnPairs) -> str:
    return "group" if result.num_groups < result.num_texts else "text"


def _words(result: HeadsOnPairs) -> Iterator[str]:
    """Explanations of the headings."""
    yield CHOSEN_NOTE.format(units=f"{_unit(result)}s")
    yield MEASURES_NOTE
    if not result.is_symmetric and not result.context_tokens:
        yield DIRECTIONS_NOTE


HOW_NOTE = (
    "to head: the dependent gives the most weight to its head; from head: no other word gives the dependent "
    "as much weight as its head. Special tokens and the dependent itself do not count (Clark et al. "
    "2019)."
)
BEST_NOTE = (
    "The 95 % intervals are Wilson intervals. gain: the head's share minus the offset's, if their "
    "intervals do not overlap. The best of {heads} heads was chosen on these words: expect a lower share "
    "on new words."
)


def report_relations(
    spec: RelationsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """Build the report with the best head of each relation, and every head's share of its words."""
    result = relations(
        pretrained, str(spec.relations), truncate=spec.truncate, ablate=spec.ablate, progress=progress
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
    about = survey_title(pretrained.name, num_heads, counts)
    return build_report(spec, Texts(), {}, result, notes, about=about)


def _unaligned(count: int) -> list[str]:
    relations = "1 relation is" if count == 1 else f"{count:,} relations are"
    why = "left out: within one written word, between words without separate tokens, or cut off."
    return [f"{relations} {why}"] if count else []


PAIRS_PAGE = ModelPage(report_many=report_pairs)
RELATIONS_PAGE = ModelPage(report_many=report_relations)
