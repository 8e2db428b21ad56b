"""Tokens that users name, by position, by text, or by place in a picture or a sound."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from attncli.core.names import position_among, the_one_position, token_positions
from attncli.errors import UserError, nearest
from attncli.models.pretrained import CLS, ModelText, Pretrained
from attncli.system.plain_text import readable_tokens

MAX_LISTED = 12
"""The most tokens that a message lists."""


def checked_position(position: int, num_tokens: int, key: str) -> int:
    """Return a position, counted from 0. Raises UserError, at `key`, if the position is out of range."""
    try:
        return position_among(position, num_tokens)
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None


def positions_named(names: Iterable[str], text: ModelText, pretrained: Pretrained) -> dict[int, str]:
    """Return the positions of the tokens that a user names, in order, each with its name.

    Tokens are named by position, by text, by their spelling in the vocabulary, or as a word of several
    tokens; see `token_positions`. Names that match no token in the text are left out.
    """
    position_names: dict[int, str] = {}
    for name in names:
        with suppress(ValueError):
            position_names |= dict.fromkeys(_token_positions(name, text, pretrained), name)
    return dict(sorted(position_names.items()))


def positions_that_look(names: Sequence[str], text: ModelText, pretrained: Pretrained) -> list[int] | None:
    """Return the queries that heads look from: named tokens, by default [CLS] on a grid, or None for all.

    With None, the mean over all queries is used.
    """
    is_grid = text.origin is not None and text.origin.grid is not None
    queries = names or ((CLS,) if is_grid and CLS in text.tokens else ())
    return [*positions_named(queries, text, pretrained)] or None


def check_tokens_named(
    names: Iterable[str], texts: Sequence[ModelText], pretrained: Pretrained, *, key: str
) -> None:
    """Raise UserError, at `key`, for a name that matches no token in any text."""
    for name in names:
        positions: list[int] = []
        reasons: list[str] = []
        for text in texts:
            try:
                positions += _token_positions(name, text, pretrained)
            except ValueError as error:
                reasons.append(str(error))
        if not positions:
            raise UserError(f"{key}: {reasons[0] if reasons else _missing(name, texts, pretrained)}")


def token_named(name: str, text: ModelText, pretrained: Pretrained, *, key: str) -> int:
    """Return the position of the token that a user names.

    Raises UserError, at `key`, unless exactly one token matches.
    """
    check_tokens_named([name], [text], pretrained, key=key)
    try:
        return the_one_position(
            name, _token_positions(name, text, pretrained), _occurrences(text, pretrained)
        )
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None


def _occurrences(text: ModelText, pretrained: Pretrained) -> Callable[[str], list[range]]:
    """The places of texts among the tokens that a model reads."""

    def occurrences(sought: str) -> list[range]:
        """Return every token with this text or, if there is none, every such word, as ranges of tokens."""
        written, readable = pretrained.written_tokens(text), _readable_tokens(text, pretrained)
        alike = [
            range(i, i + 1)
            for i, token in enumerate(text.tokens)
            if sought in (token, readable[i]) or sought.removeprefix("·") == written[i]
        ]
        return alike or (list(_pieces(sought, text, pretrained)) if pretrained.own_tokenizer else [])

    return occurrences


def _readable_tokens(text: ModelText, pretrained: Pretrained) -> list[str]:
    """Return the tokens of a text as screens show them."""
    return readable_tokens(text.tokens, pretrained.spelling_of(text))


def _token_positions(name: str, text: ModelText, pretrained: Pretrained) -> tuple[int, ...]:
    token = None if text.origin is None else text.origin.token_at(name, text.tokens)
    if token is not None:
        return (token,)
    return token_positions(name, len(text.ids), _occurrences(text, pretrained))


def _pieces(name: str, text: ModelText, pretrained: Pretrained) -> Iterator[range]:
    """Return the places of a word of several tokens, merging overlapping places."""
    ids: list[int] = text.ids.tolist()
    unknown = pretrained.tokenizer.unk_token_id
    words = [pretrained.encoded(word, add_special_tokens=False)["input_ids"] for word in (name, f" {name}")]
    last = range(0)
    for start in range(len(ids)):
        for pieces in words:
            end = start + len(pieces)
            if pieces and unknown not in pieces and ids[start:end] == pieces:
                if last and start >= last.stop:
                    yield last
                last = range(last.start if start < last.stop else start, max(last.stop, end))
    if last:
        yield last


def _missing(name: str, texts: Sequence[ModelText], pretrained: Pretrained) -> str:
    tokens = dict.fromkeys(
        # A token spelled as in the vocabulary may be part of a character.
        readable if written == token or "\N{REPLACEMENT CHARACTER}" in written else written
        for text in texts
        for token, written, readable in zip(
            text.tokens, pretrained.written_tokens(text), _readable_tokens(text, pretrained), strict=True
        )
    )
    listed = ", ".join([*tokens][:MAX_LISTED]) + (", ..." if len(tokens) > MAX_LISTED else "")
    return f"must be a token of the text (got {name:.60}){nearest(name, tokens)}: its tokens are {listed}"
