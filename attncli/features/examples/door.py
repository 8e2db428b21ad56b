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
    """Find the texts and queries where a statistic of a head is strongest, weakest and typical.

    `head` is a name such as 5:11; `statistic` is a row statistic, such as entropy, or a pattern, such as
    induction. Raises UserError for an unknown statistic, a head that the model does not have, and a model
    with two stacks.
    """
    return group_examples(
        model, texts, head, statistic, count=count, truncate=truncate, words=words, skip_sink=skip_sink
    )


def group_examples(
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
    """Like `examples`, for one group of texts in a file."""
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
