"""Where heads look from some tokens: of one text, and of the first pictures of many."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import Computed, Visibility, Wanted
from attncli.core.names import head_range
from attncli.core.row_tiles import GivenWeights, LayerOrWeights
from attncli.errors import UserError, refuse_bytes
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import CLS, Corners, ModelText, Pretrained, Reading
from attncli.models.text_files import TextLine
from attncli.models.token_names import positions_named

BYTES_PER_MEAN_WEIGHT = 12


def by_layer(layers: dict[int, Tensor]) -> Float[np.ndarray, "layer head *rest"]:
    """What was kept of each layer in one array, NaN where there is no layer or no head."""
    num_heads = max(map(len, layers.values()))
    shape = next(iter(layers.values())).shape[1:]
    stacked = np.full((max(layers) + 1, num_heads, *shape), np.nan, dtype=np.float32)
    for layer, maps in layers.items():
        stacked[layer, : len(maps)] = maps.numpy()
    return stacked


def look_queries(asked: Sequence[str], text: ModelText, pretrained: Pretrained) -> list[int] | None:
    """The tokens that heads look from: those asked for, else [CLS]; None for all of them, the mean of which
    is taken.
    """
    is_picture = text.seen is not None and text.seen.places is not None
    names = asked or ((CLS,) if is_picture and CLS in text.tokens else ())
    return [*positions_named(names, text, pretrained)] or None


class HeadLooks:
    """Takes the layers of one stack, and keeps what each head looks at from some tokens of a text: the mean
    of their rows. With `has_rollout` how that adds up over the layers, too.

    DINO's figures show the rows of [CLS] in the last layer (Caron et al. 2021, 2104.14294).
    """

    def __init__(self, asked: Sequence[str], reading: Reading, pretrained: Pretrained, text: int) -> None:
        self.text = text
        self.kind = "self" if reading.context is None else "cross"
        self.of_text = reading.text
        self.queries = look_queries(asked, reading.text, pretrained)
        self.has_rollout = not pretrained.has_decoder
        self.looks: dict[int, Float[Tensor, "head key"]] = {}
        self.means: list[Float[Tensor, "query key"]] = []
        if self.has_rollout:
            size = pretrained.num_layers * reading.counts[0] ** 2 * BYTES_PER_MEAN_WEIGHT
            refuse_bytes("heads", size, "a smaller picture, or a prompt of fewer tokens")

    def take(self, layer: CapturedLayer, attention: LayerOrWeights, found: Computed) -> None:
        """Keep what is asked for of one layer."""
        if layer.kind != self.kind:
            return
        if self.queries is None:
            assert found.received_mass is not None
            self.looks[layer.layer] = found.received_mass[self.text].double() / attention.shape[2]
        else:
            weights = rows_at(attention, self.queries, self.text)
            self.looks[layer.layer] = weights.double().mean(dim=1)
        if self.has_rollout and found.head_mean is not None:
            self.means.append(found.head_mean[self.text])

    def by_layer(self) -> Float[np.ndarray, "layer head key"]:
        """The rows of every head, NaN where a layer has no attention or fewer heads."""
        return by_layer({layer: rows.float().cpu() for layer, rows in self.looks.items()})

    def mean_by_layer(self) -> Float[np.ndarray, "layer key"]:
        """The mean over the heads of each layer."""
        means = [np.nanmean(rows, axis=0) if np.isfinite(rows).any() else rows[0] for rows in self.by_layer()]
        return np.stack(means)

    def rolled(self) -> Float[Tensor, " key"] | None:
        """Rollout from the same tokens: their row of the product of (A + I) / 2 over the layers; see
        `roll_out`.
        """
        if not self.means:
            return None
        row = torch.zeros(len(self.means[0]), dtype=torch.float64)
        row[slice(None) if self.queries is None else self.queries] = 1.0
        row /= row.sum()
        for mean in reversed(self.means):
            of_rows = 1 + mean.double().sum(dim=-1).cpu()
            share = row / of_rows
            row = share + share @ mean.double().cpu()
        return row


def rows_at(attention: LayerOrWeights, queries: Sequence[int], text: int) -> Float[Tensor, "head query key"]:
    """The weights of some queries of one text."""
    if isinstance(attention, GivenWeights):
        return attention.weights[text][:, [*queries]]
    places = torch.tensor([*queries], device=attention.query.device)
    own, seen = slice(text, text + 1), attention.visibility.of_texts(slice(text, text + 1))
    rules = attention.rules
    if rules.bias is not None:
        bias = rules.bias[own] if len(rules.bias) > 1 else rules.bias
        rules = replace(rules, bias=bias[:, :, places] if bias.shape[2] > 1 else bias)
    if rules.sink is not None and len(rules.sink) > 1:
        rules = replace(rules, sink=rules.sink[own])
    visibility = Visibility(
        len(queries), seen.num_keys, rule=lambda some, keys: seen.block(places[some], keys)
    )
    few = replace(
        attention,
        query=attention.query[own][:, :, places],
        key=attention.key[own],
        value=attention.value[own],
        visibility=visibility,
        rules=rules,
    )
    weights = attend(few, Wanted(weights=True)).weights
    assert weights is not None
    return weights[0]


MOST_PICTURES = 24
"""Whose maps are kept, however many are read: the rows of a figure that is still looked at as one."""
MEAN, ROLLOUT = "mean", "rollout"


class PictureLooks(NamedTuple):
    """Where heads look on one of several pictures.

    `maps` are a weight for each key, by the name of the head (11:4), or by MEAN and ROLLOUT; `queries` are
    the tokens that look, none for the mean over all.
    """

    file: str
    reading: Reading
    queries: tuple[str, ...]
    maps: dict[str, Float[np.ndarray, " key"]]


class FirstLooks:
    """Takes where heads look on many pictures, and keeps it of the first MOST_PICTURES, by their lines.

    `asked` names the tokens that look. Of the heads it keeps those that are named, or every one where
    `keeps_all` (which heads are shown is known when all pictures were read), else those of the last layer,
    their mean and the rollout, as DINO's figures show the last layer (Caron et al. 2021, 2104.14294). So the
    memory it takes does not grow with the pictures: a row of weights for each of these heads and pictures.
    """

    def __init__(self, asked: Sequence[str], heads: Sequence[str] = (), *, keeps_all: bool = False) -> None:
        self.asked, self.heads, self.keeps_all = asked, heads, keeps_all
        self.last_layer = 0
        self._kept: dict[int, PictureLooks] = {}
        self._first: tuple[str, list[Corners | None]] | None = None
        self._elsewhere: UserError | None = None

    def note_places(self, name: str, reading: Reading, pretrained: Pretrained) -> None:
        """Note where the tokens that look lie on a picture; a point (0.6,0.4) is the same place on each."""
        seen = reading.text.seen
        if seen is None or self._elsewhere is not None:
            return
        boxes: list[Corners | None] = []
        for asked in self.asked:
            if "," not in asked:
                positions = positions_named([asked], reading.text, pretrained)
                boxes += [seen.pictures[0].boxes[place] for place in positions] or [None]
        if self._first is None:
            self._first = name, boxes
        elif not _are_near(boxes, self._first[1]):
            self._elsewhere = UserError(
                f"from: {', '.join(self.asked)} lies elsewhere on {name} than on {self._first[0]}, which has "
                "other rows of patches: name a point, as 0.6,0.4"
            )

    def wants(self, lines: Iterable[int]) -> bool:
        """Whether some of these pictures are among the first; UserError where the tokens lie elsewhere."""
        if self._elsewhere is not None:
            raise self._elsewhere
        return len(self._kept) < MOST_PICTURES or min(lines) < max(self._kept)

    def take(self, text: TextLine, reading: Reading, looks: HeadLooks) -> None:
        """Keep what is shown of one picture; UserError for a head that the model does not have."""
        if not looks.looks:
            return
        every = {
            f"{layer}:{head}": row.float().cpu().numpy()
            for layer, rows in looks.looks.items()
            for head, row in enumerate(rows)
        }
        self.last_layer = max(looks.looks)
        maps = every
        if self.heads:
            if wrong := next((name for name in self.heads if name not in every), None):
                num_heads = {layer: len(rows) for layer, rows in looks.looks.items()}
                raise UserError(f"head: {head_range(num_heads)} (got {wrong})")
            maps = {name: every[name] for name in self.heads}
        elif not self.keeps_all:
            maps = {name: row for name, row in every.items() if name.startswith(f"{self.last_layer}:")}
            maps[MEAN] = np.mean([*maps.values()], axis=0)
            if (rolled := looks.rolled()) is not None:
                maps[ROLLOUT] = rolled.float().numpy()
        queries = [] if looks.queries is None else [reading.text.tokens[place] for place in looks.queries]
        file = str(text.image)
        self._kept[text.line] = PictureLooks(file, replace(reading, inputs=None), tuple(queries), maps)
        if len(self._kept) > MOST_PICTURES:
            del self._kept[max(self._kept)]

    def pictures(self) -> list[PictureLooks]:
        """What was kept, in the order of the pictures."""
        return [self._kept[line] for line in sorted(self._kept)]


NEAR = 1e-3
"""Of a side of the picture: places as near are the same."""


def _are_near(boxes: Sequence[Corners | None], others: Sequence[Corners | None]) -> bool:
    """Whether boxes lie at the same places as others."""
    if len(boxes) != len(others):
        return False
    return all(
        one == other
        if one is None or other is None
        else max(abs(a - b) for a, b in zip(one, other, strict=True)) < NEAR
        for one, other in zip(boxes, others, strict=True)
    )
