"""What was found out about an architecture."""

import json
from dataclasses import asdict, dataclass, field

import numpy as np


@dataclass
class Result:
    """What was found out about one architecture.

    verdict: right, wrong (a wrong number or label, or an internal error), partly refused, refused, or not
    testable (transformers cannot build it, or returns no weights to compare with). `stacks`: layers
    and heads of each. Differences are the largest there are; None where there is nothing to compare.
    """

    name: str
    model: str
    verdict: str = ""
    how: str = ""
    stacks: dict[str, tuple[int, int]] = field(default_factory=dict)
    weights: float | None = None
    output: float | None = None
    output_shown: bool = False
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    reason: str = ""

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


def largest(known: float | None, difference: float) -> float:
    """The larger of two; infinity for NaN."""
    return (
        difference
        if known is None
        else float(np.fmax(known, difference))
        if difference == difference
        else np.inf
    )
