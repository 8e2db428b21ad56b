"""The weights of heads from chosen tokens, on one text or on the first of many files."""

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
from attncli.measure.masks import block_mask, joint_mask, layer_mask
from attncli.models.architectures import BLOCK
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained, Reading, stack_texts
from attncli.models.side_by_side import of_this_run
from attncli.models.text_files import TextLine
from attncli.models.token_names import positions_named, positions_that_look
from attncli.records.report import Box
from attncli.records.values import Mask

BYTES_PER_MEAN_WEIGHT = 12


def by_layer(layers: dict[int, Tensor]) -> Float[npt.NDArray[np.float32], "layer head *rest"]:
    """The maps of all layers in one array, with NaN for missing layers and heads."""
    num_heads = max(map(len, layers.values()))
    shape = next(iter(layers.values())).shape[1:]
    stacked = np.full((max(layers) + 1, num_heads, *shape), np.nan, dtype=np.float32)
    for layer, maps in layers.items():
        stacked[layer, : len(maps)] = maps.numpy()
    return stacked


class HeadLooks:
    """Collects, from the layers of one stack, the mean of each head's rows at chosen tokens of a text.

    With `has_rollout`, it also collects the layers' attention rollout. DINO's figures show the rows of [CLS]
    in the last layer (Caron et al. 2021, 2104.14294).
    """

    def __init__(self, queries: Sequence[str], reading: Reading, pretrained: Pretrained, text: int) -> None:
        self.text = text
        self.kind = "self" if reading.context is None else "cross"
        self.queries = positions_that_look(queries, reading.text, pretrained)
        self.has_rollout = not pretrained.has_decoder
        self.looks: dict[int, Float[Tensor, "head key"]] = {}
        self.means: list[Float[Tensor, "query key"]] = []
        if self.has_rollout:
            size = pretrained.num_layers * reading.counts[0] ** 2 * BYTES_PER_MEAN_WEIGHT
            refuse_bytes("heads", size, "a smaller picture, or a prompt of fewer tokens")

    def take(self, layer: CapturedLayer, attention: LayerOrWeights, computed: Computed) -> None:
        """Store the rows of one layer."""
        if layer.kind != self.kind:
            return
        if self.queries is None:
            assert computed.received_mass is not None
            self.looks[layer.layer] = computed.received_mass[self.text].double() / attention.shape[2]
        else:
            weights = rows_at(attention, self.queries, self.text)
            self.looks[layer.layer] = weights.double().mean(dim=1)
        if self.has_rollout and computed.head_mean is not None:
            self.means.append(computed.head_mean[self.text])

    def by_layer(self) -> Float[npt.NDArray[np.float32], "layer head key"]:
        """The mean row of every head; NaN for layers without attention and for missing heads."""
        return by_layer({layer: rows.float().cpu() for layer, rows in self.looks.items()})

    def mean_by_layer(self) -> Float[npt.NDArray[np.float32], "layer key"]:
        """The mean over the heads in each layer."""
        means = [np.nanmean(rows, axis=0) if np.isfinite(rows).any() else rows[0] for rows in self.by_layer()]
        return np.stack(means)

    def rolled(self) -> Float[Tensor, " key"] | None:
        """The rollout from chosen tokens: their mean row in the product of (A + I) / 2 over layers."""
        if not self.means:
            return None
        row = torch.zeros(len(self.means[0]), dtype=torch.float64)
        row[slice(None) if self.queries is None else self.queries] = 1.0
        row /= row.sum()
        for mean in reversed(self.means):
            row_sums = 1 + mean.double().sum(dim=-1).cpu()
            share = row / row_sums
            row = share + share @ mean.double().cpu()
        return row


def rows_at(attention: LayerOrWeights, queries: Sequence[int], text: int) -> Float[Tensor, "head query key"]:
    """The weights of some queries of one text."""
    if isinstance(attention, GivenWeights):
        return attention.weights[text][:, [*queries]]
    places = torch.tensor([*queries], device=attention.query.device)
    this = slice(text, text + 1)
    seen = attention.visibility.for_texts(this)
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


BYTES_PER_FULL_WEIGHT = 16
WHOLE_GRID = 400
"""The largest number of grid tokens for which all weights are stored; 224 x 224 pixels are 257 tokens."""


class HeadMaps:
    """Collects the maps of the layers of one kind as the model runs.

    Stores every head's weights if neither text has more than `whole_tokens` tokens. Otherwise, it stores
    `pooled_mean` and `pooled_max` of every head, and the weights of the heads in `full` (24:4).
    """

    def __init__(self, kind: str, full: Sequence[str], whole_tokens: int, reading: Reading) -> None:
        self.kind = kind
        self.query, self.key = stack_texts(reading, kind)
        num_queries, num_keys = len(self.query.ids), len(self.key.ids)
        # Tokens on a grid are not pooled along the row; for large grids, only the heads in `full` are stored.
        self.on_grid = reading.on_grid
        most = WHOLE_GRID if self.on_grid else whole_tokens
        self.is_whole = max(num_queries, num_keys) <= most
        self.num_heads: dict[int, int] = {}
        self._masks: dict[int, Mask | None] = {}
        self._full_masks: dict[int, Mask | None] = {}
        self.full_heads = [tuple(map(int, name.split(":"))) for name in full]
        self.maps: defaultdict[str, dict[int, Tensor]] = defaultdict(dict)
        self.full: dict[tuple[int, ...], Tensor] = {}
        size = len(self.full_heads) * num_queries * num_keys * BYTES_PER_FULL_WEIGHT
        refuse_bytes("heads", size, "fewer heads in full, or fewer tokens")

    def wanted(self, layer: CapturedLayer, wanted: Wanted) -> Wanted:
        """Return `wanted` with the maps of this layer that are to be stored."""
        if not self._is_chosen(layer):
            return wanted
        if self.is_whole:
            return replace(wanted, weights=True)
        pooled = None if self.on_grid else MAP_SIZE
        return replace(wanted, pooled=pooled, kept_heads=self._heads_in_full(layer))

    def take(self, layer: CapturedLayer, attention: LayerOrWeights, computed: Computed, text: int) -> None:
        """Store the maps of one layer and text, computed from `attention`."""
        if not self._is_chosen(layer):
            return
        self.num_heads[layer.layer] = layer.attention.shape[1]
        self._masks[layer.layer] = (
            layer_mask(attention, text) if self.is_whole else block_mask(attention, MAP_SIZE)
        )
        pooled = () if self.on_grid else ("pooled_mean", "pooled_max")
        for name in ("weights",) if self.is_whole else pooled:
            self.maps[name][layer.layer] = getattr(computed, name)[text].float().cpu()
        if computed.kept_weights is not None:
            self._full_masks[layer.layer] = layer_mask(attention, text)
            for head, weights in zip(self._heads_in_full(layer), computed.kept_weights[text], strict=True):
                self.full[layer.layer, head] = weights.float().cpu()

    def _heads_in_full(self, layer: CapturedLayer) -> tuple[int, ...]:
        num_heads = layer.attention.shape[1]
        return tuple(head for number, head in self.full_heads if number == layer.layer and head < num_heads)

    def _is_chosen(self, layer: CapturedLayer) -> bool:
        return self.kind == ("encoder" if layer.stack == "encoder" else layer.kind)

    def by_layer(self) -> dict[str, Float[npt.NDArray[np.float32], "layer head query key"]]:
        """Return the maps by name, with NaN for layers without attention and for missing heads.

        Raises UserError for a head in `full` that the model does not have.
        """
        self._check_heads()
        return {name: by_layer(layers) for name, layers in self.maps.items()}

    def mask(self, num_queries: int, num_keys: int) -> Mask | None:
        """The joint mask of the maps of all layers, with the given numbers of rows and columns."""
        return joint_mask(self._masks, num_queries, num_keys)

    def in_full(
        self,
    ) -> dict[tuple[int, ...], tuple[Float[npt.NDArray[np.float32], "query key"], Mask | None]]:
        """The weights and masks of the heads in `full`, by layer and head."""
        return {
            place: (self.full[place].numpy(), self._full_masks[place[0]])
            for place in self.full_heads
            if place in self.full
        }

    def _check_heads(self) -> None:
        if not self.num_heads:
            raise UserError(f"maps: the model has no {self.kind}-attention")
        for layer, head in self.full_heads:
            if head >= self.num_heads.get(layer, 0):
                raise UserError(f"full: {head_range(self.num_heads)} (got {layer}:{head})")


HIGH_NORM = 3.0
"""Norms above this multiple of the median patch norm are high.

Norms in DINOv2-g are below 100, with outliers above 150 (Darcet et al. 2023, 2309.16588, section 2.1).
"""


class LastNorms:
    """The lengths of the output vectors of the last block, before any norm.

    In large models, a few patches have much longer vectors than the others, and heads put unused weight on
    them (Darcet et al. 2023).
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
        """The median over the patches of each text, or None if no block returned one vector per token."""
        if self.norms is None:
            return None
        medians = [
            norms[~special].median() for norms, special in zip(self.norms, self._special(), strict=True)
        ]
        return torch.stack(medians)

    def are_high(self) -> Bool[Tensor, "text token"] | None:
        """Mark the patches whose vectors are longer than HIGH_NORM times the median."""
        medians = self.medians()
        if self.norms is None or medians is None:
            return None
        return (self.norms > HIGH_NORM * medians.unsqueeze(1)) & ~self._special()

    def _special(self) -> Bool[Tensor, "text token"]:
        """Mark the model's own tokens, which are not on the grid."""
        marks = (None if reading.origin is None else reading.origin.special for reading in self.readings)
        return torch.stack([special for special in marks if special is not None])


MOST_FILES = 24
"""The largest number of files whose maps are stored: the rows of one readable figure."""
MEAN, ROLLOUT = "mean", "rollout"


class FileLooks(NamedTuple):
    """The weights of the heads on one of several files.

    `maps` has a weight for each key, by head (11:4) or by MEAN and ROLLOUT. `queries` are the query tokens;
    if empty, weights are means over all queries.
    """

    file: str
    reading: Reading
    queries: tuple[str, ...]
    maps: dict[str, Float[npt.NDArray[np.float32], " key"]]


class FirstLooks:
    """Collects the heads' weights from the tokens `queries` on the first MOST_FILES files, by line.

    It stores the given `heads`, or every head if `keeps_all` (for callers that choose heads once all files
    are read). By default, it stores the last layer, its mean and the rollout, as DINO's figures show the last
    layer (Caron et al. 2021, 2104.14294). Memory does not grow with the number of files.
    """

    def __init__(self, queries: Sequence[str], heads: Sequence[str] = (), *, keeps_all: bool = False) -> None:
        self.queries, self.heads, self.keeps_all = queries, heads, keeps_all
        self.last_layer = 0
        self._files: dict[int, FileLooks] = {}
        self._first: tuple[str, list[Box | None]] | None = None
        self._elsewhere: UserError | None = None

    def note_places(self, name: str, reading: Reading, pretrained: Pretrained) -> None:
        """Note where the query tokens lie in a file; a point (0.6,0.4) is the same place in every file."""
        origin = reading.text.origin
        if origin is None or self._elsewhere is not None:
            return
        boxes: list[Box | None] = []
        for query in self.queries:
            if "," not in query:
                positions = positions_named([query], reading.text, pretrained)
                boxes += [origin.box(place) for place in positions] or [None]
        if self._first is None:
            self._first = name, boxes
        elif not _are_near(boxes, self._first[1]):
            self._elsewhere = UserError(
                f"from: {', '.join(self.queries)} is in a different place on {name} than on {self._first[0]}"
                ", since their patch grids differ: use a point such as 0.6,0.4"
            )

    def wants(self, lines: Iterable[int]) -> bool:
        """True if some of these files are among the first. Raises UserError if the query tokens moved."""
        if self._elsewhere is not None:
            raise self._elsewhere
        return len(self._files) < MOST_FILES or min(lines) < max(self._files)

    def take(self, text: TextLine, reading: Reading, looks: HeadLooks) -> None:
        """Store the chosen weights on one file. Raises UserError for a head that the model does not have."""
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
        self._files[text.line] = FileLooks(file, replace(reading, inputs=None), tuple(queries), maps)
        if len(self._files) > MOST_FILES:
            del self._files[max(self._files)]

    def files(self) -> list[FileLooks]:
        """The stored weights, in the order of the files."""
        return [self._files[line] for line in sorted(self._files)]


NEAR = 1e-3
"""Places closer than this fraction of a side count as the same place."""


def _are_near(boxes: Sequence[Box | None], first: Sequence[Box | None]) -> bool:
    """True if boxes lie at the same places as in the first file."""
    if len(boxes) != len(first):
        return False
    return all(
        box == first_box
        if box is None or first_box is None
        else max(abs(a - b) for a, b in zip(box, first_box, strict=True)) < NEAR
        for box, first_box in zip(boxes, first, strict=True)
    )
