"""The first screen of normalisation: one feature and one example, before and after."""

from collections.abc import Iterator

from attncli.report import Report
from attncli.views import Display
from attncli.views.heading import heading
from attncli.views.numbers import fixed, scalar
from attncli.views.tables.elements import Column, Grid, Paragraph, Section
from attncli.views.tables.screens.headlines import fitting_notes

# What each kind sets to mean 0 and standard deviation 1.
NORMALISED = {"batch_norm": "feature0", "layer_norm": "example0"}
BIASED = "Here std divides by n - 1, the norms by n: what they make 1 is a little more."
SENTENCES = {
    "batch_norm": "Batch norm gives each feature mean 0 and std 1 over the batch.",
    "batch_norm_eval": "In eval mode it uses the running mean and variance instead of the batch's.",
    "layer_norm": "Layer norm gives each example mean 0 and std 1 over its features.",
    "rms_norm": "RMS norm divides each example by its root mean square; its mean stays.",
}


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
