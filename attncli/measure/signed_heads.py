"""What the heads of layers without a softmax do on some texts: statistics of their signed weights."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attncli.core.runtime import idle_core_threads
from attncli.core.signed_layer import RowCache, SignedLayer
from attncli.core.signed_rows import SignedStatistics, SignedSums, signed_statistics
from attncli.measure.looks import by_layer
from attncli.measure.patterns import MixerPlace
from attncli.models.layer_sources import CapturedMixer, capturing_mixers
from attncli.models.pretrained import Pretrained
from attncli.records.columns import Records
from attncli.records.report import Mask, NamedTensor
from attncli.records.surveys import SIGNED_OVER_TEXTS, SignedHead

STATISTICS = tuple(each.name for each in fields(SignedStatistics))


class SignedHeads:
    """Takes the layers as the model hands them over, and keeps the statistics of their heads.

    With `keeps_maps` their whole matrices, too.
    """

    def __init__(self, pretrained: Pretrained, num_tokens: int, *, keeps_maps: bool = False) -> None:
        self.pretrained = pretrained
        self.num_tokens = num_tokens
        self.keeps_maps = keeps_maps
        self.maps: dict[int, Float[Tensor, "text head query key"]] = {}
        self.layers: list[tuple[CapturedMixer, int, SignedStatistics]] = []

    def heard(self) -> AbstractContextManager[None]:
        """While it is open, the layers of a run in this thread are taken."""
        return capturing_mixers(self.pretrained.model, self.take)

    def take(self, layer: CapturedMixer) -> None:
        """Look at one layer. Another stack than that of the text, as one that sees, is not shown."""
        _, num_heads, num_tokens, _ = layer.heads.shape
        if num_tokens == self.num_tokens:
            with torch.no_grad(), idle_core_threads() as adapt:
                self.layers.append((layer, num_heads, signed_statistics(layer.heads, adapt)))
                if self.keeps_maps:
                    self.maps[layer.layer] = layer.heads.weights().cpu()

    @property
    def modules(self) -> set[str]:
        """The names of the modules that heads come from."""
        return {layer.module for layer, *_ in self.layers}

    def of_text(self, text: int) -> Records[SignedHead]:
        """One row per head of one of the texts, in the order of the layers."""
        layers = [(layer, range(count), statistics) for layer, count, statistics in self.layers]
        return _heads_of_text(self.pretrained, layers, text)

    def numbers(self) -> Iterator[tuple[MixerPlace, Float[Tensor, "text head statistic"]]]:
        """Of each layer the statistics that have a mean over texts."""
        for layer, _, statistics in self.layers:
            numbers = torch.stack([getattr(statistics, name) for name in SIGNED_OVER_TEXTS], dim=-1)
            yield (
                MixerPlace(layer.layer, self.pretrained.module_name(layer.module), layer.mixer),
                numbers.cpu(),
            )

    def maps_of(self, text: int) -> Float[npt.NDArray[np.float32], "layer head query key"] | None:
        """The signed weights of every head, NaN where a layer has none; None where they were not kept."""
        return by_layer({layer: maps[text] for layer, maps in self.maps.items()}) if self.maps else None


def _heads_of_text(
    pretrained: Pretrained, layers: Sequence[tuple[CapturedMixer, range, SignedStatistics]], text: int = 0
) -> Records[SignedHead]:
    """One row per head of some layers, with the numbers of their heads and the statistics of these."""
    if not layers:
        return SignedHead.rows([])
    places = [(layer, head) for layer, heads, _ in layers for head in heads]
    columns = {
        name: torch.cat([getattr(statistics, name)[text] for *_, statistics in layers]).numpy(force=True)
        for name in STATISTICS
    }
    return SignedHead.table(
        layer=np.array([layer.layer for layer, _ in places], dtype=int),
        head=np.array([head for _, head in places], dtype=int),
        module=[pretrained.module_name(layer.module) for layer, _ in places],
        mixer=[layer.mixer for layer, _ in places],
        **columns,
    )


MOST_STATES = 2**31
"""Bytes of what states hold of each token, of all layers of a model that writes."""


class _WritingLayer:
    """A layer without a softmax as its model writes: what the rows are like that chose each token."""

    def __init__(
        self, layer: CapturedMixer, cache: RowCache, num_keys: int, head: int | None, *, keeps_rows: bool
    ) -> None:
        self.layer, self.cache = layer, cache
        num_heads = layer.heads.shape[1]
        self.heads = range(num_heads) if head is None else range(head, head + 1)
        self.sums = SignedSums(1, len(self.heads), num_keys, None)
        self.log_decay = torch.zeros(1, len(self.heads), dtype=torch.float64)
        self.num_tokens = 0
        self.keeps_rows = keeps_rows
        self.rows: list[Float[Tensor, "head key"]] = []
        self.shares: list[Float[Tensor, " key"]] = []
        self.pending: list[Float[Tensor, "head key"]] = []

    def add(self, layer: CapturedMixer) -> None:
        """Some tokens, of which the last one chooses the next."""
        self._decay(layer.heads)
        row = self.cache.add(layer.heads)
        self.pending = [row[self.heads.start : self.heads.stop].cpu()]

    def add_answer(self, layer: CapturedMixer, count: int) -> None:
        """A whole text, whose last tokens chose an answer that was read."""
        self._decay(layer.heads)
        num_tokens = layer.heads.shape[2]
        rows = [torch.zeros(len(self.heads), num_tokens - count + place + 1) for place in range(count)]
        for heads, queries, weights in layer.heads.row_blocks(0):
            kept = range(max(heads.start, self.heads.start), min(heads.stop, self.heads.stop))
            if not kept:
                continue
            of_kept = weights[kept.start - heads.start : kept.stop - heads.start].cpu()
            into = slice(kept.start - self.heads.start, kept.stop - self.heads.start)
            for query in range(max(queries.start, num_tokens - count), queries.stop):
                row = of_kept[:, query - queries.start, : query + 1]
                rows[query - num_tokens + count][into] = row
        self.pending = rows

    def _decay(self, heads: SignedLayer) -> None:
        if heads.log_decay is not None:
            of_heads = heads.log_decay[0, :, self.heads.start : self.heads.stop]
            self.log_decay += of_heads.double().sum(dim=0).cpu()
        self.num_tokens += heads.shape[2]

    def count(self) -> None:
        """The next of the rows has chosen its token."""
        row, *self.pending = self.pending
        self.sums.add(0, slice(None), row.shape[-1] - 1, row.unsqueeze(1))
        if self.keeps_rows:
            self.rows.append(row)
        sizes = row.abs()
        self.shares.append((sizes / sizes.sum(dim=-1, keepdim=True)).nan_to_num(nan=0.0).mean(dim=0))

    def statistics(self) -> SignedStatistics:
        """Means over the rows; the half-life is of all tokens."""
        return self.sums.statistics(self.log_decay / self.num_tokens if self.log_decay.any() else None)


class WritingSignedHeads:
    """Takes the layers without a softmax of a model that writes, and keeps what their new rows are like.

    Of every layer, or of one `layer`, of it one `head`. `num_keys` are all tokens at the end, of an answer
    that is read `num_answer`. With `keeps_rows` whole rows are kept, too. Layers whose states would take too
    much memory, of all 2 GiB, are left out.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        num_keys: int,
        *,
        num_answer: int = 0,
        layer: int | None = None,
        head: int | None = None,
        keeps_rows: bool = False,
    ) -> None:
        self.pretrained, self.num_keys, self.num_answer = pretrained, num_keys, num_answer
        self.layer, self.head, self.keeps_rows = layer, head, keeps_rows
        self.layers: dict[str, _WritingLayer] = {}
        self.num_heads: dict[int, int] = {}
        """Of each layer that was heard, whether its rows are kept or not."""
        self.num_bytes = 0
        self.modules: set[str] = set()
        """Those whose rows are kept, or would be if they were asked for."""

    def heard(self) -> AbstractContextManager[None]:
        """While it is open, the layers of runs in this thread are taken."""
        return capturing_mixers(self.pretrained.whole, self.take)

    @torch.no_grad()
    def take(self, layer: CapturedMixer) -> None:
        """Some tokens of one layer; UserError for a head that it lacks."""
        if layer.layer not in self.num_heads:
            self.num_heads[layer.layer] = layer.heads.shape[1]
        if self.layer not in (None, layer.layer):
            self.modules.add(layer.module)
            return
        if layer.module not in self.layers:
            if self.head is not None and self.head >= layer.heads.shape[1]:
                return
            cache, needed = layer.heads.row_cache(), layer.heads.cached_bytes_per_token * self.num_keys
            if cache is None or (self.layer is None and self.num_bytes + needed > MOST_STATES):
                return
            self.num_bytes += needed
            self.modules.add(layer.module)
            self.layers[layer.module] = _WritingLayer(
                layer, cache, self.num_keys, self.head, keeps_rows=self.keeps_rows
            )
        writing = self.layers[layer.module]
        if self.num_answer:
            writing.add_answer(layer, self.num_answer)
        else:
            writing.add(layer)

    def count(self) -> None:
        """A token was chosen: the rows of the layers that were taken last are its."""
        for layer in self.layers.values():
            layer.count()

    def table(self) -> Records[SignedHead]:
        """One row per head, in the order of the layers: means over the tokens that were chosen."""
        layers = [(layer.layer, layer.heads, layer.statistics()) for layer in self.layers.values()]
        return _heads_of_text(self.pretrained, layers)

    def shares(self) -> list[Float[Tensor, " key"]]:
        """Of the chosen layer or head: each row's shares of |w|, mean over its heads."""
        (layer,) = self.layers.values()
        return layer.shares

    def rows(self) -> NamedTensor | None:
        """The signed weights (layer, head, query, key), without the axes of which one was chosen; 0 on keys
        after a query, NaN where a layer has no such head. None where they are not kept.
        """
        if not self.layers or not self.keeps_rows:
            return None
        whole = {
            layer.layer.layer: pad_sequence([row.T for row in layer.rows], batch_first=True).permute(2, 0, 1)
            for layer in self.layers.values()
        }
        if self.layer is None:
            rows = by_layer(whole)
        else:
            rows = (whole[self.layer] if self.head is None else whole[self.layer][0]).numpy()
        num_queries, num_keys = rows.shape[-2:]
        visible = np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
        return NamedTensor(("layer", "head", "query", "key")[-rows.ndim :], rows, Mask.of(visible))
