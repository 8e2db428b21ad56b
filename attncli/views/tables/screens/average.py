"""The first screen of averaging: the weights, and three ways to the same average."""

from collections.abc import Iterator

from attncli.report import Report
from attncli.views import Display
from attncli.views.numbers import NO_NUMBER, scalar
from attncli.views.tables.elements import Column, Grid, Paragraph, Section
from attncli.views.tables.screens.attention import note_lines, notes, weights
from attncli.views.tables.screens.headlines import opening

# A larger difference is none of rounding.
AGREE = 1e-4
ROOM_OF_WAYS = 2  # Lines that the ways take more than the variances of scores.
# What each way computes, and the name of its difference from the loop.
WAYS = {
    "loop": ("add up the vectors that a token sees", ""),
    "matmul": ("weights @ vectors", "loop_vs_matmul"),
    "softmax": ("softmax(0, or -inf where hidden) @ vectors", "loop_vs_softmax"),
}


def average_screen(report: Report, display: Display) -> Iterator[Section]:
    """Title, sizes, the weights, and how far each way is from the loop."""
    yield from opening(report, display)
    yield from weights(report, display)
    if agreement := report.numbers("agreement"):
        ways = Column(("way",), list(WAYS), left=True)
        differences = [
            scalar(agreement[name], display.precision) if name else NO_NUMBER for _, name in WAYS.values()
        ]
        computed = Column(("what it computes",), [formula for formula, _ in WAYS.values()], left=True)
        apart = Column(("difference from loop",), differences)
        yield Grid(f"three ways to the same {report.spec.get('aggregate')}", ways, [computed, apart])
        if not any(number is not None and number > AGREE for number in agreement.values()):
            yield Paragraph("They agree up to rounding.", "line")
    yield from notes(report.notes, display, note_lines(report) - ROOM_OF_WAYS)
