"""The finding of a survey: the first head if heads are sorted, otherwise what most of them look at."""

from collections.abc import Iterator

import numpy as np

from attncli.core.names import FIRST_TOKEN, HEAD_PATTERNS, LAST, POSITION
from attncli.records.report import PLACES, NamedTensor, Report
from attncli.records.surveys import HeadsOfPattern, HeadSurvey
from attncli.system.plain_text import counted, plain_text
from attncli.views.findings import (
    ends,
    listed,
    named_head,
    number,
    quoted,
    some_heads,
    weights_finding,
    words_of,
)
from attncli.views.head_screens import pattern_heads
from attncli.views.matrices import head_name, tensor_unit
from attncli.views.texts import the_token

LOOKED_AT = {
    FIRST_TOKEN: "the first token",
    "previous token": "the previous token",
    "next token": "the next token",
    "current token": "the token itself",
    "adjacent patches": "the patches around each patch",
    "duplicate token": "earlier copies of the same token",
    "induction": "the token after an earlier copy of the current one (induction)",
    "special tokens": "special tokens",
    "one key for all": "one and the same token",
}
"""The keys that the heads of a pattern look at."""
KEYS_OF_STATISTICS = {HEAD_PATTERNS[pattern].statistic: words for pattern, words in LOOKED_AT.items()}
"""The keys whose weight a statistic is."""
EVENLY = "uniform"
UNITS = ("nats", "tokens", "keys", "seconds")


def survey_finding(report: Report) -> Iterator[str]:
    """Yield the head that comes first, or the most frequent and the clearest pattern."""
    survey = report.result_of(HeadSurvey)
    if survey.patterns and (report.spec.get("pattern") or not report.spec.get("sort")):
        yield from _patterns(report, survey)
    elif survey.heads and report.spec.get("sort") in survey.heads.cells:
        yield _first_head(report, survey)
    elif survey.linear:
        yield _farthest(survey)
    elif grids := {name: grid for name, grid in report.tensors.items() if grid.axes == PLACES}:
        yield from (_ends_of_grid(*each) for each in grids.items() if np.isfinite(each[1].values).any())
    else:
        yield from weights_finding(report)


def _with_unit(value: float | None, statistic: str) -> str:
    unit = tensor_unit(statistic, PLACES)
    return f"{number(value)} {unit}" if unit in UNITS else number(value)


def _first_head(report: Report, survey: HeadSurvey) -> str:
    """Return `Head 5:11 has the largest entropy of 72 heads: 1.76 nats.`"""
    head, sort = survey.heads[0], str(report.spec["sort"])
    name, value = f"Head {named_head(head)}", head.number(sort)
    if value is None:
        return plain_text(f"No head has a number for {words_of(sort)}: the text has no such tokens.")
    place = (sort, head.stack, head.layer, head.head)
    intervals = (row for row in survey.intervals if (row.statistic, row.stack, row.layer, row.head) == place)
    between = "".join(map(ends, intervals))
    total = "" if report.spec.get("top") else f" of {counted(len(survey.heads), 'head')}"
    is_least = bool(report.spec.get("ascending"))
    which = "least" if is_least else "most"
    weight = f"{number(value)}{between}"
    if sort == "from_to_weight":
        queries, keys = (listed(map(_typed, report.spec.get(key) or ())) for key in ("from", "to"))
        of_query = queries or "the average token"
        if value == 0 and not is_least:
            return f"No head gives {keys} any of the weight of {of_query}."
        return f"{name} gives {keys} {weight} of the weight of {of_query}, the {which}{total}."
    if sort in KEYS_OF_STATISTICS:
        return f"{name} gives {KEYS_OF_STATISTICS[sort]} {weight} of its weight, the {which}{total}."
    which = "smallest" if is_least else "largest"
    with_unit = f"{_with_unit(value, sort)}{between}"
    return plain_text(f"{name} has the {which} {words_of(sort)}{total}: {with_unit}.")


def _typed(name: object) -> str:
    """Return a token as the user named it: a position, or a text in quotes."""
    text = str(name)
    return plain_text(the_token(text)) if text == LAST or POSITION.fullmatch(text) else quoted(text)


def _patterns(report: Report, survey: HeadSurvey) -> Iterator[str]:
    """Yield the most frequent pattern of each stack and, for a single stack, the clearest other one."""
    known = survey.patterns.where(lambda row: row.pattern in (*LOOKED_AT, EVENLY))
    if asked := report.spec.get("pattern"):
        known = known.where(lambda row: row.pattern == asked)
    stacks_of_heads = (survey.without_first or survey.heads).column("stack").tolist()
    stacks = [*dict.fromkeys(row.stack for row in known)]
    texts = []
    for stack in stacks:
        rows = [row for row in known if row.stack == stack and (row.heads or asked)]
        label = f"{stack}: " * (len(stacks) > 1)
        if rows:
            most = max(rows, key=lambda row: row.heads or 0)
            text = _in_words(most, survey, stacks_of_heads.count(stack), with_names=not label)
            texts.append(f"{label}{text[0].lower()}{text[1:]}")
    text = plain_text("; ".join(texts))
    if not text and any(row.heads is not None for row in known):
        yield "No head looks mainly at one kind of token, such as the first or the previous one."
        return
    if not text:
        yield "No head shows a known pattern here."
        if report.pictures:
            yield from weights_finding(report)
        return
    yield f"{text[0].upper()}{text[1:]}."
    others = [
        head
        for row in known
        if row.heads and row.pattern in LOOKED_AT and row.pattern not in (FIRST_TOKEN, most.pattern)
        for head in survey.strongest_of(row.stack, row.pattern)
        if head.value is not None
    ]
    if others and len(stacks) == 1:
        head = max(others, key=lambda head: head.value or 0.0)
        looked_at = LOOKED_AT[head.pattern]
        yield f"Clearest of the others: {head_name(head)} gives {number(head.value)} to {looked_at}."


def _in_words(row: HeadsOfPattern, survey: HeadSurvey, total: int, *, with_names: bool) -> str:
    """Return `2 of 8 heads give more than 0.4 of their weight to the previous token: 0:0 and 0:1`."""
    if row.heads is None:
        return f"the text has too few tokens that could show the pattern {row.pattern}"
    who, is_one = some_heads(row.heads, total), row.heads <= 1
    verb, their = ("spreads" if row.pattern == EVENLY else "gives", "its") if is_one else ("give", "their")
    if row.pattern == EVENLY:
        text = f"{who} {verb if is_one else 'spread'} {their} weight almost evenly"
    else:
        text = f"{who} {verb} more than {row.threshold:g} of {their} weight to {LOOKED_AT[row.pattern]}"
    if not with_names or not row.heads:
        return text
    names = pattern_heads(row, survey)
    if len(names) == row.heads:
        return f"{text}: {listed(names)}"
    strongest = survey.strongest_of(row.stack, row.pattern)
    if not strongest or row.pattern == EVENLY:
        return text
    return f"{text}, most of all {head_name(strongest[0])} ({number(strongest[0].value)})"


def _farthest(survey: HeadSurvey) -> str:
    """Return a sentence on the head without a softmax that looks farthest back, and on the nearest."""
    far = survey.linear.where(lambda head: head.distance is not None).sorted(
        lambda head: -(head.distance or 0.0)
    )
    if not far:
        return f"{counted(len(survey.linear), 'head')} without a softmax."
    most, least = far[0], far[-1]
    nearest = "" if len(far) == 1 else f", {head_name(least)} the least ({number(least.distance)} tokens)"
    return f"Head {head_name(most)} looks farthest back, {number(most.distance)} tokens on average{nearest}."


def _ends_of_grid(name: str, grid: NamedTensor) -> str:
    """Return the heads with the largest and the smallest number of a grid."""
    statistic = name.removeprefix("mean of ").partition(" ")[0]
    most, least = (
        tuple(map(int, np.unravel_index(int(place), grid.values.shape)))
        for place in (np.nanargmax(grid.values), np.nanargmin(grid.values))
    )
    texts = [
        f"{layer}:{head} has the {which}: {_with_unit(float(grid.values[layer, head]), statistic)}"
        for which, (layer, head) in ((f"largest {words_of(name)}", most), ("smallest", least))
    ]
    return plain_text(f"Head {'; '.join(texts[: 1 + (most != least)])}.")
