"""What the heads of a model do, on a text or over many: their statistics and what these name."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.core.names import (
    EVEN,
    HEAD_PATTERNS,
    HEAD_STATISTICS,
    NOT_MEASURED,
    PATTERNS,
    ROW_STATISTICS,
    UNNAMED,
    HeadPattern,
)
from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.values import Statistic

NAMING = tuple(dict.fromkeys(pattern.statistic for pattern in HEAD_PATTERNS.values()))
"""The statistics that name heads."""
NOT_FIRST = "special_mass - sink_mass"
"""The statistic behind special tokens where the first one is special: that has a pattern of its own."""
OF_POSITIONS = (
    "sink_mass",
    "previous_token",
    "next_token",
    "current_token",
    "neighbour",
    "normalized_entropy",
)
"""Naming statistics that every long text has; others need a word twice, or a special token."""
MIN_ROWS = 5
"""Rows that a pattern must have to name a head: a mean over fewer says little."""


EVEN_COLUMNS = {name: f"even_{name}" for name in EVEN}
"""In the rows of a stack what even weights give, by the statistic."""
ROUNDING = 1e-6
"""By how much a mean changes if a store rounds its terms to float32."""


class TextMean(NamedTuple):
    """A mean over texts as its sum, and the number of texts that have it."""

    total: float
    num_texts: int

    @classmethod
    def of(cls, number: float | None) -> "TextMean":
        """The number of one text; None and NaN if the text has none."""
        return cls(0.0, 0) if number is None or number != number else cls(float(number), 1)

    def plus(self, other: "TextMean") -> "TextMean":
        """The mean over the texts of both."""
        return TextMean(self.total + other.total, self.num_texts + other.num_texts)

    @property
    def mean(self) -> float | None:
        """None if no text has it."""
        return self.total / self.num_texts if self.num_texts else None


class Stack(NamedTuple):
    """How many rows each statistic of a stack is a mean of, and whether its first key is special.

    `even` is what each statistic would be if every query gave the keys that it sees equal weights; stores and
    reports before 0.5.0 have none.
    """

    name: str
    num_rows: Mapping[str, int]
    starts_special: bool
    even: Mapping[str, TextMean] = MappingProxyType({})

    def patterns(self) -> dict[str, HeadPattern]:
        """The patterns that there is a statistic for: in cross-attention positions do not compare."""
        return {
            name: pattern for name, pattern in HEAD_PATTERNS.items() if pattern.statistic in self.num_rows
        }

    def has_enough_rows(self, statistic: str) -> bool:
        """Whether a statistic may name a head: not where even weights would show the pattern, too."""
        return self.num_rows[statistic] >= MIN_ROWS and not self._is_too_short(statistic)

    def _is_too_short(self, statistic: str) -> bool:
        """Whether texts are so short that heads without a preference look like this.

        Even weights over n tokens of a causal model put (1 + 1/2 + ... + 1/n) / n on the first key, and on a
        row's own: more than 0.3 up to 9, 0.4 up to 6. Over texts the statistic is a mean, and so is this.
        """
        threshold = next(each.threshold for each in HEAD_PATTERNS.values() if each.statistic == statistic)
        even = self._even_by_mean_length(statistic) if not self.even else self.even_weight(statistic)
        return even is not None and even > threshold + ROUNDING

    def even_weight(self, statistic: str) -> float | None:
        """What even weights give of what a head is named by; None if that is not known."""
        if statistic not in self.even or (even := self.even[statistic].mean) is None:
            return None
        first = self.even["sink_mass"].mean if self.name_of(statistic) == NOT_FIRST else 0.0
        return None if first is None else even - first

    def _even_by_mean_length(self, statistic: str) -> float | None:
        """The same for the mean length of the texts of causal models, the only lengths that counts tell."""
        num_rows = self.num_rows.get("sink_mass", 0)
        num_texts = num_rows - self.num_rows.get("normalized_entropy", num_rows)  # each with one such row
        if statistic not in ("sink_mass", "current_token") or not num_texts:
            return None
        num_tokens = num_rows // num_texts
        return sum(1 / tokens for tokens in range(1, num_tokens + 1)) / num_tokens

    def unnamed(self) -> str:
        """The name of heads that no pattern names: UNNAMED, or NOT_MEASURED on texts too short to tell."""
        names = [pattern.statistic for pattern in self.patterns().values()]
        is_measured = all(self.has_enough_rows(name) for name in names if name in OF_POSITIONS)
        return UNNAMED if is_measured else NOT_MEASURED

    def name_of(self, statistic: str) -> str:
        """What names a head: special tokens without the first, which has a pattern of its own."""
        return NOT_FIRST if statistic == "special_mass" and self.starts_special else statistic


class HeadInStack(Record):
    """A head of a model."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)


UNITS = {name: statistic.unit for name, statistic in ROW_STATISTICS.items()} | {"distance_seconds": "seconds"}


class SurveyedHead(HeadInStack, numbers=HEAD_STATISTICS, units=UNITS):
    """A head, its pattern, and a column for each statistic that was measured; over texts these are means.

    Where its pattern is the first token, `rest_pattern` is that of the rest of its weight.
    """

    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    pattern: str = column(is_needed=False)
    rest_pattern: str | None = column(is_needed=False)


TOKENS = "tokens"


class SignedHead(Record):
    """A head of a layer without a softmax, by what its signed weights w are like.

    Shares are of the sum of |w| of a row, `row_size`, means over the rows: on the first token, the one
    before, the token itself, on those less than 8 tokens away, on the key with most of it, `one_key`, and of
    negative weights. `distance` is the mean distance of |w|; `row_sum` is sum w. `half_life`: in how many
    tokens the decay alone halves the state. `mixer` says what the layer is; a head of Mamba-1 is the mean
    of its channels. Over texts these are means, without `one_key`.
    """

    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    module: str
    mixer: str
    first_share: float | None
    previous_share: float | None
    current_share: float | None
    local_share: float | None
    distance: float | None = column(unit=TOKENS)
    one_key_share: float | None
    one_key: int | None = column(is_kept=False)
    negative_share: float | None
    row_sum: float | None
    row_size: float | None
    half_life: float | None = column(unit=TOKENS)


SIGNED_OVER_TEXTS = tuple(name for name, kind in SignedHead.columns.items() if kind.is_in_stores)
"""The statistics of such heads that have a mean over texts, and that a store keeps."""


class HeadsOfPattern(Record):
    """A pattern of a stack: how many heads are above its threshold, None where too few rows have it.

    `num_rows` (`rows` in a table) have it, in so many `texts`. What no pattern names has a row without a
    statistic.
    """

    stack: str
    pattern: str
    statistic: str | None
    threshold: float | None
    num_rows: int | None = column("rows")
    heads: int | None
    texts: int | None = column(is_needed=False)


class StrongestHead(Record):
    """One of the heads with the largest number of a pattern; over texts a mean with its 95 % interval.

    `key` is the position of the one key for all.
    """

    stack: str
    pattern: str
    rank: int = column(is_needed=False)
    layer: int
    head: int
    value: float | None
    key: int | None = column(is_needed=False)
    lower: float | None = column(is_needed=False)
    upper: float | None = column(is_needed=False)


class RowsOfStack(Record, numbers=(*PATTERNS, *NAMING, *EVEN_COLUMNS.values())):
    """Of how many rows each statistic of a stack is a mean; whether its texts begin with a special token.

    `even_NAME` is what the statistic NAME would be, as a mean over the texts, if every query gave the keys
    that it sees equal weights.
    """

    stack: str
    starts_special: bool = column(is_needed=False)


class RestOfHead(HeadInStack, numbers=NAMING):
    """What names a head of where its first key is left out, the other weights renormalised."""


class StatisticInterval(HeadInStack):
    """A statistic of a head: its mean over the texts that have it, and the ends of its 95 % interval."""

    statistic: str
    mean: float | None
    lower: float | None = column(is_needed=False)
    upper: float | None
    texts: int = column(is_needed=False)


class TokenNamed(Record):
    """A token that the settings `from` or `to` mean, and the name that means it."""

    setting: str
    name: str
    text: str
    position: int
    token: str


class LookedAtKey(Record):
    """The key with the most weight of a head at the token `query`; None where there is none."""

    query: int | None = column(is_kept=False)
    query_token: str | None
    key: int | None = column(is_kept=False)
    key_token: str | None
    key_weight: float | None = column(is_kept=False)


class PatchNorm(Record):
    """A patch, and the length of its vector in the last block."""

    position: int
    token: str
    norm: float | None


class SinkRate(Record):
    """The share of heads whose mean weight on the first key is above a threshold."""

    sink_rate: float | None
    sink_threshold: float


class TextCount(Record):
    """How many texts were read, and how many tokens these have."""

    num_texts: int
    num_tokens: int | None = column(is_needed=False)


class PatchNorms(Record):
    """The median length of the vectors of patches, and how many are above `high_norm` times that."""

    median_norm: float | None
    high_norm: float
    num_high: int


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadSurvey(Result):
    """What each head does: `heads` has one row per head, with its pattern and every statistic.

    Entropy is in nats, distance in tokens; most others are weights between 0 and 1. Over many texts these are
    means, and `intervals` has one row per head and statistic, with the ends of its 95 % interval (Student's
    t) and the number of texts. `patterns` has one row per pattern with the number of heads that show it,
    `strongest` the heads that show each most. `linear` has one row per head of a layer without a softmax.
    `rollout` (query, key) is how attention adds up over the layers. On a grid `looks` (layer, head, key)
    are the weights of each head from the `queries`, else from [CLS], else the mean over all, and
    `look_rollout` (key) is their row of the rollout.
    """

    heads: Records[SurveyedHead] = group(may_be_empty=True)
    # A store keeps the counts of these by the names of the statistics: see runs/stored_columns.py.
    patterns: Records[HeadsOfPattern] = group(is_kept=False, may_be_empty=True)
    strongest: Records[StrongestHead] = group(is_kept=False, may_be_empty=True)
    pattern_rows: Records[RowsOfStack] = group(is_kept=False, may_be_empty=True)
    without_first: Records[RestOfHead] = group(is_kept=False, may_be_empty=True)
    without_first_rows: Records[RowsOfStack] = group(is_kept=False, may_be_empty=True)
    named_tokens: Records[TokenNamed] = group(is_kept=False, may_be_empty=True)
    intervals: Records[StatisticInterval] = group(is_kept=False, may_be_empty=True)
    model: SinkRate | None = group(is_needed=False)
    texts: TextCount | None = group(is_needed=False)
    linear: Records[SignedHead] = group(may_be_empty=True)
    norms: PatchNorms | None = group(is_needed=False)
    high_norm_patches: Records[PatchNorm] = group(may_be_empty=True)
    tokens_of_text: int | None = None
    rollout: npt.NDArray[np.float32] | None = None
    looks: npt.NDArray[np.float32] | None = None
    look_rollout: npt.NDArray[np.float32] | None = None
    notes: tuple[str, ...] = ()

    def statistics(self) -> dict[str, Statistic]:
        """What a report holds of it: the heads, too, where none has the pattern that was asked for."""
        heads: dict[str, Statistic] = {"heads": self.heads} if self.patterns else {}
        return heads | super().statistics()

    def patterns_of(self, stack: str) -> Records[HeadsOfPattern]:
        """The patterns of a stack."""
        return self.patterns.where(lambda row: row.stack == stack)

    def strongest_of(self, stack: str, pattern: str) -> Records[StrongestHead]:
        """The heads that show a pattern most."""
        return self.strongest.where(lambda head: (head.stack, head.pattern) == (stack, pattern))

    @property
    def num_texts(self) -> int:
        """How many texts were read."""
        return 1 if self.texts is None else self.texts.num_texts

    @property
    def num_tokens(self) -> int | None:
        """How many tokens the text has, or all texts together; None where that is not known."""
        return self.tokens_of_text if self.texts is None else self.texts.num_tokens
