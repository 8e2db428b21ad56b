"""Measures a program's heads while it runs: each attention is measured when detected, and not stored."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock, get_ident
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float

from attncli.core.layer import AttentionLayer
from attncli.core.row_tiles import LayerOrWeights
from attncli.features.record.call_positions import CallPositions
from attncli.features.record.growing_texts import GrowingText, bytes_to_copy, may_grow, without_unused_keys
from attncli.features.record.heard_modules import HeardModule, module_row
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.listening.notes import listed
from attncli.features.record.measured_calls import CallMeasurer, RowNotes, computed_weights
from attncli.features.record.padding import real_positions
from attncli.features.record.recorded_heads import recorded_heads
from attncli.features.record.results import RecordedHeads, RecordedModule
from attncli.measure.patterns import LayerPlace
from attncli.records.columns import Records
from attncli.system.plain_text import counted

WHOLE_PICTURE = 400
"""Maximum number of tokens of a picture for which all weights are stored."""
MOST_COPIED = 2**27
"""Maximum number of bytes of queries and keys that are copied, to join later steps of a generation."""
STACKS = ("self", "cross")


ModulePlaces = dict[tuple[str, str], LayerPlace]
"""The place of each module, by its path and kind, numbered in the order of first calls."""


class Recorder:
    """Measures a program's attention, call by call; `result` returns the survey of its heads.

    `tokens` names the tokens of self-attention over a text of that length. `grid` is the (rows, columns) of
    patches, which come after any other tokens. With `calls` "last" only the last call of each module counts;
    with 1, calls are never joined. Weights are stored for texts of at most `whole_tokens` tokens. `places`
    are the module places of earlier recorders; new modules are added to them.
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
        # Blocks of neighbouring tokens are not blocks of the picture.
        self.whole_tokens = whole_tokens if grid is None else max(whole_tokens, WHOLE_PICTURE)
        self.modules: dict[tuple[str, str], HeardModule] = {}
        self.num_copied = 0
        self._lock = RLock()
        self.measurer = CallMeasurer(tokens, grid, self.whole_tokens)
        self._positions = CallPositions()
        self._not_joined: Counter[str] = Counter()
        self._mismatched: Counter[str] = Counter()
        self._by_numbers: dict[str, None] = {}

    @property
    def has_heard(self) -> bool:
        """True if any attention was measured."""
        return bool(self.modules)

    def take(self, call: HeardCall) -> None:
        """Measure a call, or add the call to the text that it continues."""
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
        """Return True if a call continues the text of its module's previous call."""
        module, layer = self.modules.get((call.module, call.kind)), call.attention
        if module is None or module.growing is None or not isinstance(layer, AttentionLayer):
            return False
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            return module.growing.continues(without_unused_keys(layer))

    def _begin(self, call: HeardCall, module: HeardModule | None, layer: LayerOrWeights) -> None:
        """Measure a call that contains one or more new texts."""
        if module is None:
            place = self._places.get((call.module, call.kind))
            if place is None:
                number = sum(kind == call.kind for _, kind in self._places)
                place = LayerPlace(number, call.kind, call.kind, call.module)
                self._places[call.module, call.kind] = place
            module = HeardModule(place, call.function)
        source = layer if call.weights is None else computed_weights(call.weights, layer)
        positions = self._positions.positions(call, layer)
        measured, maps, places = self.measurer.measured(source, positions, module.place)
        if call.hides_by_numbers and measured.has_rows_without_keys:
            self._by_numbers[call.module] = None
        if module.last is not None and self.calls != "last":
            self._finish(module)
            before = module.last.numbers
            if (before.names, before.values.shape[1]) != (measured.numbers.names, source.shape[1]):
                self._mismatched[call.module] += 1
                return
            module.earlier_rows = module.rows
            module.earlier = module.totals()
        if not module.maps or self.calls == "last":
            module.maps, module.places = maps, places
        self.modules[call.module, call.kind] = module
        first_step = module.steps[0] if module.measured and self.calls != "last" else call.step
        module.steps = first_step, call.step
        module.last, module.measured = measured, module.measured + 1
        module.attention = module_row(module, layer, positions)
        self._drop(module)
        if call.kind == "self" and self.calls != 1 and isinstance(layer, AttentionLayer) and may_grow(layer):
            size = bytes_to_copy(layer, layer.shape[3])
            if self._may_copy(size):
                module.growing, module.num_copied = GrowingText(layer), size
                self.num_copied += size

    def _may_copy(self, num_bytes: int) -> bool:
        return self.num_copied + num_bytes <= MOST_COPIED

    def _drop(self, module: HeardModule) -> None:
        self.num_copied -= module.num_copied
        module.growing, module.is_grown, module.num_copied = None, False, 0

    def _grow(self, module: HeardModule, growing: GrowingText, layer: AttentionLayer) -> None:
        size = bytes_to_copy(layer, num_keys=layer.shape[2])
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
        """Measure a text that a module has read in several steps."""
        if module.growing is not None and module.is_grown:
            joined = module.growing.joined()
            positions = real_positions(joined, first_query=0)
            module.last, maps, places = self.measurer.measured(joined, positions, module.place)
            module.attention = module_row(module, joined, positions)
            module.is_grown = False
            if not module.earlier.num_texts:
                module.maps, module.places = maps, places

    def result(
        self, counts: Mapping[str, int], notes: Sequence[str] = (), training_steps: int = 0
    ) -> RecordedHeads:
        """Return the survey of all heads, with `notes` before the recorder's own notes."""
        with self._lock, torch.inference_mode(mode=False), torch.no_grad():
            modules = self._in_order()
            for module in modules:
                self._finish(module)
            heads = recorded_heads(modules, counts, training_steps)
            return replace(heads, notes=(*notes, *self._notes(heads.modules)))

    def _in_order(self) -> list[HeardModule]:
        return sorted(
            self.modules.values(), key=lambda module: (STACKS.index(module.place.stack), module.place.layer)
        )

    def _notes(self, table: Records[RecordedModule]) -> list[str]:
        notes = []
        if self._not_joined:
            count = sum(self._not_joined.values())
            were = "was" if count == 1 else "were"
            notes.append(
                f"{counted(count, 'step')} of {listed([*self._not_joined])} {were} left out: copies of "
                f"queries and keys are limited to {MOST_COPIED / 2**20:.0f} MB."
            )
        if self._mismatched:
            count = sum(self._mismatched.values())
            were = "was" if count == 1 else "were"
            notes.append(
                f"{counted(count, 'call')} of {listed([*self._mismatched])} {were} left out: the number of "
                "heads, or the grid, differs from that of the first call."
            )
        sizes = [(row.num_queries, row.num_keys) for row in table if row.kind == "self"]
        if self.tokens is not None and not any(size == (len(self.tokens),) * 2 for size in sizes):
            counts = ", ".join(f"{keys:,}" for keys in dict.fromkeys(keys for _, keys in sizes))
            detected = f"self-attention was over {counts} tokens" if counts else "there was no self-attention"
            notes.append(f"tokens: has {len(self.tokens)} names, but {detected}.")
        if self.grid is not None and not any(
            queries == keys >= self.grid[0] * self.grid[1] for queries, keys in sizes
        ):
            size = "×".join(map(str, self.grid))
            notes.append(f"grid: no self-attention was over at least {size} patches.")
        notes += self.row_notes().lines()
        return notes

    def row_notes(self) -> RowNotes:
        """Return the notes about the rows of all modules."""
        notes = RowNotes(by_numbers=self._by_numbers)
        for module in self._in_order():
            notes.add(RowNotes({module.place.module or "": module.rows}))
        return notes

    def names_on_maps(self) -> list[str]:
        """Return the names of the tokens on the first self-attention maps, without padding."""
        module = next(module for module in self._in_order() if module.place.stack == "self")
        assert module.attention is not None
        names = self._token_names(module.attention.num_queries)
        return [names[place] for place in module.places] if names and module.places is not None else names

    def _token_names(self, count: int) -> list[str]:
        """Return names for `count` tokens: from `tokens`, else places on the grid, else an empty list."""
        if self.tokens is not None and self.measurer.has_names(count):
            return [*self.tokens]
        if self.grid is None or count < self.grid[0] * self.grid[1]:
            return []
        rows, columns = self.grid
        before = [f"+{number}" for number in range(count - rows * columns)]
        return [*before, *(f"r{row + 1}c{column + 1}" for row in range(rows) for column in range(columns))]

    def maps(self, stack: str) -> dict[str, Float[npt.NDArray[np.float32], "layer head query key"]]:
        """Return a stack's maps of the first text by name, with NaN for missing heads.

        Layers whose maps differ in shape from the first layer's are NaN as well; see `unmapped`.
        """
        modules = [module for module in self._in_order() if module.place.stack == stack and module.maps]
        if not modules:
            return {}
        first = modules[0].maps
        alike = [module for module in modules if _shapes(module.maps) == _shapes(first)]
        num_layers = max(module.place.layer for module in modules) + 1
        num_heads = max(len(heads) for module in alike for heads in module.maps.values())
        stacked = {
            name: np.full((num_layers, num_heads, *heads.shape[1:]), np.nan, dtype=np.float32)
            for name, heads in first.items()
        }
        for module in alike:
            for name, heads in module.maps.items():
                stacked[name][module.place.layer, : len(heads)] = heads
        return stacked

    def unmapped(self, stack: str) -> list[str]:
        """Return the modules in a stack whose maps differ in shape from the first module's."""
        modules = [module for module in self._in_order() if module.place.stack == stack]
        return [
            module.place.module or ""
            for module in modules
            if _shapes(module.maps) != _shapes(modules[0].maps)
        ]


class RecordedRuns:
    """Splits a program's calls into runs per thread; each run's recorder is passed to `end_run`.

    A run is one call of an outermost module, or several calls that continue a text, as in a generation. A
    module has the same number in all runs; the number comes from `places`.
    """

    def __init__(
        self, begin_run: Callable[[ModulePlaces], Recorder], end_run: Callable[[Recorder], None]
    ) -> None:
        self._begin_run, self._end_run, self._lock = begin_run, end_run, RLock()
        self.places: ModulePlaces = {}
        self.opened: dict[int, OpenedRun] = {}
        """The open run of each thread."""

    def take(self, call: HeardCall) -> None:
        """Measure a call in the run to which it belongs."""
        thread = get_ident()
        with self._lock:
            run = self.opened.get(thread)
            if run is None or not run.has(call):
                if run is not None:
                    self._end_run(run.recorder)
                run = self.opened[thread] = OpenedRun(self._begin_run(self.places), call.outermost)
            run.recorder.take(call)

    def end(self) -> None:
        """End the open runs of all threads."""
        with self._lock:
            while self.opened:
                _, run = self.opened.popitem()
                self._end_run(run.recorder)

    def recorders(self) -> list[Recorder]:
        """Return the recorders of the open runs."""
        with self._lock:
            return [run.recorder for run in self.opened.values()]


@dataclass
class OpenedRun:
    """An open run, and its last call of an outermost module."""

    recorder: Recorder
    outermost: int

    def has(self, call: HeardCall) -> bool:
        """Return True if a call belongs to this run, or False if it begins the next run."""
        if call.outermost != self.outermost and self.recorder.continues(call):
            self.outermost = call.outermost
        return call.outermost == self.outermost


def _shapes(maps: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, tuple[int, ...]]:
    return {name: heads.shape[1:] for name, heads in maps.items()}
