"""Results of head surveys on one text or many: each head's statistics, and the patterns that heads show."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.core.names import (
    EVEN,
    HEAD_PATTERNS,
    HEAD_STATISTICS,
    NOT_MEASURED,
    PATTERNS,
    ROW_STATISTICS,
    STARTS_SPECIAL,
    STATISTIC_UNITS,
    UNNAMED,
    HeadPattern,
)
from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.meanings import LOOKED_AT, Meaning, spaced
from attncli.records.stored_columns import (
    LINEAR_PREFIX,
    HeadColumns,
    Leaf,
    OneColumn,
    SurveyNumber,
    ValueTable,
    side_by_side,
)
from attncli.records.values import PLACES, Statistic

NAMING = tuple(dict.fromkeys(pattern.statistic for pattern in HEAD_PATTERNS.values()))
"""The statistics that determine a head's pattern."""
NOT_FIRST = "special_mass - sink_mass"
"""The statistic for special tokens if the first token is special, which has its own pattern."""
LONG_TEXT_STATISTICS = (
    "sink_mass",
    "previous_token",
    "next_token",
    "current_token",
    "neighbour",
    "normalized_entropy",
)
"""Pattern statistics that every long text has; other statistics need a repeated word or a special token."""
MIN_ROWS = 5
"""The minimum number of rows for a pattern to classify a head: a mean over fewer rows is unreliable."""


EVEN_COLUMNS = {name: f"even_{name}" for name in EVEN}
"""Columns for uniform weights in the rows of a stack, by statistic."""
ROUNDING = 1e-6
"""The change in a mean if a store rounds its terms to float32."""


class TextMean(NamedTuple):
    """A mean over texts, stored as its sum and the number of texts that have it."""

    total: float
    num_texts: int

    @classmethod
    def of(cls, number: float | None) -> "TextMean":
        """Return the number of one text as a mean; None and NaN count as no text."""
        return cls(0.0, 0) if number is None or number != number else cls(float(number), 1)

    def plus(self, other: "TextMean") -> "TextMean":
        """Return the mean over the texts of both means."""
        return TextMean(self.total + other.total, self.num_texts + other.num_texts)

    @property
    def mean(self) -> float | None:
        """The mean, or None if no text has the number."""
        return self.total / self.num_texts if self.num_texts else None


class Stack(NamedTuple):
    """The number of rows behind each statistic of a stack, and whether the stack's first key is special.

    `even` is the value of each statistic for uniform weights on the visible keys; stores and reports from
    versions before 0.5.0 do not have it.
    """

    name: str
    num_rows: Mapping[str, int]
    starts_special: bool
    even: Mapping[str, TextMean] = MappingProxyType({})

    def patterns(self) -> dict[str, HeadPattern]:
        """Return the patterns whose statistic is measured; cross-attention has no positional patterns."""
        return {
            name: pattern for name, pattern in HEAD_PATTERNS.items() if pattern.statistic in self.num_rows
        }

    def has_enough_rows(self, statistic: str) -> bool:
        """Return True if a statistic may classify a head: it has enough rows, and uniform weights fail it."""
        return self.num_rows[statistic] >= MIN_ROWS and not self._is_too_short(statistic)

    def _is_too_short(self, statistic: str) -> bool:
        """Return True if texts are so short that uniform weights reach the threshold.

        Uniform weights over n tokens of a causal model put (1 + 1/2 + ... + 1/n) / n on the first key, and as
        much on the token itself: more than 0.3 up to n = 9, more than 0.4 up to n = 6. Over several texts,
        both numbers are means.
        """
        threshold = next(each.threshold for each in HEAD_PATTERNS.values() if each.statistic == statistic)
        even = self._even_by_mean_length(statistic) if not self.even else self.even_weight(statistic)
        return even is not None and even > threshold + ROUNDING

    def even_weight(self, statistic: str) -> float | None:
        """Return the value of a pattern statistic for uniform weights, or None if unknown."""
        if statistic not in self.even or (even := self.even[statistic].mean) is None:
            return None
        first = self.even["sink_mass"].mean if self.pattern_statistic(statistic) == NOT_FIRST else 0.0
        return None if first is None else even - first

    def _even_by_mean_length(self, statistic: str) -> float | None:
        """Estimate `even_weight` for a causal model from the mean text length, all that row counts reveal."""
        num_rows = self.num_rows.get("sink_mass", 0)
        num_texts = num_rows - self.num_rows.get("normalized_entropy", num_rows)  # each text has one such row
        if statistic not in ("sink_mass", "current_token") or not num_texts:
            return None
        num_tokens = num_rows // num_texts
        return sum(1 / tokens for tokens in range(1, num_tokens + 1)) / num_tokens

    def unnamed(self) -> str:
        """Return the pattern of heads that match none: UNNAMED, or NOT_MEASURED if texts are too short."""
        names = [pattern.statistic for pattern in self.patterns().values()]
        is_measured = all(self.has_enough_rows(name) for name in names if name in LONG_TEXT_STATISTICS)
        return UNNAMED if is_measured else NOT_MEASURED

    def pattern_statistic(self, statistic: str) -> str:
        """Return the statistic that classifies a head: `special_mass` excludes a special first token."""
        return NOT_FIRST if statistic == "special_mass" and self.starts_special else statistic


class HeadInStack(Record):
    """A model's head."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)


UNITS = {name: statistic.unit for name, statistic in ROW_STATISTICS.items()} | STATISTIC_UNITS


class SurveyedHead(HeadInStack, numbers=HEAD_STATISTICS, units=UNITS):
    """A head, its pattern, and a column for each measured statistic; over several texts, the means."""

    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    pattern: str = column(
        about="Pattern of the head: the statistic that is above its threshold, or unnamed", is_needed=False
    )
    rest_pattern: str | None = column(
        label="pattern without first token",
        about="Pattern of the head's other weights if it looks at the first token",
        is_needed=False,
    )


TOKENS = "tokens"


class SignedHead(Record):
    """A head of a layer without a softmax: statistics of its signed weights w.

    The shares are shares of a row's sum of |w|, averaged over the rows. Over several texts, these are means,
    without `one_key`.
    """

    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    module: str
    mixer: str = column(about="Kind of the layer; a head of Mamba-1 is the mean of its channels")
    first_share: float | None = column(about="Share of |w| on the first token")
    previous_share: float | None = column(about="Share of |w| on the token before the query")
    current_share: float | None = column(about="Share of |w| on the query's own token")
    local_share: float | None = column(about="Share of |w| on tokens less than 8 away")
    distance: float | None = column(unit=TOKENS, about="Mean distance to the keys, weighted by |w|")
    one_key_share: float | None = column(about="Largest share of |w| of all rows on one key")
    one_key: int | None = column(about="Position of that key", is_kept=False)
    negative_share: float | None = column(about="Share of |w| on negative weights")
    row_sum: float | None = column(about="Sum of w, averaged over the rows")
    row_size: float | None = column(about="Sum of |w|, averaged over the rows")
    half_life: float | None = column(
        unit=TOKENS, about="Number of tokens after which decay has halved the state"
    )


SIGNED_OVER_TEXTS = tuple(name for name, kind in SignedHead.columns.items() if kind.is_in_stores)
"""The statistics of such heads that are averaged over texts and stored."""


class HeadsOfPattern(Record):
    """A pattern of a stack and the number of heads that show it.

    Heads without a pattern have a row without a statistic.
    """

    stack: str
    pattern: str = column(about="Name of the pattern")
    statistic: str | None = column(about="Statistic that a head of the pattern exceeds the threshold in")
    threshold: float | None = column(about="Value above which a head shows the pattern")
    num_rows: int | None = column("rows", about="Number of rows that have the statistic")
    heads: int | None = column(about="Number of heads above the threshold; none if there are too few rows")
    texts: int | None = column(about="Number of texts that have such rows", is_needed=False)


class StrongestHead(Record):
    """A head with one of the largest values of a pattern."""

    stack: str
    pattern: str = column(about="Name of the pattern")
    rank: int = column(about="Rank of the head in the pattern, counted from 0", is_needed=False)
    layer: int
    head: int
    value: float | None = column(about="The pattern's statistic of the head; over several texts, the mean")
    key: int | None = column(about="Position of the key that most rows prefer", is_needed=False)
    lower: float | None = column(is_needed=False)
    upper: float | None = column(is_needed=False)


ROW_COUNTS = {
    name: Meaning(f"Number of rows that have the statistic {name}", label=f"rows of {spaced(name)}")
    for name in (*PATTERNS, *NAMING)
} | {
    column: Meaning(
        f"Value of {name} if each row gave equal weights to all visible keys",
        label=f"{spaced(name)} of equal weights",
    )
    for name, column in EVEN_COLUMNS.items()
}


class RowsOfStack(Record, numbers=(*PATTERNS, *NAMING, *EVEN_COLUMNS.values()), shared=ROW_COUNTS):
    """The number of rows behind each statistic of a stack, and the statistics of equal weights."""

    stack: str
    starts_special: bool = column(about="True if the texts begin with a special token", is_needed=False)


class RestOfHead(HeadInStack, numbers=NAMING):
    """A head's pattern statistics without the first key, with the remaining weights renormalised."""


class StatisticInterval(HeadInStack):
    """A statistic of a head over the texts, with its 95 % interval."""

    statistic: str = column(about="Statistic of the head")
    mean: float | None = column(about="Mean over the texts that have the statistic")
    lower: float | None = column(is_needed=False)
    upper: float | None
    texts: int = column(about="Number of texts that have the statistic", is_needed=False)


class TokenNamed(Record):
    """A token that `from` or `to` selects."""

    setting: str = column(about="Setting that selects the token: from or to")
    name: str = column(about="Name of the token in the setting")
    text: str = column(about="Text of the token: sentence or context")
    position: int = column(about="Position of the token")
    token: str = column(about="The token")


class LookedAtKey(Record, shared=LOOKED_AT):
    """The key with the most weight in a head's row of the token `query`, or None if there is no such key."""

    query: int | None = column(is_kept=False)
    query_token: str | None
    key: int | None = column(is_kept=False)
    key_token: str | None
    key_weight: float | None = column(is_kept=False)


class PatchNorm(Record):
    """A patch with a large norm in the last block."""

    position: int = column(about="Position of the patch")
    token: str = column(about="Name of the patch")
    norm: float | None = column(about="Norm of the patch's vector in the last block")


class SinkRate(Record):
    """The share of heads that are attention sinks."""

    sink_rate: float | None = column(
        about="Share of heads whose mean weight on the first key exceeds the threshold"
    )
    sink_threshold: float = column(about="The threshold of the sink rate")


class TextCount(Record):
    """The number of texts and the number of their tokens."""

    num_texts: int = column(label="texts", about="Number of texts")
    num_tokens: int | None = column(label="tokens", about="Number of tokens in all texts", is_needed=False)


class PatchNorms(Record):
    """The norms of patches in the last block."""

    median_norm: float | None = column(about="Median norm of the patches' vectors in the last block")
    high_norm: float = column(about="A norm is large above this multiple of the median")
    num_high: int = column(label="patches with a large norm", about="Number of patches with a large norm")


class LayerOfHeads(NamedTuple):
    """The statistics of a layer's heads on some texts: (text, head, statistic)."""

    stack: str
    layer: int
    names: tuple[str, ...]
    values: npt.NDArray[np.float64]
    heads: Sequence[int] | None = None
    """The numbers of the heads; None for all heads of the layer."""


class StacksOfText(NamedTuple):
    """The stacks of a model on a text, with all weights and without the first key, and the sink rate."""

    stacks: Sequence[Stack]
    rest: Sequence[Stack]
    sinks: SinkRate | None


def survey_values(
    heads: Sequence[LayerOfHeads],
    rest: Sequence[LayerOfHeads],
    texts: Sequence[StacksOfText],
    linear: Sequence[LayerOfHeads] = (),
) -> ValueTable:
    """Return the values of the surveys of some texts, which equal the values of their reports.

    `rest` has the statistics without the first key, and `linear` has the heads of layers without a softmax.
    """
    return side_by_side(survey_leaves(heads, rest, texts, linear), len(texts))


def survey_leaves(
    heads: Sequence[LayerOfHeads],
    rest: Sequence[LayerOfHeads],
    texts: Sequence[StacksOfText],
    linear: Sequence[LayerOfHeads] = (),
) -> Iterator[Leaf]:
    """Yield the values of the surveys of some texts, in the order of a store's columns."""
    stacks = {layer.stack for layer in heads} | {stack.name for stack in texts[0].stacks}
    has_stacks = len(stacks) > 1
    names = tuple(dict.fromkeys(name for layer in heads for name in layer.names))

    def head_leaves(layers: Sequence[LayerOfHeads], prefix: Callable[[str], str]) -> Iterator[Leaf]:
        for layer in layers:
            numbers = range(layer.values.shape[1]) if layer.heads is None else layer.heads
            shape = tuple((layer.layer, head, prefix(layer.stack), layer.names) for head in numbers)
            yield HeadColumns(shape), layer.values.reshape(len(texts), -1)

    def count_leaves(counts: Iterable[Iterable[tuple[SurveyNumber, float]]]) -> Iterator[Leaf]:
        for text_counts in zip(*counts, strict=True):
            name = text_counts[0][0].name(has_stacks=has_stacks)
            yield OneColumn(name), np.array([[count] for _, count in text_counts], np.float64)

    def prefix(stack: str, *, without_first: bool = False) -> str:
        return SurveyNumber(stack, "", without_first).name(has_stacks=has_stacks)

    yield from head_leaves([_with_names(layer, names) for layer in heads], prefix)
    yield from count_leaves(_row_counts(text.stacks) for text in texts)
    if rest:
        yield from head_leaves(rest, partial(prefix, without_first=True))
        yield from count_leaves(_row_counts_without_first(text.rest) for text in texts)
    yield from head_leaves(linear, lambda stack: LINEAR_PREFIX)
    sinks = [[] if text.sinks is None else [*text.sinks.numbers().items()] for text in texts]
    for text_sinks in zip(*sinks, strict=True):
        numbers = [[np.nan if number is None else number] for _, number in text_sinks]
        yield OneColumn(f"model.{text_sinks[0][0]}"), np.array(numbers, np.float64)


def _with_names(layer: LayerOfHeads, names: tuple[str, ...]) -> LayerOfHeads:
    """Return a layer with NaN for the statistics that only other layers have."""
    if layer.names == names:
        return layer
    values = np.full((*layer.values.shape[:2], len(names)), np.nan)
    values[..., [names.index(name) for name in layer.names]] = layer.values
    return layer._replace(names=names, values=values)


def _row_counts(stacks: Sequence[Stack]) -> Iterator[tuple[SurveyNumber, float]]:
    """Yield the number of rows behind each pattern, then the other counts of each stack.

    The other counts are 1 for a text that begins with a special token, else 0; the number of rows behind
    statistics that name no pattern; and the statistics of even weights.
    """
    for stack in stacks:
        for pattern in stack.patterns().values():
            count = stack.num_rows[pattern.statistic]
            yield SurveyNumber(stack.name, pattern.statistic, counts_rows=True), count
    for stack in stacks:
        yield SurveyNumber(stack.name, STARTS_SPECIAL), stack.starts_special
        for name in PATTERNS:
            if name in stack.num_rows and name not in NAMING:
                yield SurveyNumber(stack.name, name, counts_rows=True), stack.num_rows[name]
        yield from _even_weights(stack, without_first=False)


def _even_weights(stack: Stack, *, without_first: bool) -> Iterator[tuple[SurveyNumber, float]]:
    """Yield the statistics that a stack would have with even weights, or NaN if no row has the statistic."""
    for name, even in stack.even.items():
        number = np.nan if even.mean is None else even.mean
        yield SurveyNumber(stack.name, name, without_first, is_even=True), number


def _row_counts_without_first(stacks: Sequence[Stack]) -> Iterator[tuple[SurveyNumber, float]]:
    """Yield the counts without the first key, for each statistic that names a pattern."""
    names = dict.fromkeys(name for stack in stacks for name in stack.num_rows)
    for stack in stacks:
        yield SurveyNumber(stack.name, STARTS_SPECIAL, without_first=True), stack.starts_special
        for name in names:
            if name in stack.num_rows:
                counted = SurveyNumber(stack.name, name, without_first=True, counts_rows=True)
                yield counted, stack.num_rows[name]
        yield from _even_weights(stack, without_first=True)


def _stacks_from_rows(
    rows: Records[RowsOfStack], patterns: Records[HeadsOfPattern] | None = None
) -> list[Stack]:
    """Return each stack's row counts from the tables of a report."""
    stacks = []
    for row in rows:
        names = [name for name in rows.cells if name not in ("stack", STARTS_SPECIAL, *EVEN_COLUMNS.values())]
        counts = {name: row.number(name) for name in names}
        num_rows = {name: int(count) for name, count in counts.items() if count is not None}
        for pattern in patterns or ():
            if pattern.stack == row.stack and pattern.num_rows is not None:
                num_rows[HEAD_PATTERNS[pattern.pattern].statistic] = pattern.num_rows
        even = {
            name: TextMean.of(row.number(column))
            for name, column in EVEN_COLUMNS.items()
            if column in rows.cells and name in num_rows
        }
        stacks.append(Stack(row.stack, num_rows, row.starts_special, even))
    return stacks


def _reported_heads(
    heads: Records[SurveyedHead] | Records[RestOfHead] | Records[SignedHead],
) -> list[LayerOfHeads]:
    """Return every statistic of each head, one by one; a report may have only some heads, in any order."""
    names = tuple(name for name in heads.stored_columns() if name not in PLACES)
    if not heads:
        return []
    numbers = np.stack([heads.numbers(name) for name in names], axis=-1)[None, :, None]
    stacks = heads.cells.get("stack", ["self"] * len(heads))
    # As Python numbers, because SQLite stores numpy's numbers as bytes.
    layers, indices = (heads.column(name).astype(int).tolist() for name in ("layer", "head"))
    return [
        LayerOfHeads(str(stack), layer, names, numbers[:, place], (head,))
        for place, (stack, layer, head) in enumerate(zip(stacks, layers, indices, strict=True))
    ]


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadSurvey(Result):
    """A survey of heads: `heads` has one row per head, with its pattern and every statistic.

    Entropy is in nats and distance in tokens; most other statistics are weights between 0 and 1. Over many
    texts, these are means, and `intervals` has one row per head and statistic, with its 95 % interval
    (Student's t) and the number of texts. `patterns` has one row per pattern with the number of heads that
    show it, and `strongest` has the heads that show each pattern most. `linear` has one row per head of a
    layer without a softmax. `rollout` (query, key) is the attention rollout over the layers. On a grid,
    `looks` (layer, head, key) are each head's weights from the `queries`, or else from [CLS], or else
    averaged over all queries, and `look_rollout` (key) is the same row of the rollout.
    """

    named_groups: ClassVar[Collection[str]] = (
        *("heads", "patterns", "strongest", "pattern_rows", "without_first", "without_first_rows"),
        *("named_tokens", "intervals", "model", "linear"),
    )

    heads: Records[SurveyedHead] = group(
        label="Heads",
        about="A head; its statistics are means over its rows, except max score, the largest of them",
        may_be_empty=True,
    )
    # A store holds these counts under the names of the statistics: see `named_numbers`.
    patterns: Records[HeadsOfPattern] = group(label="Patterns", is_kept=False, may_be_empty=True)
    strongest: Records[StrongestHead] = group(
        label="Strongest heads of each pattern", is_kept=False, may_be_empty=True
    )
    pattern_rows: Records[RowsOfStack] = group(
        label="Rows behind the patterns", is_kept=False, may_be_empty=True
    )
    without_first: Records[RestOfHead] = group(
        label="Heads without the first key", is_kept=False, may_be_empty=True
    )
    without_first_rows: Records[RowsOfStack] = group(
        label="Rows behind the patterns without the first key",
        about="The same as for the patterns, on the weights without the first key",
        is_kept=False,
        may_be_empty=True,
    )
    named_tokens: Records[TokenNamed] = group(label="Named tokens", is_kept=False, may_be_empty=True)
    intervals: Records[StatisticInterval] = group(
        label="Intervals of the statistics", is_kept=False, may_be_empty=True
    )
    model: SinkRate | None = group(label="Attention sinks", is_needed=False)
    texts: TextCount | None = group(label="Texts", is_needed=False)
    linear: Records[SignedHead] = group(label="Heads without a softmax", may_be_empty=True)
    norms: PatchNorms | None = group(label="Norms of patches", is_needed=False)
    high_norm_patches: Records[PatchNorm] = group(label="Patches with a large norm", may_be_empty=True)
    tokens_of_text: int | None = None
    rollout: npt.NDArray[np.float32] | None = None
    looks: npt.NDArray[np.float32] | None = None
    look_rollout: npt.NDArray[np.float32] | None = None
    notes: tuple[str, ...] = ()

    def statistics(self) -> dict[str, Statistic]:
        """Return the report's statistics, including an empty `heads` if no head has the requested pattern."""
        heads: dict[str, Statistic] = {"heads": self.heads} if self.patterns else {}
        return heads | super().statistics()

    def patterns_of(self, stack: str) -> Records[HeadsOfPattern]:
        """Return the patterns of a stack."""
        return self.patterns.where(lambda row: row.stack == stack)

    def strongest_of(self, stack: str, pattern: str) -> Records[StrongestHead]:
        """Return the heads that show a pattern most strongly."""
        return self.strongest.where(lambda head: (head.stack, head.pattern) == (stack, pattern))

    @property
    def num_texts(self) -> int:
        """The number of texts."""
        return 1 if self.texts is None else self.texts.num_texts

    @property
    def num_tokens(self) -> int | None:
        """The number of tokens in all texts, or None if unknown."""
        return self.tokens_of_text if self.texts is None else self.texts.num_tokens

    def named_numbers(self) -> Iterator[Leaf]:
        """Yield the numbers of each head, with all weights and without the first key, and of each stack."""
        text = StacksOfText(
            _stacks_from_rows(self.pattern_rows, self.patterns),
            _stacks_from_rows(self.without_first_rows) if self.without_first else (),
            self.model,
        )
        heads = _reported_heads(self.heads) if self.patterns else ()
        return survey_leaves(heads, _reported_heads(self.without_first), [text], _reported_heads(self.linear))
