"""The statistics of one call of a program's attention, computed text by text and without padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import MAP_SIZE, Computed, Marks, Patterns, Wanted
from attncli.core.row_tiles import GivenWeights, LayerOrWeights
from attncli.features.record.listening.notes import listed
from attncli.features.record.padding import (
    RealPositions,
    TextsTogether,
    has_nan_padding,
    num_nan_rows,
    texts_together,
)
from attncli.measure.head_numbers import HeadNumbers, SurveyedLayers, head_numbers, stacks_of, without_numbers
from attncli.measure.patterns import LayerPlace, wanted_scores, without_first_key
from attncli.records.surveys import Stack, TextMean
from attncli.system.plain_text import counted

NUMBERS_HIDE = (
    "a mask of large negative numbers (-500 or less) covers whole rows, which count as rows without keys "
    "although the program computes attention in them."
)
UNCLEAR = (
    "texts are padded, but it is unknown which queries are padding, so the statistics may include rows of "
    "padding."
)
MOST_PLANS = 64
"""Maximum number of shapes of attention whose patterns are cached."""
FIRST_FOUR = "sink_mass_4"
EMPTY = ("duplicate_token", "induction", "special_mass")
"""The patterns that are empty if tokens have no names."""
OFFSETS = {"previous_token": -1, "next_token": 1, "current_token": 0}
"""The patterns with a single key, with the offset of this key from the query."""


class NeighbourPatterns(Patterns):
    """Patterns of distinct, ordinary tokens: first keys, a query's neighbours, and the query's own key."""

    @cached_property
    def rows(self) -> Bool[Tensor, "text pattern query"]:
        """The rows in which a pattern is not empty, that is, in which its key exists."""
        num_texts, count = self.ids.shape
        queries = torch.arange(count, device=self.ids.device)
        first = torch.full_like(queries, self.first_key)
        keys = [first if name == FIRST_FOUR else queries + OFFSETS[name] for name in self.names]
        has_key = torch.stack([(key >= self.first_key) & (key < count) & (key >= 0) for key in keys])
        return has_key.expand(num_texts, -1, -1)

    def mass(
        self,
        weights: Float[Tensor, "text head query key"],
        texts: "slice[int, int, None]",
        queries: "slice[int, int, None]",
        keys: "slice[int, int, None]",
    ) -> Float[Tensor, "text head pattern"]:
        """Return the sums of the diagonals and of the first columns."""
        sums: list[Tensor] = []
        for name in self.names:
            if name == FIRST_FOUR:
                on_pattern = weights[..., : max(0, 4 - keys.start)].sum(dim=-1)
            else:
                offset = OFFSETS[name]
                on_pattern = weights.diagonal(queries.start + offset - keys.start, -2, -1)
                first = max(keys.start, queries.start + offset)
                on_pattern = on_pattern[..., max(0, self.first_key - first) :]
            sums.append(on_pattern.sum(dim=-1))
        return torch.stack(sums, dim=-1)


class CountedRows(NamedTuple):
    """Row counts (all, padding, padding with NaN), and the number of texts with NaN in a head's weights.

    `is_unclear`: the rows that are not counted as padding may include padding.
    """

    num_rows: int = 0
    padding: int = 0
    nan_padding: int = 0
    nan_texts: int = 0
    is_unclear: bool = False

    def plus(self, other: "CountedRows") -> "CountedRows":
        """Return the sum of both counts."""
        return CountedRows(
            self.num_rows + other.num_rows,
            self.padding + other.padding,
            self.nan_padding + other.nan_padding,
            self.nan_texts + other.nan_texts,
            self.is_unclear or other.is_unclear,
        )


@dataclass
class RowNotes:
    """Notes about the rows of modules, by path.

    `by_numbers` lists modules whose fully masked rows still have attention in the program.
    """

    rows: dict[str, CountedRows] = field(default_factory=dict)
    by_numbers: dict[str, None] = field(default_factory=dict)

    def add(self, other: "RowNotes") -> None:
        """Add the notes from another run of the program."""
        for path, rows in other.rows.items():
            self.rows[path] = self.rows.get(path, CountedRows()).plus(rows)
        self.by_numbers |= other.by_numbers

    def lines(self) -> Iterator[str]:
        """Yield a line for each count of padding rows, then lines about unusual modules."""
        by_count: dict[CountedRows, list[str]] = {}
        for path, rows in self.rows.items():
            if rows.padding:
                by_count.setdefault(rows._replace(nan_texts=0, is_unclear=False), []).append(path)
        for rows, paths in by_count.items():
            left = rows.num_rows - rows.padding
            modules = "" if len(paths) == len(self.rows) else f" of {listed(paths)}"
            nan = f", {rows.nan_padding:,} of them NaN" if rows.nan_padding else ""
            were = "was" if rows.padding == 1 else "were"
            out = f"{counted(rows.padding, 'padding row')} {were} left out{nan} (hidden from every query)"
            yield f"{left:,} rows{modules} were measured; {out}."
        if unclear := [path for path, rows in self.rows.items() if rows.is_unclear]:
            yield f"{listed(unclear)}: {UNCLEAR}"
        if self.by_numbers:
            yield f"{listed([*self.by_numbers])}: {NUMBERS_HIDE}"
        if undefined := [path for path, rows in self.rows.items() if rows.nan_texts]:
            texts = counted(max(rows.nan_texts for rows in self.rows.values()), "text")
            yield f"NaN in weights of {listed(undefined)}, in {texts}: means exclude these texts."


class MeasuredCall(NamedTuple):
    """The statistics of one call, with and without the first key, and the counts of the rows behind them."""

    numbers: HeadNumbers
    rest: HeadNumbers
    stacks: Sequence[Stack]
    rest_stacks: Sequence[Stack]
    rows: CountedRows

    @property
    def has_rows_without_keys(self) -> bool:
        """True if any row other than padding sees no key."""
        num_left = self.rows.num_rows - self.rows.padding
        return sum(stack.num_rows["sink_mass"] for stack in self.stacks) < num_left


class MeasuredPart(NamedTuple):
    """The statistics of some texts in a call, with the maps of the first of these texts."""

    numbers: HeadNumbers
    rest: HeadNumbers
    stacks: Sequence[Stack]
    rest_stacks: Sequence[Stack]
    maps: dict[str, Float[npt.NDArray[np.float32], "head query key"]]


class CallMeasurer:
    """Measures calls.

    `tokens` names the tokens of self-attention over a text of that length, and `grid` is the (rows, columns)
    of patches. Weights are stored for texts of at most `whole_tokens` tokens.
    """

    def __init__(self, tokens: Sequence[str] | None, grid: tuple[int, int] | None, whole_tokens: int) -> None:
        self.tokens, self.grid, self.whole_tokens = tokens, grid, whole_tokens
        self._plans: dict[tuple[object, ...], Wanted] = {}

    def measured(
        self, source: LayerOrWeights, positions: RealPositions, place: LayerPlace
    ) -> tuple[MeasuredCall, dict[str, Float[npt.NDArray[np.float32], "head query key"]], list[int] | None]:
        """Return the head statistics, the first text's maps, and its positions if it has padding."""
        together = texts_together(source, positions, by_place=self.grid is not None)
        parts = [self._measured_part(each, max(source.shape[2:]), place) for each in together]
        order = torch.tensor([text for each in together for text in each.texts]).argsort()
        numbers, rest = (
            _joined_texts([getattr(part, kind) for part in parts], order) for kind in ("numbers", "rest")
        )
        numbers = without_numbers(numbers, has_nan_padding(source, positions))
        stacks, rest_stacks = (
            [[stack for part in parts for stack in getattr(part, kind)][text] for text in order.tolist()]
            for kind in ("stacks", "rest_stacks")
        )
        rest = without_numbers(rest, numbers.undefined)
        rows = CountedRows(
            positions.queries.numel(),
            int((~positions.queries).sum()),
            num_nan_rows(source, ~positions.queries),
            int(numbers.undefined.any(dim=1).sum()),
            positions.is_unclear,
        )
        number, first = next((n, each) for n, each in enumerate(together) if 0 in each.texts)
        is_part = not first.is_empty and first.queries.shape[1] < source.shape[2]
        places = first.queries[0].tolist() if is_part else None
        return MeasuredCall(numbers, rest, stacks, rest_stacks, rows), parts[number].maps, places

    def _measured_part(self, part: TextsTogether, num_tokens: int, place: LayerPlace) -> MeasuredPart:
        """Return the statistics of texts with equally many positions, in a batch of `num_tokens` tokens."""
        source, wanted = part.source, self._wanted(part, num_tokens, place.kind)
        is_whole = max(source.shape[2:]) <= self.whole_tokens
        pooled = None if is_whole else MAP_SIZE
        if source.shape[0] == 1:
            computed = first = attend(source, replace(wanted, weights=is_whole, pooled=pooled))
        else:
            computed = attend(source, wanted)
            first = attend(first_text(source), Wanted(weights=is_whole, pooled=pooled))
        assert computed.rest is not None and wanted.rest is not None
        layers = SurveyedLayers(wanted={place.stack: wanted})
        layers.keep(place, computed)
        rest = SurveyedLayers(wanted={place.stack: wanted.rest})
        rest.keep(place, computed.rest)
        return MeasuredPart(
            _on_host(head_numbers(layers)[0], is_empty=part.is_empty),
            _on_host(head_numbers(rest)[0], is_empty=part.is_empty),
            _text_stacks(layers, place, is_empty=part.is_empty),
            _text_stacks(rest, place, is_empty=part.is_empty),
            _first_maps(first),
        )

    def _wanted(self, part: TextsTogether, num_tokens: int, kind: str) -> Wanted:
        """Return the values to compute for a call, cached by the call's shape."""
        num_texts, _, num_queries, num_keys = part.source.shape
        device = part.source.like.device
        is_named = self.grid is not None or self.has_names(num_tokens)
        if is_named and kind == "self" and num_keys < num_tokens:
            return self._planned(num_texts, num_queries, num_keys, kind, device, num_tokens, part.keys)
        plan = (num_texts, num_queries, num_keys, kind, device)
        if plan not in self._plans:
            while len(self._plans) >= MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[plan] = self._planned(*plan, max(num_queries, num_keys), None)
        return self._plans[plan]

    def _planned(
        self,
        num_texts: int,
        num_queries: int,
        num_keys: int,
        kind: str,
        device: torch.device,
        num_tokens: int,
        keys: Int[Tensor, "text key"] | None,
    ) -> Wanted:
        """Return the values to compute; `keys` are the real keys of `num_tokens` tokens, or None for all."""
        special = torch.zeros(num_texts, num_tokens, dtype=torch.bool, device=device)
        places, is_square = None, kind == "self" and num_queries == num_keys
        if self.grid is not None and is_square and num_tokens >= self.grid[0] * self.grid[1]:
            places = grid_places(self.grid, num_tokens)
            special[:, : num_tokens - self.grid[0] * self.grid[1]] = True
        ids = self._ids(num_tokens).expand(num_texts, -1).to(device) if is_square else None
        if keys is not None:
            special, ids = special.gather(1, keys), None if ids is None else ids.gather(1, keys)
            places = None if places is None else places[keys[0].cpu()]
        every = torch.ones_like(special)
        wanted = wanted_scores(ids, Marks(special, every, every), places=places)
        assert wanted.patterns is not None
        names = wanted.patterns.names
        if is_square and places is None and not self.has_names(num_tokens):
            names = tuple(name for name in names if name not in EMPTY)
            kind_of_patterns = NeighbourPatterns if OFFSETS.keys() | {FIRST_FOUR} >= {*names} else Patterns
            wanted = replace(
                wanted, patterns=kind_of_patterns(names, wanted.patterns.ids, wanted.patterns.marks)
            )
        return replace(wanted, rest=without_first_key(wanted))

    def has_names(self, count: int) -> bool:
        return self.tokens is not None and len(self.tokens) == count

    def _ids(self, count: int) -> Tensor:
        """Return equal numbers for tokens with equal names; without names, all tokens differ."""
        if self.tokens is None or not self.has_names(count):
            return torch.arange(count)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self.tokens))}
        return torch.tensor([numbers[name] for name in self.tokens])


def _with_empty(stack: Stack, kind: str) -> Stack:
    """Return the stack with 0 rows for the patterns that were skipped because they are empty."""
    if kind == "cross" or "neighbour" in stack.num_rows:
        return stack
    return stack._replace(num_rows={**dict.fromkeys(EMPTY, 0), **stack.num_rows})


def grid_places(grid: tuple[int, int], count: int) -> Float[Tensor, "token 2"]:
    """Return the row and column of each of `count` tokens, with NaN for tokens before the patches."""
    rows, columns = torch.meshgrid(*(torch.arange(float(size)) for size in grid), indexing="ij")
    patches = torch.stack([rows.flatten(), columns.flatten()], dim=-1)
    return torch.cat([torch.full((count - len(patches), 2), torch.nan), patches])


def computed_weights(weights: Tensor, layer: LayerOrWeights) -> GivenWeights:
    """Return the weights as the program computed them, in float32 or float64."""
    weights = weights[..., : layer.shape[3]].to(torch.promote_types(weights.dtype, torch.float32))
    seen = layer.seen if isinstance(layer, GivenWeights) else layer.visibility.whole(weights.device)
    return GivenWeights(weights, seen)


def first_text(source: LayerOrWeights) -> LayerOrWeights:
    """Return the attention of the first text."""
    this = slice(0, 1)
    if isinstance(source, GivenWeights):
        return GivenWeights(source.weights[this], source.seen[this])
    rules = source.rules
    rules = replace(
        rules,
        bias=None if rules.bias is None else rules.bias[this],
        sink=None if rules.sink is None else rules.sink[this],
    )
    return replace(
        source,
        query=source.query[this],
        key=source.key[this],
        value=source.value[this],
        visibility=source.visibility.for_texts(this),
        rules=rules,
    )


def _on_host(numbers: HeadNumbers, *, is_empty: bool) -> HeadNumbers:
    values, keys = numbers.values.double().cpu(), numbers.keys.cpu()
    if is_empty:
        values, keys = torch.full_like(values, torch.nan), torch.full_like(keys, -1)
    return HeadNumbers(numbers.names, values, keys, numbers.undefined.cpu() & (not is_empty))


def _text_stacks(layers: SurveyedLayers, place: LayerPlace, *, is_empty: bool) -> list[Stack]:
    """Return the stack of each text."""
    (layer,) = layers.layers
    every = (stacks_of(layers, text)[place.stack] for text in range(len(layer.computed.seeing)))
    stacks = [_with_empty(stack, place.kind) for stack in every]
    if is_empty:
        stacks = [
            stack._replace(
                num_rows=dict.fromkeys(stack.num_rows, 0), even=dict.fromkeys(stack.even, TextMean.of(None))
            )
            for stack in stacks
        ]
    return stacks


def _joined_texts(parts: Sequence[HeadNumbers], order: Int[Tensor, " text"]) -> HeadNumbers:
    """Return the numbers of all texts, in their order in the batch."""
    values, keys, undefined = (
        torch.cat(each)[order] for each in zip(*(part[1:] for part in parts), strict=True)
    )
    return HeadNumbers(parts[0].names, values, keys, undefined)


def _first_maps(computed: Computed) -> dict[str, Float[npt.NDArray[np.float32], "head query key"]]:
    by_name = {
        "weights": computed.weights,
        "pooled_mean": computed.pooled_mean,
        "pooled_max": computed.pooled_max,
    }
    return {name: maps[0].float().numpy(force=True) for name, maps in by_name.items() if maps is not None}
