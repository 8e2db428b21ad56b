"""Texts that are given as token ids."""

import json
from collections.abc import Mapping
from typing import Any

from attncli.errors import nearest
from attncli.records.arguments import is_list, is_unicode, listed, shown

IDS, LABELS = "ids", "tokens"
"""The keys of token ids and of their labels."""


class TokenIds(str):
    """Token ids in place of a text, with an optional label for each.

    As a string, it is the JSON object `{"ids": [...], "tokens": [...]}`, which is stored, hashed and printed
    like any other text. `Pretrained.read` reads it without a tokenizer.
    """

    ids: tuple[int, ...]
    labels: tuple[str, ...] | None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "TokenIds":
        """Build the ids from such an object. Raises ValueError, naming the key, for any other value."""
        for key in fields:
            if key not in (IDS, LABELS):
                raise ValueError(f"{key}: unknown key{nearest(str(key), (IDS, LABELS))}")
        ids, labels = fields.get(IDS), fields.get(LABELS)
        if not isinstance(ids, list | tuple):
            raise ValueError(f"{IDS}: must be a list of token ids (got {ids!r:.60})")
        if not ids:
            raise ValueError(f"{IDS}: must hold at least one token id (got an empty list)")
        for place, number in enumerate(ids):
            if type(number) is not int or number < 0:
                raise ValueError(f"{IDS}[{place}]: must be a whole number from 0 (got {number!r:.60})")
        if labels is not None:
            _check_labels(labels, len(ids))
        written = {IDS: ids} if labels is None else {IDS: ids, LABELS: labels}
        text = cls(json.dumps(written, ensure_ascii=False))
        text.ids, text.labels = tuple(ids), None if labels is None else tuple(labels)
        return text


def _check_labels(labels: Any, num_ids: int) -> None:
    if not isinstance(labels, list | tuple):
        raise ValueError(f"{LABELS}: must be a list of labels (got {labels!r:.60})")
    for place, label in enumerate(labels):
        if not isinstance(label, str) or not label:
            raise ValueError(f"{LABELS}[{place}]: must be text of at least one character (got {label!r:.60})")
        if not is_unicode(label):
            raise ValueError(f"{LABELS}[{place}]: must be valid UTF-8 text")
    if len(labels) != num_ids:
        raise ValueError(f"{LABELS}: must hold {num_ids} labels, one per id (got {len(labels)})")


def text_or_ids(value: Any) -> str:
    """Return a text, or TokenIds for an object with ids and labels. Raises ValueError for any other value."""
    if isinstance(value, Mapping):
        lists = {key: listed(each) if is_list(each) else each for key, each in value.items()}
        items = {
            key: [item.item() if hasattr(item, "item") else item for item in each]
            if isinstance(each, list)
            else each
            for key, each in lists.items()
        }
        return TokenIds.of(items)
    if not isinstance(value, str):
        raise ValueError(f"must be text (got {shown(value)})")
    return value
