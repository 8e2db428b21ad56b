"""The first screens of `attn why`: a logit, or a head's score, as a sum."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attncli.features.why.results import (
    LINEAR,
    HeadLogit,
    LogitAttribution,
    ScoreOfPart,
    ScoreParts,
    WritingHead,
    explained_logit,
)
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import number, quoted, signed, token_at
from attncli.views.first_screen import (
    FirstScreen,
    HalfWidthCells,
    HeadLabel,
    HowToRead,
    LookedAtCells,
    NamingLine,
    Notes,
    NumberCells,
    PageTable,
    PatternCells,
    Ranked,
    ReadLine,
    Sentences,
    Special,
    SpecialCells,
    TitleLine,
)
from attncli.views.report_sections import TableLabels, model_name
from attncli.views.sections import LEAST_ROWS, Column, Elastic, Grid, ScreenParts, Section
from attncli.views.texts import fixed, weight_text

MOST_EFFECTS, MOST_KEYS, FEWEST_KEYS = 6, 4, 2


def _sum(report: Report, display: Display) -> Iterator[str]:
    """Yield the line `logit 9.1 = embedding 1.2 + heads 3.4 + ...`."""
    parts = report.result_of(LogitAttribution).parts
    terms = {"embedding": parts.embedding, "heads": parts.heads, "MLPs": parts.mlps, "biases": parts.biases}
    sum_of_parts = " + ".join(f"{term} {fixed(number, display.precision)}" for term, number in terms.items())
    yield f"logit {fixed(parts.logit, display.precision)} = {sum_of_parts}"


def _mlps(report: Report, rows: Records[HeadLogit], display: Display) -> list[Column]:
    """Return columns with the MLPs that add the most; each row shows one head and one MLP."""
    layers = report.result_of(LogitAttribution).layers.sorted(lambda layer: -abs(layer.mlp))[: len(rows)]
    missing = len(rows) - len(layers)
    names = [f"  MLP {layer.layer}" for layer in layers]
    numbers = [fixed(layer.mlp, display.precision) for layer in layers]
    columns = [Column(("", ""), names + [""] * missing, left=True)]
    columns += [Column(("", "adds"), numbers + [""] * missing)]
    for column in HalfWidthCells("mlp", "mlp_high").columns(report, layers, display):
        columns.append(replace(column, cells=[*column.cells, *[""] * missing]))
    return columns


def _share_above(report: Report, display: Display) -> Iterator[str]:
    """Yield the share of texts on which the logit of the answer is above that of the other token."""
    parts = report.result_of(LogitAttribution).parts
    if "above" in parts:
        ends = (parts.number(name) for name in ("above", "above_low", "above_high"))
        share, low, high = (fixed(end, display.precision) for end in ends)
        yield f"above the other token on {share} of the texts ({low} to {high})"


def _keys(report: Report, display: Display) -> ScreenParts:
    """Yield the tokens through which the head contributes the most."""
    keys, labels = report.result_of(LogitAttribution).keys, TableLabels(report, display)
    if keys is None:
        return
    places = np.argsort(-np.abs(keys.column("contribution")), kind="stable").tolist()
    title = f"head {report.spec.get('head')}, by the tokens that it looked at"

    def grid(count: int) -> list[Section]:
        rows = keys.taken(places[:count])
        columns = [Column(("", "weight"), [fixed(key.weight, display.precision) for key in rows])]
        columns += [Column(("", "adds"), [fixed(key.contribution, display.precision) for key in rows])]
        tokens = [labels.place("key", place) for place in places[:count]]
        return [Grid(title, Column(("", "token"), tokens, left=True), columns)]

    yield Elastic(grid, MOST_KEYS, FEWEST_KEYS, len(keys))


def _steps(report: Report, steps: tuple[str, ...]) -> tuple[str, ...]:
    """Return the next steps; a head without a softmax has no score to split."""
    heads = report.result_of(LogitAttribution).heads
    is_linear = any(row.name == report.spec.get("head") and row.get("kind") == LINEAR for row in heads)
    return tuple(step for step in steps if not (is_linear and step.startswith("--head")))


def _finding(report: Report) -> Iterator[str]:
    """Yield the sum, and the head that changes the logit most."""
    result = report.result_of(LogitAttribution)
    parts, what = result.parts, explained_logit(report.how_to_read) or "the logit"
    terms = {
        "the heads add": parts.heads,
        "the MLPs": parts.mlps,
        "the embedding": parts.embedding,
        "biases": parts.biases,
    }
    added = ", ".join(f"{term} {number(value)}" for term, value in terms.items())
    yield plain_text(f"{what[0].upper()}{what[1:]} is {number(parts.logit)}: {added}.")
    first = max(result.heads, key=lambda head: abs(head.contribution or 0.0), default=None)
    if first is not None and float(number(first.contribution or 0.0)):
        token, key, weight = (first.get(name) for name in ("key_token", "key", "key_weight"))
        looks = ""
        if isinstance(token, str) and isinstance(key, int) and isinstance(weight, float):
            name = token_at(report, "key", key) if report.tokens else quoted(token)
            looks = f", giving {name} {number(weight)} of its weight"
        adds = "adds most" if (first.contribution or 0.0) > 0 else "lowers it most"
        yield f"Head {plain_text(first.name)} {adds}: {signed(first.contribution)}{looks}."


LOGIT_COLUMNS = (
    PatternCells(),
    LookedAtCells(),
    NumberCells("contribution", "adds"),
    HalfWidthCells("contribution", "contribution_high"),
    SpecialCells(_mlps),
)
LOGIT_SCREEN = FirstScreen(
    LogitAttribution,
    (
        TitleLine(),
        ReadLine(),
        HowToRead(),
        Sentences(_sum),
        Sentences(_share_above),
        Ranked(
            "heads",
            LOGIT_COLUMNS,
            title=lambda _, rows, __: (
                f"the {counted(len(rows), 'head')} and the MLPs with the largest contributions"
            ),
            label=HeadLabel(has_stacks=False),
            usual=MOST_EFFECTS,
        ),
        Special(_keys, "the order of the rows is that of the tokens", settings={"head": object}),
        Notes(apart=True),
    ),
    next_steps=_steps,
    finding=_finding,
)
"""The sum; the heads and the MLPs with the largest contributions; one head, by token."""


MOST_WROTE, MOST_PAIRS = 6, 3
BOUNDS = (1e-6, 1e-5, 1e-4)  # smaller digits differ between machines


def _score_title(report: Report) -> str:
    return f"why: {model_name(report)}, head {report.spec.get('head')}"


def _sides(report: Report, display: Display) -> ScreenParts:
    """Yield the largest parts of the key, with those of the query next to them."""
    result = report.result_of(ScoreParts)
    sides = {side: result.side(side) for side in ("key", "query")}
    num_parts = min(map(len, sides.values()))
    yield Elastic(
        lambda count: [_side_tables(result, sides, display.precision, count)],
        MOST_WROTE,
        LEAST_ROWS,
        num_parts,
    )


def _pairs_and_writers(report: Report, display: Display) -> Iterator[str]:
    result, precision = report.result_of(ScoreParts), display.precision
    pairs = [
        f"{pair.query_part} × {pair.key_part} {fixed(pair.score, precision)}"
        for pair in result.strongest_pairs[:MOST_PAIRS]
    ]
    yield plain_text(f"pairs, query × key: {', '.join(pairs)}")
    if result.writers:
        labels = TableLabels(report, display)
        writers = dict.fromkeys(map(partial(_looked_at, labels, precision), result.writers))
        yield f"where these heads looked: {', '.join(writers)}"


def _score_notes(report: Report) -> Iterator[str]:
    missing = report.result_of(ScoreParts).missing
    bound = next((bound for bound in BOUNDS if missing < bound), missing)
    yield report.how_to_read
    yield f"The sum differs from the score by less than {bound:.0e} of the largest part."
    yield from report.notes


def _looks(report: Report, display: Display) -> Iterator[str]:
    """Yield the line `from 11 it to 1 cat: weight 0.9, score 3.2, 2.1 above an average key`."""
    result, precision, labels = report.result_of(ScoreParts), display.precision, TableLabels(report, display)
    query, key = labels.place("query", result.query), labels.place("key", result.key)
    weight, above = weight_text(result.weight, precision), fixed(result.above_mean, precision)
    total = fixed(result.score, precision)
    line = f"from {query} to {key}: weight {weight}, score {total}, {above} above an average key"
    if result.position:
        line += f"; positions add {fixed(result.position, precision)}"
    weights = result.keys.column("weight")
    if (most := int(weights.argmax())) != result.key:
        line += f"; most goes to {labels.place('key', most)}, {weight_text(weights[most], precision)}"
    yield line


def _side_tables(
    result: ScoreParts, sides: dict[str, Records[ScoreOfPart]], precision: int, count: int
) -> Grid:
    count = min(count, *map(len, sides.values()))
    weight = weight_text(result.weight, precision)
    columns: list[Column] = []
    for side, parts in sides.items():
        first, gap = parts[:count], "  " * (side == "query")
        columns += [
            Column(
                (f"{gap}{side} side", "part"), [plain_text(f"{gap}{part.part}") for part in first], left=True
            ),
            Column(("", "adds"), [fixed(part.score, precision) for part in first]),
            Column(
                ("weight", f"{weight} ->"), [weight_text(part.weight_without, precision) for part in first]
            ),
        ]
    return Grid(f"the first {count} parts on each side, largest first", columns[0], columns[1:])


def _looked_at(labels: TableLabels, precision: int, writer: WritingHead) -> str:
    """Return a head, its strongest key where it wrote, and the weight, as `16:0 at 20 ·x 0.91`."""
    return f"{writer.name} at {labels.place('key', writer.key)} {weight_text(writer.weight, precision)}"


def _score_finding(report: Report) -> Iterator[str]:
    """Yield the weight, and the weight without the part of each side that adds the most."""
    result = report.result_of(ScoreParts)
    tokens = {axis: token_at(report, axis, at) for axis, at in (("query", result.query), ("key", result.key))}
    key = "itself" if result.query == result.key else tokens["key"]
    head = plain_text(str(report.spec.get("head")))
    yield f"Head {head} gives {key} {number(result.weight)} of the weight of {tokens['query']}."
    texts = []
    for side in ("key", "query"):
        part = max(result.side(side), key=lambda part: part.score, default=None)
        if part is not None and part.score > 0:
            name = f"the {part.part}" if part.part in ("embedding", "biases") else plain_text(part.part)
            where = "every key" if side == "key" else tokens["query"]
            texts.append(f"without what {name} wrote at {where}, {number(part.weight_without)}")
    if texts:
        first, *others = texts
        yield ", and ".join([f"W{first[1:].replace(', ', ', the weight would be ', 1)}", *others]) + "."


SCORE_SCREEN = FirstScreen(
    ScoreParts,
    (
        NamingLine(_score_title, settings={"head": object}, said=("about",)),
        ReadLine(),
        Sentences(_looks, "line"),
        Special(_sides, "the parts of the key and of the query stand side by side"),
        Sentences(_pairs_and_writers, "line"),
        Notes(_score_notes, apart=True, said=("how_to_read",)),
    ),
    page_table=lambda _: PageTable("pairs", ("query_part", "key_part", "score")),
    finding=_score_finding,
)
"""The weight and the score; the parts that wrote the key and the query, and the weight without each part."""
