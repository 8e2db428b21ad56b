"""Writes a sweep into docs/models.md: python -m tools.architecture_sweep.table results.jsonl"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import TextWrapper

import transformers

from .result import Result

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- sweep: tools/architecture_sweep -->\n", "<!-- end of sweep -->\n"
MOST_CHARACTERS = 200
WRAPPED = TextWrapper(119, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)

REASONS = {
    "cannot run on text alone": "needs an image, sound or boxes beside the text",
    "million parameters": "has no tiny configuration",
    "requires the": "needs another package",
}
"""What is said instead of an error that contains this."""


def results_of(path: Path) -> list[Result]:
    """The results of a file, by name."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return sorted((Result(**line) for line in lines), key=lambda result: result.name)


def _reason(result: Result) -> str:
    """Why not, without the name and the command."""
    said = (result.wrong or result.refused or [result.reason])[0]
    for part, reason in REASONS.items():
        if part in said:
            return reason
    _, _, line = said.partition(": ") if result.wrong or result.refused else ("", "", said)
    line = re.sub(r"^model: \S+ (cannot be shown, use another: )?", "", line)
    return line[:MOST_CHARACTERS].replace("|", "\\|").rstrip(".")


def _by_reason(results: Iterable[Result]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for result in results:
        names[_reason(result)].append(result.name)
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


def _list(by_reason: Mapping[str, list[str]]) -> str:
    lines = (f"- {reason}: {', '.join(names)}" for reason, names in by_reason.items())
    return "".join(WRAPPED.fill(line) + "\n" for line in lines)


def _largest(results: Iterable[Result]) -> str:
    kept = list(results)
    weights = max((one.weights for one in kept if one.weights is not None), default=0.0)
    outputs = max((one.output for one in kept if one.output is not None), default=0.0)
    return f"weights within {weights:.0e}, outputs within {outputs:.0e} of the largest"


def section(results: list[Result]) -> str:
    """How many there are of each verdict, and all of their names."""
    by_verdict: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_verdict[result.verdict].append(result)
    right = by_verdict["right"]
    counts = ", ".join(f"{len(found)} {verdict}" for verdict, found in sorted(by_verdict.items()))
    ways = {"interface": "by the interface", "eager": "by eager attention, dense"}
    by_way = {said: [one.name for one in right if one.how == way] for way, said in ways.items()}
    text = (
        f"transformers {transformers.__version__}, {len(results)} architectures: {counts}.\n\n"
        f"Right ({len(right)}), {_largest(right)}:\n\n{_list(by_way)}"
    )
    for verdict in ("wrong", "partly refused", "refused", "not testable"):
        if found := by_verdict[verdict]:
            text += f"\n{verdict.capitalize()} ({len(found)}):\n\n{_list(_by_reason(found))}"
    return text


def refreshed(page: str, results: list[Result]) -> str:
    """The page with its section made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + section(results) + END + after


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(), results_of(Path(sys.argv[1]))))
