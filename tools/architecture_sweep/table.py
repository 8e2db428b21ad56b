"""Writes a sweep into docs/architectures.md: python -m tools.architecture_sweep.table results.jsonl [KIND]

KIND is `pictures`, or `writers` for models that write of pictures.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import TextWrapper

import transformers

from .result import Outcome, Result

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
BEGIN, END = "<!-- sweep: tools/architecture_sweep -->\n", "<!-- end of sweep -->\n"
MARKS = {
    "": (BEGIN, END),
    "pictures": ("<!-- pictures: tools/architecture_sweep/pictures -->\n", "<!-- end of pictures -->\n"),
    "writers": ("<!-- writers: tools/architecture_sweep/picture_writers -->\n", "<!-- end of writers -->\n"),
}
"""What stands around the section of each sweep."""
MOST_CHARACTERS = 200
EXCEPTION = re.compile(r"\w+Error: ")
WRAPPED = TextWrapper(119, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)

VERDICTS = ("right", "wrong", "partly refused", "refused", "not testable")
COMMANDS = ("generate", "ablate", "why")

NEEDS_MORE = "needs an image, sound or boxes beside the text"
REASONS = {
    "cannot run on only text": NEEDS_MORE,
    "takes pixel_values": NEEDS_MORE,
    "specify pixel_values": NEEDS_MORE,
    "'NoneType' object has no attribute": NEEDS_MORE,
    "million parameters": "has no tiny configuration",
    "requires the": "needs another package",
    "may give different results if it reads in chunks": "--prefill-chunk: may give other results",
    "cannot continue a text by transformers' generate": "transformers' own generate fails on it",
    "it is not a decoder": "no head that predicts the next token",
    "its blocks do not have one attention layer each": "blocks without attention, or with several",
    "is not its input plus the outputs": "a norm or factor after its heads or its MLP",
    "changes the outputs of its heads before W_O": "a gate or norm before W_O",
    "its logits are scaled or capped": "logits that are scaled or capped",
    " keys for ": "more keys than tokens",
    "but the texts have": "its queries or keys are not the tokens",
    "returns negative weights": "gives scores instead of weights",
    "cannot be loaded": "its own checkpoint cannot be loaded",
    "weights are missing": "its own checkpoint cannot be loaded",
}
"""What is said instead of an error that contains this."""


def results_of(path: Path) -> list[Result]:
    """The results of a file, by name."""
    lines = path.read_text().splitlines()
    return sorted(map(Result.from_json, lines), key=lambda result: result.name)


def _reason(result: Result | Outcome) -> str:
    """Why not, without the name and the command."""
    said = (result.wrong or result.refused or [result.reason])[0]
    for part, reason in REASONS.items():
        if part in said:
            return reason
    _, _, line = said.partition(": ") if result.wrong or result.refused else ("", "", said)
    line = re.sub(r"^(--)?model: (the logits of )?\S+ (cannot be shown: )?|; use another model$", "", line)
    if not result.wrong and EXCEPTION.match(line):
        return "a tiny random model of it fails"
    return line[:MOST_CHARACTERS].replace("|", "\\|").rstrip(".")


def _by_reason(results: Iterable[Result]) -> dict[str, list[str]]:
    names = _names({result.name: _reason(result) for result in results})
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


def _names(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """The names that have each reason."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        names[reason].append(name)
    return names


def _list(by_reason: Mapping[str, list[str]]) -> str:
    lines = (f"- {reason}: {', '.join(names)}" for reason, names in by_reason.items())
    return "".join(WRAPPED.fill(line) + "\n" for line in lines)


def _largest(results: Iterable[Result]) -> str:
    weights = max((result.weights for result in results if result.weights is not None), default=0.0)
    return f"weights within {weights:.0e}"


def _commands(results: list[Result]) -> str:
    """One row per command: how many architectures of each verdict."""
    lines = ["| command | " + " | ".join(VERDICTS) + " |", "| --- " * (1 + len(VERDICTS)) + "|"]
    lines.append(_row("heads", Counter(_of_heads(result) for result in results)))
    for command in COMMANDS:
        lines.append(_row(command, Counter(result.commands[command].verdict for result in results)))
    return "".join(f"{line}\n" for line in lines)


def _of_heads(result: Result) -> str:
    """The verdict without what is wrong in the other commands."""
    others = {line for outcome in result.commands.values() for line in outcome.wrong}
    return replace(result, wrong=[line for line in result.wrong if line not in others]).judged().verdict


def _row(command: str, counts: Mapping[str, int]) -> str:
    return f"| {command} | " + " | ".join(str(counts[verdict]) for verdict in VERDICTS) + " |"


def section(results: list[Result]) -> str:
    """The number of architectures of each verdict, and the names of those that are right or refused."""
    by_verdict: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_verdict[result.verdict].append(result)
    right = by_verdict["right"]
    ways = {"interface": "by the interface", "eager": "by eager attention, dense"}
    by_way = {said: [outcome.name for outcome in right if outcome.how == way] for way, said in ways.items()}
    text = (
        f"transformers {transformers.__version__}, {len(results)} architectures:\n\n{_commands(results)}\n"
        f"Right ({len(right)}), {_largest(right)}:\n\n{_list(by_way)}"
    )
    for verdict in ("wrong", "partly refused", "refused"):
        if outcomes := by_verdict[verdict]:
            text += f"\n{verdict.capitalize()} ({len(outcomes)}):\n\n{_list(_by_reason(outcomes))}"
    return text


NOT_IN_LIST = "fails on a picture alone, or on one this small"
"""A reason that says more about the tiny picture of the sweep than about the architecture."""
PICTURE_REASONS = {
    "computes its attention itself": "no attention between the patches, or none that transformers hands over",
    "no part that reads pictures alone": "reads pictures and words in one stack",
    "keys, but the texts have": "attends within windows",
    "within windows": "attends within windows",
    "mixes parts of the picture": "its first layer reads patches that overlap",
    "returns no pixels": "its image processor takes or gives something else",
    "the image processor of": "its image processor takes or gives something else",
    "do not lie in rows and columns": "attn cannot tell where its tokens lie",
    "cannot tell where tokens lie": "attn cannot tell where its tokens lie",
    "returns no weights": "eager attention returns no weights",
    "cannot read this picture": NOT_IN_LIST,
    "takes pixel_values": "reads something else beside pictures",
    "not text or pictures": "reads something else beside pictures",
    "Received a NoneType": "a tiny one has no processor",
    "has no processor": "a tiny one has no processor",
    "missing 1 required positional": "a tiny one has no processor",
    "has no attribute": "a tiny one has no processor",
    "Unexpected keyword argument": "a tiny one has no processor",
    "Missing required": "a tiny one has no processor",
    "is missing required attribute": "a tiny one has no processor",
    "Mismatch in `image` token count": "a tiny one has no processor",
    "requires the Torchvision": "needs another package",
    "num2words": "needs another package",
}
"""What a reason is called, whatever the numbers in it."""


def section_of_pictures(results: list[Result]) -> str:
    """The same for a sweep of pictures, without those that only a tiny picture fails."""
    by_verdict: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_verdict[result.verdict].append(result)
    right = by_verdict["right"]
    counts = ", ".join(f"{len(by_verdict[verdict])} {verdict}" for verdict in VERDICTS if by_verdict[verdict])
    text = (
        f"transformers {transformers.__version__}, {len(results)} architectures: {counts}.\n\n"
        f"Right ({len(right)}), {_largest(right)}:\n\n"
        + WRAPPED.fill("- " + ", ".join(outcome.name for outcome in right))
        + "\n"
    )
    for verdict in ("wrong", "refused"):
        reasons = _by_picture_reason(by_verdict[verdict])
        if listed := {reason: names for reason, names in reasons.items() if reason != NOT_IN_LIST}:
            text += f"\n{verdict.capitalize()}, with a reason:\n\n{_list(listed)}"
    return text


def _by_picture_reason(outcomes: Iterable[Result]) -> dict[str, list[str]]:
    """The names that have each reason, the most frequent reason first."""
    names = _names({outcome.name: _picture_reason(outcome) for outcome in outcomes})
    return dict(sorted(names.items(), key=lambda item: -len(item[1])))


def _picture_reason(result: Result) -> str:
    said = (result.wrong or result.refused or [result.reason])[0]
    known = (short for part, short in (PICTURE_REASONS | REASONS).items() if part in said)
    return next(known, _reason(result))


def refreshed(page: str, results: list[Result], of: str = "") -> str:
    """The page with the section of a sweep made anew."""
    begin, end = MARKS[of]
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    made = section_of_pictures(results) if of else section(results)
    return before + begin + made + end + after


if __name__ == "__main__":
    of = "".join(sys.argv[2:])
    PAGE.write_text(refreshed(PAGE.read_text(), results_of(Path(sys.argv[1])), of))
