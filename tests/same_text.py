"""Comparing shown text: the same but for the last digit of a number, which may be rounded otherwise."""

import re

NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
TINY = 1e-6
SINGLE = 1.5e-6  # times a large number: its last digits in single precision


def assert_same_text(actual: str, expected: str) -> None:
    """Equal texts but for decimals, which may differ by 1.5 units of the fourth digit or by SINGLE."""
    assert NUMBER.sub("#", actual) == NUMBER.sub("#", expected)
    for line, other in zip(actual.splitlines(), expected.splitlines(), strict=True):
        for ours, theirs in zip(NUMBER.findall(line), NUMBER.findall(other), strict=True):
            a, b = float(ours), float(theirs)
            size = max(abs(a), abs(b))
            assert abs(a - b) <= max(1.5e-4, SINGLE * size) or size < TINY, f"{ours} for {theirs} in {line!r}"
