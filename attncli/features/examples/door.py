"""`attncli.examples`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from attncli.core.names import PATTERNS, ROW_STATISTICS, named_head
from attncli.features.examples.results import HeadExamples
from attncli.measure.library import many_texts
from attncli.models.model_arguments import Model, TextsOrFile
from attncli.records.arguments import (
    Count,
    HeadWithoutStack,
    Size,
    by,
    checked,
    head_name_without_stack,
    one_of,
)

StatisticName = Annotated[str, by(one_of((*ROW_STATISTICS, *PATTERNS)))]


@checked
def examples(
    model: Model,
    texts: TextsOrFile,
    head: HeadWithoutStack,
    statistic: StatisticName,
    *,
    count: Size = 3,
    truncate: bool = False,
    words: bool = False,
    skip_sink: Count = 0,
) -> HeadExamples:
    """Texts, and in each the query, where a statistic of a head, as 5:11, is strongest, weakest and typical.

    The statistic is one of a row, as entropy, or a pattern, as induction. UserError for one that is neither,
    for a head that the model does not have, and for a model of two stacks.
    """
    return examples_of(
        model, texts, head, statistic, count=count, truncate=truncate, words=words, skip_sink=skip_sink
    )


def examples_of(
    model: Model,
    texts: TextsOrFile,
    head: HeadWithoutStack,
    statistic: str,
    *,
    count: int,
    truncate: bool,
    words: bool,
    skip_sink: int,
    group: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> HeadExamples:
    """As `examples`, of the texts of one group of a file."""
    from attncli.features.examples.measure import head_examples
    from attncli.measure.heads import HeadOptions

    _, layer, number = named_head(head_name_without_stack(head))
    options = HeadOptions(skip_sink=skip_sink, words=words)
    reading = many_texts(model, texts, options, truncate=truncate, group=group, progress=progress)
    with reading as (pretrained, many):
        result = head_examples(
            pretrained, many, layer=layer, head=number, statistic=statistic, count=count, options=options
        )
    return replace(result, notes=(*many.notes(), *result.notes))
