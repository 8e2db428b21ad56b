"""The first screen of averages."""

from collections.abc import Iterator

from attncli.features.average.results import AverageStatistics
from attncli.records.attention import LoopDifferences
from attncli.records.report import Report
from attncli.views import Display
from attncli.views.findings import listed, number, weights_finding
from attncli.views.first_screen import FirstScreen, Notes, Special
from attncli.views.screens import FirstWeights, Opening, lines_for_notes
from attncli.views.sections import Column, Elastic, Grid, Paragraph, ScreenParts
from attncli.views.texts import NO_NUMBER, scalar

EXTRA_TABLE_LINES = 2  # The table of ways has more lines than the table of score moments.


ROUNDING = 1e-4  # A larger difference between two ways to average is a mistake.


# The formula of each way to average.
WAYS = {
    "loop": "add up the vectors that a token sees",
    "matmul": "weights @ vectors",
    "softmax": "softmax(0, or -inf where hidden) @ vectors",
}


def _ways_to_average(report: Report, display: Display) -> ScreenParts:
    """A table of the ways to average: each formula, and its difference from the loop."""
    if isinstance(agreement := report.result_of(AverageStatistics).agreement, LoopDifferences):
        differences = [agreement.loop_vs_matmul, agreement.loop_vs_softmax]
        cells = [NO_NUMBER, *(scalar(number, display.precision) for number in differences)]
        columns = [
            Column(("computation",), list(WAYS.values()), left=True),
            Column(("difference from loop",), cells),
        ]
        title = f"three ways to compute the same {report.spec.get('aggregate')}"
        yield Grid(title, Column(("way",), list(WAYS), left=True), columns)
        if not any(number is not None and number > ROUNDING for number in differences):
            agree = Paragraph("The three ways agree up to rounding.", "line")
            yield Elastic(lambda rows: [agree] * rows, usual=1, rank=1)


def _finding(report: Report) -> Iterator[str]:
    """Yield the weights, and the largest difference between the ways to average."""
    yield from weights_finding(report)
    agreement = report.result_of(AverageStatistics).agreement
    for row in [agreement] if isinstance(agreement, LoopDifferences) else agreement or ():
        ways = [name for name in ("matmul", "softmax") if row.number(f"loop_vs_{name}") is not None]
        difference = max((row.number(f"loop_vs_{name}") or 0.0 for name in ways), default=0.0)
        agree = "agree up to rounding" if difference <= ROUNDING else f"differ by up to {number(difference)}"
        yield f"The ways to compute it ({listed(['loop', *ways])}) {agree}."
        return


AVERAGE_SCREEN = FirstScreen(
    AverageStatistics,
    (
        Opening(),
        FirstWeights(),
        Special(_ways_to_average, "one row per way; the result has no such table"),
        Notes(usual=lambda report: lines_for_notes(report) - EXTRA_TABLE_LINES),
    ),
    finding=_finding,
)
