"""Which sources an answer came from by several ways to read a model, and how good each is against removal.

The doors of `measure`, as in `library`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

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
from attncli.models.encoders import is_encoder, read_for_encoder
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, SourcesOrPicture
from attncli.models.picture_reading import read_picture
from attncli.models.picture_sources import PictureCells, is_of_pictures, picture_cells, pictures_in
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
from attncli.records.explanations import ComparedWays, Explanations

if TYPE_CHECKING:
    from attncli.measure.explanations import ReadAnswer


def _prompts(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return file_name(value)
    prompts = listed(value)
    for prompt in prompts:
        if not isinstance(prompt, Mapping) or not {"sentence", "image"} & prompt.keys():
            form = '{"sentence": "...", "context": "..."} or {"image": "..."}'
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
    sources: SourcesOrPicture,
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
    the model (docs/explain.md). Of an encoder the class, the masked word or the similarity to the question is
    explained; `answer` is then a class or a word. Of what `read_picture` gives the sources are cells of its
    patches, and the class, or the picture's own vector, is explained. UserError for a model with an encoder
    and a decoder, an unknown way, and where none is right.
    """
    from attncli.measure.explanations import explanations as explanations_of

    _check_runs(num_runs)
    with in_use(model) as pretrained:
        reading = sources
        if isinstance(reading, Reading) and not isinstance(reading, SourcedReading | PictureCells):
            reading = picture_cells(pretrained, reading)
        if isinstance(reading, PictureCells):
            if question is not None:
                raise UserError("question: is not for a picture, of which nothing is asked: give None")
        elif not isinstance(reading, SourcedReading):
            reading = _reading(pretrained, question, sourced_text(question, reading, split), chat=chat)
        decoding = Decoding(max_new_tokens, seed=seed)
        how: _How = {"heads": head_names(heads), "num_runs": num_runs, "seed": seed}
        read = _read(pretrained, reading, answer, decoding, how, on_text)
        return explanations_of(read, [*ways])


def _reading(
    pretrained: Pretrained, question: str | None, sourced: SourcedText, *, chat: bool
) -> SourcedReading:
    if not chat and is_encoder(pretrained):
        return read_for_encoder(pretrained, sourced, question)
    return read_sourced(pretrained, sourced.in_template(pretrained) if chat else sourced, key="sources")


class _How(TypedDict):
    heads: Sequence[str]
    num_runs: int
    seed: int


def _read(
    pretrained: Pretrained,
    reading: SourcedReading | PictureCells,
    answer: str | None,
    decoding: Decoding,
    how: _How,
    on_text: Callable[[str], None] | None = None,
) -> "ReadAnswer":
    """The answer of a decoder, or what an encoder says."""
    from attncli.measure.encoder_runs import ReadEncoder
    from attncli.measure.explanations import ReadAnswer
    from attncli.measure.picture_runs import ReadPicture
    from attncli.measure.sources import answer_to

    if isinstance(reading, PictureCells):
        return ReadPicture(pretrained, reading, answer, **how)
    if is_encoder(pretrained):
        return ReadEncoder(pretrained, reading, answer, **how)
    given = answer_to(pretrained, reading, answer, decoding, on_text=on_text)
    return ReadAnswer(pretrained, reading, given, **how)


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
    right, the name or the number of the source that is right; without a context the parts of the sentence are
    the sources. Of pictures it is a folder of them, a list of their names (.txt), or mappings with image in
    place of sentence and context. A prompt that cannot be read is left out, with a note; UserError where none
    is left, and as for `explanations`.
    """
    from attncli.measure.compared_ways import WaysTotals
    from attncli.measure.explanations import mean_notes

    _check_runs(num_runs)
    with ExitStack() as opened:
        lines = _listed(prompts, opened)
        pretrained = opened.enter_context(in_use(model))
        totals, notes = WaysTotals([*ways]), list[str]()
        decoding = Decoding(max_new_tokens, seed=seed)
        how: _How = {"heads": head_names(heads), "num_runs": num_runs, "seed": seed}
        for done, prompt in enumerate(lines, start=1):
            try:
                read = _read(
                    pretrained, _prompt(pretrained, prompt, split, chat), prompt.answer, decoding, how
                )
                right = _right(prompt, read)
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


def _prompt(
    pretrained: Pretrained, prompt: SourcePrompt, split: Split, chat: bool
) -> SourcedReading | PictureCells:
    """One of many, as the model reads it."""
    if prompt.image is not None:
        return picture_cells(pretrained, read_picture(pretrained, prompt.image))
    sourced = sourced_text(prompt.question, prompt.sources, split)
    return _reading(pretrained, prompt.question, sourced, chat=chat)


OF_PICTURE = ("image", "answer", "id", "right")


def _listed(
    prompts: str | PathLike[str] | Iterable[Mapping[str, object]], opened: ExitStack
) -> list[SourcePrompt]:
    if isinstance(prompts, str | PathLike):
        file = fspath(prompts)
        if is_of_pictures(file):
            return [SourcePrompt(line.label, "", image=line.file) for line in pictures_in(file, opened)]
        return opened.enter_context(SourcePromptFile(file)).prompts()
    listed_prompts = []
    for number, prompt in enumerate(prompts, start=1):
        cells = {key: _cell(f"prompts: {number}", key, cell) for key, cell in prompt.items()}
        columns = OF_PICTURE if "image" in cells else SourcePromptFile.columns
        unknown = [key for key in cells if key not in columns]
        if unknown:
            raise UserError(f"prompts: {number}: must have {', '.join(columns)} (got {unknown[0]})")
        main = cells.get(columns[0])
        if main is None:
            raise UserError(f"prompts: {number}: must have {columns[0]}")
        others = {key: cells.get(key) for key in ("context", "answer", "right", "image")}
        listed_prompts.append(SourcePrompt(cells.get("id") or str(number), main, **others))
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


def _right(prompt: SourcePrompt, read: "ReadAnswer") -> int | None:
    """The number of the source that is right, by its name or number; UserError for one that is not there."""
    if prompt.right is None:
        return None
    names = [source.name for source in read.sources]
    number = int(prompt.right) if prompt.right.isdecimal() else source_number(prompt.right)
    if prompt.right in names:
        number = names.index(prompt.right) + 1
    if number is None or not 1 <= number <= len(names):
        raise UserError(f"right: must be of {names[0]} to {names[-1]} (got {prompt.right})")
    return number
