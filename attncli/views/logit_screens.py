"""The first screens of `why`: a logit as a sum, and the score of a head as one."""

from functools import partial

import numpy as np

from attncli.plain_text import counted, plain_text
from attncli.records.columns import Records
from attncli.records.logits import LogitAttribution, ScoreOfPart, ScoreParts, WritingHead
from attncli.report import Report
from attncli.views import Display
from attncli.views.model_screens import (
    LEAST_ROWS,
    head_names,
    looked_at_columns,
    patterns_on_average,
)
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    TableLabels,
    model_name,
    notes_in,
    one_line,
    text_line,
    title_line,
)
from attncli.views.texts import fixed, weight_text

MOST_EFFECTS, MOST_KEYS, FEWEST_KEYS = 6, 4, 2


def logit_screen(report: Report, display: Display) -> ScreenParts:
    """The sum; the heads and the MLPs that add most; the tokens whose values a head moved."""
    result, precision = report.result_of(LogitAttribution), display.precision
    parts = result.parts
    yield title_line(report, display)
    yield text_line(report, display)
    yield Paragraph(plain_text(report.how_to_read), "note")
    terms = {"embedding": parts.embedding, "heads": parts.heads, "MLPs": parts.mlps, "biases": parts.biases}
    sum_of_parts = " + ".join(f"{term} {fixed(number, precision)}" for term, number in terms.items())
    yield Paragraph(f"logit {fixed(parts.logit, precision)} = {sum_of_parts}", "")
    yield Elastic(
        lambda count: [_heads_and_mlps(result, display, count)], MOST_EFFECTS, LEAST_ROWS, len(result.heads)
    )
    labels = TableLabels(report, display)
    title = f"head {report.spec.get('head')}, by the tokens that it looked at"
    yield Elastic(
        lambda count: [_keys(title, result, labels, precision, count)],
        MOST_KEYS,
        FEWEST_KEYS,
        len(result.keys),
    )
    yield notes_in(report.notes, display, apart=True)


def _heads_and_mlps(result: LogitAttribution, display: Display, count: int) -> Grid:
    """The heads that add most, up or down, and beside them the MLPs."""
    precision, heads = display.precision, result.heads[:count]
    layers = result.layers.sorted(lambda layer: -abs(layer.mlp))[: len(heads)]
    mlps = [(f"MLP {layer.layer}", fixed(layer.mlp, precision)) for layer in layers]
    mlps += [("", "")] * (len(heads) - len(mlps))
    columns = [
        patterns_on_average(heads),
        *looked_at_columns(heads, display),
        Column(("", "adds"), [fixed(head.contribution, precision) for head in heads]),
        Column(("", ""), [f"  {name}" for name, _ in mlps], left=True),
        Column(("", "adds"), [number for _, number in mlps]),
    ]
    return Grid(f"the {counted(len(heads), 'head')} and the MLPs that add most", head_names(heads), columns)


def _keys(title: str, result: LogitAttribution, labels: TableLabels, precision: int, count: int) -> Grid:
    """The tokens whose values the head moved most, by what that adds."""
    places = np.argsort(-np.abs(result.keys.column("contribution")), kind="stable")[:count].tolist()
    keys = result.keys.taken(places)
    columns = [
        Column(("", "weight"), [fixed(key.weight, precision) for key in keys]),
        Column(("", "adds"), [fixed(key.contribution, precision) for key in keys]),
    ]
    tokens = [labels.place("key", place) for place in places]
    return Grid(title, Column(("", "token"), tokens, left=True), columns)


MOST_WROTE, MOST_PAIRS = 6, 3
BOUNDS = (1e-6, 1e-5, 1e-4)  # the digits below differ from machine to machine


def score_screen(report: Report, display: Display) -> ScreenParts:
    """Where the head looks and how much; what wrote the key and the query, and the weight without each."""
    result, precision = report.result_of(ScoreParts), display.precision
    labels = TableLabels(report, display)
    yield one_line(f"why: {model_name(report)}, head {report.spec.get('head')}", display, "title")
    yield text_line(report, display)
    yield Paragraph(_looks(result, labels, precision), "line")
    sides = {side: result.side(side) for side in ("key", "query")}
    num_parts = min(map(len, sides.values()))
    yield Elastic(
        lambda count: [_side_tables(result, sides, precision, count)], MOST_WROTE, LEAST_ROWS, num_parts
    )
    pairs = [
        f"{pair.query_part} × {pair.key_part} {fixed(pair.score, precision)}"
        for pair in result.strongest_pairs[:MOST_PAIRS]
    ]
    yield Paragraph(plain_text(f"pairs, query × key: {', '.join(pairs)}"), "line")
    if result.writers:
        writers = dict.fromkeys(map(partial(_looked_at, labels, precision), result.writers))
        yield Paragraph(f"where these heads looked: {', '.join(writers)}", "line")
    missing = result.missing
    bound = next((bound for bound in BOUNDS if missing < bound), missing)
    misses = f"The sum misses the score by less than {bound:.0e} of the largest part."
    yield notes_in([report.how_to_read, misses, *report.notes], display, apart=True)


def _looks(result: ScoreParts, labels: TableLabels, precision: int) -> str:
    """`from 11 it to 1 cat: weight 0.9, score 3.2, 2.1 above an average key`, and what is more."""
    query, key = labels.place("query", result.query), labels.place("key", result.key)
    weight, above = weight_text(result.weight, precision), fixed(result.above_mean, precision)
    total = fixed(result.score, precision)
    line = f"from {query} to {key}: weight {weight}, score {total}, {above} above an average key"
    if result.position:
        line += f"; positions add {fixed(result.position, precision)}"
    weights = result.keys.column("weight")
    if (most := int(weights.argmax())) != result.key:
        line += f"; most goes to {labels.place('key', most)}, {weight_text(weights[most], precision)}"
    return line


def _side_tables(
    result: ScoreParts, sides: dict[str, Records[ScoreOfPart]], precision: int, count: int
) -> Grid:
    """The parts that count most on the side of the key, and beside them those of the query."""
    count = min(count, *map(len, sides.values()))
    weight = weight_text(result.weight, precision)
    columns: list[Column] = []
    for side, parts in sides.items():
        first, gap = parts[:count], "  " * (side == "query")
        columns += [
            Column(
                (f"{gap}{side} side", "wrote"), [plain_text(f"{gap}{part.part}") for part in first], left=True
            ),
            Column(("", "adds"), [fixed(part.score, precision) for part in first]),
            Column(
                ("weight", f"{weight} ->"), [weight_text(part.weight_without, precision) for part in first]
            ),
        ]
    return Grid(f"the first {count} parts on each side, largest first", columns[0], columns[1:])


def _looked_at(labels: TableLabels, precision: int, writer: WritingHead) -> str:
    """`16:0 at 20 ·x 0.91`: a head, and what it looked at most where it wrote."""
    return f"{writer.name} at {labels.place('key', writer.key)} {weight_text(writer.weight, precision)}"
