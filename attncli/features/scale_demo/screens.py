"""The first screen of scaling: the variances, the weights by factor as bars, and the softmax curve."""

from collections.abc import Collection, Iterator
from functools import partial

import numpy as np

from attncli.features.scale_demo.results import ScaleEffects, ScoreVariances
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.views import Display
from attncli.views.findings import number
from attncli.views.first_screen import FirstScreen, PageTable, Sentences, Special
from attncli.views.matrices import Curve, Curves, report_curves
from attncli.views.screens import LEAST_ROWS, heading_lines
from attncli.views.sections import Column, Drawing, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.terminal import LABEL_CELLS, axis_range, chart
from attncli.views.texts import bar, fixed, scalar

MOST_SIZES, MOST_LOGITS = 4, 5


BARS = 4, 20  # The number of cells of the longest bar, with many and with few factors side by side.


CURVE_ROWS, MOST_CURVE_ROWS, CURVE_COLUMNS = 4, 11, 60


CURVE_TITLE = "softmax of rising logits: weight by logit"


RAW = "about head_dim for raw scores"


POINTS = {
    "sqrt": f"{RAW}, about 1 after dividing by √head_dim",
    "fourth-root": f"{RAW}, about 1 after scaling query and key",
    "none": f"{RAW}, which are not scaled",
}


def _scaling(report: Report, display: Display) -> ScreenParts:
    """The variances for each head_dim, a row's weights by factor as bars, and the softmax curve."""
    result = report.result_of(ScaleEffects)
    yield _variances(result.variance[:MOST_SIZES], str(report.spec.get("scale")), display)
    sharpness = _sharpness(result, display)
    yield sharpness
    yield from _curve(report, display)
    factors = result.sharpness[len(sharpness.columns) :]
    left_out = [f"{len(factors)} factors"] if factors else []
    left_out += [f"head_dim {row.head_dim}" for row in result.variance[MOST_SIZES:]]
    if len(result.logits.values) > MOST_LOGITS:
        left_out.append(f"logits from {MOST_LOGITS} on")
    if left_out:
        yield Paragraph(f"Not shown: {', '.join(left_out)}. See --show statistics.", "note")


def _variances(rows: Records[ScoreVariances], scale: str, display: Display) -> Grid:
    columns = [
        Column((name.replace("_", " "),), [scalar(row[name], display.precision) for row in rows])
        for name in rows[0]
    ]
    label = Column(("head_dim",), [str(row.head_dim) for row in rows], left=True)
    return Grid(f"variance: {POINTS.get(scale, RAW)}", label, columns[1:])


def _sharpness(result: ScaleEffects, display: Display) -> Grid:
    """One column per factor, as many as fit: weights as numbers and bars, then the gradient norm."""
    table, precision = result.sharpness, display.precision
    logits = [fixed(logit, precision) for logit in result.logits.values[:MOST_LOGITS]]
    label = Column(("logit",), [*logits, "gradient norm"], left=True)
    room = (display.columns - label.width) // len(table) - precision - 5
    longest = min(max(room, BARS[0]), BARS[1])
    columns = []
    for row in table:
        weights = np.array(row.softmax, dtype=np.float64)[: len(logits)]
        cells = [f"{fixed(weight, precision)} {bar(weight, longest)}" for weight in weights]
        header = f"× {row.factor:g}"
        columns.append(Column((header,), [*cells, fixed(row.gradient_norm, precision)], left=True))
    title = "softmax(logits × factor) sharpens as the factor grows, and its gradient fades"
    return Grid(title, label, columns).first_group(display.width)


def _curve(report: Report, display: Display) -> Iterator[Elastic]:
    columns = min(display.columns - LABEL_CELLS, CURVE_COLUMNS)
    for group in report_curves(report):
        if not group.is_of_rows:
            yield Elastic(
                partial(_chart, group.curves[0], columns, display), CURVE_ROWS, most=MOST_CURVE_ROWS
            )


def _chart(curve: Curve, columns: int, display: Display, rows: int) -> Iterator[Section]:
    if rows < LEAST_ROWS:
        yield Paragraph("Not shown: the softmax curve. See --format heatmap.", "note")
        return
    lines = chart(curve, axis_range(curve.y), columns, rows, display)
    yield Drawing(CURVE_TITLE, [line.text.rstrip() for line in lines])


def _gradient_norms(report: Report, names: Collection[str]) -> Iterator[Curves]:
    """The gradient norm of the softmax, by factor."""
    if "sharpness" in names:
        sharpness = report.result_of(ScaleEffects).sharpness
        factors, norms = sharpness.column("factor"), sharpness.column("gradient_norm")
        curve = Curve("", factors, norms)
        yield Curves("gradient norm by factor", "factor", [curve], True, "gradient_norm", "gradient norm")


def _finding(report: Report) -> Iterator[str]:
    """Yield the variances of the scores, and the largest weight with the smallest and the largest factor."""
    result = report.result_of(ScaleEffects)
    first, last = result.variance[0], result.variance[-1]
    if first.get("raw_scores") is not None and first.get("scaled_scores") is not None:
        sizes = " to ".join(dict.fromkeys(str(row.head_dim) for row in (first, last)))
        raw, scaled = (
            " to ".join(dict.fromkeys(number(row.number(name)) for row in (first, last)))
            for name in ("raw_scores", "scaled_scores")
        )
        yield f"With head_dim {sizes}, the variance of scores is {raw} before scaling, {scaled} after."
    least, most = (choose(result.sharpness, key=lambda row: row.factor) for choose in (min, max))
    if most.get("max_weight") is not None and most.factor > least.factor:
        weights, gradients = (
            f"{number(least.number(name))} to {number(most.number(name))}"
            for name in ("max_weight", "gradient_norm")
        )
        factors = f"× {most.factor:g} instead of × {least.factor:g}"
        yield f"Logits {factors} take the largest weight from {weights} and the gradient from {gradients}."


SCALE_SCREEN = FirstScreen(
    ScaleEffects,
    (Sentences(heading_lines, "title"), Special(_scaling, "numbers have bars, softmax a curve")),
    figures=_gradient_norms,
    page_table=lambda _: PageTable("variance", ("head_dim", "raw_scores", "scaled_scores")),
    finding=_finding,
    main=("sharpness",),
)
