"""`attn source --compare`: ways to read an answer's sources, side by side and against removal."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attncli.errors import UserError
from attncli.plain_text import counted
from attncli.records.explanations import ComparedWays, Explanations
from attncli.records.values import NamedTensor
from attncli.report import Report
from attncli.report_parts import build_report
from attncli.settings.text import Texts, text_or_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.commands.source import SourceSpec
    from attncli.models.pretrained import Pretrained
    from attncli.models.source_texts import SourcedReading
    from attncli.toys.attention import Progress

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
ONE_ORDER = "The ways are in the order of their rank correlation with what is lost."


def _how_to_read_one(result: Explanations) -> str:
    is_alone = result.explained is not None and result.explained[0].output == "itself"
    explained = EXPLAINED["itself" if is_alone and result.kind == "similarity" else result.kind]
    how = f"{explained}lost: {LOST[result.kind]}; equal ones have the same rank."
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


def report_explanations(
    spec: "SourceSpec",
    reading: "SourcedReading",
    pretrained: "Pretrained",
    heads: list[str],
    progress: "Progress | None",
) -> Report:
    """What each way says of the sources of one answer."""
    from attncli.explaining import explanations

    if progress is not None:
        progress.begin("reading the answer in each way, and without each source")
    result = explanations(
        pretrained,
        None,
        reading,
        answer=None if spec.answer is None else text_or_file(spec.answer, "answer"),
        max_new_tokens=spec.max_new_tokens,
        heads=heads,
        num_runs=spec.runs,
        seed=spec.seed,
    )
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


def report_comparison(
    spec: "SourceSpec",
    pretrained: "Pretrained",
    heads: list[str],
    progress: "Callable[[float], None] | None",
) -> Report:
    """Each way against removal, over the prompts of a file."""
    from attncli.explaining import compare_explanations

    if spec.prompts is None:
        raise UserError("compare: needs a file of prompts (JSON Lines)")
    result = compare_explanations(
        pretrained,
        spec.prompts,
        split=spec.split,
        chat=spec.chat,
        max_new_tokens=spec.max_new_tokens,
        heads=heads,
        num_runs=spec.runs,
        seed=spec.seed,
        progress=progress,
    )
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [*_refused(result), *result.notes],
        about=f"{pretrained.name}: {counted(result.num_prompts, 'prompt')}, on average "
        f"{result.mean_sources:.1f} sources and {result.mean_tokens:.0f} tokens.",
        how_to_read=_how_to_read_many(result),
    )


def _refused(result: ComparedWays) -> Iterator[str]:
    """Which ways are not right for the model, and why."""
    for row in result.refused or ():
        yield f"{row.refused}: {row.reason}."
