"""What was found out about an architecture."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass
class Outcome:
    """What a command came to: how many numbers or matrices of it were compared, and the largest difference.

    A difference is relative where a number is above 1. `reason` is why transformers gives nothing to compare
    with.
    """

    compared: int = 0
    difference: float | None = None
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    reason: str = ""

    def compare(self, what: str, answered: Any, expected: Any, tolerance: float) -> None:
        """Note by how much what is shown is off, and that it is wrong beyond the tolerance."""
        answered, expected = np.asarray(answered, dtype=np.float64), np.asarray(expected, dtype=np.float64)
        self.compared += 1
        if answered.shape != expected.shape:
            self.wrong.append(f"{what}: shape {answered.shape} instead of {expected.shape}")
            return
        difference = float((np.abs(answered - expected) / np.maximum(1, np.abs(expected))).max())
        self.difference = largest(self.difference, difference)
        if not difference <= tolerance:
            self.wrong.append(f"{what}: off by {difference:.2g}")

    def add(self, other: "Outcome") -> None:
        """Note what another one has found, too."""
        self.compared += other.compared
        self.wrong += other.wrong
        if other.difference is not None:
            self.difference = largest(self.difference, other.difference)

    @property
    def verdict(self) -> str:
        """right, wrong, partly refused, refused or not testable."""
        if self.wrong:
            return "wrong"
        if self.refused:
            return "partly refused" if self.compared else "refused"
        return "right" if self.compared and not self.reason else "not testable"


@dataclass
class Result:
    """What was found out about one architecture.

    verdict: right, wrong (a wrong number or label, or an internal error), partly refused, refused, or not
    testable (transformers cannot build it, or returns no weights to compare with), of what `heads`,
    `multihead`, `cross` and `batch` show. `commands` has what the others came to; whatever is wrong in these
    is in `wrong`, too. `stacks`: layers and heads of each; `local`: layers that hide earlier tokens.
    Differences are the largest there are; None where there is nothing to compare.
    """

    name: str
    model: str
    verdict: str = ""
    how: str = ""
    stacks: dict[str, tuple[int, int]] = field(default_factory=dict)
    weights: float | None = None
    output: float | None = None
    output_shown: bool = False
    local: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    reason: str = ""
    commands: dict[str, Outcome] = field(default_factory=dict)

    def judged(self) -> "Result":
        """Itself, with its verdict."""
        if self.wrong:
            self.verdict = "wrong"
        elif self.refused and self.weights is None:
            self.verdict = "refused"
        elif self.reason:
            self.verdict = "not testable"
        else:
            self.verdict = "partly refused" if self.refused else "right"
        return self

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Result":
        """What was written as one line."""
        values = json.loads(line)
        commands = {name: Outcome(**outcome) for name, outcome in values.pop("commands").items()}
        return cls(**values, commands=commands)


def largest(known: float | None, difference: float) -> float:
    """The larger of two; infinity for NaN."""
    return (
        difference
        if known is None
        else float(np.fmax(known, difference))
        if difference == difference
        else np.inf
    )
