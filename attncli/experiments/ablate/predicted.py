"""A text whose tokens a model predicts: at which places, and which tokens stand there."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from attncli.errors import UserError
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.spec.models.ablate import AblateSpec

MASKED_SHARE = 0.15
"""Of the tokens of a text, as BERT was trained: Devlin et al. 2019 (1810.04805), 3.1."""
NO_PLACES = torch.empty(0, dtype=torch.long)


@dataclass(frozen=True)
class Predicted(Reading):
    """What a model reads, the places of its predictions, and the token that each should be.

    A model without a head has none. An answer is the only target, and `against` a token that it is compared
    with.
    """

    places: Int[Tensor, " place"] = NO_PLACES
    targets: Int[Tensor, " place"] = NO_PLACES
    is_answer: bool = False
    against: int | None = None

    @property
    def num_places(self) -> int:
        """How many tokens are predicted."""
        return len(self.places)


def predicted_reading(
    spec: AblateSpec, reading: Reading, pretrained: Pretrained, generator: torch.Generator
) -> Predicted:
    """What is predicted of a text; UserError where that is nothing.

    Where tokens are predicted from those before: every token but the first; of the repeated probe the second
    copy without its first token, which nothing gives away. For an encoder a random share of the tokens is
    masked. With an answer, what comes after the text, or replaces its mask.
    """
    kind, name = pretrained.predicts, pretrained.name
    if kind is None and spec.answer is not None:
        raise UserError(f"answer: {name} has no head that predicts tokens")
    if kind is None:
        return Predicted(reading.text, reading.context)
    key = "texts" if spec.texts else "file" if spec.file else "sentence"
    ids = reading.text.ids
    if spec.answer is not None:
        target = answer_token(pretrained, spec.answer, "answer")
        against = None if spec.against is None else answer_token(pretrained, spec.against, "against")
        mask = pretrained.tokenizer.mask_token_id
        place = torch.tensor([len(ids) - 1]) if kind == "next" else (ids == mask).nonzero().flatten()
        if len(place) != 1:
            token = pretrained.tokenizer.mask_token
            raise UserError(f"{key}: must hold one {token}, where the answer stands (got {len(place)})")
        return Predicted(reading.text, reading.context, place, torch.tensor([target]), True, against)
    if kind == "masked":
        return _masked(pretrained, reading, key, generator)
    repeated = spec.num_tokens if spec.probe else None
    first = 1 if repeated is None else len(ids) - repeated + 1
    if first >= len(ids):
        key, count = (key, len(ids)) if repeated is None else ("num_tokens", repeated)
        raise UserError(f"{key}: must be at least 2 tokens, so that one predicts another (got {count})")
    return Predicted(reading.text, reading.context, torch.arange(first, len(ids)) - 1, ids[first:])


def _masked(pretrained: Pretrained, reading: Reading, key: str, generator: torch.Generator) -> Predicted:
    """Some tokens that are not special, hidden behind the mask; at least one."""
    ids, mask = reading.text.ids, pretrained.tokenizer.mask_token_id
    if mask is None:
        raise UserError(f"model: the tokenizer of {pretrained.name} has no mask token")
    words = torch.tensor([i for i, one in enumerate(ids.tolist()) if one not in pretrained.special_ids])
    if not len(words):
        raise UserError(f"{key}: must hold a token that is not special, to predict")
    count = max(1, round(MASKED_SHARE * len(words)))
    places = words[torch.randperm(len(words), generator=generator)[:count]].sort().values
    hidden = ids.clone()
    hidden[places] = mask
    text = replace(reading.text, tokens=pretrained.labels(hidden.tolist()), ids=hidden)
    return Predicted(text, reading.context, places, ids[places])


def answer_token(pretrained: Pretrained, text: str, key: str) -> int:
    """The one token that a text is; UserError, at `key`, where it is several."""
    ids: list[int] = pretrained.encoded(text, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        parts = ", ".join(repr(token) for token in pretrained.labels(ids)) or "none"
        with_blank = pretrained.encoded(f" {text}", add_special_tokens=False)["input_ids"]
        hint = f": ' {text}', with a blank before it, is one" if len(with_blank) == 1 else ""
        raise UserError(f"{key}: must be one token for {pretrained.name} (got {parts}){hint}")
    return ids[0]
