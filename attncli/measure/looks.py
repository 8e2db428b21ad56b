"""Where heads look from some tokens: of one text, and of the first files of many."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attncli.core.engines import attend
from attncli.core.layer import MAP_SIZE, Computed, Visibility, Wanted
from attncli.core.names import head_range
from attncli.core.row_tiles import GivenWeights, LayerOrWeights
from attncli.errors import UserError, refuse_bytes
from attncli.measure.masks import mask_of, mask_of_blocks, mask_of_layers
from attncli.models.architectures import BLOCK
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained, Reading, texts_of_stack
from attncli.models.side_by_side import of_this_run
from attncli.models.text_files import TextLine
from attncli.models.token_names import positions_named, positions_that_look
from attncli.records.report import Box
from attncli.records.values import Mask

BYTES_PER_MEAN_WEIGHT = 12


def by_layer(layers: dict[int, Tensor]) -> Float[npt.NDArray[np.float32], "layer head *rest"]:
    """What was kept of each layer in one array, NaN where there is no layer or no head."""
    num_heads = max(map(len, layers.values()))
    shape = next(iter(layers.values())).shape[1:]
    stacked = np.full((max(layers) + 1, num_heads, *shape), np.nan, dtype=np.float32)
    for layer, maps in layers.items():
        stacked[layer, : len(maps)] = maps.numpy()
    return stacked


class HeadLooks:
    """Takes the layers of one stack, and keeps what each head looks at from some tokens of a text: the mean
    of their rows. With `has_rollout` how that adds up over the layers, too.

    DINO's figures show the rows of [CLS] in the last layer (Caron et al. 2021, 2104.14294).
    """

    def __init__(self, asked: Sequence[str], reading: Reading, pretrained: Pretrained, text: int) -> None:
        self.text = text
        self.kind = "self" if reading.context is None else "cross"
        self.of_text = reading.text
        self.queries = positions_that_look(asked, reading.text, pretrained)
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

    def by_layer(self) -> Float[npt.NDArray[np.float32], "layer head key"]:
        """The rows of every head, NaN where a layer has no attention or fewer heads."""
        return by_layer({layer: rows.float().cpu() for layer, rows in self.looks.items()})

    def mean_by_layer(self) -> Float[npt.NDArray[np.float32], "layer key"]:
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
    this = slice(text, text + 1)
    seen = attention.visibility.of_texts(this)
    rules = attention.rules
    if rules.bias is not None:
        bias = rules.bias[this] if len(rules.bias) > 1 else rules.bias
        rules = replace(rules, bias=bias[:, :, places] if bias.shape[2] > 1 else bias)
    if rules.sink is not None and len(rules.sink) > 1:
        rules = replace(rules, sink=rules.sink[this])
    visibility = Visibility(
        len(queries), seen.num_keys, rule=lambda some, keys: seen.block(places[some], keys)
    )
    few = replace(
        attention,
        query=attention.query[this][:, :, places],
        key=attention.key[this],
        value=attention.value[this],
        visibility=visibility,
        rules=rules,
    )
    weights = attend(few, Wanted(weights=True)).weights
    assert weights is not None
    return weights[0]


BYTES_PER_KEPT_WEIGHT = 16
WHOLE_GRID = 400
"""Tokens on a grid up to which all weights are kept: 257 are those of 224 x 224 pixels."""


class HeadMaps:
    """Takes the layers as the model hands them over, and keeps the maps of those of the chosen kind.

    Every head's weights where neither text has more than `whole_tokens`; else `pooled_mean` and `pooled_max`
    of every head, and the whole weights of the heads in `full`, as 24:4.
    """

    def __init__(self, kind: str, full: Sequence[str], whole_tokens: int, reading: Reading) -> None:
        self.kind = kind
        self.query, self.key = texts_of_stack(reading, kind)
        num_queries, num_keys = len(self.query.ids), len(self.key.ids)
        # Neighbours in a row are no blocks of a grid: of many tokens on one only heads in full are kept.
        self.on_grid = reading.on_grid
        most = WHOLE_GRID if self.on_grid else whole_tokens
        self.is_whole = max(num_queries, num_keys) <= most
        self.num_heads: dict[int, int] = {}
        self._masks: dict[int, Mask | None] = {}
        self._full_masks: dict[int, Mask | None] = {}
        self.asked = [tuple(map(int, name.split(":"))) for name in full]
        self.maps: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        self.full: dict[tuple[int, ...], Tensor] = {}
        size = len(self.asked) * num_queries * num_keys * BYTES_PER_KEPT_WEIGHT
        refuse_bytes("heads", size, "fewer heads in full, or fewer tokens")

    def wanted(self, layer: CapturedLayer, wanted: Wanted) -> Wanted:
        """The same with what is to be kept of this layer."""
        if not self._is_asked_for(layer):
            return wanted
        if self.is_whole:
            return replace(wanted, weights=True)
        pooled = None if self.on_grid else MAP_SIZE
        return replace(wanted, pooled=pooled, kept_heads=self._heads_in_full(layer))

    def take(self, layer: CapturedLayer, attention: LayerOrWeights, computed: Computed, text: int) -> None:
        """Keep what is asked for of one layer, of one text; `attention` is what was computed of it."""
        if not self._is_asked_for(layer):
            return
        self.num_heads[layer.layer] = layer.attention.shape[1]
        self._masks[layer.layer] = (
            mask_of(attention, text) if self.is_whole else mask_of_blocks(attention, MAP_SIZE)
        )
        pooled = () if self.on_grid else ("pooled_mean", "pooled_max")
        for name in ("weights",) if self.is_whole else pooled:
            self.maps[name][layer.layer] = getattr(computed, name)[text].float().cpu()
        if computed.kept_weights is not None:
            self._full_masks[layer.layer] = mask_of(attention, text)
            for head, weights in zip(self._heads_in_full(layer), computed.kept_weights[text], strict=True):
                self.full[layer.layer, head] = weights.float().cpu()

    def _heads_in_full(self, layer: CapturedLayer) -> tuple[int, ...]:
        num_heads = layer.attention.shape[1]
        return tuple(head for number, head in self.asked if number == layer.layer and head < num_heads)

    def _is_asked_for(self, layer: CapturedLayer) -> bool:
        return self.kind == ("encoder" if layer.stack == "encoder" else layer.kind)

    def by_layer(self) -> dict[str, Float[npt.NDArray[np.float32], "layer head query key"]]:
        """The maps by their names, NaN where a layer has no attention or fewer heads.

        UserError for a head in `full` that the model does not have.
        """
        self._check_heads()
        return {name: by_layer(layers) for name, layers in self.maps.items()}

    def mask(self, num_queries: int, num_keys: int) -> Mask | None:
        """The mask of the maps of all layers, which have so many rows and columns."""
        return mask_of_layers(self._masks, num_queries, num_keys)

    def in_full(
        self,
    ) -> dict[tuple[int, ...], tuple[Float[npt.NDArray[np.float32], "query key"], Mask | None]]:
        """The whole weights of the heads that were asked for, and their mask, by layer and head."""
        return {
            place: (self.full[place].numpy(), self._full_masks[place[0]])
            for place in self.asked
            if place in self.full
        }

    def _check_heads(self) -> None:
        if not self.num_heads:
            raise UserError(f"maps: the model has no {self.kind}-attention")
        for layer, head in self.asked:
            if head >= self.num_heads.get(layer, 0):
                raise UserError(f"full: {head_range(self.num_heads)} (got {layer}:{head})")


HIGH_NORM = 3.0
"""Times the median norm of patches: those of DINOv2-g are below 100 but for outliers above 150 (Darcet et al.
2023, 2309.16588, section 2.1)."""


class LastNorms:
    """The lengths of the vectors that the last block gives, before a norm: of a few patches of large models
    these are several times as long as of the others, and heads park weight there (Darcet et al. 2023).
    """

    def __init__(self, readings: Sequence[Reading], pretrained: Pretrained, hooks: ExitStack) -> None:
        self.readings = readings
        self.norms: Float[Tensor, "text token"] | None = None
        self.count = len(readings[0].text.ids)
        for name, module in pretrained.model.named_modules():
            if BLOCK.fullmatch(name):
                hooks.enter_context(module.register_forward_hook(of_this_run(self._take)))

    def _take(self, _module: nn.Module, _inputs: object, output: object) -> None:
        vectors = output[0] if isinstance(output, tuple) else output
        size = len(self.readings), self.count
        if isinstance(vectors, Tensor) and vectors.ndim == 3 and vectors.shape[:2] == size:
            self.norms = torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float32).cpu()

    def medians(self) -> Float[Tensor, " text"] | None:
        """The median over the patches of each text; None where no block gave vectors of the tokens."""
        if self.norms is None:
            return None
        of_patches = [
            norms[~special].median() for norms, special in zip(self.norms, self._special(), strict=True)
        ]
        return torch.stack(of_patches)

    def are_high(self) -> Bool[Tensor, "text token"] | None:
        """The patches whose vectors are longer than HIGH_NORM times the median."""
        medians = self.medians()
        if self.norms is None or medians is None:
            return None
        return (self.norms > HIGH_NORM * medians.unsqueeze(1)) & ~self._special()

    def _special(self) -> Bool[Tensor, "text token"]:
        """Which tokens are none of the grid, but the model's own."""
        marks = (None if reading.origin is None else reading.origin.special for reading in self.readings)
        return torch.stack([special for special in marks if special is not None])


MOST_FILES = 24
"""Whose maps are kept, however many are read: the rows of a figure that is still looked at as one."""
MEAN, ROLLOUT = "mean", "rollout"


class FileLooks(NamedTuple):
    """Where heads look in one of several files.

    `maps` are a weight for each key, by the name of the head (11:4), or by MEAN and ROLLOUT; `queries` are
    the tokens that look, none for the mean over all.
    """

    file: str
    reading: Reading
    queries: tuple[str, ...]
    maps: dict[str, Float[npt.NDArray[np.float32], " key"]]


class FirstLooks:
    """Takes where heads look in many files, and keeps it of the first MOST_FILES, by their lines.

    `asked` names the tokens that look. Of the heads it keeps those that are named, or every one where
    `keeps_all` (which heads are shown is known when all files were read), else those of the last layer,
    their mean and the rollout, as DINO's figures show the last layer (Caron et al. 2021, 2104.14294). So the
    memory it takes does not grow with the files: a row of weights for each of these heads and files.
    """

    def __init__(self, asked: Sequence[str], heads: Sequence[str] = (), *, keeps_all: bool = False) -> None:
        self.asked, self.heads, self.keeps_all = asked, heads, keeps_all
        self.last_layer = 0
        self._kept: dict[int, FileLooks] = {}
        self._first: tuple[str, list[Box | None]] | None = None
        self._elsewhere: UserError | None = None

    def note_places(self, name: str, reading: Reading, pretrained: Pretrained) -> None:
        """Note where the tokens that look lie in a file; a point (0.6,0.4) is the same place in each."""
        origin = reading.text.origin
        if origin is None or self._elsewhere is not None:
            return
        boxes: list[Box | None] = []
        for asked in self.asked:
            if "," not in asked:
                positions = positions_named([asked], reading.text, pretrained)
                boxes += [origin.box(place) for place in positions] or [None]
        if self._first is None:
            self._first = name, boxes
        elif not _are_near(boxes, self._first[1]):
            self._elsewhere = UserError(
                f"from: {', '.join(self.asked)} lies elsewhere on {name} than on {self._first[0]}, which has "
                "other rows of patches: name a point, as 0.6,0.4"
            )

    def wants(self, lines: Iterable[int]) -> bool:
        """True if some of these files are among the first. Raises UserError if the tokens lie elsewhere."""
        if self._elsewhere is not None:
            raise self._elsewhere
        return len(self._kept) < MOST_FILES or min(lines) < max(self._kept)

    def take(self, text: TextLine, reading: Reading, looks: HeadLooks) -> None:
        """Keep what is shown of one file; UserError for a head that the model does not have."""
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
        file = str(text.file)
        self._kept[text.line] = FileLooks(file, replace(reading, inputs=None), tuple(queries), maps)
        if len(self._kept) > MOST_FILES:
            del self._kept[max(self._kept)]

    def files(self) -> list[FileLooks]:
        """What was kept, in the order of the files."""
        return [self._kept[line] for line in sorted(self._kept)]


NEAR = 1e-3
"""Of a side of what is drawn: places as near are the same."""


def _are_near(boxes: Sequence[Box | None], others: Sequence[Box | None]) -> bool:
    """Whether boxes lie at the same places as others."""
    if len(boxes) != len(others):
        return False
    return all(
        box == other
        if box is None or other is None
        else max(abs(a - b) for a, b in zip(box, other, strict=True)) < NEAR
        for box, other in zip(boxes, others, strict=True)
    )
