"""`attn source`: the sources of an answer, and the heads that find them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attncli.errors import UserError
from attncli.features.source.kept_heads import cache_file, cache_heads, cached_heads, explicit_or_cached_heads
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
    """Read the prompt for the model. Raises UserError if the prompt does not fit or a source has no text."""
    from attncli.models.encoders import is_encoder

    if is_encoder(pretrained) and not spec.chat:
        message = (
            "is an encoder, which cannot write an answer: use --compare to explain its output for a text"
        )
        raise UserError(f"model: {pretrained.name} {message}")
    return read_for_decoder(spec, texts, pretrained)


def report(
    spec: SourceSpec, reading: "SourcedReading", pretrained: "Pretrained", progress: "Progress | None"
) -> Report:
    """Build the report on the sources of an answer."""
    from attncli.features.source.door import SourcedAnswer
    from attncli.runs.report_parts import build_report

    answer = None if spec.answer is None else text_or_file(spec.answer, "answer")
    # Done before the search for heads, which takes long, because the model may write nothing.
    answered = SourcedAnswer.given_or_written(
        pretrained,
        reading,
        answer,
        heads=explicit_or_cached_heads(spec.head, None),
        max_new_tokens=spec.max_new_tokens,
        method=spec.method,
        num_runs=spec.runs,
        seed=spec.seed,
        on_text=None if progress is None else progress.write,
        progress=None if progress is None else progress.stage,
    )
    cached = None if spec.head else _cached_or_searched_heads(spec, reading, pretrained, answer, progress)
    heads = explicit_or_cached_heads(spec.head, cached)
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
            *_notes(spec, result, heads, is_cached=cached is not None, name=pretrained.name),
        ],
        about=f"{pretrained.name}: {counted(len(result.sources), 'source')}, "
        f"{counted(len(reading.prompt.ids), 'token')} in the prompt, {len(result.ids)} in the answer.",
        how_to_read=HOW_TO_READ,
        written=result.answer,
    )


def _cached_or_searched_heads(
    spec: SourceSpec,
    reading: "SourcedReading",
    pretrained: "Pretrained",
    answer: str | None,
    progress: "Progress | None",
) -> list[str] | None:
    """A model's cached heads, or heads found now if the search reads fewer tokens than the prompt has.

    The result is None without a search, and an empty list if no head retrieves. A batch never searches,
    because its numbers would depend on the order of the prompts.
    """
    from attncli.features.source.door import retrieving_heads, search_takes_less

    cached = cached_heads(spec)
    if cached is not None or progress is None or cache_file(spec) is None:
        return cached
    if not search_takes_less(pretrained, reading, answer):
        return None
    progress.begin("choosing this model's retrieving heads (only once)")
    try:
        result = retrieving_heads(pretrained, progress=progress)
    except UserError:  # no head retrieves, or the model cannot read the contexts
        result = None
    with suppress(UserError):  # the cache is not writable
        cache_heads(spec, result)
    return [] if result is None else result.heads


HOW_TO_READ = (
    "Weights show where heads looked, which need not be the reason for the answer. lost: the fall of the "
    "answer's log-probability, in nats, without the source's text; a removal also moves "
    "the text after the source."
)


def _notes(
    spec: SourceSpec, result: "AnswerSources", heads: Sequence[str], *, is_cached: bool, name: str
) -> list[str]:
    notes = [*_order_notes(result), *result.notes]
    if spec.model is None:
        notes.append("This model ships with attn and can only copy. Use --model FOLDER for another model.")
    if is_cached and heads:
        notes.append(f"Retrieving heads, chosen on synthetic contexts: {', '.join(heads)}.")
    elif is_cached:
        notes.append(f"No head of {name} retrieves on synthetic contexts; use --head to name heads.")
    elif not heads and spec.model is not None:
        notes.append(
            f"No retrieving heads of {name} are cached: use --find-heads to choose heads, or --head to name "
            "heads."
        )
    if spec.method == "sampled":
        notes.append(
            f"effect: the effect on the answer's logit, from a Lasso fit to {spec.runs} random sets of "
            "sources."
        )
    return notes


ORDERS = {
    "lost": "the loss without them",
    "effect": "their effect",
    "retrieving_heads": "the weight of the retrieval heads",
    "all_heads": "the weight of all heads",
}


def _last_part(spec: SourceSpec, sourced: "SourcedText") -> Iterator[str]:
    """A note if the end of a text is treated as a source although it may be the question."""
    last = sourced.sources[-1]
    is_end = last.end == len(sourced.text.rstrip()) and last.name.startswith(spec.split)
    if is_end and len(sourced.sources) > 1 and spec.split != "word":
        yield f'The last {spec.split} is also a source. To ask it as a question, use "QUESTION" --file FILE.'


def _order_notes(result: "AnswerSources") -> Iterator[str]:
    """A note on the order of the sources, if there are several, and on the colours of the answer."""
    kinds = list(dict.fromkeys(str(source.ranked_by) for source in result.sources))
    if len(result.sources) == 1:
        return
    order = ", then by ".join(ORDERS[kind] for kind in kinds)
    if len(kinds) == 1:
        yield f"Sources are sorted, and the answer is coloured, by {order}."
    else:
        yield f"Sources are sorted by {order}; the answer is coloured by {ORDERS[kinds[0]]}."


def report_heads(
    spec: RetrievingHeadsSpec, reading: "Reading", pretrained: "Pretrained", progress: "Progress | None"
) -> Report:
    """Build the report on the retrieval heads, which are cached for the model."""
    from attncli.features.source.door import retrieving_heads
    from attncli.runs.report_parts import build_report

    result = retrieving_heads(pretrained, seed=spec.seed, progress=progress)
    file = cache_heads(spec, result)
    where = f"Cached in {file}." if file else "Not cached: the model is not a folder with weight files."
    chosen = f"Chosen for this model from now on: {', '.join(result.heads)}."
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [chosen, where],
        about=f"{pretrained.name}: which heads find the right sentence in {result.num_contexts} contexts.",
        how_to_read=(
            "found: the share of contexts in which the head gives the right sentence of 16 the most "
            "weight; weight: the head's mean weight on that sentence."
        ),
    )


PAGE = ModelPage(read=read, report=report)
HEADS_PAGE = ModelPage(read=read_no_text, report=report_heads)
