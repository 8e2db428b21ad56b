"""A survey of many texts: totals over them, and tables of means with their 95 % intervals."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.summaries import RunningMoments, mean_interval
from attncli.measure.heads import NOTHING_MORE, HeadOptions, Survey, head_numbers, stacks_of, surveyed
from attncli.measure.patterns import (
    NOT_FIRST,
    HeadPatterns,
    HeadRow,
    Stack,
    pattern_of,
    pattern_rows,
    rows_by_stack,
    strongest_rows,
)
from attncli.models.pretrained import Pretrained
from attncli.models.readings import ManyTexts

ROUNDING = 1e-4

Where = Mapping[str, Any]
"""Layer, kind and stack, and the module where it is known."""


class LayerTotals(NamedTuple):
    """The statistics of the heads of a layer over texts: moments by head and statistic."""

    where: Where
    names: tuple[str, ...]
    moments: RunningMoments


class SurveyedHead(NamedTuple):
    """A head, named by the lower ends of its intervals, with its statistics over texts.

    By name the means, the two ends of the intervals, and how many texts have them.
    """

    where: HeadRow
    mean: dict[str, float]
    lower: dict[str, float]
    upper: dict[str, float]
    texts: dict[str, int]

    def row(self) -> HeadRow:
        """The head with its means."""
        return {**self.where, **{name: mean for name, mean in self.mean.items() if name != NOT_FIRST}}


@dataclass
class HeadTotals:
    """The totals of every layer so far, and for each stack the rows of its statistics, where known."""

    num_texts: int = 0
    num_tokens: int | None = None
    layers: dict[tuple[Any, ...], LayerTotals] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)

    def add_array(
        self, where: Where, names: Sequence[str], values: np.ndarray, starts_special: bool | None
    ) -> None:
        """The same as `add` for what a store has kept, and whether all its texts begin with a special token.

        Stores of before did not keep that (None). There the numbers tell, unless the first keys are left out:
        no head has more weight on the first token than on special ones where it is one.
        """
        self.add(where, names, torch.from_numpy(values))
        if starts_special is None:
            lead = values[..., names.index("special_mass")] - values[..., names.index("sink_mass")]
            starts_special = not (lead < -ROUNDING).any() and not np.isnan(lead).all()
        self.add_rows(where["stack"], {}, starts_special=starts_special)

    def add_rows(self, stack: str, num_rows: Mapping[str, int], *, starts_special: bool = True) -> None:
        """Rows of a stack by statistic, and whether its texts begin with a special token."""
        known = self.stacks.get(stack, Stack(stack, {}, True))
        total = Counter(known.num_rows)
        total.update(num_rows)
        self.stacks[stack] = Stack(stack, total, known.starts_special and starts_special)

    def add(self, where: Where, names: Sequence[str], values: Float[Tensor, "text head statistic"]) -> None:
        """The statistics of one layer on some texts."""
        if "special_mass" in names:
            not_first = values[..., names.index("special_mass")] - values[..., names.index("sink_mass")]
            names = (*names, NOT_FIRST)
            values = torch.cat([values, not_first.unsqueeze(-1)], dim=-1)
        key = (*where.values(), values.shape[1])
        moments = RunningMoments.of(values)
        if key in self.layers:
            moments = self.layers[key].moments + moments
        self.layers[key] = LayerTotals(where, tuple(names), moments)

    def add_survey(self, survey: Survey) -> None:
        """What was found on the texts of a survey."""
        self.num_texts += survey.num_texts
        for layer, numbers in zip(survey.layers, head_numbers(survey), strict=True):
            self.add(layer.where, numbers.names, numbers.values.cpu())
        for text in range(survey.num_texts):
            for name, stack in stacks_of(survey, text).items():
                self.add_rows(name, stack.num_rows, starts_special=stack.starts_special)

    def heads(self) -> list[SurveyedHead]:
        """Every head in the order of the layers; NaN for what no text, or a single one, has."""
        return [head for layer in self.layers.values() for head in self._heads(layer)]

    def _heads(self, layer: LayerTotals) -> Iterator[SurveyedHead]:
        moments, stack = layer.moments, self.stacks[layer.where["stack"]]
        ends = mean_interval(moments.count, moments.mean, moments.squares)
        means = moments.mean.where(moments.count > 0, float("nan"))
        tables = [tensor.tolist() for tensor in (means, *ends, moments.count)]
        for head, numbers in enumerate(zip(*tables, strict=True)):
            mean, lower, upper, texts = (dict(zip(layer.names, row, strict=True)) for row in numbers)
            where = {**layer.where, "head": head, "pattern": pattern_of(lower, stack)}
            yield SurveyedHead(where, mean, lower, upper, texts)


def head_totals(
    pretrained: Pretrained,
    many: ManyTexts[Any],
    options: HeadOptions = NOTHING_MORE,
    *,
    ablate: Sequence[str] = (),
) -> tuple[HeadTotals, list[str]]:
    """What each head does over many texts, and notes about how their attention came.

    `ablate` names heads, as 5:11, that give nothing meanwhile. UserError for what the model cannot do, and
    where no text could be read; MemoryError.
    """
    totals = HeadTotals()
    notes: dict[str, None] = {}
    for batch in many.batches():
        found = surveyed(pretrained, [reading for _, reading in batch], options, ablate=ablate)
        notes |= dict.fromkeys(found.way.notes())
        totals.add_survey(found.survey)
    totals.num_tokens = many.num_tokens
    return totals, list(notes)


def summary_patterns(heads: Sequence[SurveyedHead], stacks: Mapping[str, Stack]) -> HeadPatterns:
    """What heads do over the texts, by pattern, each strongest head with its interval."""
    patterns: list[dict[str, Any]] = []
    strongest: list[dict[str, Any]] = []
    for name, stack in stacks.items():
        own = [head for head in heads if head.where["stack"] == name]
        for row in pattern_rows([head.where | head.lower for head in own], stack):
            texts = (head.texts.get(str(row["statistic"]), 0) for head in own)
            patterns.append({**row, "texts": max(texts, default=0) if row["statistic"] else None})
        by_place = {(head.where["layer"], head.where["head"]): head for head in own}
        for row in strongest_rows([head.where | head.mean for head in own], stack, lambda _: None):
            head = by_place[row["layer"], row["head"]]
            statistic = stack.name_of(stack.patterns()[str(row["pattern"])].statistic)
            strongest.append({**row, "lower": head.lower[statistic], "upper": head.upper[statistic]})
    return HeadPatterns(patterns, strongest, rows_by_stack(list(stacks.values())))


def interval_rows(heads: Sequence[SurveyedHead], stacks: Mapping[str, Stack]) -> Iterator[dict[str, Any]]:
    """One row per head and statistic: its mean over the texts and the ends of its 95 % interval."""
    for head in heads:
        where = {name: head.where[name] for name in ("stack", "layer", "head")}
        unused = "" if stacks[where["stack"]].starts_special else NOT_FIRST
        for name, mean in head.mean.items():
            if name != unused:
                ends = {"lower": head.lower[name], "upper": head.upper[name]}
                yield {**where, "statistic": name, "mean": mean, **ends, "texts": head.texts[name]}
