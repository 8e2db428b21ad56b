"""Where the tokens stand that a user names: by position, by text, or by the vocabulary's own spelling."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool
from torch import Tensor

from attncli.attention.patterns import Marks
from attncli.errors import UserError, nearest
from attncli.inputs.models.pretrained import ModelText, Pretrained, Reading
from attncli.spec.models.heads import HeadsSpec

MOST_LISTED = 12


def marked(spec: HeadsSpec, reading: Reading, pretrained: Pretrained, stack: str, special: Tensor) -> Marks:
    """The places on the two sides of a stack: an encoder reads the context, a decoder looks across at it."""
    encoded = reading.context or reading.text
    query = encoded if stack == "encoder" else reading.text
    key = reading.text if stack in ("self", "decoder") else encoded
    size = max(len(query.ids), len(key.ids))
    of_special = torch.isin(key.ids, special).nonzero().flatten().tolist()
    sought = spec.sought()
    queries = _positions(sought["from"], query, pretrained) if sought["from"] else range(size)
    keys = _positions(sought["to"], key, pretrained)
    return Marks(*(_flags(found, size) for found in (of_special, queries, keys)))


def _flags(positions: Iterable[int], size: int) -> Bool[Tensor, "1 token"]:
    flags = torch.zeros(1, size, dtype=torch.bool)
    flags[0, list(positions)] = True
    return flags


def _positions(names: Iterable[str], text: ModelText, pretrained: Pretrained) -> list[int]:
    return sorted({place for name in names for place in _positions_of(name, text, pretrained)})


def _positions_of(name: str, text: ModelText, pretrained: Pretrained) -> list[int]:
    """A position; else every token of that text; else the pieces of that word, one after the other."""
    if name.isdecimal():
        return [int(name)] if int(name) < len(text.ids) else []
    wanted = name.removeprefix("·")
    shown = pretrained.written_tokens(text)
    alike = [place for place, token in enumerate(text.tokens) if name == token or wanted == shown[place]]
    return alike or _pieces(name, text, pretrained)


def _pieces(name: str, text: ModelText, pretrained: Pretrained) -> list[int]:
    ids: list[int] = text.ids.tolist()
    found: set[int] = set()
    for written in (name, f" {name}"):
        pieces = pretrained.tokenizer(written, add_special_tokens=False)["input_ids"]
        unknown = pretrained.tokenizer.unk_token_id
        for start in range(len(ids) - len(pieces) + 1) if pieces and unknown not in pieces else ():
            if ids[start : start + len(pieces)] == pieces:
                found.update(range(start, start + len(pieces)))
    return sorted(found)


def check_places(spec: HeadsSpec, reading: Reading, pretrained: Pretrained) -> None:
    """UserError for a token that is in no text on its side, with those that are."""
    texts = [reading.text] if reading.context is None else [reading.text, reading.context]
    for key, names in spec.sought().items():
        for name in names:
            if not any(_positions_of(name, text, pretrained) for text in texts):
                raise UserError(f"{key}: {_not_there(name, texts, pretrained)}")


def _not_there(name: str, texts: list[ModelText], pretrained: Pretrained) -> str:
    if name.isdecimal():
        most = max(len(text.ids) for text in texts)
        return f"must be below {most}, the number of tokens (got {name})"
    tokens = dict.fromkeys(token for text in texts for token in pretrained.written_tokens(text))
    listed = ", ".join([*tokens][:MOST_LISTED]) + (", ..." if len(tokens) > MOST_LISTED else "")
    close = nearest(name, tokens)
    return f"no token of the text (got {name:.60}){close}: its tokens are {listed}"
