"""The first screens of attention and averaging: where each token looks, and what follows from it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import NamedTensor, Report
from attncli.views import Display
from attncli.views.heading import token_name
from attncli.views.labels import shortened
from attncli.views.matrices import matrices_of, tokens_of
from attncli.views.numbers import NO_NUMBER, fixed, scalar
from attncli.views.tables.elements import Column, Drawing, Grid, Paragraph, Section
from attncli.views.tables.screens.headlines import NOTE_LINES, fitting_notes, opening
from attncli.views.tables.screens.matrix_part import MOST_ROWS, PLACE_NAMES, MatrixPart
from attncli.views.terminal.heatmap_figure import draw

MAP_LINES = 12
ROOM = 11  # Lines for the rows of the weights and the notes together.
NAME_WIDTH = 16
SUM_TOLERANCE, ALIKE = 5e-3, 1e-6
SCORES = {"scores": "scores before scaling", "scaled_scores": "scores after scaling"}
LINES_OF_WAYS = 2  # More than the variances of scores take.
ROUNDING = 1e-4  # A larger difference between ways to average is a mistake.
# What each way to average computes, and the name of its difference from the loop.
WAYS = {
    "loop": ("add up the vectors that a token sees", ""),
    "matmul": ("weights @ vectors", "loop_vs_matmul"),
    "softmax": ("softmax(0, or -inf where hidden) @ vectors", "loop_vs_softmax"),
}


def attention_screen(report: Report, display: Display) -> Iterator[Section]:
    """Title, sizes, the weights of the first head, how to read a row, mean and variance of the scores."""
    yield from opening(report, display)
    yield from _weights(report, display)
    if moments := [(name, numbers) for name in SCORES if (numbers := report.numbers(name))]:
        label = Column(("",), [SCORES[name] for name, _ in moments], left=True)
        columns = [
            Column((key,), [written(numbers[key], display.precision) for _, numbers in moments])
            for key, written in (("mean", fixed), ("variance", scalar))
        ]
        yield Grid("", label, columns)
    yield from fitting_notes(report, display, _note_lines(report))


def average_screen(report: Report, display: Display) -> Iterator[Section]:
    """Title, sizes, the weights, and how far each way to average is from the loop."""
    yield from opening(report, display)
    yield from _weights(report, display)
    if agreement := report.numbers("agreement"):
        differences = [
            scalar(agreement[name], display.precision) if name else NO_NUMBER for _, name in WAYS.values()
        ]
        columns = [
            Column(("what it computes",), [formula for formula, _ in WAYS.values()], left=True),
            Column(("difference from loop",), differences),
        ]
        title = f"three ways to the same {report.spec.get('aggregate')}"
        yield Grid(title, Column(("way",), list(WAYS), left=True), columns)
        if not any(number is not None and number > ROUNDING for number in agreement.values()):
            yield Paragraph("They agree up to rounding.", "line")
    yield from fitting_notes(report, display, _note_lines(report) - LINES_OF_WAYS)


def _note_lines(report: Report) -> int:
    """The lines that the rows of the weights leave to notes; a map of blocks leaves the usual number."""
    return ROOM - min(len(report.tokens), MOST_ROWS) if "weights" in report.tensors else NOTE_LINES


def _weights(report: Report, display: Display) -> Iterator[Section]:
    """The first matrix of weights with a sentence about a row; of a long text the map of its blocks."""
    if "weights" in report.tensors:
        tensor = report.tensors["weights"]
        matrix = next(matrices_of(report, "weights", tensor))
        name = f"where each {token_name(report)} looks: weights (query × key)"
        part = MatrixPart(report, {"": matrix}, display, ", ".join([name, *_place(tensor)]))
        yield part.grid
        yield Paragraph(_how_to_read(report, part), "line")
        leading = dict(zip(tensor.axes[:-2], tensor.values.shape[:-2], strict=True))
        if left_out := ", ".join(part.left_out(leading)):
            yield Paragraph(
                f"Not shown: {left_out}. See --show weights, --format heatmap or -o page.html.", "note"
            )
    elif "pooled_mean" in report.tensors:
        tensor = report.tensors["pooled_mean"]
        first = next(matrices_of(report, "pooled_mean", tensor))
        figure = draw(report, [first], replace(display, map_lines=MAP_LINES))
        title = ", ".join(["where each block of tokens looks", *_place(tensor)])
        yield Drawing(title, [line.text.rstrip(" ") for line in figure.lines], figure.mentioned)
        yield Paragraph("See --show weights for larger maps.", "note")


def _place(tensor: NamedTensor) -> Iterator[str]:
    """`head 0 of 8`: which matrix of several is shown."""
    for axis, size in zip(tensor.axes[:-2], tensor.values.shape[:-2], strict=True):
        if size > 1:
            yield f"{PLACE_NAMES.get(axis, axis)} 0 of {size}"


def _how_to_read(report: Report, part: MatrixPart) -> str:
    """`Each row sums to 1: token 5, "street", takes most (0.20) from token 0, "the".`"""
    query, row = part.rows - 1, part.values[-1]
    key = int(part.largest[query])
    is_distribution = (np.abs(np.nansum(part.values, axis=1) - 1) < SUM_TOLERANCE).all()
    start = "Each row sums to 1: " if is_distribution else "In its row, "
    own = token_name(report)
    noun = f"context {own}" if report.context_tokens else own
    number = fixed(row[key], part.precision)
    names = _name(report, "query", query, own), _name(report, "key", key, noun)
    seen = row[row > 0]
    if len(seen) > 1 and np.ptp(seen) < ALIKE:
        return f"{start}{names[0]} takes {number} from each {noun} that it sees."
    return f"{start}{names[0]} takes most ({number}) from {names[1] if names[0] != names[1] else 'itself'}."


def _name(report: Report, axis: str, place: int, noun: str) -> str:
    """`token 5, "street",`."""
    tokens = tokens_of(report, axis)
    return f"{noun} {place}" + (f' "{shortened(plain_text(tokens[place]), NAME_WIDTH)}"' if tokens else "")
