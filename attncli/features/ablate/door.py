"""`attncli.ablate`."""

from collections.abc import Callable
from typing import Literal

import torch

from attncli.core.names import RemovalMethod
from attncli.features.ablate.results import HeadEffects
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, OneOrMoreTexts, several_texts
from attncli.models.predicted import Predicted, check_swap, predicted_of
from attncli.models.pretrained import reader_of
from attncli.models.reading_text import reading_for
from attncli.records.arguments import (
    AnswerArgument,
    HeadArgument,
    HeadsArgument,
    Position,
    Seed,
    checked,
    head_name,
    head_names,
)


@checked
def ablate(
    model: Model,
    text: OneOrMoreTexts,
    *,
    heads: HeadsArgument = (),
    method: RemovalMethod = "zero",
    jointly: bool = False,
    approximate: bool = False,
    answer: AnswerArgument | None = None,
    against: AnswerArgument | None = None,
    other: OneOrMoreTexts | None = None,
    token: Position | Literal["each"] | None = None,
    into: HeadArgument | None = None,
    seed: Seed = 0,
    progress: Callable[[float], None] | None = None,
) -> HeadEffects:
    """Measure how removing each head, or each of `heads`, changes what a model predicts on one or more texts.

    Heads have names such as 5:11 or, for heads without a softmax in a model with both kinds of layers,
    linear:5:11. The model predicts every token from the tokens before it. An encoder predicts tokens masked
    at random with the `seed`. With an `answer`, a string or a token id, the model predicts only that token,
    whose logit is compared with the logit of `against`.

    `method` says what replaces the output of a head: zero, mean, sink or swap (see `Removal`). `jointly` also
    removes all of the heads at once; `approximate` ranks every head with a single backward pass. With swap,
    the output comes from the `other` prompt (one for each text). The output is swapped at all tokens, at the
    position `token`, or at each token separately, and reaches all later heads or, with `into`, only that
    head. The results in `back` are for the opposite direction.

    Raises UserError for heads that the model does not have and for arguments that cannot be combined or do
    not fit the model, and MemoryError if memory runs out.
    """
    from attncli.features.ablate.effects import ablated

    generator = torch.Generator().manual_seed(seed)
    texts, other_texts = several_texts(text), None if other is None else several_texts(other)
    names, later = head_names(heads), None if into is None else head_name(into)
    are_pairs = all(isinstance(prompt, Predicted) and prompt.other is not None for prompt in texts)
    num_other_texts = len(texts) if are_pairs else None if other_texts is None else len(other_texts)
    check_swap(method, len(texts), num_other_texts, token, later)

    with in_use(model) as pretrained:
        readings = [
            predicted_of(
                reading_for(pretrained, prompt),
                None if other_texts is None else reading_for(pretrained, other_texts[place], "other"),
                pretrained,
                generator,
                answer=answer,
                against=against,
                token=None if token == "each" else token,
            )
            for place, prompt in enumerate(texts)
        ]
        return ablated(
            reader_of(pretrained, readings[0]),
            readings,
            heads=names,
            method=method,
            jointly=jointly,
            approximate=approximate,
            each_token=token == "each",
            into=later,
            progress=progress,
        )
