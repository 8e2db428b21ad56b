"""`attn source --compare`: ways to read an answer's sources, side by side and against removal."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attncli.features.explanations.kept_weights import keep_weights, kept_weights
from attncli.features.explanations.results import ComparedWays, Explanations
from attncli.features.explanations.settings import (
    ExplainedPicturesSpec,
    ExplanationsSpec,
    HeadWeightsSpec,
)
from attncli.features.source.kept_heads import kept_heads, named_or_kept
from attncli.features.source.reading import read_for_decoder, sourced_text
from attncli.records.columns import few_notes
from attncli.records.report import PictureMaps, PictureRow, Report
from attncli.records.values import NamedTensor
from attncli.runs.report_parts import build_report
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts, text_or_file
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    import numpy as np

    from attncli.core.progress import Progress
    from attncli.features.explanations.picture_cells import PictureCells
    from attncli.models.pretrained import Pretrained
    from attncli.models.source_texts import SourcedReading

LOST: Mapping[str, str] = {
    "answer": "nats that the answer's log-probability loses without the source",
    "class": "nats that the class's log-probability loses where the source is taken out",
    "score": "by how much the score falls where the source is taken out",
    "word": "nats that the word's log-probability loses where masks replace the source",
    "similarity": "by how much the cosine falls where the source is taken out",
}
EXPLAINED: Mapping[str, str] = {
    "answer": "",
    "class": "Explained: the logit of the class. ",
    "score": "Explained: the score. ",
    "word": "Explained: the logit of the word. ",
    "similarity": "Explained: the cosine of the text's vector and the question's. ",
    "itself": "Explained: the cosine of the text's vector and that of the whole text. ",
}
OF_PICTURES: Mapping[str, str] = {
    "class": "nats that the class's log-probability loses where the cell has the picture's mean colour",
    "score": "by how much the score falls where the cell has the picture's mean colour",
    "similarity": "by how much the cosine falls where the cell has the picture's mean colour",
}
OWN_VECTOR = "Explained: the cosine of the picture's vector and that of the whole picture. "
ONE_ORDER = "The ways are in the order of their rank correlation with what is lost."


def _how_to_read_one(result: Explanations, *, is_picture: bool = False) -> str:
    is_alone = result.explained is not None and result.explained[0].output == "itself"
    explained = EXPLAINED["itself" if is_alone and result.kind == "similarity" else result.kind]
    if is_picture and result.kind == "similarity":
        explained = OWN_VECTOR
    lost = (OF_PICTURES if is_picture else LOST)[result.kind]
    how = f"{explained}lost: {lost}; equal ones have the same rank."
    return how if result.is_of_one_source else f"{how} {ONE_ORDER}"


GAPS: Mapping[str, str] = {
    "answer": "nats per token of the answer that are lost",
    "class": "nats that the class's log-probability loses",
    "score": "by how much the score falls",
    "word": "nats that the word's log-probability loses",
    "similarity": "by how much the cosine falls",
}


def _how_to_read_many(result: ComparedWays) -> str:
    or_itself = "Explained: the cosine of the text's vector and the question's (without one: its own). "
    explained = or_itself if result.kind == "similarity" else EXPLAINED[result.kind]
    return (
        f"{explained}gap: {GAPS[result.kind]} as a way's first sources are removed "
        "first (MoRF), minus as its last are (LeRF). rank corr.: Spearman's, with what is lost without each "
        "source; first agrees: both put the same first. runs: a backward pass counts as two."
    )


def read(spec: ExplanationsSpec, texts: Texts, pretrained: "Pretrained", generator: Any) -> "SourcedReading":
    """The sources as the model reads them. Raises UserError for what does not fit."""
    from attncli.models.encoders import is_encoder, read_for_encoder

    if not is_encoder(pretrained) or spec.chat:
        return read_for_decoder(spec, texts, pretrained)
    question = texts.text if spec.document or texts.context is not None else None
    sourced = sourced_text(spec, texts, is_continued=False)
    return read_for_encoder(pretrained, sourced, question, key=spec.sources_key)


def read_cells(
    spec: ExplainedPicturesSpec, texts: Texts, pretrained: "Pretrained", generator: Any
) -> "PictureCells":
    """The picture and its cells. Raises UserError for a model that reads no pictures."""
    from attncli.features.explanations.picture_cells import picture_cells
    from attncli.models.openers import OPENERS, FileInput

    assert spec.read_file is not None, "it asks for this form"
    opened = OPENERS[spec.read_file.what].read(pretrained, FileInput(spec.read_file.name))
    return picture_cells(pretrained, opened)


def _known(spec: ExplanationsSpec | ExplainedPicturesSpec) -> dict[str, Any]:
    """What is known of a model from before, and how often sets of sources are sampled."""
    return {
        "heads": named_or_kept(spec.head, kept_heads(spec)),
        "head_weights": kept_weights(spec),
        "num_runs": spec.runs,
        "seed": spec.seed,
    }


def _explained(
    spec: ExplanationsSpec | ExplainedPicturesSpec,
    reading: "SourcedReading | PictureCells",
    pretrained: "Pretrained",
    progress: "Progress | None",
    **options: Any,
) -> Explanations:
    """What each way says of the sources of one answer, or of the cells of a picture."""
    from attncli.features.explanations.door import explanations

    known = _known(spec)
    if progress is not None:
        progress.begin("reading the answer in each way, and without each source")
    answer = None if spec.answer is None else text_or_file(spec.answer, "answer")
    return explanations(pretrained, None, reading, answer=answer, **known, **options)


def report(
    spec: ExplanationsSpec, reading: "SourcedReading", pretrained: "Pretrained", progress: "Progress | None"
) -> Report:
    """What each way says of the sources of one answer."""
    result = _explained(spec, reading, pretrained, progress, max_new_tokens=spec.max_new_tokens)
    ways = tuple(row.way for row in result.ways)
    assert result.tokens is not None
    num_tokens = counted(len(reading.prompt.ids), "token")
    has_answer = result.kind == "answer"
    of_tokens = f"{num_tokens} in the prompt, {len(result.ids)} in the answer" if has_answer else num_tokens
    return build_report(
        spec,
        Texts(reading.prompt.tokens, ways, token_spelling=pretrained.token_spelling),
        {"way_relevance": NamedTensor(("way", "token"), result.tokens)},
        result,
        [*result.notes],
        about=f"{pretrained.name}: {counted(len(result.sources), 'source')} by {counted(len(ways), 'way')}, "
        f"{of_tokens}.",
        how_to_read=_how_to_read_one(result),
        written=result.answer if has_answer else None,
    )


def report_picture(
    spec: ExplainedPicturesSpec,
    reading: "PictureCells",
    pretrained: "Pretrained",
    progress: "Progress | None",
) -> Report:
    """What each way says of the cells of a picture, with its maps over the picture."""
    result = _explained(spec, reading, pretrained, progress)
    assert result.tokens is not None
    (picture,) = reading.drawn()
    ways = tuple(row.way for row in result.ways)
    rows, columns = reading.shape
    most = reading.most_patches
    cells = f"{rows} × {columns} cells of {'' if most == 1 else 'up to '}{most} patch{'es' * (most > 1)}"
    names, maps = _maps(reading, result)
    row = PictureRow(picture, reading.text.tokens, (), NamedTensor(("map", "key"), maps))
    title = f"{picture.name} in each way: what is above 0, each by its largest"
    return build_report(
        spec,
        Texts(reading.text.tokens, ways),
        {"way_relevance": NamedTensor(("way", "token"), result.tokens)},
        result,
        [*result.notes, *reading.left_out_notes()],
        about=f"{pretrained.name}: {cells} by {counted(len(ways), 'way')}.",
        how_to_read=_how_to_read_one(result, is_picture=True),
        picture_maps=PictureMaps(names, "ways to read", 1, (row,), title),
    )


def _maps(reading: "PictureCells", result: Explanations) -> "tuple[tuple[str, ...], np.ndarray]":
    """What is lost, then the ways, the nearest to that first; of those of cells alone evenly over patches."""
    import numpy as np

    assert result.tokens is not None
    order = sorted(range(len(result.ways)), key=lambda way: -(result.ways[way].spearman or 0.0))
    names = ("lost", *(result.ways[way].way for way in order))
    of_tokens = dict(zip((row.way for row in result.ways), result.tokens, strict=True))
    maps = np.zeros((len(names), len(reading.text.tokens)))
    for place, name in enumerate(names):
        if name in of_tokens and not np.isnan(of_tokens[name]).any():
            maps[place] = of_tokens[name].clip(min=0)
            continue
        for source, number in zip(result.sources, result.sources.numbers(name), strict=True):
            tokens = [*reading.cells[source.source - 1].tokens]
            maps[place, tokens] = max(float(number), 0.0) / len(tokens)
    return names, maps


def report_comparison(
    spec: ExplanationsSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """Each way against removal, over the prompts of a file."""
    from attncli.features.explanations.door import compare_explanations

    assert spec.prompts is not None, "it is about many"
    result = compare_explanations(
        pretrained,
        spec.prompts,
        split=spec.split_of_text,
        chat=spec.chat,
        max_new_tokens=spec.max_new_tokens,
        **_known(spec),
        progress=progress,
    )
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [*few_notes(result.num_prompts, "prompt"), *_refused(result), *result.notes],
        about=f"{pretrained.name}: {counted(result.num_prompts, 'prompt')}, on average "
        f"{result.mean_sources:.1f} sources and {result.mean_tokens:.0f} tokens.",
        how_to_read=_how_to_read_many(result),
    )


def report_learning(
    spec: HeadWeightsSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """A weight for each head, learned from the prompts of a file, which are kept for the model."""
    from attncli.features.explanations.door import learned_head_weights

    result = learned_head_weights(
        pretrained,
        spec.file,
        split=spec.split,
        chat=spec.chat,
        max_new_tokens=spec.max_new_tokens,
        num_runs=spec.runs,
        seed=spec.seed,
        progress=progress,
    )
    place = keep_weights(spec, result)
    where = f"Kept in {place}: --compare has AT2 from here on." if place else WITHOUT_PLACE
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [where, *result.notes],
        about=f"{pretrained.name}: weights of {counted(len(result.rows), 'head')}, learned from "
        f"{counted(result.fit.prompts, 'prompt')}, {counted(spec.runs, 'set')} of sources each.",
        how_to_read=WEIGHT_STATISTICS,
    )


WITHOUT_PLACE = "They are not kept: this model is no folder with weights in files."
WEIGHT_STATISTICS = (
    "The score of a source is the sum of weight x attention on it (AT2). Judge them on other prompts than "
    "those they were learned from."
)


def _refused(result: ComparedWays) -> Iterator[str]:
    """Which ways are not right for the model, and why."""
    for row in result.refused or ():
        yield f"{row.refused}: {row.reason}."


PAGE = ModelPage(read=read, report=report, report_many=report_comparison)
PICTURES_PAGE = ModelPage(read=read_cells, report=report_picture)
WEIGHTS_PAGE = ModelPage(report_many=report_learning)
