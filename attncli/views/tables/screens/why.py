"""What each head adds to a logit: the parts, the heads that add most, and one of them token by token."""

from collections.abc import Iterator

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views import Display
from attncli.views.labels import shortened
from attncli.views.numbers import fixed
from attncli.views.tables.elements import Column, Grid, Paragraph, Section
from attncli.views.tables.labels import TableLabels
from attncli.views.tables.screens.heads.screen import text_line

MOST_HEADS, MOST_KEYS = 6, 4
PARTS = {"embedding": "embedding", "heads": "heads", "mlps": "MLPs", "biases": "biases"}


def why_screen(report: Report, display: Display) -> Iterator[Section]:
    """The sum; the heads and the MLPs that add most; the tokens whose values a head moved."""
    width, labels = display.width or 0, TableLabels(report, display)
    parts, precision = report.numbers("parts"), display.precision
    yield Paragraph(shortened(f"why: {plain_text(report.notes[0])}", width), "title")
    yield Paragraph(text_line(report, width), "")
    what, *notes = map(plain_text, report.notes[1:])
    yield Paragraph(what, "note")
    terms = " + ".join(f"{told} {fixed(parts[name], precision)}" for name, told in PARTS.items())
    yield Paragraph(f"logit {fixed(parts['logit'], precision)} = {terms}", "")
    yield _heads(report, precision)
    yield _keys(report, labels, precision)
    yield Paragraph("", "dim")
    yield from (Paragraph(note, "note") for note in notes)


def _heads(report: Report, precision: int) -> Grid:
    """The heads that add most, up or down, and beside them the MLPs."""
    heads = report.table("heads")[:MOST_HEADS]
    layers = sorted(report.table("layers"), key=lambda row: -abs(float(str(row["mlp"]))))[: len(heads)]
    mlps = [(f"MLP {row['layer']}", fixed(row["mlp"], precision)) for row in layers]
    mlps += [("", "")] * (len(heads) - len(mlps))
    columns = [
        Column(("", "looks at"), [plain_text(str(row["pattern"])) for row in heads], left=True),
        Column(("", "adds"), [fixed(row["contribution"], precision) for row in heads]),
        Column(("", ""), [f"  {name}" for name, _ in mlps], left=True),
        Column(("", "adds"), [number for _, number in mlps]),
    ]
    title = f"the first {len(heads)} heads and MLPs, largest first"
    return Grid(title, Column(("", "head"), [f"{row['layer']}:{row['head']}" for row in heads]), columns)


def _keys(report: Report, labels: TableLabels, precision: int) -> Grid:
    """The tokens whose values the head moved most, by what that adds."""
    of_keys = report.tensors_of("keys")
    added, weights = of_keys["contribution"].values, of_keys["weight"].values
    places = np.argsort(-np.abs(added), kind="stable")[:MOST_KEYS].tolist()
    columns = [
        Column(("", "weight"), [fixed(float(weights[place]), precision) for place in places]),
        Column(("", "adds"), [fixed(float(added[place]), precision) for place in places]),
    ]
    tokens = [labels.place("key", place) for place in places]
    title = f"head {report.spec['head']}, by the tokens that it looked at"
    return Grid(title, Column(("", "token"), tokens, left=True), columns)
