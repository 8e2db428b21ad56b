"""What each head does, in a word: the pattern whose statistic is above its threshold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attncli.core.row_statistics import HEAD_PATTERNS, PATTERNS, STARTS_SPECIAL, UNNAMED, HeadPattern

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
