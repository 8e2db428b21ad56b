"""The first screen of normalisation."""

from collections.abc import Collection, Iterator

import numpy as np

from attncli.features.norm.results import NormEffects
from attncli.records.report import Report
from attncli.views import Display
from attncli.views.first_screen import FirstScreen, Notes, Sentences, Special
from attncli.views.matrices import Spreads
from attncli.views.screens import NOTE_LINES, heading_lines
from attncli.views.sections import Column, Grid, Paragraph, ScreenParts
from attncli.views.texts import fixed, scalar

BIASED = "The table's std divides by n - 1, the norms by n, so the std after a norm is slightly above 1."


SENTENCES = {
    "batch_norm": "Batch norm gives each feature mean 0 and std 1 over the batch.",
    "batch_norm_eval": "In eval mode, batch norm uses running statistics instead of the batch's.",
    "layer_norm": "Layer norm gives each example mean 0 and std 1 over its features.",
    "rms_norm": "RMS norm divides each example by its root mean square; no mean is subtracted.",
}


def _norms(report: Report, display: Display) -> ScreenParts:
    """The mean and standard deviation of feature 0 and example 0, for the input and after each norm."""
    result = report.result_of(NormEffects)
    states = result.states()
    columns = []
    for column, state, numbers in (
        ("feature 0", "batch_norm", [(row.feature0_mean, row.feature0_std) for row in states.values()]),
        ("example 0", "layer_norm", [(row.example0_mean, row.example0_std) for row in states.values()]),
    ):
        bold = frozenset(i for i, name in enumerate(states) if name == state)
        for statistic, cells in zip(("mean", "std"), zip(*numbers, strict=True), strict=True):
            texts = [fixed(number, display.precision) for number in cells]
            columns.append(Column((column, statistic), texts, emphasis=bold))
    label = Column(("", ""), [name.replace("_", " ") for name in states], left=True)
    size = f"{report.spec.get('batch_size')} examples of {report.spec.get('num_features')} features"
    yield Grid(f"mean and std before and after each norm ({size})", label, columns)
    if report.spec.get("variance") == "biased":
        yield Paragraph(BIASED, "line")
    yield from (Paragraph(SENTENCES[name], "line") for name in states if name in SENTENCES)
    texts = [
        f"{name.replace('_', ' ')} {scalar(number, display.precision)}"
        for name, number in (result.agreement_with_torch or {}).items()
        if number is not None
    ]
    if texts:
        yield Paragraph(f"Largest difference from torch's own layers: {', '.join(texts)}.", "line")


def _spreads(report: Report, chosen: Collection[str]) -> Iterator[Spreads]:
    """Feature 0 over the examples, and example 0 over its features, before and after each norm."""
    every_state = report.result_of(NormEffects).states()
    states = {name: row for name, row in every_state.items() if name in chosen}
    if not states:
        return
    names, rows = [name.replace("_", " ") for name in states], states.values()
    for title, numbers in (
        ("feature 0 over the examples", [(row.feature0_mean, row.feature0_std) for row in rows]),
        ("example 0 over its features", [(row.example0_mean, row.example0_std) for row in rows]),
    ):
        means, deviations = np.array(numbers, dtype=np.float64).T
        yield Spreads(title, names, means, deviations)


MOMENTS = {"batch_norm": "feature 0", "layer_norm": "example 0"}
"""The numbers whose mean and standard deviation a norm sets to 0 and 1."""


def _finding(report: Report) -> Iterator[str]:
    """Yield the mean and standard deviation before and after batch and layer norm."""
    result = report.result_of(NormEffects)
    states, precision = result.states(), Display().screen_precision
    texts = []
    for name, what in MOMENTS.items():
        if name in states:
            mean, std = (f"{what.replace(' ', '')}_{moment}" for moment in ("mean", "std"))
            before, after = (
                f"mean {fixed(row.number(mean), precision)}, std {fixed(row.number(std), precision)}"
                for row in (result.input, states[name])
            )
            texts.append(f"{name.replace('_', ' ')} takes {what} from {before} to {after}")
    text = "; ".join(texts)
    yield f"{text[0].upper()}{text[1:]}." if text else ""
    if "rms_norm" in states:
        mean = fixed(states["rms_norm"].example0_mean, precision)
        yield f"RMS norm leaves example 0 a mean of {mean}."


NORM_SCREEN = FirstScreen(
    NormEffects,
    (
        Sentences(heading_lines, "title"),
        Special(_norms, "the mean and std that a norm sets to 0 and 1 are bold"),
        Notes(usual=NOTE_LINES),
    ),
    figures=_spreads,
    finding=_finding,
)
