"""Texts with common beginnings, read together so that each shared token is read only once.

The tokens in which the texts differ form one row, a pack, after the keys of a text that was read as a whole.
A token sees the tokens before it in its own text, which the attention here enforces, and has its position in
that text, as in the tree attention of speculative decoding (Miao et al. 2023, SpecInfer, 2305.09781). A text
consists of its tokens and their positions, (2, token).
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from attncli.core.engines import FusedAttention, attend
from attncli.core.layer import AttentionLayer, Visibility, Wanted
from attncli.models.layers import CapturedLayer

PACKED_TOKENS = 256
"""The most tokens in a pack: matrix products with more rows gain little, and the mask has this many rows."""


def num_alike(a: Int[Tensor, "rows a"], b: Int[Tensor, "rows b"]) -> int:
    """Return the number of equal columns at the beginning of both texts."""
    count = min(a.shape[1], b.shape[1])
    differ = (a[:, :count] != b[:, :count]).any(dim=0).nonzero()
    return int(differ[0]) if len(differ) else count


@dataclass
class Pack:
    """Tokens read in one row after `num_before` keys, and the columns of each text's tokens in it.

    `before` holds the columns of the previous pack's keys that are kept after the keys of the whole text.
    """

    before: Int[Tensor, " key"]
    positions_before: Int[Tensor, " key"]
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    texts: list[Int[Tensor, " token"]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def num_before(self) -> int:
        """The number of keys before the pack."""
        return len(self.before)

    def add(self, text: Int[Tensor, "2 token"], columns: Int[Tensor, " shared"]) -> None:
        """Append the tokens of a text, except its first tokens, which are already in these columns."""
        start, shared = self.num_before + len(self.ids), len(columns)
        ids, positions = text[:, shared:].tolist()
        self.texts.append(torch.cat([columns, torch.arange(start, start + len(ids))]))
        self.starts.append(shared)
        self.ids += ids
        self.positions += positions

    def key_positions(self) -> Int[Tensor, " key"]:
        """Return the position of each key in its text."""
        return torch.cat([self.positions_before, torch.tensor(self.positions)])

    def sees(self) -> Bool[Tensor, "query key"]:
        """True where a token sees a key: its own key, and the keys of earlier tokens in its text."""
        seen = torch.zeros(len(self.ids), self.num_before + len(self.ids), dtype=torch.bool)
        for columns, start in zip(self.texts, self.starts, strict=True):
            rows = columns[start:] - self.num_before
            triangle = torch.ones(len(columns), len(columns), dtype=torch.bool).tril()
            seen[rows.unsqueeze(1), columns] = triangle[start:]
        return seen


def packs(
    whole: Int[Tensor, "2 read"], texts: Sequence[Tensor], most_shared: Sequence[int]
) -> Iterator[Pack]:
    """Yield the packs of texts, in order; each text shares at most `most_shared` tokens with the whole text.

    Neighbours share their common beginning, so that sorted texts are read as a tree. No text is split over
    packs.
    """
    all_columns = torch.arange(whole.shape[1])
    pack = Pack(all_columns, whole[1])
    last, last_columns = whole, all_columns
    for text, most in zip(texts, most_shared, strict=True):
        columns = all_columns[: min(num_alike(whole, text), most)]
        with_last = min(num_alike(last, text), most)
        if with_last > len(columns):
            columns = last_columns[:with_last]
        if pack.ids and len(pack.ids) + text.shape[1] - len(columns) > PACKED_TOKENS:
            yield pack
            # Of this pack's keys, only those that begin the next text are kept.
            extra = columns[columns >= len(all_columns)]
            positions = pack.key_positions()[extra]
            pack = Pack(torch.cat([all_columns, extra]), torch.cat([whole[1], positions]))
            behind = torch.arange(len(all_columns), len(all_columns) + len(extra))
            columns = torch.cat([columns[: len(columns) - len(extra)], behind])
        pack.add(text, columns)
        last, last_columns = text, pack.texts[-1]
    if pack.ids:
        yield pack


def select_keys(cache: DynamicCache, columns: Int[Tensor, " key"]) -> DynamicCache:
    """Return a cache with only these keys and values; the given cache is not changed."""
    selected = copy(cache)
    selected.layers = [copy(layer) for layer in cache.layers]
    for layer in selected.layers:
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            places = columns.to(layer.keys.device)
            layer.keys, layer.values = layer.keys[..., places, :], layer.values[..., places, :]
    return selected


class PackedAttention:
    """The attention of a pack's tokens, which ignores the mask that the model makes for one row.

    `is_supported` becomes False, and the results are invalid, if a layer has any rule other than causality
    and a window.
    """

    def __init__(self, pack: Pack, model: PreTrainedModel) -> None:
        self.is_supported = True
        self._sees = pack.sees().to(model.device)
        self._key_positions = pack.key_positions().to(model.device)
        self._positions = torch.tensor(pack.positions, device=model.device)
        self._of_window: dict[int | None, tuple[Visibility, FusedAttention]] = {}

    def take(self, layer: CapturedLayer) -> Float[Tensor, "text head query value_dim"] | None:
        """Return the output of a layer."""
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        seen = attention.visibility
        is_plain = seen.rule is None and seen.key_mask is None and seen.offset is None
        is_causal = seen.causal or seen.num_queries == 1
        has_bias = attention.rules.bias is not None
        if not is_plain or not is_causal or has_bias or attention.shape[2:] != self._sees.shape:
            self.is_supported = False
            return None
        visibility, fused = self._window(seen.window)
        packed = replace(attention, visibility=visibility)
        output = fused.output(packed)
        return attend(packed, Wanted(output=True)).output if output is None else output

    def _window(self, window: int | None) -> tuple[Visibility, FusedAttention]:
        if window not in self._of_window:
            sees = self._sees
            if window is not None:
                sees = sees & (self._positions.unsqueeze(1) - self._key_positions < window)
            num_queries, num_keys = sees.shape
            visibility = Visibility(num_queries, num_keys, rule=lambda rows, keys: sees[rows][None, :, keys])
            self._of_window[window] = visibility, FusedAttention()
        return self._of_window[window]
