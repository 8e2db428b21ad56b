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

from .oracle import WITHOUT_SINK
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

SHORT_REASONS = {
    "computes its attention itself": "eager attention alone, whose weights cannot be changed",
    "does not predict the next token": "no head that predicts the next token",
    "changes its heads before W_O": "a gate or norm before W_O",
    "does not add what its heads and its MLP": "a norm or factor after its heads or its MLP",
    "looks at later tokens": "reads text and does not write",
    "weights are missing": "its own checkpoint lacks weights",
    "cannot be loaded": "its own checkpoint cannot be loaded",
    "negative weights": "scores instead of weights",
    "its last norm": "a last norm of another kind",
    "no norm was found": "a last norm without a gain",
    "what W_U gives": "logits that are scaled or capped",
    "do not have one attention each": "blocks without attention, or with several",
    "no output projection": "no W_O that is a matrix of its own",
}
"""What a reason is called whose names are those of one architecture."""

NEEDS_MORE = "needs an image, sound or boxes beside the text"
REASONS = {
    "cannot run on only text": NEEDS_MORE,
    "takes pixel_values": NEEDS_MORE,
    "specify pixel_values": NEEDS_MORE,
    "'NoneType' object has no attribute": NEEDS_MORE,
    "million parameters": "has no tiny configuration",
    "requires the": "needs another package",
    "may read a prompt differently in pieces": "--prefill-chunk: it may read a prompt differently in pieces",
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
    kept = list(results)
    weights = max((outcome.weights for outcome in kept if outcome.weights is not None), default=0.0)
    outputs = max((outcome.output for outcome in kept if outcome.output is not None), default=0.0)
    return f"weights within {weights:.0e}, outputs within {outputs:.0e} of the largest"


def _commands(results: list[Result]) -> str:
    """One row per command: how many architectures of each verdict, and how far off the worst is."""
    lines = ["| command | " + " | ".join(VERDICTS) + " | largest difference |", "| --- " * 7 + "|"]
    counts = Counter(_of_heads(result) for result in results)
    worst = max((result.weights for result in results if result.weights is not None), default=0.0)
    lines.append(_row("heads", counts, worst))
    for command in COMMANDS:
        outcomes = [result.commands[command] for result in results]
        counts = Counter(outcome.verdict for outcome in outcomes)
        worst = max(
            (outcome.difference for outcome in outcomes if outcome.difference is not None), default=0.0
        )
        lines.append(_row(command, counts, worst))
    return "".join(f"{line}\n" for line in lines)


def _of_heads(result: Result) -> str:
    """The verdict without what is wrong in the other commands."""
    others = {line for outcome in result.commands.values() for line in outcome.wrong}
    return replace(result, wrong=[line for line in result.wrong if line not in others]).judged().verdict


def _row(command: str, counts: Mapping[str, int], worst: float) -> str:
    return f"| {command} | " + " | ".join(str(counts[verdict]) for verdict in VERDICTS) + f" | {worst:.0e} |"


def _refused(results: list[Result]) -> str:
    """Of each command why it is refused, and how often."""
    text = ""
    for command in COMMANDS:
        refused = [result for result in results if result.commands[command].refused]
        reasons = Counter(_short(result, _reason(result.commands[command])) for result in refused)
        said = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
        text += WRAPPED.fill(f"- {command}: {said}") + "\n" if said else ""
    return text


def _short(result: Result, reason: str) -> str:
    """A reason without the names and numbers of one architecture."""
    if reason == NEEDS_MORE and result.weights is not None:  # heads reads text alone
        return "an error while it runs"
    return next((short for part, short in SHORT_REASONS.items() if part in reason), reason)


def section(results: list[Result]) -> str:
    """How many there are of each verdict, and all of their names."""
    by_verdict: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_verdict[result.verdict].append(result)
    right = by_verdict["right"]
    counts = ", ".join(f"{len(outcomes)} {verdict}" for verdict, outcomes in sorted(by_verdict.items()))
    ways = {"interface": "by the interface", "eager": "by eager attention, dense"}
    by_way = {said: [outcome.name for outcome in right if outcome.how == way] for way, said in ways.items()}
    local = sum(result.local > 0 for result in results)
    text = (
        f"transformers {transformers.__version__}, {len(results)} architectures: {counts}; {local} have "
        f"layers that hide earlier tokens.\n\n{_commands(results)}\nRefused:\n\n{_refused(results)}\n"
        f"Rows that were divided by their sums before they were compared:\n\n{_list(_names(WITHOUT_SINK))}\n"
        f"Right ({len(right)}), {_largest(right)}:\n\n{_list(by_way)}"
    )
    for verdict in ("wrong", "partly refused", "refused"):
        if outcomes := by_verdict[verdict]:
            text += f"\n{verdict.capitalize()} ({len(outcomes)}):\n\n{_list(_by_reason(outcomes))}"
    return text + _not_testable(_by_reason(by_verdict["not testable"]))


def _not_testable(names: Mapping[str, list[str]]) -> str:
    """The number of architectures that no tiny model can test, by reason; empty if all can be tested."""
    reasons = "; ".join(f"{reason} ({len(of_reason)})" for reason, of_reason in names.items())
    return f"\n{WRAPPED.fill(f'Not testable: {reasons}.')}\n" if names else ""


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
    "cannot read this picture": "fails on a picture alone, or on one this small",
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
    """How many architectures of pictures there are of each verdict, and all of their names."""
    by_verdict: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_verdict[result.verdict].append(result)
    right = by_verdict["right"]
    counts = ", ".join(f"{len(by_verdict[verdict])} {verdict}" for verdict in VERDICTS if by_verdict[verdict])
    worst = max((outcome.weights for outcome in right if outcome.weights is not None), default=0.0)
    text = (
        f"transformers {transformers.__version__}, {len(results)} architectures: {counts}.\n\n"
        f"Right ({len(right)}), weights within {worst:.0e}:\n\n"
        + WRAPPED.fill("- " + ", ".join(outcome.name for outcome in right))
        + "\n"
    )
    for verdict in ("wrong", "refused"):
        if outcomes := by_verdict[verdict]:
            text += f"\n{verdict.capitalize()} ({len(outcomes)}):\n\n{_list(_by_picture_reason(outcomes))}"
    return text + _not_testable(_by_picture_reason(by_verdict["not testable"]))


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
