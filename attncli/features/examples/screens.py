"""The first screen of `heads --examples`: rows of a head within their texts."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from rich.cells import cell_len

from attncli.features.examples.results import ExampleToken, HeadExample, HeadExamples
from attncli.records.columns import FEW, Records, few_notes
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import ends, number, quoted, words_of
from attncli.views.first_screen import FirstScreen, Notes, PageTable, Sentences, Special, TitleLine
from attncli.views.sections import Drawing, Elastic, Paragraph, ScreenParts, Section
from attncli.views.survey_findings import KEYS_OF_STATISTICS
from attncli.views.texts import fixed, half_width, shortened

DECIMALS = 2
TITLES = {"typical": "typical (nearest to the median)"}
MOST_EACH = 5
LEAST_WEIGHT = 0.1
MOST_BESIDE = 8
"""The largest number of tokens on each side of a marked token."""
LEGEND = (
    "Each line has a value, the id or line of a text, and its tokens: "
    "« » marks the query, [ ] a key with a large weight, and … omitted tokens."
)


def _on_average(report: Report, display: Display) -> Iterator[str]:
    """Yield the head's average statistic."""
    result, statistic = report.result_of(HeadExamples), plain_text(str(report.spec.get("sort")))
    mean = f"{fixed(result.mean, DECIMALS)} {half_width(result.mean, result.upper)}".rstrip()
    mean += f" (fewer than {FEW} texts)" if few_notes(result.num_texts) else ""
    yield f"{statistic} {mean}, median over rows {fixed(result.median, DECIMALS)}"


def _each_kind(report: Report, display: Display) -> ScreenParts:
    """Show some of the strongest, weakest and typical rows."""
    result = report.result_of(HeadExamples)
    most = max((example.rank for example in result.rows), default=0) + 1
    yield Elastic(partial(_examples, result, display), MOST_EACH, 1, most)


def _notes(report: Report) -> Iterator[str]:
    """Yield the legend and the notes, except the note on too few texts, which follows the interval."""
    few = few_notes(report.result_of(HeadExamples).num_texts)
    yield LEGEND
    yield report.how_to_read
    yield from (note for note in report.notes if note not in few)


def _examples(result: HeadExamples, display: Display, most: int) -> Iterator[Section]:
    """Yield up to `most` examples of each kind, and the number of remaining examples."""
    num_drawn = 0
    for kind, kind_rows in groupby(result.rows, key=_kind):
        examples = [*kind_rows][:most]
        num_drawn += len(examples)
        room = max(len(example.text) for example in examples)
        lines = []
        for example in examples:
            start = f"{fixed(example.value, DECIMALS)}  {plain_text(example.text):<{room}}  "
            lines.append(_fitting(start, example, result.tokens_of(example), display.columns))
        yield Drawing(TITLES.get(kind, plain_text(kind)), lines)
    yield Paragraph("", "dim")
    if left_out := len(result.rows) - num_drawn:
        yield Paragraph(f"Not shown: {counted(left_out, 'more example')}. See --show all.", "note")


def _kind(example: HeadExample) -> str:
    return example.kind


def _fitting(start: str, example: HeadExample, tokens: Records[ExampleToken], width: int) -> str:
    """Return a line with as many tokens around the marked tokens as will fit."""
    lines = [start + _marked(example, tokens, beside) for beside in range(MOST_BESIDE, -1, -1)]
    return next((line for line in lines if cell_len(line) <= width), shortened(lines[-1], width))


def _marked(example: HeadExample, tokens: Records[ExampleToken], beside: int) -> str:
    """Return the tokens near the query and near the keys that have large weights."""
    keys = {place for place, token in enumerate(tokens) if token.weight >= LEAST_WEIGHT} | {example.key}
    near = {place + step for place in (example.query, *keys) for step in range(-beside, beside + 1)}
    parts: list[str] = []
    for place, token in enumerate(tokens):
        text = plain_text(token.token)
        if place in keys:
            text = f"[{text} {fixed(token.weight, DECIMALS)}]"
        if place == example.query:
            text = f"«{text}»"
        if place in near:
            parts.append(text)
        elif not parts or parts[-1] != "…":
            parts.append("…")
    return " ".join(parts)


def _finding(report: Report) -> Iterator[str]:
    """Yield the head's mean, and its strongest row."""
    result, head = report.result_of(HeadExamples), plain_text(str(report.spec.get("head")))
    sort = str(report.spec.get("sort"))
    statistic = words_of(sort)
    if result.mean is None:
        yield f"No text has a token with {statistic}."
        return
    mean = f"{number(result.mean)}{ends({'lower': result.lower, 'upper': result.upper})}"
    keys = KEYS_OF_STATISTICS.get(sort)
    does = f"gives {keys} {mean} of its weight" if keys else f"has {statistic} {mean}"
    yield f"Head {head} {does} on average over {counted(result.num_texts, 'text')}."
    for row in result.rows.where(lambda row: row.kind == "strongest")[:1]:
        query, key, weight = quoted(row.query_token), quoted(row.key_token), number(row.key_weight)
        place = f"text {plain_text(row.text)} ({number(row.value)})"
        yield f"It does so most in {place}: {query} gives {key} {weight} of its weight."


EXAMPLES_SCREEN = FirstScreen(
    HeadExamples,
    (
        TitleLine(said=()),
        Sentences(_on_average, "line"),
        Special(_each_kind, "a row is a text with its tokens marked"),
        Notes(_notes),
    ),
    page_table=lambda _: PageTable("examples", ("kind", "value", "query_token", "key_token")),
    finding=_finding,
)
"""The head's average, then some of its strongest, weakest and typical rows."""
