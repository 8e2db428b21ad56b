"""Choose a head on some texts and test it on held-out texts; the splits keep groups together."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.core.summaries import clustered_interval
from attncli.errors import UserError
from attncli.features.pairs.pair_counts import MASS, MEASURES, BatchOfPairs, TextCounts
from attncli.features.pairs.pair_files import PairedText
from attncli.measure.folds import TextSplit, held_out_splits, shuffled_parts

TIE = 1e-9
"""The tolerance for rounding errors when sums are compared."""


class StackedHead(NamedTuple):
    """A head in a layer of a stack."""

    stack: str
    layer: int
    head: int


@dataclass
class PairTotals:
    """The counts of each text, in the order in which the texts were run."""

    directions: tuple[str, ...] = ()
    heads: list[StackedHead] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    counts: list[TextCounts] = field(default_factory=list)
    sums: list[Float[Tensor, "text direction head number"]] = field(default_factory=list)

    def add(
        self,
        batch: BatchOfPairs,
        texts: Sequence[PairedText],
        heads: list[StackedHead],
        numbers: Float[Tensor, "text direction head number"],
    ) -> None:
        """Add the texts of a batch."""
        self.directions, self.heads = batch.directions, heads
        self.lines += [text.line.line for text in texts]
        # A text without a group forms its own group.
        self.groups += [
            f"group {text.line.group}" if text.line.group else f"text {text.line.line}" for text in texts
        ]
        self.counts += batch.counts()
        self.sums.append(numbers)


class PairTable:
    """The numbers of all texts, in file order."""

    def __init__(self, totals: PairTotals, folds: int | None, seed: int) -> None:
        order = sorted(range(len(totals.lines)), key=totals.lines.__getitem__)
        self.lines = [totals.lines[place] for place in order]
        self.directions, self.heads = totals.directions, totals.heads
        counts = [totals.counts[place] for place in order]
        sums = torch.cat(totals.sums)[order]
        self.sums, mass_by_chance = sums[..., : len(MEASURES)], sums[..., -1]
        self.divisors = torch.stack([each.divisors for each in counts])
        self.trials = torch.stack([each.trials for each in counts])
        chance = torch.stack([each.chance for each in counts])
        self.chance = chance[:, :, None].expand(self.sums.shape).clone()
        self.chance[..., MASS] = mass_by_chance
        self._counts = counts
        self.num_pairs = sum(each.num_pairs for each in counts)
        names = [totals.groups[place] for place in order]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.groups = torch.tensor([numbers[name] for name in names])
        self.num_groups = len(numbers)
        self.splits = self._splits(folds, seed)

    @cached_property
    def every(self) -> Bool[Tensor, " text"]:
        """A mask that selects all texts."""
        return torch.ones(len(self.lines), dtype=torch.bool)

    @property
    def tried(self) -> list[TextSplit]:
        """The splits or, if there are none, a single split that chooses on all texts and holds out none."""
        return self.splits or [TextSplit(0, self.every, ~self.every)]

    @cached_property
    def tested(self) -> Bool[Tensor, " text"]:
        """A mask of the texts that at least one split holds out."""
        tested = torch.zeros(len(self.lines), dtype=torch.bool)
        for split in self.splits:
            tested |= split.held_out
        return tested

    def _splits(self, folds: int | None, seed: int) -> list[TextSplit]:
        """One split into halves, or one split per fold; groups stay together."""
        if folds is not None and folds > self.num_groups:
            kind = "groups" if self.num_groups < len(self.lines) else "texts"
            if self.num_groups < 2:
                raise UserError(f"folds: needs at least two {kind} (got {self.num_groups})")
            raise UserError(f"folds: must be at most {self.num_groups}, the number of {kind} (got {folds})")
        if self.num_groups < 2:
            return []
        generator = torch.Generator().manual_seed(seed)
        parts = shuffled_parts(self.groups, self.num_groups, folds or 2, generator)
        return held_out_splits(parts, range(folds) if folds is not None else [1])

    def shares(
        self, sums: Float[Tensor, "text *place measure"], texts: Bool[Tensor, " text"]
    ) -> Float[Tensor, "*place measure"]:
        """sum S_t / sum N_t over some texts, for sums per direction or of several heads together."""
        divisors = self.divisors if sums.dim() == 4 else self.divisors[:, 0]
        total = divisors[texts].sum(dim=0)
        if sums.dim() == 4:
            total = total[:, None]
        return sums[texts].sum(dim=0) / total

    def num_pairs_in(self, place: int) -> int:
        """The number of pairs that count in a text."""
        return self._counts[place].num_pairs

    def num_queries(self, place: int) -> int:
        """The number of queries in a text."""
        return self._counts[place].num_queries

    def best_offset(self, measure: int, texts: Bool[Tensor, " text"]) -> int:
        """The offset with the largest share on some texts; among equally good offsets, the nearest."""
        chosen_on = [self._counts[place] for place in texts.nonzero().flatten().tolist()]
        first = min(each.first_offset for each in chosen_on)
        last = max(each.first_offset + len(each.offsets) for each in chosen_on)
        totals = torch.zeros(last - first, dtype=torch.float64)
        for counts in chosen_on:
            beyond, start = counts.beyond()[measure], counts.first_offset - first
            totals += beyond
            totals[start : start + len(counts.offsets)] += counts.offsets[:, measure] - beyond
        offsets = range(first, last)
        if self.directions == ("symmetric",):  # both signs have the same meaning
            totals[:-first] = -1.0
        least = float(totals.max()) - TIE
        nearest = [offset for offset, total in zip(offsets, totals.tolist(), strict=True) if total >= least]
        return int(min(nearest, key=abs))

    def offset_sums(self, offset: int, measure: int) -> Float[Tensor, " text"]:
        """The sums of a fixed offset for each text."""
        return torch.stack([each.at(offset)[measure] for each in self._counts])


class TestedChoice(NamedTuple):
    """The choice of each split, with its shares on the choosing texts and on the held-out texts."""

    split_choices: tuple[int, ...]
    choosing: float | None
    held_out: float | None
    lower: float | None
    upper: float | None

    def numbers(self) -> dict[str, float | None]:
        """The shares by column name."""
        return {name: getattr(self, name) for name in ("choosing", "held_out", "lower", "upper")}

    @property
    def most_often(self) -> int:
        """The choice that splits made most often; among equally frequent choices, the first."""
        return Counter(self.split_choices).most_common(1)[0][0]


def _number(value: Tensor) -> float | None:
    number = float(value)
    return None if number != number else number


def chosen(
    table: PairTable,
    measure: int,
    choose: Callable[[TextSplit], int],
    choice_sums: Callable[[int], tuple[Float[Tensor, " text"], Float[Tensor, " text"]]],
) -> TestedChoice:
    """Make a choice on each split, and measure this choice on the held-out texts.

    `choice_sums` returns the sums S of a choice and their divisors N for each text. Without splits, the
    choice is made on all texts.
    """
    splits = table.tried
    picks = tuple(choose(split) for split in splits)
    held_sums, held_divisors = torch.zeros(2, len(table.lines), dtype=torch.float64)
    shares = []
    for split, pick in zip(splits, picks, strict=True):
        sums, divisors = choice_sums(pick)
        shares.append(sums[split.choosing].sum() / divisors[split.choosing].sum())
        held_sums[split.held_out] = sums[split.held_out]
        held_divisors[split.held_out] = divisors[split.held_out]
    tested = table.tested
    lower, upper = clustered_interval(
        held_sums[tested, None],
        held_divisors[tested, None],
        table.groups[tested],
        table.trials[tested, 0, measure].sum()[None],
    )
    held_out = held_sums.sum() / held_divisors.sum()
    return TestedChoice(picks, _number(torch.stack(shares).mean()), *map(_number, (held_out, lower, upper)))
