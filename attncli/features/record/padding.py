"""Padding in a batch: positions that a mask hides from every query of a text are not part of that text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from torch.nn import functional

from attncli.core.layer import AttentionLayer, Keys, Queries, Visibility
from attncli.core.mask_tensors import recognised
from attncli.core.row_tiles import GivenWeights, LayerOrWeights

MOST_LOOKED_AT = 2**22
"""Maximum number of mask entries that are read at a time."""
MOST_RECOGNISED = 2**22
"""Maximum number of entries of a mask that is compared with causal masks and windows."""
FAR = 80.0
"""A bias this far below the largest in its row hides the key as a mask does, with a factor of 1e-35."""


class RealPositions(NamedTuple):
    """The queries and keys in each text that are not padding.

    `is_unclear`: texts are padded, but it is unknown which queries are padding.
    """

    queries: Bool[Tensor, "text query"]
    keys: Bool[Tensor, "text key"]
    is_unclear: bool = False


class TextsTogether(NamedTuple):
    """Texts in a batch that have equal numbers of positions, without padding.

    `queries` and `keys` are the real positions of each of the `texts`. `is_empty`: all positions are padding,
    so no position is removed.
    """

    texts: list[int]
    source: LayerOrWeights
    queries: Int[Tensor, "text query"]
    keys: Int[Tensor, "text key"]
    is_empty: bool = False


def first_query_place(source: LayerOrWeights) -> int | None:
    """Return the position of the first query of self-attention among the keys, or None if unknown."""
    _, _, num_queries, num_keys = source.shape
    if num_queries == num_keys:
        return 0
    if not isinstance(source, AttentionLayer):
        return None
    seen = source.visibility
    return seen.shift if seen.causal or seen.offset is not None else None


def real_positions(source: LayerOrWeights, *, first_query: int | None) -> RealPositions:
    """Return the positions that are not padding: keys that some query sees, and the queries at these keys.

    `first_query` is the position of the first query among the keys, or None if the keys come from another
    text, in which case all queries are real. Programs may let padding see itself, so that its rows are not
    empty. These tokens therefore also count as padding: tokens at either end that see no other token; tokens
    hidden from all other tokens if nothing else is hidden; and two or more tokens at an end that are hidden
    from each other and from all other tokens.
    """
    num_texts, _, num_queries, num_keys = source.shape
    device = source.like.device
    seen_keys, is_unclear = _seen_keys(source, first_query)
    keys = seen_keys.expand(num_texts, -1)
    there = torch.ones(num_texts, num_queries, dtype=torch.bool, device=device)
    if first_query is None:
        return RealPositions(there, keys)
    places = torch.arange(num_queries, device=device) + first_query
    is_key = (places >= 0) & (places < num_keys)
    there[:, is_key] = keys[:, places[is_key]]
    return RealPositions(there, keys, is_unclear)


def _seen_keys(source: LayerOrWeights, first_query: int | None) -> tuple[Bool[Tensor, "#text key"], bool]:
    """Return the keys that some query sees, and True if the last key of some text may be padding."""
    _, _, num_queries, num_keys = source.shape
    places = torch.arange(num_keys, device=source.like.device)
    if isinstance(source, AttentionLayer) and source.visibility.rule is None and source.rules.bias is None:
        mask = source.visibility
        last = num_queries - 1 + mask.shift
        seen = torch.ones_like(places, dtype=torch.bool)
        if mask.causal:
            seen &= places <= last
        if mask.window is not None:
            seen &= (places > mask.shift - mask.window) & (places < last + mask.window)
        return seen.unsqueeze(0) if mask.key_mask is None else mask.key_mask & seen, False
    like = torch.zeros(1, num_keys, dtype=torch.int64, device=places.device)
    received, seen_by, own, first_seen, last_seen = like, like, like, like, like
    is_square = first_query == 0 and num_queries == num_keys
    for queries, visible in _blocks_seen(source):
        received = received + visible.sum(dim=1)
        if is_square:
            seen_by = seen_by + _at(queries, visible.sum(dim=-1), num_keys)
            from_start, from_end = visible.int().argmax(dim=-1), visible.flip(-1).int().argmax(dim=-1)
            first_seen = first_seen + _at(queries, from_start, num_keys)
            last_seen = last_seen + _at(queries, from_end, num_keys)
            own = own + _at(queries, visible[:, :, queries].diagonal(dim1=1, dim2=2), num_keys)
    if not is_square:
        return received > 0, False
    is_hidden = (received == 0) | ((received == 1) & (own == 1))
    num_left = (~is_hidden).sum(dim=1, keepdim=True)
    hides_nothing_else = (is_hidden | (received == num_keys)).all(dim=1, keepdim=True)
    # In a causal text of two tokens, the last token is hidden from the first.
    are_many = (num_left > 1) | ((num_left == 1) & (num_keys > 2))
    lonely = is_hidden & (seen_by == 1)
    there = _without_lonely(received > 0, lonely, own > 0)
    there = there & ~(is_hidden & hides_nothing_else & are_many)
    is_alone, num_seen = (received == 1) & (own == 1), seen_by - own
    at_end, is_unclear = _last_apart(there, is_alone, num_seen, first_seen)
    at_start, _ = _last_apart(*(each.flip(1) for each in (there, is_alone, num_seen, last_seen)))
    return there & ~at_end & ~at_start.flip(1), is_unclear


def _last_apart(
    there: Bool[Tensor, "#text key"],
    is_alone: Bool[Tensor, "#text key"],
    num_seen: Int[Tensor, "#text key"],
    first: Int[Tensor, "#text key"],
) -> tuple[Bool[Tensor, "#text key"], bool]:
    """Return the padding at the end that sees the text and itself, and True if others may end in padding.

    Padding is two or more tokens that see all earlier ones from `first` on, `num_seen` of them, but not each
    other: in a causal text only the last token is hidden from all other tokens.
    """
    at_end = (~there | is_alone).flip(1).cummin(dim=1).values.flip(1)
    text = there & ~at_end
    before = functional.pad(text.cumsum(dim=1), (1, 0))
    sees_all = num_seen == before[:, -1:] - before.gather(1, first)
    apart = there & at_end
    num_apart, is_text = apart.sum(dim=1, keepdim=True), text.any(dim=1, keepdim=True)
    is_like_padding = is_text & (sees_all | ~apart).all(dim=1, keepdim=True)
    is_padding = is_like_padding & (num_apart > 1)
    may_be = is_like_padding & (num_apart == 1)
    return apart & is_padding, bool(is_padding.any()) and bool(may_be.any())


def _at(places: Queries, numbers: Shaped[Tensor, "#text query"], count: int) -> Int[Tensor, "#text key"]:
    """Return the numbers at their positions, and 0 elsewhere."""
    whole = torch.zeros(len(numbers), count, dtype=torch.int64, device=places.device)
    whole[:, places] = numbers.to(torch.int64)
    return whole


def _blocks_seen(source: LayerOrWeights) -> Iterator[tuple[Queries, Bool[Tensor, "#text query key"]]]:
    """Yield blocks of queries with the keys that they see; a key whose bias is below FAR is not seen."""
    num_texts, num_heads, num_queries, num_keys = source.shape
    bias = source.rules.bias if isinstance(source, AttentionLayer) else None
    lead = num_texts if bias is None else num_texts * num_heads
    step = max(1, MOST_LOOKED_AT // max(1, lead * num_keys))
    keys = torch.arange(num_keys, device=source.like.device)
    for queries in torch.split(torch.arange(num_queries, device=keys.device), step):
        if isinstance(source, GivenWeights):
            yield queries, source.seen[:, queries]
            continue
        seen = source.visibility.block(queries, keys)
        if bias is not None:
            rows = (bias if bias.shape[2] == 1 else bias[:, :, queries]).float()
            largest = rows.masked_fill(~seen.unsqueeze(1), -torch.inf).amax(dim=-1, keepdim=True)
            seen = seen & (rows >= largest - FAR).any(dim=1)
        yield queries, seen


def _without_lonely(
    there: Bool[Tensor, "#text key"], lonely: Bool[Tensor, "#text key"], own: Bool[Tensor, "#text key"]
) -> Bool[Tensor, "#text key"]:
    """Return the positions without the tokens at either end that see only themselves.

    If no token sees itself, the last token of a causal text is hidden from every query, but is not padding.
    """
    is_end = lonely | ~there
    at_ends = is_end.cummin(dim=1).values | is_end.flip(1).cummin(dim=1).values.flip(1)
    has_text = (~is_end).any(dim=1, keepdim=True)
    real = there & ~(lonely & at_ends & has_text)
    count = there.shape[1]
    if count > 2:
        sees_no_self = ~own.any(dim=1) & there.any(dim=1)
        real[:, 0] |= sees_no_self & there[:, 1]
        real[:, -1] |= sees_no_self & there[:, -2]
    return real


def num_nan_rows(source: LayerOrWeights, rows: Bool[Tensor, "text query"]) -> int:
    """Return the number of these rows with a weight or a query entry that is not finite."""
    if not rows.any():
        return 0
    numbers = source.weights if isinstance(source, GivenWeights) else source.query
    return int(((~numbers.isfinite()).any(dim=-1).any(dim=1) & rows).sum())


def has_nan_padding(source: LayerOrWeights, positions: RealPositions) -> Bool[Tensor, "text 1"]:
    """Return a mask of the texts with padding keys that are not finite: an added mask does not hide NaN."""
    if isinstance(source, GivenWeights) or bool(positions.keys.all()):
        return torch.zeros(source.shape[0], 1, dtype=torch.bool)
    is_none = (~source.key.isfinite()).any(dim=-1).any(dim=1) & ~positions.keys
    return is_none.any(dim=1, keepdim=True).cpu()


def unpadded_mask(source: LayerOrWeights, positions: RealPositions) -> Visibility | None:
    """Return the mask of the longest text without padding, or None if there is no padding or no mask name."""
    if bool(positions.keys.all()) or source.shape[2] * source.shape[3] > MOST_RECOGNISED:
        return None
    text = int(positions.keys.sum(dim=1).argmax())
    queries, keys = (_places(each, [text]) for each in (positions.queries, positions.keys))
    if not queries.numel():
        return None
    unpadded = taken(source, [text], queries, keys)
    seen = unpadded.visibility if isinstance(unpadded, AttentionLayer) else recognised(unpadded.seen)
    return None if seen.rule is not None else seen


def texts_together(
    source: LayerOrWeights, positions: RealPositions, *, by_place: bool = False
) -> list[TextsTogether]:
    """Return the texts of a batch without padding, grouped by their numbers of positions.

    With `by_place`, they are grouped by the positions themselves. If there is no padding, the source is
    unchanged.
    """
    num_texts, _, num_queries, num_keys = source.shape
    if positions.queries.all() and positions.keys.all():
        queries, keys = (
            torch.arange(count, device=source.like.device).expand(num_texts, -1)
            for count in (num_queries, num_keys)
        )
        return [TextsTogether([*range(num_texts)], source, queries, keys)]
    groups: dict[tuple[object, ...], list[int]] = {}
    for text, rows in enumerate(zip(positions.queries.cpu(), positions.keys.cpu(), strict=True)):
        counts: tuple[object, ...] = tuple(int(each.sum()) for each in rows)
        if 0 in counts:
            counts = (0, 0)
        elif by_place:
            counts = tuple(each.numpy().tobytes() for each in rows)
        groups.setdefault(counts, []).append(text)
    return [_together(source, positions, texts, is_empty=0 in counts) for counts, texts in groups.items()]


def _together(
    source: LayerOrWeights, positions: RealPositions, texts: list[int], *, is_empty: bool
) -> TextsTogether:
    if is_empty:
        queries, keys = (
            _places(torch.ones_like(each), texts) for each in (positions.queries, positions.keys)
        )
        none = queries[:, :0]
        return TextsTogether(texts, taken(source, texts, queries, keys), none, none, is_empty=True)
    queries, keys = (_places(each, texts) for each in (positions.queries, positions.keys))
    return TextsTogether(texts, taken(source, texts, queries, keys), queries, keys)


def _places(there: Bool[Tensor, "text token"], texts: Sequence[int]) -> Int[Tensor, "some place"]:
    """Return the positions of the real tokens of these texts, which all have equally many real tokens."""
    return there[texts].nonzero()[:, 1].view(len(texts), -1)


def taken(
    source: LayerOrWeights,
    texts: Sequence[int],
    queries: Int[Tensor, "text query"],
    keys: Int[Tensor, "text key"],
) -> LayerOrWeights:
    """Select queries and keys per text; the values of a layer are dropped."""
    if isinstance(source, GivenWeights):
        weights = _entries(source.weights, texts, queries, keys)
        return GivenWeights(weights, _entries(source.seen.unsqueeze(1), texts, queries, keys)[:, 0])
    rules = source.rules
    key = _rows(source.key, texts, keys)
    return replace(
        source,
        query=_rows(source.query, texts, queries),
        key=key,
        value=key[..., :0],
        visibility=_visibility(source.visibility, texts, queries, keys),
        rules=replace(
            rules,
            bias=None if rules.bias is None else _entries(rules.bias, texts, queries, keys),
            sink=rules.sink if rules.sink is None or len(rules.sink) == 1 else rules.sink[[*texts]],
        ),
    )


def _rows(vectors: Tensor, texts: Sequence[int], places: Int[Tensor, "text token"]) -> Tensor:
    """Select tokens per text from vectors (text, head, token, dim)."""
    rows = torch.tensor([*texts], device=vectors.device)[:, None, None]
    heads = torch.arange(vectors.shape[1], device=vectors.device)[:, None]
    return vectors[rows, heads, places[:, None]]


def _entries(
    matrix: Tensor, texts: Sequence[int], queries: Int[Tensor, "text query"], keys: Int[Tensor, "text key"]
) -> Tensor:
    """Select queries and keys per text from a matrix (text, head, query, key), whose axes may have size 1."""
    device = matrix.device
    numbers = torch.tensor([*texts], device=device)[:, None, None, None]
    heads = torch.arange(matrix.shape[1], device=device)[:, None, None]
    rows, columns = queries[:, None, :, None], keys[:, None, None]
    first = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
    places = zip((numbers, heads, rows, columns), matrix.shape, strict=True)
    return matrix[tuple(place if size > 1 else first for place, size in places)]


@dataclass(frozen=True)
class _SelectedRule:
    """The visibility for the queries and keys that were selected in each text."""

    visibility: Visibility
    texts: tuple[int, ...]
    queries: Int[Tensor, "text query"]
    keys: Int[Tensor, "text key"]

    def __call__(self, queries: Queries, keys: Keys) -> Bool[Tensor, "text query key"]:
        blocks = [
            self.visibility.for_texts(slice(text, text + 1)).block(rows[queries], columns[keys])
            for text, rows, columns in zip(self.texts, self.queries, self.keys, strict=True)
        ]
        return torch.cat(blocks)


def _visibility(
    visibility: Visibility,
    texts: Sequence[int],
    queries: Int[Tensor, "text query"],
    keys: Int[Tensor, "text key"],
) -> Visibility:
    num_queries, num_keys = queries.shape[1], keys.shape[1]
    rule = _SelectedRule(visibility, tuple(texts), queries, keys)
    if queries.numel() * num_keys <= MOST_RECOGNISED:
        rows, columns = (torch.arange(count, device=keys.device) for count in (num_queries, num_keys))
        return recognised(rule(rows, columns))
    apart = visibility.shift + queries[:, :1] - keys[:, :1]
    are_runs = all(bool((each.diff(dim=1) == 1).all()) for each in (queries, keys))
    if visibility.rule is None and are_runs and bool((apart == apart[0]).all()):
        shift = int(apart[0])
        whole = Visibility(num_queries, num_keys, visibility.causal, visibility.window)
        return whole if whole.shift == shift else replace(whole, offset=shift)
    return Visibility(num_queries, num_keys, rule=rule)
