"""What each head does, in a word: how much weight falls on each pattern, on one text and over many."""

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
    asked: bool = False,
    from_some: bool = False,
    looks_ahead: bool = True,
    places: Float[Tensor, "token 2"] | None = None,
    seconds: Float[Tensor, " token"] | None = None,
) -> Wanted:
    """What `head_scores` needs. `ids` are the tokens of queries and keys; None in cross-attention, where
    positions do not compare.

    Keys before `first_key` are not in the patterns. `repeat` is |r| on the repeated probe; `asked` says that
    the marks hold keys that were asked for, `from_some` that they hold queries, too, `looks_ahead` whether
    queries see keys behind them. With `places`, of tokens on a grid, nothing is
    before or after another; `seconds` is when each begins, of tokens that lie in time.
    """
    comparing = {*ROW_STATISTICS, *PATTERNS} - {"neighbour", *IN_TIME}
    if seconds is not None:
        comparing = comparing - {*REPEAT_PATTERNS} | {*IN_TIME}
    if places is not None:
        comparing = {*ON_GRIDS}
    if ids is None:
        comparing = {*KEY_PATTERNS}
    rows = tuple(name for name, known in ROW_STATISTICS.items() if name in comparing or not known.positional)
    left_out = {*(() if asked else REQUESTED_PATTERNS), *(() if repeat else ("induction_stripe",))}
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
    """What names heads, of the same rows without their first key."""
    assert wanted.patterns is not None
    names = tuple(name for name in wanted.patterns.names if name in NAMING)
    rows = tuple(name for name in wanted.rows if name in NAMING)
    patterns = replace(wanted.patterns, names=names, first_key=1)
    return Wanted(rows=rows, patterns=patterns, received_mass=True, plane=wanted.plane)


def rows_of_patterns(found: Computed, wanted: Wanted) -> Int[Tensor, "text pattern"]:
    """In how many rows that see a key each pattern has a key."""
    patterns = wanted.patterns
    assert patterns is not None
    rows = patterns.rows[..., : found.seeing.shape[-1]] & found.seeing.unsqueeze(1)
    if "others_to_weight" in patterns.names:
        rows = rows.clone()
        rows[:, patterns.names.index("others_to_weight")] &= _sees_asked_key(found, patterns)
    return rows.sum(dim=-1)


def _sees_asked_key(found: Computed, patterns: Patterns) -> Bool[Tensor, "text query"]:
    """The rows that see one of the keys that were asked for.

    By how many keys each sees: of a causal layer the last ones; else all of them or, where rows see more
    or fewer, as many on both sides, which the first row tells, that has one side alone.
    """
    assert found.visible is not None
    visible = found.visible
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
        torch.stack([getattr(layer, name) for layer in layers]) for name in ("sums", "pattern_mass")
    )
    nothing = torch.full_like(sums[..., 0], torch.nan)
    scores = dict.fromkeys(ROW_STATISTICS, nothing) | {
        name: _of_head(name, torch.stack([layer.rows[name] for layer in layers])) for name in wanted.rows
    }
    scores["sink_mass"] = scores.pop("sink_mass")  # beside that of the first four
    by_rows = (mass / _stacked([_rows_of_heads(layer, wanted) for layer in layers])).unbind(dim=-1)
    by_mass = (mass / sums.sum(dim=-1, keepdim=True)).unbind(dim=-1)
    shares = dict(zip(patterns.names, by_mass, strict=True))
    on_patterns = dict.fromkeys(PATTERNS, nothing) | dict(zip(patterns.names, by_rows, strict=True))
    on_asked = {name: on_patterns.pop(name) for name in REQUESTED_PATTERNS}
    stripe = on_patterns.pop("induction_stripe")
    others = (*(() if patterns.plane else ("neighbour",)), *(IN_TIME if patterns.seconds is None else ()))
    for name in others:
        del on_patterns[name]
    scores |= on_patterns | {f"{name}_mul": shares.get(name, nothing) for name in WITH_SHARE}
    if patterns.plane is not None:  # what is not of grids is not there at all
        on_grid = {*wanted.rows, *patterns.names, *(f"{name}_mul" for name in patterns.names)}
        scores = {name: score for name, score in scores.items() if name in on_grid}
    of_asked = {name: scores_of for name, scores_of in on_asked.items() if name in patterns.names}
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
"""The statistics of some heads by name, NaN for no number."""


def naming_numbers(
    numbers: NumbersByName, stack: Stack, statistic: str
) -> Float[npt.NDArray[np.float64], " head"]:
    """What a pattern is named by: special tokens without the first, which has a pattern of its own."""
    if (name := stack.name_of(statistic)) in numbers:
        return numbers[name]
    return numbers[statistic] - numbers["sink_mass"]


def shows_pattern(numbers: NumbersByName, stack: Stack, name: str) -> Bool[npt.NDArray[np.bool_], " head"]:
    """Which heads are above the threshold of a pattern that has enough rows."""
    pattern = HEAD_PATTERNS[name]
    if name not in stack.patterns() or not stack.has_enough_rows(pattern.statistic):
        return np.zeros(len(next(iter(numbers.values()))), dtype=bool)
    return naming_numbers(numbers, stack, pattern.statistic) > pattern.threshold


def pattern_names(numbers: NumbersByName, stack: Stack) -> list[str]:
    """Of the patterns above their thresholds the one of the highest precedence, then of the largest value."""
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
    pattern: str, of_heads: Sequence[str], numbers: NumbersByName, stacks: Mapping[str, Stack]
) -> list[int]:
    """The places of the heads that show a pattern, by the rows of their stacks; `of_heads` are these."""
    shown_at: list[int] = []
    for stack in stacks.values():
        places = places_of_stack(of_heads, stack)
        if len(places):
            shown_at += places[shows_pattern(numbers_at(numbers, places), stack, pattern)].tolist()
    return sorted(shown_at)


def patterns_by_stack(
    of_heads: Sequence[str], numbers: NumbersByName, stacks: Mapping[str, Stack]
) -> list[str]:
    """The pattern of each head, by the rows of its stack."""
    names = [UNNAMED] * len(of_heads)
    for stack in stacks.values():
        places = places_of_stack(of_heads, stack)
        for place, name in zip(places, pattern_names(numbers_at(numbers, places), stack), strict=True):
            names[place] = name
    return names


def most_frequent_pattern(names: Sequence[str]) -> str:
    """The pattern that a head has on most texts, of the texts that were long enough to measure it."""
    measured = Counter(name for name in names if name != NOT_MEASURED)
    return measured.most_common(1)[0][0] if measured else NOT_MEASURED


def heads_of_patterns(
    numbers: NumbersByName, names: Sequence[str], stack: Stack, texts: Mapping[str, int] | None = None
) -> Records[HeadsOfPattern]:
    """For each pattern how many heads are above its threshold; None where it has too few rows.

    `names` are the patterns of the heads, `texts` in how many texts each statistic was measured.
    """
    patterns = stack.patterns()
    statistics = [pattern.statistic for pattern in patterns.values()]
    above = [
        int((naming_numbers(numbers, stack, pattern.statistic) > pattern.threshold).sum())
        if stack.has_enough_rows(pattern.statistic)
        else None
        for pattern in patterns.values()
    ]
    measured_by = [stack.name_of(statistic) for statistic in statistics]
    of_texts = {} if texts is None else {"texts": [*(texts.get(name, 0) for name in measured_by), None]}
    return HeadsOfPattern.table(
        stack=[stack.name] * (len(patterns) + 1),
        pattern=[*patterns, stack.unnamed()],
        statistic=[*measured_by, ""],
        threshold=[*(pattern.threshold for pattern in patterns.values()), None],
        rows=[*(stack.num_rows[statistic] for statistic in statistics), None],
        heads=[*above, names.count(stack.unnamed())],
        **of_texts,
    )


class RankedHead(NamedTuple):
    """One of the strongest heads of a pattern: its place among the heads of its stack."""

    pattern: str
    statistic: str
    rank: int
    place: int
    value: float


def strongest_heads(numbers: NumbersByName, stack: Stack) -> Iterator[RankedHead]:
    """The heads with the largest numbers of each pattern with enough rows; ties in their order."""
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
    """Without the last bits, which must not decide an order; -1 for no number."""
    return round(value, DECIMALS) if value == value else -1.0


def rows_by_stack(stacks: Sequence[Stack], names: Sequence[str] = tuple(PATTERNS)) -> Records[RowsOfStack]:
    """For each stack whether texts begin with a special token, how many rows each of these names has, and
    what even weights give.
    """
    known = {name for stack in stacks for name in stack.num_rows}
    even = {
        column: [stack.even[name].mean if name in stack.even else None for stack in stacks]
        for name, column in EVEN_COLUMNS.items()
        if any(name in stack.even for stack in stacks)
    }
    return RowsOfStack.table(
        stack=[stack.name for stack in stacks],
        starts_special=[stack.starts_special for stack in stacks],
        **{name: [stack.num_rows.get(name) for stack in stacks] for name in names if name in known},
        **even,
    )


class HeadPatterns(NamedTuple):
    """What heads do: one row per pattern, per strongest head, and per stack."""

    patterns: Records[HeadsOfPattern]
    strongest: Records[StrongestHead]
    pattern_rows: Records[RowsOfStack]


def places_of_stack(of_heads: Sequence[str], stack: Stack) -> Int[npt.NDArray[np.int64], " place"]:
    """The places of the heads of a stack, by the stack of each head."""
    return np.array([place for place, name in enumerate(of_heads) if name == stack.name], dtype=int)


def numbers_at(
    numbers: NumbersByName, places: Int[npt.NDArray[np.int64], " place"]
) -> Mapping[str, Float[npt.NDArray[np.float64], " place"]]:
    """The statistics of some of the heads."""
    return {name: values[places] for name, values in numbers.items()}


def numbers_of(heads: Records[SurveyedHead] | Records[RestOfHead]) -> NumbersByName:
    """The statistics that heads are named by."""
    return {name: heads.numbers(name) for name in NAMING if name in heads.cells}


def patterns_of_text(
    heads: Records[SurveyedHead], stacks: Sequence[Stack], keys: Int[npt.NDArray[np.int64], " head"]
) -> HeadPatterns:
    """What the heads do on one text; `keys` are the positions of the key with most weight of each."""
    patterns: list[Records[HeadsOfPattern]] = []
    strongest: list[Records[StrongestHead]] = []
    for stack in stacks:
        places = places_of_stack(heads.column("stack").tolist(), stack)
        numbers = numbers_at(numbers_of(heads), places)
        names = [heads.cells["pattern"][place] for place in places]
        patterns.append(heads_of_patterns(numbers, names, stack))
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
    """Where a layer is; its module where that is known."""

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
    """One row per head, in the order of the layers, each with its number of heads.

    `rest_patterns` are those of the rest of each head's weight; only heads that look at the first token have
    one.
    """
    of_heads = [place for place, count in layers for _ in range(count)]
    modules = [place.module for place in of_heads if place.module is not None]
    rest = None
    if rest_patterns is not None:
        rest = [
            beside if pattern == FIRST_TOKEN else None
            for pattern, beside in zip(patterns, rest_patterns, strict=True)
        ]
    return SurveyedHead.table(
        layer=np.array([place.layer for place in of_heads], dtype=int),
        **({"module": modules} if modules else {}),
        kind=[place.kind for place in of_heads],
        stack=[place.stack for place in of_heads],
        head=np.array([head for _, count in layers for head in range(count)], dtype=int),
        pattern=patterns,
        **({} if rest is None else {"rest_pattern": rest}),
        **numbers,
    )


def joined_numbers(
    layers: Sequence[tuple[Sequence[str], npt.NDArray[np.float64] | npt.NDArray[np.int64]]],
) -> NumbersByName:
    """The statistics of the heads of all layers by name, from those of each layer (head, statistic).

    NaN for what is measured of other layers alone.
    """
    names = tuple(dict.fromkeys(name for of_layer, _ in layers for name in of_layer))
    joined = np.full((sum(len(values) for _, values in layers), len(names)), np.nan)
    place = {name: number for number, name in enumerate(names)}
    start = 0
    for of_layer, values in layers:
        joined[start : start + len(values), [place[name] for name in of_layer]] = values
        start += len(values)
    return dict(zip(names, joined.T, strict=True))


class RestOfText(NamedTuple):
    """What names the patterns of the heads of one text without its first key, and the rows behind it."""

    heads: Records[RestOfHead]
    stacks: dict[str, Stack]

    def patterns(self) -> list[str]:
        """The pattern of each head, in the order of the rows."""
        return patterns_by_stack(self.heads.column("stack").tolist(), numbers_of(self.heads), self.stacks)

    @classmethod
    def of(
        cls, layers: Sequence[tuple[LayerPlace, int]], numbers: NumbersByName, stacks: dict[str, Stack]
    ) -> "RestOfText":
        """By the numbers of all heads of the layers, each with its number of heads."""
        heads = RestOfHead.table(
            stack=[place.stack for place, count in layers for _ in range(count)],
            layer=np.repeat([place.layer for place, _ in layers], [count for _, count in layers]),
            head=np.concatenate([np.arange(count) for _, count in layers]),
            **{name: values for name, values in numbers.items() if name in NAMING},
        )
        return cls(heads, stacks)


class SurveyedText(NamedTuple):
    """The heads of one text, the rows behind their patterns, and each head's key with the most weight."""

    heads: Records[SurveyedHead]
    stacks: list[Stack]
    keys: Int[npt.NDArray[np.int64], " head"]
    rest: RestOfText | None

    @classmethod
    def of(
        cls,
        layers: Sequence[tuple[LayerPlace, int]],
        numbers: NumbersByName,
        stacks: Mapping[str, Stack],
        keys: Int[npt.NDArray[np.int64], " head"],
        rest: RestOfText | None,
    ) -> "SurveyedText":
        """By the numbers of all heads of the layers, each with its number of heads."""
        of_heads = [place.stack for place, count in layers for _ in range(count)]
        patterns = patterns_by_stack(of_heads, numbers, stacks)
        heads = head_table(layers, patterns, None if rest is None else rest.patterns(), numbers)
        return cls(heads, [*stacks.values()], keys, rest)

    def survey(self) -> HeadSurvey:
        """The heads, and what they do."""
        patterns = patterns_of_text(self.heads, self.stacks, self.keys)
        survey = HeadSurvey(heads=self.heads, **patterns._asdict())
        if self.rest is None:
            return survey
        return replace(
            survey,
            without_first=self.rest.heads,
            without_first_rows=counts_of_rest([*self.rest.stacks.values()]),
        )


def counts_of_rest(stacks: Sequence[Stack]) -> Records[RowsOfStack]:
    """How many rows each statistic has where the first key is left out."""
    return rows_by_stack(stacks, [*dict.fromkeys(name for stack in stacks for name in stack.num_rows)])


class LayerTotals(NamedTuple):
    """The statistics of the heads of a layer over texts: moments by head and statistic."""

    place: LayerPlace
    names: tuple[str, ...]
    moments: RunningMoments


@dataclass(frozen=True)
class SummedHeads:
    """The statistics of the heads of each layer over texts, in the order of the layers (head, statistic).

    `mean`, `lower` and `upper` are NaN for what no text, or a single one, has; `texts` is how many have it.
    """

    layers: Sequence[LayerTotals]
    mean: Sequence[Float[npt.NDArray[np.float64], "_ _"]]
    lower: Sequence[Float[npt.NDArray[np.float64], "_ _"]]
    upper: Sequence[Float[npt.NDArray[np.float64], "_ _"]]
    texts: Sequence[Int[npt.NDArray[np.int64], "_ _"]]

    @classmethod
    def of(cls, layers: Sequence[LayerTotals]) -> "SummedHeads":
        """The means and their 95 % intervals."""
        moments = [layer.moments for layer in layers]
        ends = [mean_interval(each.count, each.mean, each.squares) for each in moments]
        return cls(
            layers,
            [each.mean.where(each.count > 0, float("nan")).numpy() for each in moments],
            [lower.numpy() for lower, _ in ends],
            [upper.numpy() for _, upper in ends],
            [each.count.numpy() for each in moments],
        )

    def numbers(self, of_layers: Sequence[npt.NDArray[np.float64] | npt.NDArray[np.int64]]) -> NumbersByName:
        """The means, or one of the others, by the names of the statistics."""
        names = (layer.names for layer in self.layers)
        return joined_numbers([*zip(names, of_layers, strict=True)])

    def stacks(self) -> list[str]:
        """The stack of each head."""
        return [layer.place.stack for layer in self.layers for _ in range(len(layer.moments.mean))]


@dataclass
class HeadTotals:
    """The totals of every layer so far, and for each stack the rows of its statistics, where known."""

    num_texts: int = 0
    num_tokens: int | None = None
    layers: dict[tuple[LayerPlace, int], LayerTotals] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    rest: "HeadTotals | None" = None
    """The same without the first keys, where that is known."""
    linear: "SignedTotals" = field(default_factory=lambda: SignedTotals())
    """The heads of layers without a softmax, where they were measured."""
    unshown: str = ""
    """Which layers are not among these."""

    def add_rows(self, rows: Stack) -> None:
        """Add the rows of a stack on some texts."""
        known = self.stacks.get(rows.name, Stack(rows.name, {}, True))
        total = Counter(known.num_rows)
        total.update(rows.num_rows)
        even = {**known.even}
        for name, mean in rows.even.items():
            even[name] = even[name].plus(mean) if name in even else mean
        starts_special = known.starts_special and rows.starts_special
        self.stacks[rows.name] = Stack(rows.name, total, starts_special, even)

    def add(
        self, place: LayerPlace, names: Sequence[str], values: Float[Tensor, "text head statistic"]
    ) -> None:
        """The statistics of one layer on some texts."""
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
        """What heads do over the texts, and the numbers that name them: the lower ends of the intervals."""
        summed = SummedHeads.of([*self.layers.values()])
        mean, texts = summed.numbers(summed.mean), summed.numbers(summed.texts)
        lower, upper = summed.numbers(summed.lower), summed.numbers(summed.upper)
        names = patterns_by_stack(summed.stacks(), lower, self.stacks)
        rest_names = None
        if self.rest is not None:
            rest = SummedHeads.of([*self.rest.layers.values()])
            rest_names = patterns_by_stack(rest.stacks(), rest.numbers(rest.lower), self.rest.stacks)
        numbers = {name: values for name, values in mean.items() if name != NOT_FIRST}
        heads = head_table([*self.layers], names, rest_names, numbers)
        patterns: list[Records[HeadsOfPattern]] = []
        strongest: list[Records[StrongestHead]] = []
        for stack in self.stacks.values():
            places = places_of_stack(summed.stacks(), stack)
            counts = {
                name: int(np.nan_to_num(of_heads[places]).max(initial=0)) for name, of_heads in texts.items()
            }
            of_stack = [names[place] for place in places]
            patterns.append(heads_of_patterns(numbers_at(lower, places), of_stack, stack, counts))
            ranked = [*strongest_heads(numbers_at(mean, places), stack)]
            ends = {
                end: [float(of_end[stack.name_of(head.statistic)][places[head.place]]) for head in ranked]
                for end, of_end in (("lower", lower), ("upper", upper))
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
        """One row per head and statistic, layer by layer."""
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
    """A layer without a softmax: its number, its module, and what it is; a store knows the number alone."""

    layer: int
    module: str = ""
    mixer: str = ""


class SignedTotals:
    """The statistics of heads without a softmax over texts; texts that lack one are left out of its mean."""

    def __init__(self) -> None:
        self.layers: dict[MixerPlace, RunningMoments] = {}

    def add(self, place: MixerPlace, numbers: Float[Tensor, "text head statistic"]) -> None:
        """The statistics of a layer on some texts."""
        moments, before = RunningMoments.of(numbers), self.layers.get(place)
        self.layers[place] = moments if before is None else before + moments

    def table(self) -> Records[SignedHead]:
        """One row per head: means over the texts. One key has no place in several."""
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
        """One row per head and statistic, of the stack `linear`, layer by layer."""
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
