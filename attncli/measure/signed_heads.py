"""Statistics of the signed weights of heads in layers without a softmax."""

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
    """Collects the statistics of heads without a softmax, layer by layer, as the model runs.

    With `keeps_maps`, it stores their whole matrices, too.
    """

    def __init__(self, pretrained: Pretrained, num_tokens: int, *, keeps_maps: bool = False) -> None:
        self.pretrained = pretrained
        self.num_tokens = num_tokens
        self.keeps_maps = keeps_maps
        self.maps: dict[int, Float[Tensor, "text head query key"]] = {}
        self.layers: list[tuple[CapturedMixer, int, SignedStatistics]] = []

    def capturing(self) -> AbstractContextManager[None]:
        """Inside this context, collect the layers of runs in this thread."""
        return capturing_mixers(self.pretrained.model, self.take)

    def take(self, layer: CapturedMixer) -> None:
        """Measure one layer; layers of other stacks, such as a vision encoder, are skipped."""
        _, num_heads, num_tokens, _ = layer.heads.shape
        if num_tokens == self.num_tokens:
            with torch.no_grad(), idle_core_threads() as adapt:
                self.layers.append((layer, num_heads, signed_statistics(layer.heads, adapt)))
                if self.keeps_maps:
                    self.maps[layer.layer] = layer.heads.weights().cpu()

    @property
    def modules(self) -> set[str]:
        """The names of the measured modules."""
        return {layer.module for layer, *_ in self.layers}

    def text_table(self, text: int) -> Records[SignedHead]:
        """Return one row per head for one of the texts, in the order of the layers."""
        layers = [(layer, range(count), statistics) for layer, count, statistics in self.layers]
        return _head_table(self.pretrained, layers, text)

    def numbers(self) -> Iterator[tuple[MixerPlace, Float[Tensor, "text head statistic"]]]:
        """Yield, for each layer, the statistics that can be averaged over texts."""
        for layer, _, statistics in self.layers:
            numbers = torch.stack([getattr(statistics, name) for name in SIGNED_OVER_TEXTS], dim=-1)
            yield (
                MixerPlace(layer.layer, self.pretrained.module_name(layer.module), layer.mixer),
                numbers.cpu(),
            )

    def text_maps(self, text: int) -> Float[npt.NDArray[np.float32], "layer head query key"] | None:
        """The signed weights of every head, NaN for layers that have none; None if maps were not stored."""
        return by_layer({layer: maps[text] for layer, maps in self.maps.items()}) if self.maps else None


def _head_table(
    pretrained: Pretrained, layers: Sequence[tuple[CapturedMixer, range, SignedStatistics]], text: int = 0
) -> Records[SignedHead]:
    """Return one row per head of some layers, from the numbers and statistics of the heads."""
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
"""The largest size, in bytes, of the cached states of all layers in a model that generates."""


class _WritingLayer:
    """Statistics of the rows that chose each token, for a layer without a softmax in a generating model."""

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
        """Add some tokens; the row of the last token chooses the next one."""
        self._decay(layer.heads)
        row = self.cache.add(layer.heads)
        self.pending = [row[self.heads.start : self.heads.stop].cpu()]

    def add_answer(self, layer: CapturedMixer, count: int) -> None:
        """Add a whole text, in which the last `count` rows chose the tokens of the answer."""
        self._decay(layer.heads)
        num_tokens = layer.heads.shape[2]
        rows = [torch.zeros(len(self.heads), num_tokens - count + place + 1) for place in range(count)]
        for heads, queries, weights in layer.heads.row_blocks(0):
            chosen = range(max(heads.start, self.heads.start), min(heads.stop, self.heads.stop))
            if not chosen:
                continue
            chosen_weights = weights[chosen.start - heads.start : chosen.stop - heads.start].cpu()
            into = slice(chosen.start - self.heads.start, chosen.stop - self.heads.start)
            for query in range(max(queries.start, num_tokens - count), queries.stop):
                row = chosen_weights[:, query - queries.start, : query + 1]
                rows[query - num_tokens + count][into] = row
        self.pending = rows

    def _decay(self, heads: SignedLayer) -> None:
        if heads.log_decay is not None:
            log_decay = heads.log_decay[0, :, self.heads.start : self.heads.stop]
            self.log_decay += log_decay.double().sum(dim=0).cpu()
        self.num_tokens += heads.shape[2]

    def count(self) -> None:
        """Count the next pending row, whose token has been chosen."""
        row, *self.pending = self.pending
        self.sums.add(0, slice(None), row.shape[-1] - 1, row.unsqueeze(1))
        if self.keeps_rows:
            self.rows.append(row)
        sizes = row.abs()
        self.shares.append((sizes / sizes.sum(dim=-1, keepdim=True)).nan_to_num(nan=0.0).mean(dim=0))

    def statistics(self) -> SignedStatistics:
        """The means over the counted rows; the half-life is over all tokens."""
        return self.sums.statistics(self.log_decay / self.num_tokens if self.log_decay.any() else None)


class WritingSignedHeads:
    """Collects statistics of the new rows in layers without a softmax as a model generates.

    All layers are measured, or only `layer`, or only one `head` in `layer`. `num_keys` is the final number of
    tokens, and `num_answer` is the length of an answer that is read instead of generated. With `keeps_rows`,
    whole rows are stored, too. Layers are left out once the states exceed 2 GiB.
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
        """The number of heads in every layer that ran, including layers that were not measured."""
        self.num_bytes = 0
        self.modules: set[str] = set()
        """The modules that are measured or could be measured."""

    def capturing(self) -> AbstractContextManager[None]:
        """Inside this context, collect the layers of runs in this thread."""
        return capturing_mixers(self.pretrained.whole, self.take)

    @torch.no_grad()
    def take(self, layer: CapturedMixer) -> None:
        """Add some tokens of one layer."""
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
        """Count the last row of each layer as the row that chose the new token."""
        for layer in self.layers.values():
            layer.count()

    def table(self) -> Records[SignedHead]:
        """Return one row per head, in the order of the layers, with means over the chosen tokens."""
        layers = [(layer.layer, layer.heads, layer.statistics()) for layer in self.layers.values()]
        return _head_table(self.pretrained, layers)

    def shares(self) -> list[Float[Tensor, " key"]]:
        """The shares of |w| in each row of the chosen layer or head, averaged over its heads."""
        (layer,) = self.layers.values()
        return layer.shares

    def rows(self) -> NamedTensor | None:
        """The signed weights (layer, head, query, key), without the axes of a chosen layer or head.

        They are 0 for keys after a query, and NaN for missing heads. Returns None if rows are not stored.
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
