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
    """What the model loses on a text, or on several, without each of some heads, as 5:11, or of all.

    linear:5:11 is one without a softmax, where layers have both kinds.
    What is predicted: every token from those before it; for an encoder tokens masked at random, from the
    `seed`; or the `answer` alone, a text or the id of a token, and by how much its logit is above `against`.
    `method`: zero, mean, sink or swap, what replaces a head's output (see `Removal`). `jointly` also takes
    out all of them at once; `approximate` orders every head by one backward pass.
    With swap a head gives what it gave on the `other` prompt, one for each text: at all tokens, at the
    position `token`, or at each by itself; `into` one later head alone, or into all. `back` is the other
    direction. UserError for heads that are not there, and for what the model cannot do; MemoryError.
    """
    from attncli.features.ablate.effects import ablated

    generator = torch.Generator().manual_seed(seed)
    texts, others = several_texts(text), None if other is None else several_texts(other)
    names, later = head_names(heads), None if into is None else head_name(into)
    are_pairs = all(isinstance(prompt, Predicted) and prompt.other is not None for prompt in texts)
    num_others = len(texts) if are_pairs else None if others is None else len(others)
    check_swap(method, len(texts), num_others, token, later)

    with in_use(model) as pretrained:
        readings = [
            predicted_of(
                reading_for(pretrained, prompt),
                None if others is None else reading_for(pretrained, others[place], "other"),
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
