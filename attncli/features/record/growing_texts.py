"""Joins the steps of a cached generation into one text, in which new queries follow the earlier keys."""

from dataclasses import replace
from itertools import accumulate

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.mask_tensors import recognised

MOST_LOOKED_AT = 2**22
"""Maximum number of entries of a mask that is searched for keys that no query sees."""


def without_unused_keys(layer: AttentionLayer) -> AttentionLayer:
    """Return the layer without trailing keys that no query sees, such as the unfilled part of a static cache.

    A layer with as many queries as keys is returned unchanged.
    """
    seen, (_, _, num_queries, num_keys) = layer.visibility, layer.shape
    hides_some = seen.rule is not None or seen.key_mask is not None or seen.offset is not None
    if num_queries >= num_keys or not hides_some or num_queries * num_keys > MOST_LOOKED_AT:
        return layer
    visible = seen.whole(layer.query.device)
    used = visible.any(dim=(0, 1)).nonzero()
    count = int(used[-1]) + 1 if len(used) else num_keys
    if count == num_keys:
        return layer
    bias = layer.rules.bias
    if bias is not None and bias.shape[-1] > 1:
        bias = bias[..., :count]
    return replace(
        layer,
        key=layer.key[:, :, :count],
        value=layer.value[:, :, :count],
        visibility=recognised(visible[..., :count]),
        rules=replace(layer.rules, bias=bias),
    )


def bytes_to_copy(layer: AttentionLayer, num_keys: int) -> int:
    """Return the number of bytes in a copy of the queries, `num_keys` keys, the bias and the mask."""
    num_texts, _, num_queries, count = layer.shape
    bias = layer.rules.bias
    bias_bytes = 0 if bias is None else bias.shape[0] * bias.shape[1] * num_queries * count * bias.itemsize
    key_bytes = layer.key.nbytes // count * num_keys
    return layer.query.nbytes + key_bytes + bias_bytes + num_texts * num_queries * count


def may_grow(layer: AttentionLayer) -> bool:
    """Return True if the visibility can be stored without keeping one of the program's masks."""
    return layer.visibility.rule is None or layer.shape[2] * layer.shape[3] <= MOST_LOOKED_AT


class GrowingText:
    """The text that a module has read so far, in a first call and in later calls that add keys.

    Queries and new keys are copied; values are not.
    """

    def __init__(self, layer: AttentionLayer) -> None:
        self.queries, self.keys = [layer.query.clone()], [layer.key.clone()]
        self.biases = [self._bias(layer)]
        # Hold no reference to the program's tensors, so that the program can free them.
        self.first = replace(
            layer,
            query=self.queries[0],
            key=self.keys[0],
            value=layer.key.new_empty(*layer.key.shape[:3], 0),
            rules=replace(layer.rules, bias=self.biases[0]),
        )
        self.rows: list[Bool[Tensor, "#text query key"]] = []
        self.num_tokens = layer.shape[3]
        self.num_skipped = 0
        """The number of tokens of later calls that were not copied."""
        self.is_causal = self._is_causal(layer)

    def continues(self, layer: AttentionLayer) -> bool:
        """Return True if a call repeats all earlier keys bit for bit and adds one new key per query."""
        first, (num_texts, num_heads, num_queries, num_keys) = self.first, layer.shape
        if (
            first.shape[:2] != (num_texts, num_heads)
            or num_keys != self.num_tokens + self.num_skipped + num_queries
            or first.key.shape[1::2] != layer.key.shape[1::2]
            or (first.scale, first.rules.softcap, first.key.dtype)
            != (layer.scale, layer.rules.softcap, layer.key.dtype)
            or layer.rules.sink is not None
        ):
            return False
        ends = accumulate(key.shape[2] for key in self.keys)
        return all(
            torch.equal(layer.key[:, :, end - key.shape[2] : end], key)
            for end, key in zip(ends, self.keys, strict=True)
        )

    def add(self, layer: AttentionLayer) -> None:
        """Add a call that continues the text."""
        num_queries, num_keys = layer.shape[2:]
        self.is_causal = self.is_causal and self._is_causal(layer)
        self.rows.append(layer.visibility.whole(layer.query.device))
        self.queries.append(layer.query.clone())
        self.keys.append(layer.key[:, :, num_keys - num_queries :].clone())
        self.biases.append(self._bias(layer))
        self.num_tokens = num_keys

    def skip(self, layer: AttentionLayer) -> None:
        """Leave out a call that continues the text, and all later calls that continue it."""
        self.num_skipped += layer.shape[2]

    @staticmethod
    def _bias(layer: AttentionLayer) -> Float[Tensor, "#text #head query key"] | None:
        bias = layer.rules.bias
        return None if bias is None else bias.expand(*bias.shape[:2], *layer.shape[2:]).clone()

    @staticmethod
    def _is_causal(layer: AttentionLayer) -> bool:
        seen = layer.visibility
        is_plain = seen.rule is None and seen.key_mask is None and seen.window is None and seen.offset is None
        return is_plain and (seen.causal or seen.num_queries == 1)

    def joined(self) -> AttentionLayer:
        """Return the attention over the whole text, without values."""
        query, key = torch.cat(self.queries, dim=2), torch.cat(self.keys, dim=2)
        count, lacking = self.num_tokens, self.num_tokens - query.shape[2]
        if lacking:  # The first call already had earlier keys, whose queries are unknown.
            query = torch.cat([query.new_zeros(*query.shape[:2], lacking, query.shape[3]), query], dim=2)
        is_causal = self.is_causal and not lacking
        visibility = Visibility(count, count, causal=True) if is_causal else self._visibility(lacking)
        rules = replace(self.first.rules, bias=self._joined_bias(lacking))
        value = key.new_empty(*key.shape[:3], 0)
        return AttentionLayer(query, key, value, visibility, self.first.scale, rules)

    def _visibility(self, lacking: int) -> Visibility:
        """Return the keys that each query saw in its call."""
        first, count = self.first.visibility, self.num_tokens
        begin = lacking + first.num_queries
        num_texts = max((len(rows) for rows in self.rows), default=1)
        later = torch.zeros(num_texts, count - begin, count, dtype=torch.bool, device=self.first.key.device)
        start = 0
        for rows in self.rows:
            later[:, start : start + rows.shape[1], : rows.shape[2]] = rows
            start += rows.shape[1]

        def rule(queries: Tensor, keys: Tensor) -> Tensor:
            is_first = queries < begin
            among = (queries[is_first] - lacking).clamp(min=0)
            first_seen = first.block(among, keys.clamp(max=first.num_keys - 1)) & (keys < first.num_keys)
            first_seen = first_seen & (queries[is_first] >= lacking)[:, None]
            texts = max(num_texts, len(first_seen))
            seen = torch.zeros(texts, len(queries), len(keys), dtype=torch.bool, device=queries.device)
            seen[:, is_first] = first_seen
            seen[:, ~is_first] = later[:, queries[~is_first] - begin][:, :, keys]
            return seen

        return Visibility(count, count, rule=rule)

    def _joined_bias(self, lacking: int) -> Float[Tensor, "#text #head query key"] | None:
        biases = [bias for bias in self.biases if bias is not None]
        if not biases:
            return None
        lead = [max(bias.shape[axis] for bias in biases) for axis in (0, 1)]
        whole = biases[0].new_zeros(*lead, self.num_tokens, self.num_tokens)
        start = lacking
        for query, bias in zip(self.queries, self.biases, strict=True):
            if bias is not None:
                whole[:, :, start : start + query.shape[2], : bias.shape[3]] = bias
            start += query.shape[2]
        return whole
