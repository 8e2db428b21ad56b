"""What each head does, in a word: how much weight falls on each pattern, on one text and over many."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.formulas import Plane
from attncli.core.layer import Computed, Marks, Patterns, Wanted
from attncli.core.names import (
    FIRST_TOKEN,
    HEAD_PATTERNS,
    OF_KEYS,
    OF_PICTURES,
    PATTERNS,
    ROW_STATISTICS,
    STARTS_SPECIAL,
    UNNAMED,
    WITH_SHARE,
    HeadPattern,
)
from attncli.core.summaries import RunningMoments, mean_interval


def wanted_scores(
    ids: Int[Tensor, "text token"] | None,
    marks: Marks,
    *,
    first_key: int = 0,
    repeat: int | None = None,
    asked: bool = False,
    places: Float[Tensor, "token 2"] | None = None,
) -> Wanted:
    """What `head_scores` needs. `ids` are the tokens of queries and keys; None in cross-attention, where
    positions do not compare.

    Keys before `first_key` are not in the patterns. `repeat` is |r| on the repeated probe; `asked` says that
    the marks hold queries and keys that were asked for. With `places`, of tokens on a picture, nothing is
    before or after another.
    """
    comparing = {*ROW_STATISTICS, *PATTERNS} - {"neighbour"} if places is None else {*OF_PICTURES}
    if ids is None:
        comparing = {*OF_KEYS}
    rows = tuple(name for name, known in ROW_STATISTICS.items() if name in comparing or not known.positional)
    left_out = {*(() if asked else ("from_to_weight",)), *(() if repeat else ("induction_stripe",))}
    names = tuple(name for name in PATTERNS if name in comparing - left_out)
    if ids is None:
        ids = torch.zeros_like(marks.special, dtype=torch.int64)
    plane = None if places is None else Plane(places.to(marks.special.device))
    patterns = Patterns(
        names, ids.to(marks.special.device), marks, first_key=first_key, repeat=repeat or 0, plane=plane
    )
    return Wanted(rows=rows, patterns=patterns, received_mass=True, plane=plane)


def without_first_key(wanted: Wanted) -> Wanted:
    """What names heads, of the same rows without their first key."""
    assert wanted.patterns is not None
    named = {pattern.statistic for pattern in HEAD_PATTERNS.values()}
    names = tuple(name for name in wanted.patterns.names if name in named)
    rows = tuple(name for name in wanted.rows if name in named)
    patterns = replace(wanted.patterns, names=names, first_key=1)
    return Wanted(rows=rows, patterns=patterns, received_mass=True, plane=wanted.plane)


def rows_of_patterns(found: Computed, wanted: Wanted) -> Int[Tensor, "text pattern"]:
    """In how many rows that see a key each pattern has a key."""
    assert wanted.patterns is not None
    seeing = found.seeing
    return (wanted.patterns.rows[..., : seeing.shape[-1]] & seeing.unsqueeze(1)).sum(dim=-1)


def _rows_of_heads(found: Computed, wanted: Wanted) -> Int[Tensor, "#text #head pattern"]:
    """The same of each head: without the rows that have no weight left."""
    counts = rows_of_patterns(found, wanted).unsqueeze(1)
    if found.nothing_left is None:
        return counts
    assert wanted.patterns is not None
    in_pattern = wanted.patterns.rows[..., : found.nothing_left.shape[-1]]
    lost = found.nothing_left.unsqueeze(2) & in_pattern.unsqueeze(1)
    return counts - lost.sum(dim=-1)


def head_scores(layers: Sequence[Computed], wanted: Wanted) -> dict[str, Float[Tensor, "layer text head"]]:
    """Means over the rows of the row statistics, and how much weight falls on each detection pattern D.

    Of a peak, as max_score, it is the largest of the rows.

    mean_i sum_j D_ij p_ij over the rows where the pattern is not empty, NaN where it is in all; NAME_mul is
    sum D p / sum p over all rows, the `mul` score of TransformerLens' head_detector. What does not compare in
    cross-attention is NaN. The layers have the same shapes, and the same was wanted of them.
    """
    patterns = wanted.patterns
    assert patterns is not None
    sums, mass = (
        torch.stack([getattr(found, name) for found in layers]) for name in ("sums", "pattern_mass")
    )
    nothing = torch.full_like(sums[..., 0], torch.nan)
    scores = dict.fromkeys(ROW_STATISTICS, nothing) | {
        name: _of_head(name, torch.stack([found.rows[name] for found in layers])) for name in wanted.rows
    }
    scores["sink_mass"] = scores.pop("sink_mass")  # beside that of the first four
    by_rows = (mass / _stacked([_rows_of_heads(found, wanted) for found in layers])).unbind(dim=-1)
    by_mass = (mass / sums.sum(dim=-1, keepdim=True)).unbind(dim=-1)
    shares = dict(zip(patterns.names, by_mass, strict=True))
    on_patterns = dict.fromkeys(PATTERNS, nothing) | dict(zip(patterns.names, by_rows, strict=True))
    from_to, stripe = (on_patterns.pop(name) for name in ("from_to_weight", "induction_stripe"))
    if patterns.plane is None:
        del on_patterns["neighbour"]
    scores |= on_patterns | {f"{name}_mul": shares.get(name, nothing) for name in WITH_SHARE}
    if patterns.plane is not None:  # what is not of pictures is not there at all
        on_picture = {*wanted.rows, *patterns.names, *(f"{name}_mul" for name in patterns.names)}
        scores = {name: score for name, score in scores.items() if name in on_picture}
    of_asked = {"from_to_weight": from_to} if "from_to_weight" in patterns.names else {}
    return scores | of_asked | ({"induction_stripe": stripe} if patterns.repeat else {})


def _of_head(name: str, rows: Float[Tensor, "layer text head query"]) -> Float[Tensor, "layer text head"]:
    """The mean over the rows that see a key, or the largest of them; NaN where none does."""
    if not ROW_STATISTICS[name].is_peak:
        return rows.nanmean(dim=-1)
    largest = rows.nan_to_num(nan=-torch.inf).amax(dim=-1)
    return largest.masked_fill(rows.isnan().all(dim=-1), torch.nan)


def _seeing_rows(found: Computed) -> Int[Tensor, "#text #head"]:
    counts = found.seeing.sum(dim=-1, keepdim=True)
    return counts if found.nothing_left is None else counts - found.nothing_left.sum(dim=-1)


def _stacked(counts: Sequence[Tensor]) -> Tensor:
    """The counts of several layers, each of all heads alike or of each."""
    num_heads = max(count.shape[1] for count in counts)
    return torch.stack([count.expand(-1, num_heads, *count.shape[2:]) for count in counts])


def one_key(
    layers: Sequence[Computed], wanted: Wanted
) -> tuple[Float[Tensor, "layer text head"], Int[Tensor, "layer text head"]]:
    """max_j mean_i p_ij over the keys that are neither the first nor special, and that key; NaN and -1 where
    there is none.
    """
    assert wanted.patterns is not None
    received = torch.stack([found.received_mass for found in layers if found.received_mass is not None])
    num_rows = _stacked([_seeing_rows(found) for found in layers])
    candidates = ~wanted.patterns.marks.special[:, : received.shape[-1]]
    candidates[:, 0] = False
    means = (received / num_rows.unsqueeze(-1)).masked_fill(~candidates.unsqueeze(1), -1.0)
    mass, key = means.max(dim=-1)
    return mass.masked_fill(mass < 0, torch.nan), key.masked_fill(mass < 0, -1)


MIN_ROWS = 5
"""Rows that a pattern must have to name a head: a mean over fewer says little."""
NUM_STRONGEST = 3
DECIMALS = 5
NOT_FIRST = "special_mass - sink_mass"
"""The statistic behind special tokens where the first one is special: that has a pattern of its own."""

HeadRow = dict[str, Any]
"""The place of a head, and its statistics by name."""


class Stack(NamedTuple):
    """How many rows each statistic of a stack is a mean of, and whether its first key is special."""

    name: str
    num_rows: Mapping[str, int]
    starts_special: bool

    def patterns(self) -> dict[str, HeadPattern]:
        """The patterns that there is a statistic for: in cross-attention positions do not compare."""
        return {name: one for name, one in HEAD_PATTERNS.items() if one.statistic in self.num_rows}

    def has_enough_rows(self, statistic: str) -> bool:
        """Whether a statistic may name a head."""
        return self.num_rows[statistic] >= MIN_ROWS

    def value(self, head: HeadRow, statistic: str) -> float:
        """The statistic; for special tokens without the first, which has a pattern of its own."""
        if (name := self.name_of(statistic)) in head:
            return float(head[name])
        return float(head[statistic] - head["sink_mass"])

    def name_of(self, statistic: str) -> str:
        """What `value` is a number of."""
        return NOT_FIRST if statistic == "special_mass" and self.starts_special else statistic


def pattern_of(head: HeadRow, stack: Stack) -> str:
    """Of the patterns above their thresholds the one of the highest precedence, then of the largest value."""
    ranks = {
        name: (pattern.precedence, value)
        for name, pattern in stack.patterns().items()
        if stack.has_enough_rows(pattern.statistic)
        and (value := stack.value(head, pattern.statistic)) > pattern.threshold
    }
    return max(ranks, key=lambda name: ranks[name], default=UNNAMED)


def shows_pattern(head: HeadRow, stack: Stack, name: str) -> bool:
    """Whether a head is above the threshold of a pattern that has enough rows."""
    if (pattern := stack.patterns().get(name)) is None:
        return False
    value = stack.value(head, pattern.statistic)
    return stack.has_enough_rows(pattern.statistic) and value > pattern.threshold


def rows_behind_patterns(stacks: Sequence[Stack]) -> list[dict[str, Any]]:
    """From how many rows the statistic of each pattern comes."""
    return [
        {"stack": stack.name, "statistic": stack.name_of(statistic), "rows": stack.num_rows[statistic]}
        for stack in stacks
        for statistic, *_ in stack.patterns().values()
    ]


def pattern_rows(heads: Sequence[HeadRow], stack: Stack) -> list[dict[str, Any]]:
    """For each pattern how many heads are above its threshold; None where it has too few rows."""
    rows: list[dict[str, Any]] = []
    for name, (statistic, threshold, *_) in stack.patterns().items():
        above = sum(stack.value(head, statistic) > threshold for head in heads)
        rows.append(
            {
                "stack": stack.name,
                "pattern": name,
                "statistic": stack.name_of(statistic),
                "threshold": threshold,
                "rows": stack.num_rows[statistic],
                "heads": above if stack.has_enough_rows(statistic) else None,
            }
        )
    unnamed = {"statistic": "", "threshold": None, "rows": None}
    of_none = sum(head["pattern"] == UNNAMED for head in heads)
    return [*rows, {"stack": stack.name, "pattern": UNNAMED, **unnamed, "heads": of_none}]


def strongest_rows(
    heads: Sequence[HeadRow], stack: Stack, key_of: Callable[[HeadRow], int | None]
) -> Iterator[dict[str, Any]]:
    """The heads with the largest numbers of each pattern with enough rows; ties in their order.

    `key` is the position of the one key for all.
    """
    for name, (statistic, *_) in stack.patterns().items():
        if not stack.has_enough_rows(statistic):
            continue
        ranked = sorted(heads, key=lambda head: -_rounded(stack.value(head, statistic)))[:NUM_STRONGEST]
        for rank, head in enumerate(ranked):
            value = stack.value(head, statistic)
            if _rounded(value) > 0:
                yield {
                    "stack": stack.name,
                    "pattern": name,
                    "rank": rank,
                    "layer": head["layer"],
                    "head": head["head"],
                    "value": value,
                    "key": key_of(head) if statistic == "one_key_mass" else None,
                }


def _rounded(value: float) -> float:
    """Without the last bits, which must not decide an order; -1 for no number."""
    return round(value, DECIMALS) if value == value else -1.0


def with_equal_names(rows: Sequence[HeadRow]) -> list[HeadRow]:
    """The rows, with NaN for what is measured of other stacks alone, as of words or of a picture."""
    nothing = {name: nan for row in rows for name in row}
    return [nothing | row for row in rows]


class HeadPatterns(NamedTuple):
    """What heads do, as rows of plain values: one row per pattern, per strongest head, and per stack.

    `counts` has how many rows of the texts each pattern of a stack has a key in.
    """

    patterns: list[dict[str, Any]]
    strongest: list[dict[str, Any]]
    counts: list[dict[str, Any]]


def rows_by_stack(stacks: Sequence[Stack]) -> list[dict[str, Any]]:
    """For each stack whether texts begin with a special token, and how many rows its patterns have."""
    known = {name for stack in stacks for name in stack.num_rows}
    return [
        {
            "stack": stack.name,
            STARTS_SPECIAL: stack.starts_special,
            **{name: stack.num_rows.get(name) for name in PATTERNS if name in known},
        }
        for stack in stacks
    ]


def patterns_of_text(
    heads: Sequence[HeadRow], stacks: Sequence[Stack], key_of: Callable[[HeadRow], int]
) -> HeadPatterns:
    """What the heads do on one text."""
    patterns: list[dict[str, Any]] = []
    strongest: list[dict[str, Any]] = []
    for stack in stacks:
        own = [head for head in heads if head["stack"] == stack.name]
        patterns += pattern_rows(own, stack)
        strongest += strongest_rows(own, stack, key_of)
    return HeadPatterns(patterns, strongest, rows_by_stack(stacks))


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

    @property
    def is_first(self) -> bool:
        """Whether it looks at the first token."""
        return bool(self.where["pattern"] == FIRST_TOKEN)

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
    rest: "HeadTotals | None" = None
    """The same without the first keys, where that is known."""

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

    def heads(self) -> list[SurveyedHead]:
        """Every head in the order of the layers; NaN for what no text, or a single one, has."""
        heads = [head for layer in self.layers.values() for head in self._heads(layer)]
        if self.rest is None:
            return heads
        return [
            head._replace(
                where=head.where | {"rest_pattern": rest.where["pattern"] if head.is_first else None}
            )
            for head, rest in zip(heads, self.rest.heads(), strict=True)
        ]

    def _heads(self, layer: LayerTotals) -> Iterator[SurveyedHead]:
        moments, stack = layer.moments, self.stacks[layer.where["stack"]]
        ends = mean_interval(moments.count, moments.mean, moments.squares)
        means = moments.mean.where(moments.count > 0, float("nan"))
        tables = [tensor.tolist() for tensor in (means, *ends, moments.count)]
        for head, numbers in enumerate(zip(*tables, strict=True)):
            mean, lower, upper, texts = (dict(zip(layer.names, row, strict=True)) for row in numbers)
            where = {**layer.where, "head": head, "pattern": pattern_of(lower, stack)}
            yield SurveyedHead(where, mean, lower, upper, texts)


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
