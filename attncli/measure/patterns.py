"""Patterns of heads: the weight on each pattern, and the name of each head's pattern."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.formulas import Plane
from attncli.core.layer import Computed, Marks, Patterns, Wanted
from attncli.core.names import (
    FIRST_TOKEN,
    HEAD_PATTERNS,
    IN_TIME,
    KEY_PATTERNS,
    NOT_MEASURED,
    ON_GRIDS,
    PATTERNS,
    REPEAT_PATTERNS,
    REQUESTED_PATTERNS,
    ROW_STATISTICS,
    UNNAMED,
    WITH_SHARE,
)
from attncli.core.summaries import RunningMoments, mean_interval
from attncli.records.columns import Records
from attncli.records.surveys import (
    EVEN_COLUMNS,
    NAMING,
    NOT_FIRST,
    SIGNED_OVER_TEXTS,
    HeadsOfPattern,
    HeadSurvey,
    RestOfHead,
    RowsOfStack,
    SignedHead,
    Stack,
    StatisticInterval,
    StrongestHead,
    SurveyedHead,
    TextCount,
)


def wanted_scores(
    ids: Int[Tensor, "text token"] | None,
    marks: Marks,
    *,
    first_key: int = 0,
    repeat: int | None = None,
    to_some: bool = False,
    from_some: bool = False,
    looks_ahead: bool = True,
    places: Float[Tensor, "token 2"] | None = None,
    seconds: Float[Tensor, " token"] | None = None,
) -> Wanted:
    """The values that `head_scores` needs.

    `ids` are the tokens of queries and keys, or None in cross-attention, where positions cannot be compared.
    Keys before `first_key` are not in the patterns. `repeat` is |r| on the repeated probe. `to_some` means
    that the marks select keys, `from_some` that they select queries, too. `looks_ahead` means that queries
    see keys after their own position. `places` are the places of tokens on a grid, which have no order;
    `seconds` are the start times of tokens in time.
    """
    comparing = {*ROW_STATISTICS, *PATTERNS} - {"neighbour", *IN_TIME}
    if seconds is not None:
        comparing = comparing - {*REPEAT_PATTERNS} | {*IN_TIME}
    if places is not None:
        comparing = {*ON_GRIDS}
    if ids is None:
        comparing = {*KEY_PATTERNS}
    rows = tuple(name for name, row in ROW_STATISTICS.items() if name in comparing or not row.positional)
    left_out = {*(() if to_some else REQUESTED_PATTERNS), *(() if repeat else ("induction_stripe",))}
    left_out |= set() if from_some else {"others_to_weight"}
    names = tuple(name for name in PATTERNS if name in comparing - left_out)
    if ids is None:
        ids = torch.zeros_like(marks.special, dtype=torch.int64)
    plane = None if places is None else Plane(places.to(marks.special.device))
    device = marks.special.device
    begins = None if seconds is None else seconds.to(device, torch.float32)
    patterns = Patterns(
        names,
        ids.to(device),
        marks,
        first_key=first_key,
        repeat=repeat or 0,
        plane=plane,
        seconds=begins,
        looks_ahead=looks_ahead,
    )
    return Wanted(rows=rows, patterns=patterns, received_mass=True, plane=plane)


def without_first_key(wanted: Wanted) -> Wanted:
    """Restrict `wanted` to the statistics that name heads, on the same rows without their first key."""
    assert wanted.patterns is not None
    names = tuple(name for name in wanted.patterns.names if name in NAMING)
    rows = tuple(name for name in wanted.rows if name in NAMING)
    patterns = replace(wanted.patterns, names=names, first_key=1)
    return Wanted(rows=rows, patterns=patterns, received_mass=True, plane=wanted.plane)


def pattern_row_counts(computed: Computed, wanted: Wanted) -> Int[Tensor, "text pattern"]:
    """The number of rows in which each pattern has a key, among the rows that see any key."""
    patterns = wanted.patterns
    assert patterns is not None
    rows = patterns.rows[..., : computed.seeing.shape[-1]] & computed.seeing.unsqueeze(1)
    if "others_to_weight" in patterns.names:
        rows = rows.clone()
        rows[:, patterns.names.index("others_to_weight")] &= _sees_marked_key(computed, patterns)
    return rows.sum(dim=-1)


def _sees_marked_key(computed: Computed, patterns: Patterns) -> Bool[Tensor, "text query"]:
    """The rows that see one of the marked keys, inferred from the number of keys that each row sees.

    In a causal layer these are the last keys. In other layers they are all keys or, if the numbers differ, a
    window on both sides, whose size follows from the first row, which has keys on only one side.
    """
    assert computed.visible is not None
    visible = computed.visible
    queries = torch.arange(visible.shape[-1], device=visible.device)
    sees = torch.zeros_like(visible, dtype=torch.bool)
    for text, keys in enumerate(patterns.marks.to_keys):
        apart = queries.unsqueeze(-1) - keys[patterns.first_key :].nonzero()[:, 0] - patterns.first_key
        window = visible[text, :1] + patterns.first_key if patterns.looks_ahead else visible[text]
        seen = (apart if not patterns.looks_ahead else apart.abs()) < window.unsqueeze(-1)
        seen &= (apart >= 0) | patterns.looks_ahead
        sees_all = patterns.looks_ahead and bool((visible[text] == visible[text, 0]).all())
        sees[text] = seen.any(dim=-1) | sees_all
    return sees


def _head_row_counts(computed: Computed, wanted: Wanted) -> Int[Tensor, "#text #head pattern"]:
    """Return `pattern_row_counts` for each head, not counting its rows that have no weight left."""
    counts = pattern_row_counts(computed, wanted).unsqueeze(1)
    if computed.nothing_left is None:
        return counts
    assert wanted.patterns is not None
    in_pattern = wanted.patterns.rows[..., : computed.nothing_left.shape[-1]]
    lost = computed.nothing_left.unsqueeze(2) & in_pattern.unsqueeze(1)
    return counts - lost.sum(dim=-1)


def head_scores(layers: Sequence[Computed], wanted: Wanted) -> dict[str, Float[Tensor, "layer text head"]]:
    """Average each row statistic (for peaks, take the maximum), and the weight on each pattern D.

    The weight is mean_i sum_j D_ij p_ij over the rows with a key in the pattern, or NaN if no row has such a
    key. NAME_mul is sum D p / sum p over all rows, the `mul` score of TransformerLens' head_detector.
    Statistics that compare positions are NaN in cross-attention. All layers must have the same shapes, and
    share `wanted`.
    """
    patterns = wanted.patterns
    assert patterns is not None
    sums, mass = (
        torch.stack([getattr(layer, name) for layer in layers]) for name in ("sums", "pattern_mass")
    )
    nothing = torch.full_like(sums[..., 0], torch.nan)
    scores = dict.fromkeys(ROW_STATISTICS, nothing) | {
        name: _over_rows(name, torch.stack([layer.rows[name] for layer in layers])) for name in wanted.rows
    }
    scores["sink_mass"] = scores.pop("sink_mass")  # beside the mass on the first four keys
    by_rows = (mass / _stacked([_head_row_counts(layer, wanted) for layer in layers])).unbind(dim=-1)
    by_mass = (mass / sums.sum(dim=-1, keepdim=True)).unbind(dim=-1)
    shares = dict(zip(patterns.names, by_mass, strict=True))
    on_patterns = dict.fromkeys(PATTERNS, nothing) | dict(zip(patterns.names, by_rows, strict=True))
    on_marked = {name: on_patterns.pop(name) for name in REQUESTED_PATTERNS}
    stripe = on_patterns.pop("induction_stripe")
    unused = (*(() if patterns.plane else ("neighbour",)), *(IN_TIME if patterns.seconds is None else ()))
    for name in unused:
        del on_patterns[name]
    scores |= on_patterns | {f"{name}_mul": shares.get(name, nothing) for name in WITH_SHARE}
    if patterns.plane is not None:  # on grids, other statistics are left out
        on_grid = {*wanted.rows, *patterns.names, *(f"{name}_mul" for name in patterns.names)}
        scores = {name: score for name, score in scores.items() if name in on_grid}
    marked_scores = {name: score for name, score in on_marked.items() if name in patterns.names}
    return scores | marked_scores | ({"induction_stripe": stripe} if patterns.repeat else {})


def _over_rows(name: str, rows: Float[Tensor, "layer text head query"]) -> Float[Tensor, "layer text head"]:
    """The mean or, for a peak, the maximum over the rows that see a key; NaN if no row sees any."""
    if not ROW_STATISTICS[name].is_peak:
        return rows.nanmean(dim=-1)
    largest = rows.nan_to_num(nan=-torch.inf).amax(dim=-1)
    return largest.masked_fill(rows.isnan().all(dim=-1), torch.nan)


def _seeing_rows(computed: Computed) -> Int[Tensor, "#text #head"]:
    counts = computed.seeing.sum(dim=-1, keepdim=True)
    return counts if computed.nothing_left is None else counts - computed.nothing_left.sum(dim=-1)


def _stacked(counts: Sequence[Tensor]) -> Tensor:
    """Stack the counts of several layers; a layer has one count for all its heads or one per head."""
    num_heads = max(count.shape[1] for count in counts)
    return torch.stack([count.expand(-1, num_heads, *count.shape[2:]) for count in counts])


def one_key(
    layers: Sequence[Computed], wanted: Wanted
) -> tuple[Float[Tensor, "layer text head"], Int[Tensor, "layer text head"]]:
    """max_j mean_i p_ij over all keys j but the first and special ones, and j; NaN and -1 without any."""
    assert wanted.patterns is not None
    received = torch.stack([layer.received_mass for layer in layers if layer.received_mass is not None])
    num_rows = _stacked([_seeing_rows(layer) for layer in layers])
    candidates = ~wanted.patterns.marks.special[:, : received.shape[-1]]
    candidates[:, 0] = False
    means = (received / num_rows.unsqueeze(-1)).masked_fill(~candidates.unsqueeze(1), -1.0)
    mass, key = means.max(dim=-1)
    return mass.masked_fill(mass < 0, torch.nan), key.masked_fill(mass < 0, -1)


NUM_STRONGEST = 3
DECIMALS = 5

NumbersByName = Mapping[str, Float[npt.NDArray[np.float64], " head"]]
"""The statistics of some heads by name; NaN means missing."""


def naming_numbers(
    numbers: NumbersByName, stack: Stack, statistic: str
) -> Float[npt.NDArray[np.float64], " head"]:
    """The numbers that decide a pattern; special tokens exclude the first token, which has a pattern."""
    if (name := stack.pattern_statistic(statistic)) in numbers:
        return numbers[name]
    return numbers[statistic] - numbers["sink_mass"]


def shows_pattern(numbers: NumbersByName, stack: Stack, name: str) -> Bool[npt.NDArray[np.bool_], " head"]:
    """Mark the heads above a pattern's threshold; none if the pattern has too few rows."""
    pattern = HEAD_PATTERNS[name]
    if name not in stack.patterns() or not stack.has_enough_rows(pattern.statistic):
        return np.zeros(len(next(iter(numbers.values()))), dtype=bool)
    return naming_numbers(numbers, stack, pattern.statistic) > pattern.threshold


def pattern_names(numbers: NumbersByName, stack: Stack) -> list[str]:
    """The pattern of each head: above its threshold, with the highest precedence, then the largest value."""
    num_heads = len(next(iter(numbers.values())))
    names = [stack.unnamed()] * num_heads
    precedence, largest = np.full(num_heads, -1), np.full(num_heads, -np.inf)
    for name, pattern in stack.patterns().items():
        values = naming_numbers(numbers, stack, pattern.statistic)
        goes_before = (pattern.precedence > precedence) | (
            (pattern.precedence == precedence) & (values > largest)
        )
        takes = shows_pattern(numbers, stack, name) & goes_before
        precedence[takes], largest[takes] = pattern.precedence, values[takes]
        for head in np.flatnonzero(takes).tolist():
            names[head] = name
    return names


def heads_with(
    pattern: str, head_stacks: Sequence[str], numbers: NumbersByName, stacks: Mapping[str, Stack]
) -> list[int]:
    """The indices of the heads that show a pattern, judged by the row counts of their stacks."""
    matches: list[int] = []
    for stack in stacks.values():
        places = stack_places(head_stacks, stack)
        if len(places):
            matches += places[shows_pattern(numbers_at(numbers, places), stack, pattern)].tolist()
    return sorted(matches)


def patterns_by_stack(
    head_stacks: Sequence[str], numbers: NumbersByName, stacks: Mapping[str, Stack]
) -> list[str]:
    """The pattern of each head, judged by the row counts of its stack."""
    names = [UNNAMED] * len(head_stacks)
    for stack in stacks.values():
        places = stack_places(head_stacks, stack)
        for place, name in zip(places, pattern_names(numbers_at(numbers, places), stack), strict=True):
            names[place] = name
    return names


def most_frequent_pattern(names: Sequence[str]) -> str:
    """The pattern that a head has on most of the texts that are long enough to measure it."""
    measured = Counter(name for name in names if name != NOT_MEASURED)
    return measured.most_common(1)[0][0] if measured else NOT_MEASURED


def pattern_table(
    numbers: NumbersByName, names: Sequence[str], stack: Stack, texts: Mapping[str, int] | None = None
) -> Records[HeadsOfPattern]:
    """One row per pattern, with the number of heads above its threshold (None if it has too few rows).

    `names` are the patterns of the heads; `texts` is the number of texts with each statistic.
    """
    patterns = stack.patterns()
    statistics = [pattern.statistic for pattern in patterns.values()]
    above = [
        int((naming_numbers(numbers, stack, pattern.statistic) > pattern.threshold).sum())
        if stack.has_enough_rows(pattern.statistic)
        else None
        for pattern in patterns.values()
    ]
    measured_by = [stack.pattern_statistic(statistic) for statistic in statistics]
    text_counts = {} if texts is None else {"texts": [*(texts.get(name, 0) for name in measured_by), None]}
    return HeadsOfPattern.table(
        stack=[stack.name] * (len(patterns) + 1),
        pattern=[*patterns, stack.unnamed()],
        statistic=[*measured_by, ""],
        threshold=[*(pattern.threshold for pattern in patterns.values()), None],
        rows=[*(stack.num_rows[statistic] for statistic in statistics), None],
        heads=[*above, names.count(stack.unnamed())],
        **text_counts,
    )


class RankedHead(NamedTuple):
    """One of the strongest heads of a pattern; `place` is its index among the heads of its stack."""

    pattern: str
    statistic: str
    rank: int
    place: int
    value: float


def strongest_heads(numbers: NumbersByName, stack: Stack) -> Iterator[RankedHead]:
    """The heads with the largest numbers for each pattern with enough rows; ties keep the heads' order."""
    for name, pattern in stack.patterns().items():
        if not stack.has_enough_rows(pattern.statistic):
            continue
        values = naming_numbers(numbers, stack, pattern.statistic).tolist()
        rounded = [_rounded(value) for value in values]
        ranked = sorted(range(len(values)), key=lambda place: -rounded[place])[:NUM_STRONGEST]
        for rank, place in enumerate(ranked):
            if rounded[place] > 0:
                yield RankedHead(name, pattern.statistic, rank, place, values[place])


def _rounded(value: float) -> float:
    """Drop the last bits of the value so that rounding does not decide an order; return -1 for NaN."""
    return round(value, DECIMALS) if value == value else -1.0


def rows_by_stack(stacks: Sequence[Stack], names: Sequence[str] = tuple(PATTERNS)) -> Records[RowsOfStack]:
    """One row per stack, with the number of rows behind each statistic and its value for even weights.

    A flag marks stacks whose texts begin with a special token.
    """
    counted = {name for stack in stacks for name in stack.num_rows}
    even = {
        column: [stack.even[name].mean if name in stack.even else None for stack in stacks]
        for name, column in EVEN_COLUMNS.items()
        if any(name in stack.even for stack in stacks)
    }
    return RowsOfStack.table(
        stack=[stack.name for stack in stacks],
        starts_special=[stack.starts_special for stack in stacks],
        **{name: [stack.num_rows.get(name) for stack in stacks] for name in names if name in counted},
        **even,
    )


class HeadPatterns(NamedTuple):
    """Tables of patterns: one row per pattern, per strongest head, and per stack."""

    patterns: Records[HeadsOfPattern]
    strongest: Records[StrongestHead]
    pattern_rows: Records[RowsOfStack]


def stack_places(head_stacks: Sequence[str], stack: Stack) -> Int[npt.NDArray[np.int64], " place"]:
    """The indices of the heads in a stack, given the stack of each head."""
    return np.array([place for place, name in enumerate(head_stacks) if name == stack.name], dtype=int)


def numbers_at(
    numbers: NumbersByName, places: Int[npt.NDArray[np.int64], " place"]
) -> Mapping[str, Float[npt.NDArray[np.float64], " place"]]:
    """The statistics of the heads at the given indices."""
    return {name: values[places] for name, values in numbers.items()}


def naming_columns(heads: Records[SurveyedHead] | Records[RestOfHead]) -> NumbersByName:
    """The statistics that determine each head's pattern."""
    return {name: heads.numbers(name) for name in NAMING if name in heads.cells}


def text_patterns(
    heads: Records[SurveyedHead], stacks: Sequence[Stack], keys: Int[npt.NDArray[np.int64], " head"]
) -> HeadPatterns:
    """The pattern tables of one text; `keys` are the positions of each head's key with the most weight."""
    patterns: list[Records[HeadsOfPattern]] = []
    strongest: list[Records[StrongestHead]] = []
    for stack in stacks:
        places = stack_places(heads.column("stack").tolist(), stack)
        numbers = numbers_at(naming_columns(heads), places)
        names = [heads.cells["pattern"][place] for place in places]
        patterns.append(pattern_table(numbers, names, stack))
        ranked = list(strongest_heads(numbers, stack))
        looked_at = [
            int(keys[places[head.place]]) if head.statistic == "one_key_mass" else None for head in ranked
        ]
        strongest.append(_strongest_table(heads, places, stack, ranked, key=looked_at))
    return HeadPatterns(
        HeadsOfPattern.joined(patterns), StrongestHead.joined(strongest), rows_by_stack(stacks)
    )


def _strongest_table(
    heads: Records[SurveyedHead],
    places: Int[npt.NDArray[np.int64], " place"],
    stack: Stack,
    ranked: Sequence[RankedHead],
    **more: Sequence[int | None] | Sequence[float],
) -> Records[StrongestHead]:
    at = [places[head.place] for head in ranked]
    return StrongestHead.table(
        stack=[stack.name] * len(ranked),
        pattern=[head.pattern for head in ranked],
        rank=[head.rank for head in ranked],
        layer=[int(heads.cells["layer"][place]) for place in at],
        head=[int(heads.cells["head"][place]) for place in at],
        value=[head.value for head in ranked],
        **more,
    )


class LayerPlace(NamedTuple):
    """The number, kind and stack of a layer and, if known, its module."""

    layer: int
    kind: str
    stack: str
    module: str | None = None


def head_table(
    layers: Sequence[tuple[LayerPlace, int]],
    patterns: Sequence[str],
    rest_patterns: Sequence[str] | None,
    numbers: NumbersByName,
) -> Records[SurveyedHead]:
    """Return one row per head, in the order of the layers, each given with its number of heads.

    `rest_patterns` name the weight on keys other than the first; only heads that look at the first token have
    such a pattern.
    """
    places = [place for place, count in layers for _ in range(count)]
    modules = [place.module for place in places if place.module is not None]
    rest = None
    if rest_patterns is not None:
        rest = [
            beside if pattern == FIRST_TOKEN else None
            for pattern, beside in zip(patterns, rest_patterns, strict=True)
        ]
    return SurveyedHead.table(
        layer=np.array([place.layer for place in places], dtype=int),
        **({"module": modules} if modules else {}),
        kind=[place.kind for place in places],
        stack=[place.stack for place in places],
        head=np.array([head for _, count in layers for head in range(count)], dtype=int),
        pattern=patterns,
        **({} if rest is None else {"rest_pattern": rest}),
        **numbers,
    )


def joined_numbers(
    layers: Sequence[tuple[Sequence[str], npt.NDArray[np.float64] | npt.NDArray[np.int64]]],
) -> NumbersByName:
    """Join the statistics of all layers' heads by name, given the names and values of each layer.

    Statistics that a layer lacks are NaN.
    """
    names = tuple(dict.fromkeys(name for layer_names, _ in layers for name in layer_names))
    joined = np.full((sum(len(values) for _, values in layers), len(names)), np.nan)
    place = {name: number for number, name in enumerate(names)}
    start = 0
    for layer_names, values in layers:
        joined[start : start + len(values), [place[name] for name in layer_names]] = values
        start += len(values)
    return dict(zip(names, joined.T, strict=True))


class RestOfText(NamedTuple):
    """The statistics that name the heads of a text without its first key, and the row counts behind them."""

    heads: Records[RestOfHead]
    stacks: dict[str, Stack]

    def patterns(self) -> list[str]:
        """The pattern of each head, in the order of the rows."""
        return patterns_by_stack(self.heads.column("stack").tolist(), naming_columns(self.heads), self.stacks)

    @classmethod
    def from_numbers(
        cls, layers: Sequence[tuple[LayerPlace, int]], numbers: NumbersByName, stacks: dict[str, Stack]
    ) -> "RestOfText":
        """Build an instance from the numbers of all heads; each layer has its number of heads."""
        heads = RestOfHead.table(
            stack=[place.stack for place, count in layers for _ in range(count)],
            layer=np.repeat([place.layer for place, _ in layers], [count for _, count in layers]),
            head=np.concatenate([np.arange(count) for _, count in layers]),
            **{name: values for name, values in numbers.items() if name in NAMING},
        )
        return cls(heads, stacks)


class SurveyedText(NamedTuple):
    """The heads of a text, the row counts behind their patterns, and each head's key with the most weight."""

    heads: Records[SurveyedHead]
    stacks: list[Stack]
    keys: Int[npt.NDArray[np.int64], " head"]
    rest: RestOfText | None

    @classmethod
    def from_numbers(
        cls,
        layers: Sequence[tuple[LayerPlace, int]],
        numbers: NumbersByName,
        stacks: Mapping[str, Stack],
        keys: Int[npt.NDArray[np.int64], " head"],
        rest: RestOfText | None,
    ) -> "SurveyedText":
        """Build an instance from the numbers of all heads; each layer has its number of heads."""
        head_stacks = [place.stack for place, count in layers for _ in range(count)]
        patterns = patterns_by_stack(head_stacks, numbers, stacks)
        heads = head_table(layers, patterns, None if rest is None else rest.patterns(), numbers)
        return cls(heads, [*stacks.values()], keys, rest)

    def survey(self) -> HeadSurvey:
        """Return the heads with the tables of their patterns."""
        patterns = text_patterns(self.heads, self.stacks, self.keys)
        survey = HeadSurvey(heads=self.heads, **patterns._asdict())
        if self.rest is None:
            return survey
        return replace(
            survey,
            without_first=self.rest.heads,
            without_first_rows=rest_row_table([*self.rest.stacks.values()]),
        )


def rest_row_table(stacks: Sequence[Stack]) -> Records[RowsOfStack]:
    """The number of rows behind each statistic without the first key."""
    return rows_by_stack(stacks, [*dict.fromkeys(name for stack in stacks for name in stack.num_rows)])


class LayerTotals(NamedTuple):
    """The moments, over texts, of the statistics of a layer's heads (head, statistic)."""

    place: LayerPlace
    names: tuple[str, ...]
    moments: RunningMoments


@dataclass(frozen=True)
class SummedHeads:
    """The means, over texts, of the statistics of each layer (head, statistic), with 95 % intervals.

    `texts` is the number of texts with a statistic. `mean` is NaN if no text has the statistic; `lower` and
    `upper` are NaN if fewer than two texts do.
    """

    layers: Sequence[LayerTotals]
    mean: Sequence[Float[npt.NDArray[np.float64], "_ _"]]
    lower: Sequence[Float[npt.NDArray[np.float64], "_ _"]]
    upper: Sequence[Float[npt.NDArray[np.float64], "_ _"]]
    texts: Sequence[Int[npt.NDArray[np.int64], "_ _"]]

    @classmethod
    def from_totals(cls, layers: Sequence[LayerTotals]) -> "SummedHeads":
        """Compute the means and their 95 % intervals from totals."""
        moments = [layer.moments for layer in layers]
        ends = [mean_interval(each.count, each.mean, each.squares) for each in moments]
        return cls(
            layers,
            [each.mean.where(each.count > 0, float("nan")).numpy() for each in moments],
            [lower.numpy() for lower, _ in ends],
            [upper.numpy() for _, upper in ends],
            [each.count.numpy() for each in moments],
        )

    def numbers(self, values: Sequence[npt.NDArray[np.float64] | npt.NDArray[np.int64]]) -> NumbersByName:
        """Return one of `mean`, `lower`, `upper` and `texts`, by the names of the statistics."""
        names = (layer.names for layer in self.layers)
        return joined_numbers([*zip(names, values, strict=True)])

    def stacks(self) -> list[str]:
        """The stack of each head."""
        return [layer.place.stack for layer in self.layers for _ in range(len(layer.moments.mean))]


@dataclass
class HeadTotals:
    """Running totals of every layer over texts, and the row counts of each stack's statistics, if known."""

    num_texts: int = 0
    num_tokens: int | None = None
    layers: dict[tuple[LayerPlace, int], LayerTotals] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    rest: "HeadTotals | None" = None
    """The totals without the first keys, if they are measured."""
    linear: "SignedTotals" = field(default_factory=lambda: SignedTotals())
    """The heads of layers without a softmax, if they are measured."""
    unshown: str = ""
    """A note about layers that are not measured."""

    def add_rows(self, rows: Stack) -> None:
        """Add a stack's row counts on some texts."""
        before = self.stacks.get(rows.name, Stack(rows.name, {}, True))
        total = Counter(before.num_rows)
        total.update(rows.num_rows)
        even = {**before.even}
        for name, mean in rows.even.items():
            even[name] = even[name].plus(mean) if name in even else mean
        starts_special = before.starts_special and rows.starts_special
        self.stacks[rows.name] = Stack(rows.name, total, starts_special, even)

    def add(
        self, place: LayerPlace, names: Sequence[str], values: Float[Tensor, "text head statistic"]
    ) -> None:
        """Add the statistics of one layer on some texts."""
        if "special_mass" in names:
            not_first = values[..., names.index("special_mass")] - values[..., names.index("sink_mass")]
            names = (*names, NOT_FIRST)
            values = torch.cat([values, not_first.unsqueeze(-1)], dim=-1)
        key = place, values.shape[1]
        moments = RunningMoments.of(values)
        if key in self.layers:
            moments = self.layers[key].moments + moments
        self.layers[key] = LayerTotals(place, tuple(names), moments)

    def survey(self) -> tuple[HeadSurvey, NumbersByName]:
        """Return the survey over the texts, and the lower ends of the intervals, which name the heads."""
        summed = SummedHeads.from_totals([*self.layers.values()])
        mean, texts = summed.numbers(summed.mean), summed.numbers(summed.texts)
        lower, upper = summed.numbers(summed.lower), summed.numbers(summed.upper)
        names = patterns_by_stack(summed.stacks(), lower, self.stacks)
        rest_names = None
        if self.rest is not None:
            rest = SummedHeads.from_totals([*self.rest.layers.values()])
            rest_names = patterns_by_stack(rest.stacks(), rest.numbers(rest.lower), self.rest.stacks)
        numbers = {name: values for name, values in mean.items() if name != NOT_FIRST}
        heads = head_table([*self.layers], names, rest_names, numbers)
        patterns: list[Records[HeadsOfPattern]] = []
        strongest: list[Records[StrongestHead]] = []
        for stack in self.stacks.values():
            places = stack_places(summed.stacks(), stack)
            counts = {
                name: int(np.nan_to_num(per_head[places]).max(initial=0)) for name, per_head in texts.items()
            }
            stack_names = [names[place] for place in places]
            patterns.append(pattern_table(numbers_at(lower, places), stack_names, stack, counts))
            ranked = [*strongest_heads(numbers_at(mean, places), stack)]
            ends = {
                end: [
                    float(bounds[stack.pattern_statistic(head.statistic)][places[head.place]])
                    for head in ranked
                ]
                for end, bounds in (("lower", lower), ("upper", upper))
            }
            nothing: list[int | None] = [None] * len(ranked)
            strongest.append(_strongest_table(heads, places, stack, ranked, key=nothing, **ends))
        survey = HeadSurvey(
            heads=heads,
            patterns=HeadsOfPattern.joined(patterns),
            strongest=StrongestHead.joined(strongest),
            pattern_rows=rows_by_stack([*self.stacks.values()]),
            intervals=StatisticInterval.joined([*self._intervals(summed), *self.linear.intervals()]),
            linear=self.linear.table(),
            texts=TextCount.single(num_texts=self.num_texts, num_tokens=self.num_tokens),
        )
        return survey, lower

    def _intervals(self, summed: SummedHeads) -> Iterator[Records[StatisticInterval]]:
        """Return one row per head and statistic, layer by layer."""
        for layer, mean, lower, upper, texts in zip(
            summed.layers, summed.mean, summed.lower, summed.upper, summed.texts, strict=True
        ):
            place = layer.place
            is_used = [name != NOT_FIRST or self.stacks[place.stack].starts_special for name in layer.names]
            names = [name for name, used in zip(layer.names, is_used, strict=True) if used]
            num_heads, num_rows = len(mean), len(mean) * len(names)
            yield StatisticInterval.table(
                stack=[place.stack] * num_rows,
                layer=np.full(num_rows, place.layer),
                head=np.repeat(np.arange(num_heads), len(names)),
                statistic=names * num_heads,
                mean=mean[:, is_used].ravel(),
                lower=lower[:, is_used].ravel(),
                upper=upper[:, is_used].ravel(),
                texts=texts[:, is_used].ravel(),
            )


class MixerPlace(NamedTuple):
    """The number, module and kind of a layer without a softmax; a store knows only the number."""

    layer: int
    module: str = ""
    mixer: str = ""


class SignedTotals:
    """The statistics, over texts, of heads without a softmax; means skip texts without the statistic."""

    def __init__(self) -> None:
        self.layers: dict[MixerPlace, RunningMoments] = {}

    def add(self, place: MixerPlace, numbers: Float[Tensor, "text head statistic"]) -> None:
        """Add the statistics of a layer on some texts."""
        moments, before = RunningMoments.of(numbers), self.layers.get(place)
        self.layers[place] = moments if before is None else before + moments

    def table(self) -> Records[SignedHead]:
        """Return one row per head, with means over the texts; `one_key`, a position in one text, is None."""
        if not self.layers:
            return SignedHead.rows([])
        means = [each.mean.masked_fill(each.count == 0, torch.nan) for each in self.layers.values()]
        heads = [
            (place, head) for place, each in zip(self.layers, means, strict=True) for head in range(len(each))
        ]
        return SignedHead.table(
            layer=[place.layer for place, _ in heads],
            head=[head for _, head in heads],
            module=[place.module for place, _ in heads],
            mixer=[place.mixer for place, _ in heads],
            one_key=[None] * len(heads),
            **dict(zip(SIGNED_OVER_TEXTS, torch.cat(means).T.numpy(), strict=True)),
        )

    def intervals(self) -> Iterator[Records[StatisticInterval]]:
        """Return one row per head and statistic of the stack `linear`, layer by layer."""
        for place, moments in self.layers.items():
            lower, upper = mean_interval(moments.count, moments.mean, moments.squares)
            num_heads, num_rows = len(moments.mean), moments.mean.numel()
            yield StatisticInterval.table(
                stack=["linear"] * num_rows,
                layer=np.full(num_rows, place.layer),
                head=np.repeat(np.arange(num_heads), len(SIGNED_OVER_TEXTS)),
                statistic=list(SIGNED_OVER_TEXTS) * num_heads,
                mean=moments.mean.masked_fill(moments.count == 0, torch.nan).flatten().numpy(),
                lower=lower.flatten().numpy(),
                upper=upper.flatten().numpy(),
                texts=moments.count.flatten().numpy(),
            )
