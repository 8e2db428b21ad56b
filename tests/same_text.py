"""Comparing shown text: the same but for the last digit of a number, which may be rounded otherwise."""

import re

NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
TINY = 1e-6


def assert_same_text(actual: str, expected: str) -> None:
    """Equal texts but for decimal numbers, which may differ by 1.5 units of the fourth decimal."""
    assert NUMBER.sub("#", actual) == NUMBER.sub("#", expected)
    for line, other in zip(actual.splitlines(), expected.splitlines(), strict=True):
        for ours, theirs in zip(NUMBER.findall(line), NUMBER.findall(other), strict=True):
            a, b = float(ours), float(theirs)
            assert abs(a - b) <= 1.5e-4 or max(abs(a), abs(b)) < TINY, f"{ours} for {theirs} in {line!r}"
