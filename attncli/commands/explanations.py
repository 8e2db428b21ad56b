"""`attn source --compare`: ways to read an answer's sources, side by side and against removal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attncli.errors import UserError
from attncli.plain_text import counted
from attncli.records.explanations import ComparedWays
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
    "lost: nats that the answer's log-probability loses without the source; the ways are in the order of "
    "their rank correlation with it."
)
HOW_TO_READ = (
    "gap: nats per token of the answer that are lost as a way's first sources are removed first (MoRF), "
    "minus as its last are (LeRF). rank corr.: Spearman's, with what is lost without each source; first "
    "agrees: both put the same first. runs: a backward pass counts as two."
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
    return build_report(
        spec,
        Texts(reading.prompt.tokens, ways, token_spelling=pretrained.token_spelling),
        {"way_relevance": NamedTensor(("way", "token"), result.tokens)},
        result,
        [*result.notes],
        about=f"{pretrained.name}: {counted(len(result.sources), 'source')} by {counted(len(ways), 'way')}, "
        f"{counted(len(reading.prompt.ids), 'token')} in the prompt, {len(result.ids)} in the answer.",
        how_to_read=ONE_HOW_TO_READ,
        written=result.answer,
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
        how_to_read=HOW_TO_READ,
    )


def _refused(result: ComparedWays) -> Iterator[str]:
    """Which ways are not right for the model, and why."""
    for row in result.refused or ():
        yield f"{row.refused}: {row.reason}."
