"""`attn heads --head LAYER:HEAD --examples N`: the texts in which a statistic of one head is largest."""

from collections.abc import Callable

from attncli.features.examples.door import group_examples
from attncli.features.examples.settings import ExamplesSpec
from attncli.models.pretrained import Pretrained, part_that_reads
from attncli.records.columns import few_notes
from attncli.records.report import Report
from attncli.runs.report_parts import WORDS_NOTE, build_report
from attncli.settings.pages import ModelPage
from attncli.settings.text import Texts
from attncli.system.plain_text import counted

HOW_TO_READ = "Each example is a different text, shown at its strongest, weakest or most typical row."


def report_many(
    spec: ExamplesSpec, pretrained: Pretrained, progress: Callable[[float], None] | None
) -> Report:
    """Return the examples of a head, with the weights of their queries on the tokens of their texts."""
    result = group_examples(
        part_that_reads(pretrained),
        spec.texts,
        spec.head,
        spec.sort,
        count=int(spec.num_examples or 0),
        truncate=spec.truncate,
        words=spec.words,
        skip_sink=spec.skip_sink,
        group=spec.text_group,
        progress=progress,
    )
    return build_report(
        spec,
        Texts(),
        {},
        result,
        [*([WORDS_NOTE] if spec.words else []), *few_notes(result.num_texts), *result.notes],
        about=f"{pretrained.name}, head {spec.head}: {spec.sort}, "
        f"mean over {counted(result.num_texts, 'text')}.",
        how_to_read=HOW_TO_READ,
    )


PAGE = ModelPage(report_many=report_many)
