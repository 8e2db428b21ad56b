"""What each head does, in a word: the pattern whose statistic is above its threshold."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attncli.report import Cell, Row

LEAST_ROWS = 5
"""Rows that a pattern must stand on to name a head: a mean over fewer says little."""
NUM_STRONGEST = 3
UNNAMED = "unnamed"
UNIFORM = "uniform"

HeadRow = Mapping[str, Any]
"""Where a head stands, and its statistics by name."""


class HeadPattern(NamedTuple):
    """The statistic of a pattern, and the number above which a head has it.

    One key: Gu et al. 2024 (2410.10781) call a mean weight above 0.3 on the first a sink. Clark et al. 2019
    (1906.04341) count the heads of BERT on previous, next and special tokens, Olsson et al. 2022 (2209.11895)
    those on induction, from about half of the weight.
    """

    statistic: str
    threshold: float


HEAD_PATTERNS = {
    "first token": HeadPattern("sink_mass", 0.3),
    "previous token": HeadPattern("previous_token", 0.4),
    "next token": HeadPattern("next_token", 0.4),
    "current token": HeadPattern("current_token", 0.4),
    "duplicate token": HeadPattern("duplicate_token", 0.4),
    "induction": HeadPattern("induction", 0.4),
    "special tokens": HeadPattern("special_mass", 0.4),
    "one key for all": HeadPattern("one_key_mass", 0.3),
    UNIFORM: HeadPattern("normalized_entropy", 0.9),
}


class Stack(NamedTuple):
    """What the patterns of a stack stand on: rows by statistic, and whether its first key is special."""

    name: str
    num_rows: Mapping[str, int]
    starts_special: bool

    def patterns(self) -> dict[str, HeadPattern]:
        """The patterns of which there is a statistic: across, positions do not compare."""
        return {name: one for name, one in HEAD_PATTERNS.items() if one.statistic in self.num_rows}

    def has_enough_rows(self, statistic: str) -> bool:
        """Whether a statistic may name a head."""
        return self.num_rows[statistic] >= LEAST_ROWS

    def value(self, head: HeadRow, statistic: str) -> float:
        """The statistic; of special tokens what is not on the first, which has a pattern of its own."""
        value: float = head[statistic] - (head["sink_mass"] if self._leaves_out_first(statistic) else 0.0)
        return value

    def name_of(self, statistic: str) -> str:
        """What `value` is a number of."""
        return f"{statistic} - sink_mass" if self._leaves_out_first(statistic) else statistic

    def _leaves_out_first(self, statistic: str) -> bool:
        return statistic == "special_mass" and self.starts_special


def pattern_of(head: HeadRow, stack: Stack) -> str:
    """Uniform where it is that; else the pattern with the largest value above its threshold."""
    found = {
        name: value
        for name, (statistic, threshold) in stack.patterns().items()
        if stack.has_enough_rows(statistic) and (value := stack.value(head, statistic)) > threshold
    }
    if UNIFORM in found:
        return UNIFORM
    return max(found, key=lambda name: found[name], default=UNNAMED)


def pattern_rows(heads: Sequence[HeadRow], stack: Stack, key_of: Callable[[HeadRow], int]) -> list[Row]:
    """For each pattern how many heads are above its threshold, and the strongest; no number on too few rows.

    `keys` are positions: where the one key for all stands.
    """
    rows: list[Row] = []
    for name, (statistic, threshold) in stack.patterns().items():
        about: dict[str, Any] = {
            "stack": stack.name,
            "pattern": name,
            "statistic": stack.name_of(statistic),
            "threshold": threshold,
            "rows": stack.num_rows[statistic],
        }
        values = [(stack.value(head, statistic), head) for head in heads]
        if not stack.has_enough_rows(statistic):
            values = []
        ranked = sorted((pair for pair in values if pair[0] > 0), key=lambda pair: -pair[0])[:NUM_STRONGEST]
        keys = [key_of(head) for _, head in ranked] if name == "one key for all" else []
        rows.append(
            {
                **about,
                "heads": sum(value > threshold for value, _ in values) if values else None,
                "strongest": _padded([f"{head['layer']}:{head['head']}" for _, head in ranked]),
                "values": _padded([value for value, _ in ranked]),
                "keys": _padded(keys),
            }
        )
    rows.append({
        "stack": stack.name,
        "pattern": UNNAMED,
        "statistic": "",
        "threshold": None,
        "rows": None,
        "heads": sum(head["pattern"] == UNNAMED for head in heads),
        "strongest": _padded([]),
        "values": _padded([]),
        "keys": _padded([]),
    })  # fmt: skip
    return rows


def _padded(cells: Sequence[Cell]) -> list[Cell]:
    return [*cells, *[None] * (NUM_STRONGEST - len(cells))]
