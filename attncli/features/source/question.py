"""`attn source`: which sources an answer came from; the heads that tell it."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attncli.errors import UserError
from attncli.features.source.kept_heads import keep_heads, kept_heads, named_or_kept, place_of
from attncli.features.source.reading import read_for_decoder
from attncli.features.source.settings import RetrievingHeadsSpec, SourceSpec
from attncli.records.report import Report
from attncli.records.values import NamedTensor
from attncli.settings.pages import ModelPage, read_no_text
from attncli.settings.text import Texts, text_or_file
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    from attncli.core.progress import Progress
    from attncli.features.source.results import AnswerSources
    from attncli.models.pretrained import Pretrained, Reading
    from attncli.models.source_texts import SourcedReading, SourcedText


def read(spec: SourceSpec, texts: Texts, pretrained: "Pretrained", generator: Any) -> "SourcedReading":
    """What the model reads; UserError for what does not fit, and for sources that hold no text."""
    from attncli.models.encoders import is_encoder

    if is_encoder(pretrained) and not spec.chat:
        message = "is an encoder, which writes no answer: --compare explains what it says of a text"
        raise UserError(f"model: {pretrained.name} {message}")
    return read_for_decoder(spec, texts, pretrained)


def report(
    spec: SourceSpec, reading: "SourcedReading", pretrained: "Pretrained", progress: "Progress | None"
) -> Report:
    """Where the answer to a prompt came from."""
    from attncli.features.source.door import SourcedAnswer
    from attncli.runs.report_parts import build_report

    answer = None if spec.answer is None else text_or_file(spec.answer, "answer")
    # Before heads are looked for, which takes long: a model may write nothing.
    answered = SourcedAnswer.of(
        pretrained,
        reading,
        answer,
        heads=named_or_kept(spec.head, None),
        max_new_tokens=spec.max_new_tokens,
        method=spec.method,
        num_runs=spec.runs,
        seed=spec.seed,
        on_text=None if progress is None else progress.write,
        progress=None if progress is None else progress.stage,
    )
    kept = None if spec.head else _known_heads(spec, reading, pretrained, answer, progress)
    heads = named_or_kept(spec.head, kept)
    result = answered.sources(heads)
    if progress is not None:
        progress(1.0)
    assert result.weights is not None
    return build_report(
        spec,
        Texts(
            pretrained.labels(result.ids),
            tuple(source.name for source in reading.sourced.sources),
            token_spelling=pretrained.token_spelling,
        ),
        {"source_weights": NamedTensor(("token", "source"), result.weights)},
        result,
        [
            *_last_part(spec, reading.sourced),
            *_notes(spec, result, heads, is_kept=kept is not None, name=pretrained.name),
        ],
        about=f"{pretrained.name}: {counted(len(result.sources), 'source')}, "
        f"{counted(len(reading.prompt.ids), 'token')} in the prompt, {len(result.ids)} in the answer.",
        how_to_read=HOW_TO_READ,
        written=result.answer,
    )


def _known_heads(
    spec: SourceSpec,
    reading: "SourcedReading",
    pretrained: "Pretrained",
    answer: str | None,
    progress: "Progress | None",
) -> list[str] | None:
    """The heads that are kept for a model; chosen, and kept, where that reads less than the prompt has.

    None where they are not known, an empty list where none retrieves. In a batch none are looked for: its
    numbers would depend on which prompt came first.
    """
    from attncli.features.source.door import retrieving_heads, search_takes_less

    kept = kept_heads(spec)
    if kept is not None or progress is None or place_of(spec) is None:
        return kept
    if not search_takes_less(pretrained, reading, answer):
        return None
    progress.begin("choosing the heads that retrieve, once for this model")
    try:
        result = retrieving_heads(pretrained, progress=progress)
    except UserError:  # of this model no head does, or it cannot read the contexts
        result = None
    with suppress(UserError):  # a cache that cannot be written
        keep_heads(spec, result)
    return [] if result is None else result.heads


HOW_TO_READ = (
    "Weights are where heads looked, which need not be why; lost: nats that the answer's log-probability "
    "loses where the source's text is taken out, which moves what comes after it."
)


def _notes(
    spec: SourceSpec, result: "AnswerSources", heads: Sequence[str], *, is_kept: bool, name: str
) -> list[str]:
    notes = [*_order_notes(result), *result.notes]
    if spec.model is None:
        notes.append("This model ships with attn: it copies. --model FOLDER takes another.")
    if is_kept and heads:
        notes.append(f"Retrieving heads, chosen on synthetic contexts: {', '.join(heads)}.")
    elif is_kept:
        notes.append(f"No head of {name} retrieves on synthetic contexts: --head names some.")
    elif not heads and spec.model is not None:
        notes.append(f"No retrieving heads of {name} are kept: --find-heads chooses some, --head names them.")
    if spec.method == "sampled":
        notes.append(f"effect: of {spec.runs} random sets of sources, by a Lasso, on the answer's logit.")
    return notes


ORDERS = {
    "lost": "what the answer loses without them",
    "effect": "their effect",
    "retrieving_heads": "the weight of the retrieving heads",
    "all_heads": "the weight of all heads",
}


def _last_part(spec: SourceSpec, sourced: "SourcedText") -> Iterator[str]:
    """A note where what a text ends in is a source among others: it may be what is asked."""
    last = sourced.sources[-1]
    is_end = last.end == len(sourced.text.rstrip()) and last.name.startswith(spec.split)
    if is_end and len(sourced.sources) > 1 and spec.split != "word":
        yield f'The last {spec.split} is a source, too: with "QUESTION" --file FILE the question is none.'


def _order_notes(result: "AnswerSources") -> Iterator[str]:
    """What the sources are in the order of, and the answer is coloured by; nothing of a single source."""
    kinds = list(dict.fromkeys(str(source.ranked_by) for source in result.sources))
    if len(result.sources) == 1:
        return
    first = f"Sources are in the order of {ORDERS[kinds[0]]}"
    rest = "".join(f", then of {ORDERS[kind]}" for kind in kinds[1:])
    yield f"{first}{rest}; the answer is coloured by {'the first' if rest else 'the same'}."


def report_heads(
    spec: RetrievingHeadsSpec, reading: "Reading", pretrained: "Pretrained", progress: "Progress | None"
) -> Report:
    """The heads that retrieve, which are kept for the model."""
    from attncli.features.source.door import retrieving_heads
    from attncli.runs.report_parts import build_report

    result = retrieving_heads(pretrained, seed=spec.seed, progress=progress)
    place = keep_heads(spec, result)
    where = (
        f"Kept in {place}." if place else "They are not kept: this model is no folder with weights in files."
    )
    chosen = f"Chosen, for what this model answers from here on: {', '.join(result.heads)}."
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [chosen, where],
        about=f"{pretrained.name}: which heads find the right sentence in {result.num_contexts} contexts.",
        how_to_read="found: the share of contexts in which the right sentence, of 16, has most of a head's "
        "weight; weight: its mean weight on it.",
    )


PAGE = ModelPage(read=read, report=report)
HEADS_PAGE = ModelPage(read=read_no_text, report=report_heads)
