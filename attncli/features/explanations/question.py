"""`attn source --compare`: ways to read an answer's sources, shown side by side and compared with removal."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attncli.features.explanations.results import ComparedWays, Explanations
from attncli.features.explanations.settings import (
    ExplainedPicturesSpec,
    ExplanationsSpec,
    HeadWeightsSpec,
)
from attncli.features.explanations.weight_cache import cache_weights, cached_weights
from attncli.features.source.kept_heads import cached_heads, explicit_or_cached_heads
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
    "answer": "loss of the answer's log-probability without the source, in nats",
    "class": "loss of the class's log-probability without the source, in nats",
    "score": "decrease of the score without the source",
    "word": "loss of the word's log-probability with masks in place of the source, in nats",
    "similarity": "decrease of the cosine without the source",
}
EXPLAINED: Mapping[str, str] = {
    "answer": "",
    "class": "Explained: the logit of the class. ",
    "score": "Explained: the score. ",
    "word": "Explained: the logit of the word. ",
    "similarity": "Explained: the cosine of the text's vector and the question's. ",
    "itself": "Explained: the cosine of the text's vector and the full text's. ",
}
PICTURE_LOSSES: Mapping[str, str] = {
    "class": "loss of the class's log-probability with the cell in the picture's mean colour, in nats",
    "score": "decrease of the score with the cell in the picture's mean colour",
    "similarity": "decrease of the cosine with the cell in the picture's mean colour",
}
OWN_VECTOR = "Explained: the cosine of the picture's vector and the full picture's. "
ONE_ORDER = "The ways are sorted by their rank correlation with the losses."


def _how_to_read_one(result: Explanations, *, is_picture: bool = False) -> str:
    is_alone = result.explained is not None and result.explained[0].output == "itself"
    explained = EXPLAINED["itself" if is_alone and result.kind == "similarity" else result.kind]
    if is_picture and result.kind == "similarity":
        explained = OWN_VECTOR
    lost = (PICTURE_LOSSES if is_picture else LOST)[result.kind]
    how = f"{explained}lost: {lost}; equal numbers share a rank."
    return how if result.has_single_source else f"{how} {ONE_ORDER}"


GAPS: Mapping[str, str] = {
    "answer": "loss of the answer, in nats per token,",
    "class": "loss of the class's log-probability, in nats,",
    "score": "decrease of the score",
    "word": "loss of the word's log-probability, in nats,",
    "similarity": "decrease of the cosine",
}


def _how_to_read_many(result: ComparedWays) -> str:
    or_itself = (
        "Explained: the cosine of the text's vector and the question's or, without a question, that of the "
        "full text. "
    )
    explained = or_itself if result.kind == "similarity" else EXPLAINED[result.kind]
    return (
        f"{explained}gap: {GAPS[result.kind]} if a way's first sources are removed first (MoRF), minus "
        "that number if its last sources are removed first (LeRF). rank corr.: Spearman's rank correlation "
        "with the losses without each source; first agrees: the share of prompts where the way and the "
        "losses rank the same source first. runs: passes through the model; a backward pass counts as two."
    )


def read(spec: ExplanationsSpec, texts: Texts, pretrained: "Pretrained", generator: Any) -> "SourcedReading":
    """Read the sources for the model. Raises UserError for settings that do not fit."""
    from attncli.models.encoders import is_encoder, read_for_encoder

    if not is_encoder(pretrained) or spec.chat:
        return read_for_decoder(spec, texts, pretrained)
    question = texts.text if spec.document or texts.context is not None else None
    sourced = sourced_text(spec, texts, is_continued=False)
    return read_for_encoder(pretrained, sourced, question, key=spec.sources_key)


def read_cells(
    spec: ExplainedPicturesSpec, texts: Texts, pretrained: "Pretrained", generator: Any
) -> "PictureCells":
    """Read the picture and its cells. Raises UserError for a model that does not read pictures."""
    from attncli.features.explanations.picture_cells import picture_cells
    from attncli.models.openers import OPENERS, FileInput

    assert spec.read_file is not None, "the form needs a file"
    opened = OPENERS[spec.read_file.what].read(pretrained, FileInput(spec.read_file.name))
    return picture_cells(pretrained, opened)


def _way_options(spec: ExplanationsSpec | ExplainedPicturesSpec) -> dict[str, Any]:
    """Return the cached heads and head weights of a model, and the number and seed of the sampled sets."""
    return {
        "heads": explicit_or_cached_heads(spec.head, cached_heads(spec)),
        "head_weights": cached_weights(spec),
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
    """Explain one answer, or one picture, in each way."""
    from attncli.features.explanations.door import explanations

    way_options = _way_options(spec)
    if progress is not None:
        progress.begin("explaining the answer in each way, and removing each source")
    answer = None if spec.answer is None else text_or_file(spec.answer, "answer")
    return explanations(pretrained, None, reading, answer=answer, **way_options, **options)


def report(
    spec: ExplanationsSpec, reading: "SourcedReading", pretrained: "Pretrained", progress: "Progress | None"
) -> Report:
    """Build the report on one answer."""
    result = _explained(spec, reading, pretrained, progress, max_new_tokens=spec.max_new_tokens)
    ways = tuple(row.way for row in result.ways)
    assert result.tokens is not None
    num_tokens = counted(len(reading.prompt.ids), "token")
    has_answer = result.kind == "answer"
    token_counts = (
        f"{num_tokens} in the prompt, {len(result.ids)} in the answer" if has_answer else num_tokens
    )
    return build_report(
        spec,
        Texts(reading.prompt.tokens, ways, token_spelling=pretrained.token_spelling),
        {"way_relevance": NamedTensor(("way", "token"), result.tokens)},
        result,
        [*result.notes],
        about=f"{pretrained.name}: {counted(len(result.sources), 'source')} by {counted(len(ways), 'way')}, "
        f"{token_counts}.",
        how_to_read=_how_to_read_one(result),
        written=result.answer if has_answer else None,
    )


def report_picture(
    spec: ExplainedPicturesSpec,
    reading: "PictureCells",
    pretrained: "Pretrained",
    progress: "Progress | None",
) -> Report:
    """Build the report on a picture, with one map over the picture for each way."""
    result = _explained(spec, reading, pretrained, progress)
    assert result.tokens is not None
    (picture,) = reading.drawn()
    ways = tuple(row.way for row in result.ways)
    rows, columns = reading.shape
    most = reading.most_patches
    cells = f"{rows} × {columns} cells of {'' if most == 1 else 'up to '}{most} patch{'es' * (most > 1)}"
    names, maps = _maps(reading, result)
    row = PictureRow(picture, reading.text.tokens, (), NamedTensor(("map", "key"), maps))
    title = f"{picture.name} in each way: values above 0, relative to the largest"
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
    """Return the losses, followed by the ways, closest to the losses first.

    If a way only scores whole sources, each score is shown on all patches of its source.
    """
    import numpy as np

    assert result.tokens is not None
    order = sorted(range(len(result.ways)), key=lambda way: -(result.ways[way].spearman or 0.0))
    names = ("lost", *(result.ways[way].way for way in order))
    token_scores = dict(zip((row.way for row in result.ways), result.tokens, strict=True))
    maps = np.zeros((len(names), len(reading.text.tokens)))
    for place, name in enumerate(names):
        if name in token_scores and not np.isnan(token_scores[name]).any():
            maps[place] = token_scores[name].clip(min=0)
            continue
        for source, number in zip(result.sources, result.sources.numbers(name), strict=True):
            tokens = [*reading.cells[source.source - 1].tokens]
            maps[place, tokens] = max(float(number), 0.0) / len(tokens)
    return names, maps


def report_comparison(
    spec: ExplanationsSpec, pretrained: "Pretrained", progress: Callable[[float], None] | None
) -> Report:
    """Build the report that compares ways over the prompts of a file."""
    from attncli.features.explanations.door import compare_explanations

    assert spec.prompts is not None, "comparisons read a file of prompts"
    result = compare_explanations(
        pretrained,
        spec.prompts,
        split=spec.text_split,
        chat=spec.chat,
        max_new_tokens=spec.max_new_tokens,
        **_way_options(spec),
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
    """Build the report on head weights that are learned from a file of prompts, and save the weights."""
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
    place = cache_weights(spec, result)
    where = f"Saved in {place}: --compare includes AT2 from now on." if place else NOT_SAVED
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [where, *result.notes],
        about=f"{pretrained.name}: weights of {counted(len(result.rows), 'head')}, learned from "
        f"{counted(result.fit.prompts, 'prompt')}, {counted(spec.runs, 'set')} of sources each.",
        how_to_read=WEIGHTS_NOTE,
    )


NOT_SAVED = "The weights were not saved, because this model is not a folder with weight files."
WEIGHTS_NOTE = (
    "The score of a source is the sum over the heads of the head's weight x its attention to the source "
    "(AT2). Test the weights on prompts from which they were not learned."
)


def _refused(result: ComparedWays) -> Iterator[str]:
    """Yield a note on each way that does not apply to the model."""
    for row in result.refused or ():
        yield f"{row.refused}: {row.reason}."


PAGE = ModelPage(read=read, report=report, report_many=report_comparison)
PICTURES_PAGE = ModelPage(read=read_cells, report=report_picture)
WEIGHTS_PAGE = ModelPage(report_many=report_learning)
