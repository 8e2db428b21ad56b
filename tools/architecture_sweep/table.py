"""The result of a sweep as Markdown: python -m tools.architecture_sweep.table results.jsonl"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from .result import Result

HEADER = (
    "| architecture | result | how | layers x heads | weights | output | remarks |\n"
    "| --- | --- | --- | --- | --- | --- | --- |\n"
)
MOST_REMARKS = 160


def results_of(path: Path) -> list[Result]:
    """The results of a file, by name."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return sorted((Result(**line) for line in lines), key=lambda result: result.name)


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}".replace("e-0", "e-")


def _shape(result: Result) -> str:
    sizes = {stack: f"{layers} x {heads}" for stack, (layers, heads) in result.stacks.items()}
    if len(set(sizes.values())) == 1:
        return next(iter(sizes.values())) + (f" ({', '.join(sizes)})" if len(sizes) > 1 else "")
    return ", ".join(f"{size} ({stack})" for stack, size in sizes.items()) or "-"


def _remarks(result: Result) -> str:
    remarks = (result.wrong or result.refused or [result.reason])[0]
    return remarks.replace("|", "\\|")[:MOST_REMARKS]


def _row(result: Result) -> str:
    differences = _difference(result.weights), _difference(result.output)
    cells = (result.name, result.verdict, result.how or "-", _shape(result), *differences, _remarks(result))
    return "| " + " | ".join(cells) + " |\n"


def table(results: Iterable[Result]) -> str:
    """One row per architecture that can be tested, then the names of the others by their reason."""
    everything = list(results)
    rows = "".join(_row(result) for result in everything if result.verdict != "not testable")
    reasons: dict[str, list[str]] = {}
    for result in everything:
        if result.verdict == "not testable":
            reasons.setdefault(_kind_of_reason(result.reason), []).append(result.name)
    lists = "".join(f"- {reason}: {', '.join(names)}.\n" for reason, names in sorted(reasons.items()))
    return f"{HEADER}{rows}\nNot testable:\n\n{lists}"


REASONS = {
    "pixel_values": "needs an image",
    "NoneType": "needs an image or sound",
    "missing": "needs more than tokens",
    "You have to specify": "needs more than tokens",
    "ImportError": "needs another package",
    "million parameters": "has no tiny configuration",
    "returns no weights": "transformers returns no weights",
}


def _kind_of_reason(reason: str) -> str:
    return next((kind for part, kind in REASONS.items() if part in reason), reason)


if __name__ == "__main__":
    print(table(results_of(Path(sys.argv[1]))), end="")
