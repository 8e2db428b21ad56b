"""`attncli.why` and `attncli.score_parts`."""

from collections.abc import Callable, Sequence

import torch

from attncli.core.names import named_head
from attncli.errors import UserError
from attncli.features.why.results import LogitAttribution, ScoreParts
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, OneOrMoreTexts, TextOrReading, several_texts
from attncli.models.predicted import predicted_of
from attncli.models.reading_text import reading_for
from attncli.records.arguments import (
    AnswerArgument,
    Count,
    HeadArgument,
    HeadWithoutStack,
    Position,
    checked,
    head_name,
    head_name_without_stack,
)


@checked
def why(
    model: Model,
    text: OneOrMoreTexts,
    *,
    answer: AnswerArgument | None = None,
    against: AnswerArgument | None = None,
    head: HeadArgument | None = None,
    names: Sequence[str] = (),
    progress: Callable[[float], None] | None = None,
) -> LogitAttribution:
    """Measure the contribution of each head, whether or not it has a softmax, to the next token's logit.

    The token is `answer`, a string or a token id; the default is the most likely token. With `against`, the
    difference between the logits of the answer and of this other token is attributed. For one text, the
    contribution of `head`, such as 5:11, is split by token; the default is the head with the largest
    contribution.

    For several texts, or one text with `names`, the result contains means with 95 % intervals, and the logit
    of each text by name or number. Raises UserError for a model whose logits are not a sum of parts, and
    MemoryError if memory runs out.
    """
    from attncli.features.why.attribution import attribution, check_splits, mean_attribution

    name = None if head is None else head_name(head)
    texts = several_texts(text)
    if len(texts) > 1 and name is not None:
        raise UserError(f"head: can only be split by the tokens of a single text (got {len(texts)} texts)")
    if names and len(names) != len(texts):
        raise UserError(
            f"names: must contain one name per text, that is {len(texts)} names (got {len(names)})"
        )
    with in_use(model) as pretrained:
        readings = [reading_for(pretrained, each) for each in texts]
        check_splits(pretrained)
        if answer is not None or against is not None:
            generator = torch.Generator()
            readings = [
                predicted_of(reading, None, pretrained, generator, answer=answer, against=against)
                for reading in readings
            ]
        if len(readings) > 1 or names:
            return mean_attribution(pretrained, readings, names, progress=progress)
        return attribution(pretrained, readings[0], head=name)


@checked
def score_parts(
    model: Model,
    text: TextOrReading,
    head: HeadWithoutStack,
    *,
    query: Position = -1,
    key: Position | None = None,
    over: Count = 2,
) -> ScoreParts:
    """Split the score of `head`, such as 18:6, for a query and a key, into the parts that wrote them.

    `query` and `key` are positions. The default query is the last token; the default key is the key with the
    largest weight other than the first. The `over` most important heads of each side are listed with the keys
    that they looked at. Raises UserError for a model whose scores are not a sum of parts and for a head or a
    key that does not exist, and MemoryError if memory runs out.
    """
    from attncli.features.why.scores import score_parts as parts_of_score

    _, layer, number = named_head(head_name_without_stack(head))
    with in_use(model) as pretrained:
        reading = reading_for(pretrained, text)
        return parts_of_score(pretrained, reading, layer=layer, head=number, query=query, key=key, over=over)
