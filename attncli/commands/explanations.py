"""`attn source --compare`: ways to read an answer's sources, side by side and against removal."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import UserError
from attncli.plain_text import counted
from attncli.records.explanations import ComparedWays, LearnedWeights
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

ONE_HOW_TO_READ = (
    "lost: nats that the answer's log-probability loses without the source; equal ones have the same rank."
)
ONE_ORDER = "The ways are in the order of their rank correlation with what is lost."
HOW_TO_READ = (
    "gap: nats per token of the answer that are lost as a way's first sources are removed first (MoRF), "
    "minus as its last are (LeRF). rank corr.: Spearman's, with what is lost without each source; first "
    "agrees: both put the same first. runs: a backward pass counts as two."
)


class KnownHeads(NamedTuple):
    """What is known of a model from before: its retrieving heads, and the learned weight of each head."""

    heads: list[str]
    weights: dict[str, float] | None


def report_explanations(
    spec: "SourceSpec",
    reading: "SourcedReading",
    pretrained: "Pretrained",
    kept: KnownHeads,
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
        heads=kept.heads,
        head_weights=kept.weights,
        num_runs=spec.runs,
        seed=spec.seed,
    )
    ways = tuple(row.way for row in result.ways)
    assert result.tokens is not None
    return build_report(
        spec,
        Texts(reading.prompt.tokens, ways, token_spelling=pretrained.token_spelling),
        {"way_relevance": NamedTensor(("way", "token"), result.tokens)},
        result,
        [*result.notes],
        about=f"{pretrained.name}: {counted(len(result.sources), 'source')} by {counted(len(ways), 'way')}, "
        f"{counted(len(reading.prompt.ids), 'token')} in the prompt, {len(result.ids)} in the answer.",
        how_to_read=ONE_HOW_TO_READ if result.is_of_one_source else f"{ONE_HOW_TO_READ} {ONE_ORDER}",
        written=result.answer,
    )


def report_comparison(
    spec: "SourceSpec",
    pretrained: "Pretrained",
    kept: KnownHeads,
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
        heads=kept.heads,
        head_weights=kept.weights,
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
        how_to_read=HOW_TO_READ,
    )


def report_learning(
    spec: "SourceSpec",
    pretrained: "Pretrained",
    keep: "Callable[[LearnedWeights], Path | None]",
    progress: "Callable[[float], None] | None",
) -> Report:
    """A weight for each head, learned from the prompts of a file, which are kept for the model."""
    from attncli.explaining import learned_head_weights

    assert spec.prompts is not None
    result = learned_head_weights(
        pretrained,
        spec.prompts,
        split=spec.split,
        chat=spec.chat,
        max_new_tokens=spec.max_new_tokens,
        num_runs=spec.runs,
        seed=spec.seed,
        progress=progress,
    )
    place = keep(result)
    where = f"Kept in {place}: --compare has AT2 from here on." if place else WITHOUT_PLACE
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [where, *result.notes],
        about=f"{pretrained.name}: weights of {counted(len(result.rows), 'head')}, learned from "
        f"{counted(result.fit.prompts, 'prompt')}, {counted(spec.runs, 'set')} of sources each.",
        how_to_read=OF_WEIGHTS,
    )


WITHOUT_PLACE = "They are not kept: this model is no folder with weights in files."
OF_WEIGHTS = (
    "The score of a source is the sum of weight x attention on it (AT2). Judge them on other prompts than "
    "those they were learned from."
)


def _refused(result: ComparedWays) -> Iterator[str]:
    """Which ways are not right for the model, and why."""
    for row in result.refused or ():
        yield f"{row.refused}: {row.reason}."
