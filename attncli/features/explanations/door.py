"""Library functions that attribute an answer to its sources in several ways, and compare these ways."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from attncli.core.names import source_number
from attncli.errors import UserError
from attncli.features.explanations.picture_cells import PictureCells, picture_cells
from attncli.features.explanations.results import ComparedWays, Explanations, LearnedWeights
from attncli.models.encoders import is_encoder, read_for_encoder
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, checked_sources
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.source_texts import (
    SourcedReading,
    SourcedText,
    SourcePrompt,
    SourcePromptFile,
    Split,
    read_sourced,
    sourced_text,
)
from attncli.models.writing import Decoding
from attncli.records.arguments import (
    HeadsArgument,
    NonBlankText,
    Seed,
    Size,
    by,
    checked,
    file_name,
    head_name_without_stack,
    head_names,
    listed,
    shown,
)
from attncli.system.plain_text import whole_number

if TYPE_CHECKING:
    from attncli.features.explanations.explanations import ReadAnswer


def _prompts(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return file_name(value)
    prompts = listed(value)
    for prompt in prompts:
        if not isinstance(prompt, Mapping) or "sentence" not in prompt:
            form = '{"sentence": "...", "context": "..."}'
            raise ValueError(f"must contain mappings such as {form} (got {shown(prompt)})")
    return prompts


def _ways(value: Any) -> Any:
    names = [value] if isinstance(value, str) else listed(value)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"must contain names of ways to read (got {shown(name)})")
    return names


def _weights(value: Any) -> Any:
    if value is None or isinstance(value, LearnedWeights):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a result of learned_head_weights or a mapping (got {shown(value)})")
    for name, weight in value.items():
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not isfinite(weight):
            raise ValueError(f"must have a number for each head (got {shown(weight)} for {shown(name)})")
    return {head_name_without_stack(name): float(weight) for name, weight in value.items()}


SourcePrompts = Annotated[str | PathLike[str] | Iterable[Mapping[str, object]], by(_prompts)]
Ways = Annotated[str | Iterable[str], by(_ways)]
GivenHeadWeights = Annotated[LearnedWeights | Mapping[str, float] | None, by(_weights)]


def _sources_or_grid(value: Any) -> Any:
    """Return the sources of a text, or the reading of a file whose tokens lie on a grid."""
    if isinstance(value, Reading) and not isinstance(value, SourcedReading):
        if not value.on_grid:
            raise ValueError("must be texts or a result of read_picture (got a result of read_text)")
        return value
    return checked_sources(value)


SourcesOrGrid = Annotated[str | Sequence[str] | SourcedText | SourcedReading | Reading, by(_sources_or_grid)]


class _Options(NamedTuple):
    """Options for writing, reading and explaining answers; `split` and `chat` only apply to texts."""

    split: Split | None
    chat: bool
    max_new_tokens: int
    heads: Sequence[str]
    head_weights: Mapping[str, float] | None
    num_runs: int
    seed: int


def _options(
    split: Split | None,
    chat: bool,
    max_new_tokens: int,
    num_runs: int,
    seed: int,
    heads: HeadsArgument = (),
    head_weights: LearnedWeights | Mapping[str, float] | None = None,
) -> _Options:
    if num_runs < 2:
        raise UserError(
            f"num_runs: must be at least 2, because effects need several sets of sources (got {num_runs})"
        )
    weights = head_weights.by_name if isinstance(head_weights, LearnedWeights) else head_weights
    return _Options(split, chat, max_new_tokens, head_names(heads), weights, num_runs, seed)


@checked
def explanations(
    model: Model,
    question: str | None,
    sources: SourcesOrGrid,
    *,
    ways: Ways = (),
    split: Split | None = None,
    chat: bool = False,
    answer: NonBlankText | None = None,
    max_new_tokens: Size = 24,
    heads: HeadsArgument = (),
    head_weights: GivenHeadWeights = None,
    num_runs: Size = 32,
    seed: Seed = 0,
    on_text: Callable[[str], None] | None = None,
) -> Explanations:
    """Attribute an answer to its sources in several ways, and compare them with the loss without each source.

    `question` and `sources` are as in `answer_sources`. `ways` contains names of ways to read
    (docs/explain.md); the default is every way that applies to the model. `head_weights` is a result of
    `learned_head_weights`, or a mapping from head names, such as 18:6, to weights.

    For an encoder, the explained output is the class, the masked word or the similarity to the question;
    `answer` is then a class or a word. For a result of `read_picture`, the sources are cells of patches, and
    the explained output is the class or the vector of the picture.

    Raises UserError for a model with an encoder and a decoder, for an unknown way, and if no way applies.
    """
    from attncli.features.explanations.explanations import explanations as explain_answer

    options = _options(split, chat, max_new_tokens, num_runs, seed, heads, head_weights)
    with in_use(model) as pretrained:
        reading = sources
        if isinstance(reading, Reading) and not isinstance(reading, SourcedReading | PictureCells):
            reading = picture_cells(pretrained, reading)
        if isinstance(reading, PictureCells):
            if question is not None:
                raise UserError("question: must be None for a picture")
        elif not isinstance(reading, SourcedReading):
            reading = _reading(pretrained, question, reading, split, chat=chat)
        return explain_answer(_read(pretrained, reading, answer, options, on_text), [*ways])


def _reading(
    pretrained: Pretrained,
    question: str | None,
    sources: str | Sequence[str] | SourcedText,
    split: Split | None,
    *,
    chat: bool,
) -> SourcedReading:
    is_continued = chat or not is_encoder(pretrained)
    sourced = sourced_text(question, sources, split, is_continued=is_continued)
    if not is_continued:
        return read_for_encoder(pretrained, sourced, question)
    return read_sourced(pretrained, sourced.in_template(pretrained) if chat else sourced, key="sources")


def _read(
    pretrained: Pretrained,
    reading: SourcedReading | PictureCells,
    answer: str | None,
    options: _Options,
    on_text: Callable[[str], None] | None = None,
) -> "ReadAnswer":
    """Read a decoder's answer or an encoder's output. Raises UserError for an encoder with head weights."""
    from attncli.features.explanations.encoder_runs import ReadEncoder
    from attncli.features.explanations.explanations import ReadAnswer
    from attncli.features.explanations.picture_runs import ReadPicture
    from attncli.features.source.sources import answer_to

    if options.head_weights is not None and is_encoder(pretrained):
        name = pretrained.name
        raise UserError(
            f"head_weights: {name} writes no answers, so no head weights can be learned: omit `head_weights`"
        )
    heads, num_runs, seed = options.heads, options.num_runs, options.seed
    if isinstance(reading, PictureCells):
        return ReadPicture(pretrained, reading, answer, heads=heads, num_runs=num_runs, seed=seed)
    if is_encoder(pretrained):
        return ReadEncoder(pretrained, reading, answer, heads=heads, num_runs=num_runs, seed=seed)
    decoding = Decoding(options.max_new_tokens, seed=options.seed)
    written = answer_to(pretrained, reading, answer, decoding, on_text=on_text)
    return ReadAnswer(
        pretrained,
        reading,
        written,
        heads=heads,
        head_weights=options.head_weights,
        num_runs=num_runs,
        seed=seed,
    )


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
    """Compare ways to read over many prompts, by how well they predict answer losses without sources.

    `prompts` is a file (JSON Lines, CSV) or a list of mappings with the keys sentence and context and,
    optionally, answer, id and right, which is the name or the number of the right source. Without a context,
    the sources are the parts of the sentence. A prompt that cannot be read is skipped, with a note.

    Raises UserError if no prompt can be read, and in the same cases as `explanations`.
    """
    from attncli.features.explanations.compared_ways import WaysTotals
    from attncli.features.explanations.explanations import mean_notes

    options = _options(split, chat, max_new_tokens, num_runs, seed, heads, head_weights)
    with ExitStack() as opened:
        lines = _listed(prompts, opened)
        pretrained = opened.enter_context(in_use(model))
        totals, notes = WaysTotals([*ways]), list[str]()
        for prompt, read, right in _read_prompts(pretrained, lines, options, notes, progress):
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
    """Learn a weight for each head of a decoder from answer losses when sources are hidden (AT2).

    `prompts` are as in `compare_explanations`, but should not be the prompts on which ways are compared. For
    each prompt, `num_runs` random sets of its sources are read. Pass the result to `explanations` as
    `head_weights`.

    Raises UserError for an encoder, and if no prompt can be read.
    """
    from attncli.features.explanations.learned_weights import ablations, learned_weights

    options = _options(split, chat, max_new_tokens, num_runs, seed)
    with ExitStack() as opened:
        lines = _listed(prompts, opened)
        pretrained = opened.enter_context(in_use(model))
        if is_encoder(pretrained):
            name = pretrained.name
            raise UserError(
                f"model: {name} writes no answers, so head weights cannot be learned: use a decoder"
            )
        notes, answers, names = list[str](), [], list[tuple[str, int, int]]()
        for _, read, _ in _read_prompts(pretrained, lines, options, notes, progress):
            answers.append(ablations(read))
            names = read.weights.heads
        if not answers:
            raise UserError(*notes)
        return replace(learned_weights(names, answers, seed), num_runs=num_runs, notes=tuple(notes))


def _read_prompts(
    pretrained: Pretrained,
    lines: Sequence[SourcePrompt],
    options: _Options,
    notes: list[str],
    progress: Callable[[float], None] | None,
) -> Iterator[tuple[SourcePrompt, "ReadAnswer", int | None]]:
    """Yield each prompt with its answer and right source, and add a note for each unreadable prompt.

    Raises UserError if there is only one prompt and it cannot be read.
    """
    for done, prompt in enumerate(lines, start=1):
        try:
            reading = _reading(pretrained, prompt.question, prompt.sources, options.split, chat=options.chat)
            read = _read(pretrained, reading, prompt.answer, options)
            right = _right(prompt, read)
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
        file = fspath(prompts)
        return opened.enter_context(SourcePromptFile(file)).prompts()
    source_prompts = []
    for number, prompt in enumerate(prompts, start=1):
        cells = {key: _cell(f"prompts: {number}", key, cell) for key, cell in prompt.items()}
        columns = SourcePromptFile.columns
        unknown = [key for key in cells if key not in columns]
        if unknown:
            raise UserError(f"prompts: {number}: keys must be {', '.join(columns)} (got {unknown[0]})")
        main = cells.get(columns[0])
        if main is None:
            raise UserError(f"prompts: {number}: must have the key {columns[0]}")
        optional_cells = {key: cells.get(key) for key in ("context", "answer", "right")}
        name = cells.get("id") or str(number)
        source_prompts.append(SourcePrompt(name, main, **optional_cells))
    if not source_prompts:
        raise UserError("prompts: must have at least one prompt (got none)")
    return source_prompts


def _cell(where: str, key: str, cell: object) -> str | None:
    """Check that a value is a string or, for id and right, an integer. Raises UserError otherwise."""
    is_number = isinstance(cell, int) and not isinstance(cell, bool) and key in ("id", "right")
    if cell is None or isinstance(cell, str) or is_number:
        return None if cell is None else str(cell)
    must = "a text or a whole number" if key in ("id", "right") else "a text"
    raise UserError(f"{where}: {key}: must be {must} (got {shown(cell)})")


def _right(prompt: SourcePrompt, read: "ReadAnswer") -> int | None:
    """Return the number of the right source, which may be a name or a number. Raises UserError if unknown."""
    if prompt.right is None:
        return None
    names = [source.name for source in read.sources]
    number = source_number(prompt.right) or whole_number(prompt.right)
    if prompt.right in names:
        number = names.index(prompt.right) + 1
    if number is None or not 1 <= number <= len(names):
        raise UserError(f"right: must be one of {names[0]} to {names[-1]} (got {prompt.right})")
    return number
