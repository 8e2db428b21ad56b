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
    """What each head adds to the logit of the next token, the likeliest or the `answer`: a text, or
    the id of a token.

    With `against`, to how far it is above that token's. On a text, whose `head`, as 5:11, is split by tokens:
    by default the one that adds most; or means over several texts, with 95 % intervals, and the logit of
    each, by `names` or numbers; one text that has its name is one of several. Heads without a softmax are
    among them. UserError for a model whose logits are not such a sum; MemoryError.
    """
    from attncli.features.why.attribution import attribution, check_splits, mean_attribution

    name = None if head is None else head_name(head)
    texts = several_texts(text)
    if len(texts) > 1 and name is not None:
        raise UserError(f"head: is split by the tokens of one text (got {len(texts)} texts)")
    if names and len(names) != len(texts):
        raise UserError(f"names: must be one of each text (got {len(names)} of {len(texts)} texts)")
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
    """Why `head`, as 18:6, looks from one token to another: its score as a sum over what each part wrote.

    `query` and `key` are positions: by default the last token, and the key with most weight beyond the first.
    `over` of the heads that count most say what they looked at when they wrote. UserError for a model whose
    scores are not such sums, and a head or key that is not there; MemoryError.
    """
    from attncli.features.why.scores import score_parts as parts_of_score

    _, layer, number = named_head(head_name_without_stack(head))
    with in_use(model) as pretrained:
        reading = reading_for(pretrained, text)
        return parts_of_score(pretrained, reading, layer=layer, head=number, query=query, key=key, over=over)
