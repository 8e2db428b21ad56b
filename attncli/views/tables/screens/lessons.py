"""The first screens of the lessons on scaling and normalisation."""

from collections.abc import Iterator, Sequence

import numpy as np

from attncli.report import Numbers, Report, Row
from attncli.views import Display
from attncli.views.curves import curves_of
from attncli.views.heading import heading
from attncli.views.numbers import fixed, scalar
from attncli.views.tables.elements import Column, Drawing, Grid, Paragraph, Section
from attncli.views.tables.screens.headlines import fitting_notes
from attncli.views.terminal.blocks import bar
from attncli.views.terminal.line_charts import LABEL_CELLS, chart, ends_of

MOST_SIZES, MOST_LOGITS = 4, 5
BARS = 4, 20  # Cells of the longest bar, where many and where few factors stand side by side.
CURVE_ROWS, CURVE_COLUMNS = 4, 60
CURVE_TITLE = "softmax of rising logits: the weight of each"
RAW = "raw scores vary by about head_dim"
POINTS = {
    "sqrt": f"{RAW}, divided by √head_dim by about 1",
    "fourth-root": f"{RAW}, with query and key scaled by about 1",
    "none": f"{RAW}, and nothing scales them",
}
# What each kind sets to mean 0 and standard deviation 1.
NORMALISED = {"batch_norm": "feature0", "layer_norm": "example0"}
BIASED = "Here std divides by n - 1, the norms by n: what they make 1 is a little more."
SENTENCES = {
    "batch_norm": "Batch norm gives each feature mean 0 and std 1 over the batch.",
    "batch_norm_eval": "In eval mode it uses the running mean and variance instead of the batch's.",
    "layer_norm": "Layer norm gives each example mean 0 and std 1 over its features.",
    "rms_norm": "RMS norm divides each example by its root mean square; its mean stays.",
}


def scale_demo_screen(report: Report, display: Display) -> Iterator[Section]:
    """The variances of each head_dim; the weights of a row by factor, as bars; the softmax curve."""
    yield Paragraph(heading(report), "title")
    yield _variances(report, display)
    sharpness = _sharpness(report, display)
    yield sharpness
    yield from _curve(report, display)
    factors = report.table("sharpness")[len(sharpness.columns) :]
    left_out = [f"{len(factors)} factors"] if factors else []
    left_out += [f"head_dim {row['head_dim']}" for row in _sizes(report)[MOST_SIZES:]]
    if len(report.tensors["logits"].values) > MOST_LOGITS:
        left_out.append(f"logits from {MOST_LOGITS} on")
    if left_out:
        yield Paragraph(f"Not shown: {', '.join(left_out)}. See --show statistics.", "note")


def _sizes(report: Report) -> Sequence[Row]:
    found = report.statistics["variance"]
    return [found] if isinstance(found, Numbers) else report.table("variance")


def _variances(report: Report, display: Display) -> Grid:
    rows = _sizes(report)[:MOST_SIZES]
    columns = [
        Column((name.replace("_", " "),), [scalar(row[name], display.precision) for row in rows])
        for name in rows[0]
        if name != "head_dim"
    ]
    label = Column(("head_dim",), [str(row["head_dim"]) for row in rows], left=True)
    return Grid(f"variance: {POINTS.get(str(report.spec.get('scale')), RAW)}", label, columns)


def _sharpness(report: Report, display: Display) -> Grid:
    """One column per factor, as many as fit: each weight as a number and a bar; the gradient's norm."""
    table, precision = report.table("sharpness"), display.precision
    logits = [fixed(logit, precision) for logit in report.tensors["logits"].values[:MOST_LOGITS]]
    label = Column(("logit",), [*logits, "gradient norm"], left=True)
    room = ((display.width or 0) - label.width) // len(table) - precision - 5
    longest = min(max(room, BARS[0]), BARS[1])
    columns = []
    for row in table:
        weights = np.array(row["softmax"], dtype=np.float64)[: len(logits)]
        cells = [f"{fixed(weight, precision)} {bar(weight, longest)}" for weight in weights]
        header = f"× {row['factor']:g}"
        columns.append(Column((header,), [*cells, fixed(row["gradient_norm"], precision)], left=True))
    title = "softmax(logits × factor) sharpens, and its gradient fades"
    return Grid(title, label, columns).first_group(display.width)


def _curve(report: Report, display: Display) -> Iterator[Section]:
    for group in curves_of(report):
        if not group.is_of_rows:
            (curve,) = group.curves
            columns = max(min((display.width or 0) - LABEL_CELLS, CURVE_COLUMNS), 10)
            lines = chart(curve, ends_of(curve.y), columns, CURVE_ROWS, display)
            yield Drawing(CURVE_TITLE, [line.text.rstrip() for line in lines])


def norm_screen(report: Report, display: Display) -> Iterator[Section]:
    """Mean and standard deviation of feature 0 and example 0, one row for the input and each kind."""
    yield Paragraph(heading(report), "title")
    kinds = [name for name in report.statistics if name in ("input", *SENTENCES)]
    columns = []
    for place, column in (("feature0", "feature 0"), ("example0", "example 0")):
        bold = frozenset(i for i, name in enumerate(kinds) if NORMALISED.get(name) == place)
        for statistic in ("mean", "std"):
            cells = [fixed(report.numbers(name)[f"{place}_{statistic}"], display.precision) for name in kinds]
            columns.append(Column((column, statistic), cells, emphasis=bold))
    label = Column(("", ""), [name.replace("_", " ") for name in kinds], left=True)
    size = f"{report.spec.get('batch_size')} examples of {report.spec.get('num_features')} features"
    yield Grid(f"mean and standard deviation before and after ({size})", label, columns)
    if report.spec.get("variance") == "biased":
        yield Paragraph(BIASED, "line")
    yield from (Paragraph(SENTENCES[name], "line") for name in kinds if name in SENTENCES)
    texts = [
        f"{name.replace('_', ' ')} {scalar(number, display.precision)}"
        for name, number in report.numbers("agreement_with_torch").items()
        if number is not None
    ]
    if texts:
        yield Paragraph(f"Largest difference from torch's own layers: {', '.join(texts)}.", "line")
    yield from fitting_notes(report, display)
