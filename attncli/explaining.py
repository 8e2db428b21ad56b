"""Which sources an answer came from by several ways to read a model, and how good each is against removal.

The doors of `measure`, as in `library`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from attncli.arguments import (
    HeadsArgument,
    NonBlankText,
    Seed,
    Size,
    by,
    checked,
    file_name,
    head_names,
    head_names_without_stack,
    listed,
    shown,
)
from attncli.core.names import source_number
from attncli.errors import UserError
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, Sources
from attncli.models.pretrained import Pretrained
from attncli.models.source_texts import SourcedReading, SourcedText, Split, read_sourced, sourced_text
from attncli.models.text_files import SourcePrompt, SourcePromptFile
from attncli.models.writing import Decoding
from attncli.records.explanations import ComparedWays, Explanations, LearnedWeights

if TYPE_CHECKING:
    from attncli.measure.explanations import ReadAnswer
    from attncli.measure.sources import Answer


def _prompts(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return file_name(value)
    prompts = listed(value)
    for prompt in prompts:
        if not isinstance(prompt, Mapping) or not {"sentence", "context"} <= {*prompt}:
            form = '{"sentence": "...", "context": "..."}'
            raise ValueError(f"must be mappings as {form} (got {shown(prompt)})")
    return prompts


def _ways(value: Any) -> Any:
    names = [value] if isinstance(value, str) else listed(value)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"must be names of ways (got {shown(name)})")
    return names


def _weights(value: Any) -> Any:
    if value is None or isinstance(value, LearnedWeights):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"must be what learned_head_weights gives, or a mapping (got {shown(value)})")
    for name, weight in value.items():
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not isfinite(weight):
            raise ValueError(f"must have a number for each head (got {shown(weight)} for {shown(name)})")
    return {head_names_without_stack(name)[0]: float(weight) for name, weight in value.items()}


SourcePrompts = Annotated[str | PathLike[str] | Iterable[Mapping[str, object]], by(_prompts)]


def _by_name(weights: LearnedWeights | Mapping[str, float] | None) -> Mapping[str, float] | None:
    return weights.by_name if isinstance(weights, LearnedWeights) else weights


GivenHeadWeights = Annotated[LearnedWeights | Mapping[str, float] | None, by(_weights)]
Ways = Annotated[str | Iterable[str], by(_ways)]


@checked
def explanations(
    model: Model,
    question: str | None,
    sources: Sources,
    *,
    ways: Ways = (),
    split: Split = "sentence",
    chat: bool = False,
    answer: NonBlankText | None = None,
    max_new_tokens: Size = 24,
    heads: HeadsArgument = (),
    head_weights: GivenHeadWeights = None,
    num_runs: Size = 32,
    seed: Seed = 0,
    on_text: Callable[[str], None] | None = None,
) -> Explanations:
    """Which sources an answer came from by each way to read, beside what the answer loses without each.

    The first arguments are those of `answer_sources`; `ways` are names, by default all that are right for
    the model (docs/explain.md); `head_weights` what `learned_head_weights` gives, or a mapping from heads as
    18:6. UserError for a model that is no decoder, an unknown way, and where none is
    right.
    """
    from attncli.measure.explanations import ReadAnswer
    from attncli.measure.explanations import explanations as explanations_of
    from attncli.measure.sources import answer_to

    _check_runs(num_runs)
    with in_use(model) as pretrained:
        reading = sources
        if not isinstance(reading, SourcedReading):
            reading = _reading(pretrained, sourced_text(question, reading, split), chat=chat)
        decoding = Decoding(max_new_tokens, seed=seed)
        given = answer_to(pretrained, reading, answer, decoding, on_text=on_text)
        read = ReadAnswer(
            pretrained,
            reading,
            given,
            heads=head_names(heads),
            head_weights=_by_name(head_weights),
            num_runs=num_runs,
            seed=seed,
        )
        return explanations_of(read, [*ways])


def _reading(pretrained: Pretrained, sourced: SourcedText, *, chat: bool) -> SourcedReading:
    return read_sourced(pretrained, sourced.in_template(pretrained) if chat else sourced, key="sources")


@checked
def compare_explanations(
    model: Model,
    prompts: SourcePrompts,
    *,
    ways: Ways = (),
    split: Split = "sentence",
    chat: bool = False,
    max_new_tokens: Size = 24,
    heads: HeadsArgument = (),
    head_weights: GivenHeadWeights = None,
    num_runs: Size = 32,
    seed: Seed = 0,
    progress: Callable[[float], None] | None = None,
) -> ComparedWays:
    """How well each way to read predicts what answers lose without their sources, over many prompts.

    `prompts` is a file (JSON Lines, CSV), or mappings, with sentence and context, and maybe answer, id and
    right, the name or the number of the source that is right. A prompt that cannot be read is left out, with
    a note; UserError where none is left, and as for `explanations`.
    """
    from attncli.measure.compared_ways import WaysTotals
    from attncli.measure.explanations import mean_notes

    asked = _Asked(split, chat, max_new_tokens, head_names(heads), _by_name(head_weights), num_runs, seed)
    with ExitStack() as opened:
        lines = _listed(prompts, opened)
        pretrained = opened.enter_context(in_use(model))
        totals, notes = WaysTotals([*ways]), list[str]()
        for prompt, read, right in _read_prompts(pretrained, lines, asked, notes, progress):
            totals.add(prompt.name, read, right)
        if not totals.counts:
            raise UserError(*notes)
        notes += [*totals.equal_notes(), *mean_notes(pretrained, totals.names)]
        return totals.result(notes)


@checked
def learned_head_weights(
    model: Model,
    prompts: SourcePrompts,
    *,
    split: Split = "sentence",
    chat: bool = False,
    max_new_tokens: Size = 24,
    num_runs: Size = 32,
    seed: Seed = 0,
    progress: Callable[[float], None] | None = None,
) -> LearnedWeights:
    """A weight for each head of a decoder, learned from what answers lose as sources are hidden: AT2.

    `prompts` are those of `compare_explanations`, others than those that ways are then compared on. Of each
    `num_runs` sets of its sources are read. `head_weights` of `explanations` takes what this gives. UserError
    where no prompt can be read.
    """
    from attncli.measure.learned_weights import ablations, learned_weights

    asked = _Asked(split, chat, max_new_tokens, (), None, num_runs, seed)
    with ExitStack() as opened:
        lines = _listed(prompts, opened)
        pretrained = opened.enter_context(in_use(model))
        notes, answers, names = list[str](), [], list[tuple[str, int, int]]()
        for _, read, _ in _read_prompts(pretrained, lines, asked, notes, progress):
            answers.append(ablations(read))
            names = read.weights.heads
        if not answers:
            raise UserError(*notes)
        return replace(learned_weights(names, answers, seed), num_runs=num_runs, notes=tuple(notes))


class _Asked(NamedTuple):
    """How the prompts of a file are read."""

    split: Split
    chat: bool
    max_new_tokens: int
    heads: Sequence[str]
    head_weights: Mapping[str, float] | None
    num_runs: int
    seed: int


def _read_prompts(
    pretrained: Pretrained,
    lines: Sequence[SourcePrompt],
    asked: _Asked,
    notes: list[str],
    progress: Callable[[float], None] | None,
) -> Iterator[tuple[SourcePrompt, "ReadAnswer", int | None]]:
    """Each prompt with its answer, and the source that is right; a note for one that cannot be read.

    UserError where the only one cannot.
    """
    from attncli.measure.explanations import ReadAnswer

    _check_runs(asked.num_runs)
    for done, prompt in enumerate(lines, start=1):
        try:
            sourced = sourced_text(prompt.sentence, prompt.context, asked.split)
            reading = _reading(pretrained, sourced, chat=asked.chat)
            right = _right(prompt, reading)
            decoding = Decoding(asked.max_new_tokens, seed=asked.seed)
            given = _answer(pretrained, reading, prompt.answer, decoding)
            read = ReadAnswer(
                pretrained,
                reading,
                given,
                heads=asked.heads,
                head_weights=asked.head_weights,
                num_runs=asked.num_runs,
                seed=asked.seed,
            )
        except UserError as error:
            if len(lines) == 1:
                raise
            notes.append(f"prompt {prompt.name}: {error.lines[0]}")
        else:
            yield prompt, read, right
        if progress is not None:
            progress(done / len(lines))


def _listed(
    prompts: str | PathLike[str] | Iterable[Mapping[str, object]], opened: ExitStack
) -> list[SourcePrompt]:
    if isinstance(prompts, str | PathLike):
        return opened.enter_context(SourcePromptFile(fspath(prompts))).prompts()
    listed_prompts = []
    for number, prompt in enumerate(prompts, start=1):
        cells = {key: _cell(f"prompts: {number}", key, cell) for key, cell in prompt.items()}
        unknown = [key for key in cells if key not in SourcePromptFile.columns]
        if unknown:
            must = ", ".join(SourcePromptFile.columns)
            raise UserError(f"prompts: {number}: must have {must} (got {unknown[0]})")
        name, sentence, context = cells.get("id"), cells["sentence"], cells["context"]
        if sentence is None or context is None:
            raise UserError(f"prompts: {number}: must have sentence and context")
        others = {key: cells.get(key) for key in ("answer", "right")}
        listed_prompts.append(SourcePrompt(name or str(number), sentence, context, **others))
    if not listed_prompts:
        raise UserError("prompts: must hold at least one prompt (got none)")
    return listed_prompts


def _cell(where: str, key: str, cell: object) -> str | None:
    """A text, and for names also a whole number, as in files; UserError for anything else."""
    is_number = isinstance(cell, int) and not isinstance(cell, bool) and key in ("id", "right")
    if cell is None or isinstance(cell, str) or is_number:
        return None if cell is None else str(cell)
    must = "a text or a whole number" if key in ("id", "right") else "a text"
    raise UserError(f"{where}: {key}: must be {must} (got {shown(cell)})")


def _check_runs(num_runs: int) -> None:
    if num_runs < 2:
        raise UserError(f"num_runs: must be at least 2: one set of sources says nothing (got {num_runs})")


def _answer(
    pretrained: Pretrained, reading: SourcedReading, answer: str | None, decoding: Decoding
) -> "Answer":
    from attncli.measure.sources import answer_to

    return answer_to(pretrained, reading, answer, decoding)


def _right(prompt: SourcePrompt, reading: SourcedReading) -> int | None:
    """The number of the source that is right, by its name or number; UserError for one that is not there."""
    if prompt.right is None:
        return None
    names = [source.name for source in reading.sourced.sources]
    number = int(prompt.right) if prompt.right.isdecimal() else source_number(prompt.right)
    if number is None or not 1 <= number <= len(names):
        raise UserError(f"right: must be of {names[0]} to {names[-1]} (got {prompt.right})")
    return number
