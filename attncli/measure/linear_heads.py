"""What the heads of layers without a softmax do on some texts: statistics of their signed weights."""

from contextlib import AbstractContextManager
from dataclasses import fields

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.runtime import threads_of_idle_cores
from attncli.core.signed_rows import SignedStatistics, signed_statistics
from attncli.core.summaries import RunningMoments
from attncli.measure.looks import by_layer
from attncli.models.linear import CapturedLinear, hearing_linear_layers
from attncli.models.pretrained import Pretrained
from attncli.records.columns import Records
from attncli.records.surveys import LinearHead

STATISTICS = tuple(each.name for each in fields(SignedStatistics))
OVER_TEXTS = tuple(name for name in STATISTICS if name != "one_key")
"""Those that have a mean over texts."""


class LinearHeads:
    """Takes the layers as the model hands them over, and keeps the statistics of their heads.

    With `keeps_maps` their whole matrices, too.
    """

    def __init__(self, pretrained: Pretrained, num_tokens: int, *, keeps_maps: bool = False) -> None:
        self.pretrained = pretrained
        self.num_tokens = num_tokens
        self.keeps_maps = keeps_maps
        self.maps: dict[int, Float[Tensor, "text head query key"]] = {}
        self.layers: list[tuple[CapturedLinear, int, SignedStatistics]] = []

    def heard(self) -> AbstractContextManager[None]:
        """While it is open, the layers of a run in this thread are taken."""
        return hearing_linear_layers(self.pretrained.model, self.take)

    def take(self, layer: CapturedLinear) -> None:
        """Look at one layer. Another stack than that of the text, as one of pictures, is not shown."""
        _, num_heads, num_tokens, _ = layer.heads.shape
        if num_tokens == self.num_tokens:
            with torch.no_grad(), threads_of_idle_cores() as adapt:
                self.layers.append((layer, num_heads, signed_statistics(layer.heads, adapt)))
                if self.keeps_maps:
                    self.maps[layer.layer] = layer.heads.weights().cpu()

    @property
    def modules(self) -> set[str]:
        """The names of the modules that heads come from."""
        return {layer.module for layer, *_ in self.layers}

    def of_text(self, text: int) -> Records[LinearHead]:
        """One row per head of one of the texts, in the order of the layers."""
        if not self.layers:
            return LinearHead.rows([])
        places = [(layer, head) for layer, count, _ in self.layers for head in range(count)]
        return LinearHead.table(
            layer=np.array([layer.layer for layer, _ in places], dtype=int),
            head=np.array([head for _, head in places], dtype=int),
            module=[self.pretrained.module_name(layer.module) for layer, _ in places],
            mixer=[layer.mixer for layer, _ in places],
            **{name: self._column(name, text) for name in STATISTICS},
        )

    def added_to(self, totals: "LinearTotals | None") -> "LinearTotals":
        """Totals over texts with these among them."""
        totals = LinearTotals() if totals is None else totals
        for layer, _, statistics in self.layers:
            numbers = torch.stack([getattr(statistics, name) for name in OVER_TEXTS], dim=-1)
            place = layer.layer, self.pretrained.module_name(layer.module), layer.mixer
            totals.add(place, RunningMoments.of(numbers.cpu()))
        return totals

    def maps_of(self, text: int) -> Float[npt.NDArray[np.float32], "layer head query key"] | None:
        """The signed weights of every head, NaN where a layer has none; None where they were not kept."""
        return by_layer({layer: maps[text] for layer, maps in self.maps.items()}) if self.maps else None

    def _column(self, name: str, text: int) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
        columns: list[Tensor] = [getattr(statistics, name)[text] for *_, statistics in self.layers]
        return torch.cat(columns).numpy(force=True)


LinearPlace = tuple[int, str, str]
"""The number of a layer, its module, and what it is."""


class LinearTotals:
    """The statistics of heads over texts; texts that lack one are left out of its mean."""

    def __init__(self) -> None:
        self.layers: dict[LinearPlace, RunningMoments] = {}

    def add(self, place: LinearPlace, moments: RunningMoments) -> None:
        """The moments (head, statistic) of a layer on some texts."""
        before = self.layers.get(place)
        self.layers[place] = moments if before is None else before + moments

    def table(self) -> Records[LinearHead]:
        """One row per head: means over the texts. One key has no place in several."""
        moments = self.layers.values()
        means = [each.mean.masked_fill(each.count == 0, torch.nan) for each in moments]
        columns = torch.cat(means).T.numpy() if means else np.empty((len(OVER_TEXTS), 0))
        heads = [
            (place, head) for place, each in zip(self.layers, means, strict=True) for head in range(len(each))
        ]
        return LinearHead.table(
            layer=[layer for (layer, *_), _ in heads],
            head=[head for _, head in heads],
            module=[module for (_, module, _), _ in heads],
            mixer=[mixer for (*_, mixer), _ in heads],
            one_key=[None] * len(heads),
            **dict(zip(OVER_TEXTS, columns, strict=True)),
        )
