"""Which sources an answer came from by several ways to read a model, and how good each is against removal.

The doors of `measure`, as in `library`.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any

from attncli.arguments import (
    HeadsArgument,
    NonBlankText,
    Seed,
    Size,
    by,
    checked,
    file_name,
    head_names,
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
from attncli.records.explanations import ComparedWays, Explanations

if TYPE_CHECKING:
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


SourcePrompts = Annotated[str | PathLike[str] | Iterable[Mapping[str, object]], by(_prompts)]
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
    num_runs: Size = 32,
    seed: Seed = 0,
    on_text: Callable[[str], None] | None = None,
) -> Explanations:
    """Which sources an answer came from by each way to read, beside what the answer loses without each.

    The first arguments are those of `answer_sources`; `ways` are names, by default all that are right for
    the model (docs/explain.md). UserError for a model that is no decoder, an unknown way, and where none is
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
        read = ReadAnswer(pretrained, reading, given, heads=head_names(heads), num_runs=num_runs, seed=seed)
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
    from attncli.measure.explanations import ReadAnswer, mean_notes

    _check_runs(num_runs)
    with ExitStack() as opened:
        lines = _listed(prompts, opened)
        pretrained = opened.enter_context(in_use(model))
        totals, notes = WaysTotals([*ways]), list[str]()
        for done, prompt in enumerate(lines, start=1):
            try:
                sourced = sourced_text(prompt.sentence, prompt.context, split)
                reading = _reading(pretrained, sourced, chat=chat)
                right = _right(prompt, reading)
                given = _answer(pretrained, reading, prompt.answer, Decoding(max_new_tokens, seed=seed))
                read = ReadAnswer(
                    pretrained, reading, given, heads=head_names(heads), num_runs=num_runs, seed=seed
                )
            except UserError as error:
                if len(lines) == 1:
                    raise
                notes.append(f"prompt {prompt.name}: {error.lines[0]}")
            else:
                totals.add(prompt.name, read, right)
            if progress is not None:
                progress(done / len(lines))
        if not totals.counts:
            raise UserError(*notes)
        notes += mean_notes(pretrained, totals.names)
        return totals.result(notes)


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
