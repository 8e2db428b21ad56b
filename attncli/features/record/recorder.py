"""What the heads of a running program do: each attention is measured as it is heard, and not kept."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock, get_ident
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.mask_tensors import recognised
from attncli.core.row_tiles import LayerOrWeights
from attncli.features.record.growing_texts import GrowingText, bytes_to_keep, may_grow, without_unused_keys
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.measured_calls import (
    CallMeasurer,
    CountedRows,
    MeasuredCall,
    RowNotes,
    listed,
    own_weights,
)
from attncli.features.record.padding import (
    MOST_RECOGNISED,
    PositionsThere,
    mask_of_rest,
    place_of_first_query,
    positions_of,
)
from attncli.features.record.results import RecordedHeads, RecordedModule, TrainingSteps
from attncli.measure.head_numbers import HeadNumbers
from attncli.measure.patterns import (
    HeadTotals,
    LayerPlace,
    RestOfText,
    SurveyedText,
    head_table,
    joined_numbers,
    patterns_by_stack,
)
from attncli.records.columns import Records
from attncli.records.surveys import NAMING, RestOfHead, Stack
from attncli.system.plain_text import counted

WHOLE_PICTURE = 400
"""Tokens of a picture up to which all weights are kept."""
MOST_COPIED = 2**27
"""Bytes of queries and keys that are copied at most, for steps of a generation that may follow."""
STACKS = ("self", "cross")


@dataclass
class HeardModule:
    """A module of a stack: the call that was measured last, and the totals of those before it."""

    place: LayerPlace
    function: str
    measured: int = 0
    last: MeasuredCall | None = None
    earlier: HeadTotals = field(default_factory=HeadTotals)
    earlier_rows: CountedRows = field(default_factory=CountedRows)
    attention: RecordedModule | None = None
    """What is known of the last call."""
    places: list[int] | None = None
    """The positions of the first text that are there; None for all."""
    maps: dict[str, Float[npt.NDArray[np.float32], "head query key"]] = field(default_factory=dict)
    """The weights of the first text, or their maps of blocks."""
    growing: GrowingText | None = None
    is_grown: bool = False
    num_copied: int = 0
    steps: tuple[int, int] = (0, 0)
    """The training steps before the first call that counts, and before the last."""

    def totals(self) -> HeadTotals:
        """Those of all texts."""
        rest = HeadTotals() if self.earlier.rest is None else _copied(self.earlier.rest)
        totals = replace(_copied(self.earlier), rest=rest)
        assert self.last is not None
        _add(totals, self.place, self.last.numbers, self.last.stacks)
        _add(rest, self.place, self.last.rest, self.last.rest_stacks)
        return totals

    @property
    def num_texts(self) -> int:
        """How many texts were measured."""
        assert self.last is not None
        return self.earlier.num_texts + len(self.last.stacks)

    @property
    def rows(self) -> CountedRows:
        """The rows of all texts."""
        return self.earlier_rows if self.last is None else self.earlier_rows.plus(self.last.rows)


def _copied(totals: HeadTotals) -> HeadTotals:
    return replace(totals, layers=dict(totals.layers), stacks=dict(totals.stacks))


def _add(totals: HeadTotals, place: LayerPlace, numbers: HeadNumbers, stacks: Sequence[Stack]) -> None:
    totals.num_texts += len(stacks)
    totals.add(place, numbers.names, numbers.values)
    for stack in stacks:
        totals.add_rows(stack)


ModulePlaces = dict[tuple[str, str], LayerPlace]
"""The number of each module, by its path and kind, in the order in which they were first heard."""


class Recorder:
    """Measures the attention of a program, call by call; `result` is what its heads do.

    `tokens` names the tokens of self-attention over as many, `grid` is the (rows, columns) of patches, the
    tokens beyond which come before them. Of `calls` "last" only the last of each module counts; with one call
    none is joined with another. Weights are kept up to `whole_tokens` tokens. `places` has the numbers of
    modules that others have recorded, and gets those of new ones.
    """

    def __init__(
        self,
        *,
        tokens: Sequence[str] | None = None,
        grid: tuple[int, int] | None = None,
        whole_tokens: int = 256,
        calls: int | Literal["all", "last"] = "all",
        places: ModulePlaces | None = None,
    ) -> None:
        self.tokens, self.grid, self.calls = tokens, grid, calls
        self._places: ModulePlaces = {} if places is None else places
        # Blocks of neighbouring tokens are none of a picture.
        self.whole_tokens = whole_tokens if grid is None else max(whole_tokens, WHOLE_PICTURE)
        self.modules: dict[tuple[str, str], HeardModule] = {}
        self.num_copied = 0
        self._lock = RLock()
        self.measurer = CallMeasurer(tokens, grid, self.whole_tokens)
        self._queries_there: dict[str, tuple[int, Bool[Tensor, "text query"]]] = {}
        self._not_joined: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._by_numbers: dict[str, None] = {}

    @property
    def has_heard(self) -> bool:
        """Whether an attention was measured."""
        return bool(self.modules)

    def take(self, call: HeardCall) -> None:
        """Measure a call, or add it to the text that it continues."""
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            layer = call.attention
            if isinstance(layer, AttentionLayer) and call.kind == "self":
                layer = without_unused_keys(layer)
            module = self.modules.get((call.module, call.kind))
            growing = None if module is None else module.growing
            if growing is not None and isinstance(layer, AttentionLayer) and growing.continues(layer):
                assert module is not None
                self._grow(module, growing, layer)
            else:
                self._begin(call, module, layer)

    def continues(self, call: HeardCall) -> bool:
        """Whether a call goes on with the text of the one before of its module."""
        module, layer = self.modules.get((call.module, call.kind)), call.attention
        if module is None or module.growing is None or not isinstance(layer, AttentionLayer):
            return False
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            return module.growing.continues(without_unused_keys(layer))

    def _begin(self, call: HeardCall, module: HeardModule | None, layer: LayerOrWeights) -> None:
        """A call that is a text, or several, of its own."""
        if module is None:
            place = self._places.get((call.module, call.kind))
            if place is None:
                number = sum(kind == call.kind for _, kind in self._places)
                place = LayerPlace(number, call.kind, call.kind, call.module)
                self._places[call.module, call.kind] = place
            module = HeardModule(place, call.function)
        source = layer if call.weights is None else own_weights(call.weights, layer)
        positions = self._positions(call, layer)
        measured, maps, places = self.measurer.measured(source, positions, module.place)
        if call.hides_by_numbers and measured.has_rows_without_keys:
            self._by_numbers[call.module] = None
        if module.last is not None and self.calls != "last":
            self._finish(module)
            before = module.last.numbers
            if (before.names, before.values.shape[1]) != (measured.numbers.names, source.shape[1]):
                self._others[call.module] += 1
                return
            module.earlier_rows = module.rows
            module.earlier = module.totals()
        if not module.maps or self.calls == "last":
            module.maps, module.places = maps, places
        self.modules[call.module, call.kind] = module
        first_step = module.steps[0] if module.measured and self.calls != "last" else call.step
        module.steps = first_step, call.step
        module.last, module.measured = measured, module.measured + 1
        module.attention = _described(module, layer, positions)
        self._drop(module)
        if call.kind == "self" and self.calls != 1 and isinstance(layer, AttentionLayer) and may_grow(layer):
            size = bytes_to_keep(layer, layer.shape[3])
            if self._may_copy(size):
                module.growing, module.num_copied = GrowingText(layer), size
                self.num_copied += size

    def _may_copy(self, num_bytes: int) -> bool:
        return self.num_copied + num_bytes <= MOST_COPIED

    def _drop(self, module: HeardModule) -> None:
        self.num_copied -= module.num_copied
        module.growing, module.is_grown, module.num_copied = None, False, 0

    def _grow(self, module: HeardModule, growing: GrowingText, layer: AttentionLayer) -> None:
        size = bytes_to_keep(layer, num_keys=layer.shape[2])
        if not growing.num_skipped and self._may_copy(size):
            growing.add(layer)
            module.measured += 1
            module.is_grown = True
            module.num_copied += size
            self.num_copied += size
        else:
            growing.skip(layer)
            self._not_joined[module.place.module or ""] += 1

    def _finish(self, module: HeardModule) -> None:
        """Measure the text that a module has read in steps."""
        if module.growing is not None and module.is_grown:
            joined = module.growing.joined()
            positions = positions_of(joined, first_query=0)
            module.last, maps, places = self.measurer.measured(joined, positions, module.place)
            module.attention = _described(module, joined, positions)
            module.is_grown = False
            if not module.earlier.num_texts:
                module.maps, module.places = maps, places

    def _positions(self, call: HeardCall, layer: LayerOrWeights) -> PositionsThere:
        """The positions of each text that are there: in cross-attention the queries that the same part of the
        program had in its self-attention.
        """
        num_texts, _, num_queries, _ = layer.shape
        if call.kind == "self":
            first_query = place_of_first_query(layer) if call.first_query is None else call.first_query
            positions = positions_of(layer, first_query=first_query)
            self._queries_there.pop(call.module, None)
            self._queries_there[call.module] = call.outermost, positions.queries
            is_unknown = first_query is None and num_queries > 1 and not bool(positions.keys.all())
            return positions._replace(is_unclear=positions.is_unclear or is_unknown)
        alike = [
            queries
            for module, (outermost, queries) in self._queries_there.items()
            if outermost == call.outermost
            and queries.shape == (num_texts, num_queries)
            and _are_near(module, call.module)
        ]
        positions = positions_of(layer, first_query=None)
        # A text that is attended to is another than the one that attends, where there are several.
        alike = [queries for queries in alike if not torch.equal(queries, positions.keys)] or alike
        if not alike:
            return positions
        if any(not torch.equal(queries, alike[0]) for queries in alike):
            return positions._replace(is_unclear=True)
        return positions._replace(queries=alike[0])

    # What came of it

    def result(
        self, counts: Mapping[str, int], notes: Sequence[str] = (), training_steps: int = 0
    ) -> RecordedHeads:
        """What each head does; `counts` are the calls of each module, `notes` what else is to be said.

        Of one text in all these are its statistics, else means over the texts of each module. A program that
        trains made `training_steps`.
        """
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            modules = self._in_order()
            for module in modules:
                self._finish(module)
            if all(module.num_texts == 1 for module in modules):
                survey = _of_one_text(modules).survey()
            else:
                survey, _ = _of_texts(modules).survey()
            rows = [module.attention for module in modules if module.attention is not None]
            # A module may attend to itself in one call, and to another text in the next.
            measured: Counter[str] = Counter()
            for row, module in zip(rows, modules, strict=True):
                measured[row.module] += module.measured
            table = RecordedModule.rows(
                {
                    **row,
                    "texts": module.num_texts,
                    "calls": counts.get(row.module, measured[row.module])
                    - (measured[row.module] - module.measured),
                    "measured": module.measured,
                    "rows": module.rows.num_rows,
                    "padding": module.rows.padding,
                    "nan_texts": module.rows.nan_texts,
                    "nan_padding": module.rows.nan_padding,
                }
                for row, module in zip(rows, modules, strict=True)
            )
            parts = {name: kept for name, kept in vars(survey).items() if name != "notes"}
            sizes = [row.tokens_of_text for row in table if row.kind == "self"] or [table[0].tokens_of_text]
            parts["tokens_of_text"] = max(sizes)
            if training_steps:
                parts["training"] = TrainingSteps.single(
                    before_first=min(module.steps[0] for module in modules),
                    before_last=max(module.steps[1] for module in modules),
                    steps=training_steps,
                )
            return RecordedHeads(**parts, modules=table, notes=(*notes, *self._notes(table)))

    def _in_order(self) -> list[HeardModule]:
        return sorted(
            self.modules.values(), key=lambda module: (STACKS.index(module.place.stack), module.place.layer)
        )

    def _notes(self, table: Records[RecordedModule]) -> list[str]:
        notes = []
        if self._not_joined:
            notes.append(
                f"{counted(sum(self._not_joined.values()), 'step')} of {listed([*self._not_joined])} left "
                f"out: copies of queries and keys are limited to {MOST_COPIED / 2**20:.0f} MB in all."
            )
        if self._others:
            notes.append(
                f"{counted(sum(self._others.values()), 'call')} of {listed([*self._others])} left out: "
                "of another number of heads or on another grid than the first."
            )
        sizes = [(row.num_queries, row.num_keys) for row in table if row.kind == "self"]
        if self.tokens is not None and not any(size == (len(self.tokens),) * 2 for size in sizes):
            known = ", ".join(f"{keys:,}" for keys in dict.fromkeys(keys for _, keys in sizes))
            heard = f"self-attention was over {known} tokens" if known else "no self-attention was heard"
            notes.append(f"tokens: {len(self.tokens)} names, but {heard}.")
        if self.grid is not None and not any(
            queries == keys >= self.grid[0] * self.grid[1] for queries, keys in sizes
        ):
            size = "×".join(map(str, self.grid))
            notes.append(f"grid: no self-attention was over {size} patches or more.")
        notes += self.row_notes().lines()
        return notes

    def row_notes(self) -> RowNotes:
        """What is to be said of the rows of every module."""
        notes = RowNotes(by_numbers=self._by_numbers)
        for module in self._in_order():
            notes.add(RowNotes({module.place.module or "": module.rows}))
        return notes

    def names_on_maps(self) -> list[str]:
        """The names of the tokens of the first maps of self-attention: those that are there."""
        module = next(module for module in self._in_order() if module.place.stack == "self")
        assert module.attention is not None
        names = self._names_of(module.attention.num_queries)
        return [names[place] for place in module.places] if names and module.places is not None else names

    def _names_of(self, count: int) -> list[str]:
        """The names of so many tokens: as given, or by their places on the grid; else none."""
        if self.tokens is not None and self.measurer.has_names(count):
            return [*self.tokens]
        if self.grid is None or count < self.grid[0] * self.grid[1]:
            return []
        rows, columns = self.grid
        before = [f"+{number}" for number in range(count - rows * columns)]
        return [*before, *(f"r{row + 1}c{column + 1}" for row in range(rows) for column in range(columns))]

    def maps(self, stack: str) -> dict[str, Float[npt.NDArray[np.float32], "layer head query key"]]:
        """The maps of a stack by their names, of the first text, NaN where a layer has fewer heads.

        Layers whose maps have another shape than those of the first are NaN, too: see `unmapped`.
        """
        modules = [module for module in self._in_order() if module.place.stack == stack and module.maps]
        if not modules:
            return {}
        first = modules[0].maps
        alike = [module for module in modules if _shapes(module.maps) == _shapes(first)]
        num_layers = max(module.place.layer for module in modules) + 1
        num_heads = max(len(kept) for module in alike for kept in module.maps.values())
        stacked = {
            name: np.full((num_layers, num_heads, *kept.shape[1:]), np.nan, dtype=np.float32)
            for name, kept in first.items()
        }
        for module in alike:
            for name, kept in module.maps.items():
                stacked[name][module.place.layer, : len(kept)] = kept
        return stacked

    def unmapped(self, stack: str) -> list[str]:
        """The modules of a stack whose maps have another shape than those of the first."""
        modules = [module for module in self._in_order() if module.place.stack == stack]
        return [
            module.place.module or ""
            for module in modules
            if _shapes(module.maps) != _shapes(modules[0].maps)
        ]


class RecordedRuns:
    """The runs of a program, each thread's for itself: a recorder for each, which `end_run` is given.

    A run is a call of an outermost module, or several calls where these go on with a text, as a generation
    does. A module has the same number in all runs: its place among `places`.
    """

    def __init__(
        self, begin_run: Callable[[ModulePlaces], Recorder], end_run: Callable[[Recorder], None]
    ) -> None:
        self._begin_run, self._end_run, self._lock = begin_run, end_run, RLock()
        self.places: ModulePlaces = {}
        self.opened: dict[int, OpenedRun] = {}
        """The run of each thread that is not over."""

    def take(self, call: HeardCall) -> None:
        """Measure a call in the run that it belongs to."""
        thread = get_ident()
        with self._lock:
            run = self.opened.get(thread)
            if run is None or not run.has(call):
                if run is not None:
                    self._end_run(run.recorder)
                run = self.opened[thread] = OpenedRun(self._begin_run(self.places), call.outermost)
            run.recorder.take(call)

    def end(self) -> None:
        """End the runs of all threads."""
        with self._lock:
            while self.opened:
                _, run = self.opened.popitem()
                self._end_run(run.recorder)

    def recorders(self) -> list[Recorder]:
        """Those of the runs that are not over."""
        with self._lock:
            return [run.recorder for run in self.opened.values()]


@dataclass
class OpenedRun:
    """A run that is not over, and the last call of an outermost module in it."""

    recorder: Recorder
    outermost: int

    def has(self, call: HeardCall) -> bool:
        """Whether a call belongs to it, or else to the next one."""
        if call.outermost != self.outermost and self.recorder.continues(call):
            self.outermost = call.outermost
        return call.outermost == self.outermost


def _shapes(maps: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, tuple[int, ...]]:
    return {name: kept.shape[1:] for name, kept in maps.items()}


def _are_near(module: str, other: str) -> bool:
    """Whether two modules are of the same layer: all of their paths but the last two names are the same."""
    names, others = module.split("."), other.split(".")
    shared = max(len(others) - 2, min(len(others) - 1, 1))
    return names[:shared] == others[:shared]


def _described(module: HeardModule, layer: LayerOrWeights, positions: PositionsThere) -> RecordedModule:
    """The sizes of a call, and which keys its queries see."""
    num_texts, num_heads, num_queries, num_keys = layer.shape
    head_dim, scale, visibility = None, None, None
    if isinstance(layer, AttentionLayer):
        head_dim, scale, visibility = layer.query.shape[-1], layer.scale, layer.visibility
    elif layer.seen.numel() <= MOST_RECOGNISED:
        visibility = recognised(layer.seen)
    mask = "other" if visibility is None else mask_name(visibility)
    if mask == "other" and (rest := mask_of_rest(layer, positions)) is not None:
        visibility, mask = rest, f"{mask_name(rest)}, padding".removeprefix("none, ")
    return RecordedModule.single(
        stack=module.place.stack,
        layer=module.place.layer,
        module=module.place.module or "",
        kind=module.place.kind,
        function=module.function,
        texts=num_texts,
        heads=num_heads,
        queries=num_queries,
        keys=num_keys,
        head_dim=head_dim,
        mask=mask,
        window=None if visibility is None else visibility.window,
        scale=scale,
        calls=module.measured,
        measured=module.measured,
    )


def mask_name(visibility: Visibility) -> str:
    """Who sees whom: none, causal, window, padding, several of these, or other."""
    if visibility.rule is not None:
        return "other"
    names = {
        "causal": visibility.causal,
        "window": visibility.window is not None,
        "padding": visibility.key_mask is not None,
    }
    return ", ".join(name for name, applies in names.items() if applies) or "none"


def _fewest(stacks: Sequence[Stack]) -> dict[str, Stack]:
    """The rows of each stack: of each statistic the fewest that a layer has which has it at all, and the most
    that even weights give in a layer.
    """
    fewest: dict[str, Stack] = {}
    for stack in stacks:
        before = fewest.get(stack.name, stack)
        rows = {
            name: min(of_stack.num_rows[name] for of_stack in (before, stack) if name in of_stack.num_rows)
            for name in dict.fromkeys([*before.num_rows, *stack.num_rows])
        }
        even = {
            name: max(before.even[name], stack.even[name], key=lambda each: each.mean or 0.0)
            for name in before.even.keys() & stack.even.keys()
        }
        starts_special = before.starts_special and stack.starts_special
        fewest[stack.name] = Stack(stack.name, rows, starts_special, even)
    return fewest


def _of_one_text(modules: Sequence[HeardModule]) -> SurveyedText:
    """The heads of one text, and what they do."""
    measured = [(module.place, module.last) for module in modules if module.last is not None]
    layers = [(place, call.numbers.values.shape[1]) for place, call in measured]
    of_heads = [(place, head) for place, count in layers for head in range(count)]
    stack_names = [place.stack for place, _ in of_heads]
    stacks = _fewest([call.stacks[0] for _, call in measured])
    rest_stacks = _fewest([call.rest_stacks[0] for _, call in measured])
    numbers, rest = (
        joined_numbers([(each.names, each.values[0].numpy()) for each in of_calls])
        for of_calls in ([call.numbers for _, call in measured], [call.rest for _, call in measured])
    )
    rest_heads = RestOfHead.table(
        stack=stack_names,
        layer=np.array([place.layer for place, _ in of_heads]),
        head=np.array([head for _, head in of_heads]),
        **{name: values for name, values in rest.items() if name in NAMING},
    )
    rest_of_text = RestOfText(rest_heads, rest_stacks)
    patterns = patterns_by_stack(stack_names, numbers, stacks)
    heads = head_table(layers, patterns, rest_of_text.patterns(), numbers)
    keys = torch.cat([call.numbers.keys[0] for _, call in measured]).numpy()
    return SurveyedText(heads, [*stacks.values()], keys, rest_of_text)


def _of_texts(modules: Sequence[HeardModule]) -> HeadTotals:
    """The totals of the texts of every module."""
    of_modules = [module.totals() for module in modules]
    rests = [totals.rest for totals in of_modules if totals.rest is not None]
    joined, rest = (_joined(totals) for totals in (of_modules, rests))
    return replace(joined, rest=rest)


def _joined(totals: Sequence[HeadTotals]) -> HeadTotals:
    layers = {place: layer for each in totals for place, layer in each.layers.items()}
    stacks = _fewest([stack for each in totals for stack in each.stacks.values()])
    return HeadTotals(max(each.num_texts for each in totals), None, layers, stacks)
