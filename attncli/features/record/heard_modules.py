"""A module with attention in a program: its last call, and the totals of its earlier calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from attncli.core.layer import AttentionLayer, Visibility
from attncli.core.mask_tensors import recognised
from attncli.core.row_tiles import LayerOrWeights
from attncli.features.record.growing_texts import GrowingText
from attncli.features.record.measured_calls import CountedRows, MeasuredCall
from attncli.features.record.padding import MOST_RECOGNISED, RealPositions, unpadded_mask
from attncli.features.record.results import RecordedModule
from attncli.measure.head_numbers import HeadNumbers
from attncli.measure.patterns import HeadTotals, LayerPlace
from attncli.records.surveys import Stack


@dataclass
class HeardModule:
    """A module with attention: its last measured call, and the totals of its earlier calls."""

    place: LayerPlace
    function: str
    measured: int = 0
    last: MeasuredCall | None = None
    earlier: HeadTotals = field(default_factory=HeadTotals)
    earlier_rows: CountedRows = field(default_factory=CountedRows)
    attention: RecordedModule | None = None
    """The row of the last call."""
    places: list[int] | None = None
    """The positions in the first text that are not padding; None if the text has no padding."""
    maps: dict[str, Float[npt.NDArray[np.float32], "head query key"]] = field(default_factory=dict)
    """The weights of the first text, or their pooled maps."""
    growing: GrowingText | None = None
    is_grown: bool = False
    num_copied: int = 0
    steps: tuple[int, int] = (0, 0)
    """The number of training steps before the first and the last measured call."""

    def totals(self) -> HeadTotals:
        """Return the totals over all texts."""
        rest = HeadTotals() if self.earlier.rest is None else _copied(self.earlier.rest)
        totals = replace(_copied(self.earlier), rest=rest)
        assert self.last is not None
        _add(totals, self.place, self.last.numbers, self.last.stacks)
        _add(rest, self.place, self.last.rest, self.last.rest_stacks)
        return totals

    @property
    def num_texts(self) -> int:
        """The number of texts measured."""
        assert self.last is not None
        return self.earlier.num_texts + len(self.last.stacks)

    @property
    def rows(self) -> CountedRows:
        """The counted rows of all texts."""
        return self.earlier_rows if self.last is None else self.earlier_rows.plus(self.last.rows)


def _copied(totals: HeadTotals) -> HeadTotals:
    return replace(totals, layers=dict(totals.layers), stacks=dict(totals.stacks))


def _add(totals: HeadTotals, place: LayerPlace, numbers: HeadNumbers, stacks: Sequence[Stack]) -> None:
    totals.num_texts += len(stacks)
    totals.add(place, numbers.names, numbers.values)
    for stack in stacks:
        totals.add_rows(stack)


def module_row(module: HeardModule, layer: LayerOrWeights, positions: RealPositions) -> RecordedModule:
    """Return the sizes and the mask of a call, as a row of the module table."""
    num_texts, num_heads, num_queries, num_keys = layer.shape
    head_dim, scale, visibility = None, None, None
    if isinstance(layer, AttentionLayer):
        head_dim, scale, visibility = layer.query.shape[-1], layer.scale, layer.visibility
    elif layer.seen.numel() <= MOST_RECOGNISED:
        visibility = recognised(layer.seen)
    mask = "other" if visibility is None else mask_name(visibility)
    if mask == "other" and (unpadded := unpadded_mask(layer, positions)) is not None:
        visibility, mask = unpadded, f"{mask_name(unpadded)}, padding".removeprefix("none, ")
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
    """Return the name of a mask: none, causal, window, padding, a combination of these, or other."""
    if visibility.rule is not None:
        return "other"
    names = {
        "causal": visibility.causal,
        "window": visibility.window is not None,
        "padding": visibility.key_mask is not None,
    }
    return ", ".join(name for name, applies in names.items() if applies) or "none"
