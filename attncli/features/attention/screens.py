"""The first screen of sentence attention: the weights, and the moments of the scores."""

from collections.abc import Mapping
from functools import partial

from attncli.records.attention import LayerStatistics, ScoreMoments
from attncli.records.report import Report
from attncli.views import Display
from attncli.views.findings import weights_finding
from attncli.views.first_screen import FirstScreen, Notes, Special
from attncli.views.screens import FirstWeights, Opening, lines_for_notes
from attncli.views.sections import Column, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import fixed, scalar


def _score_moments(report: Report, display: Display) -> ScreenParts:
    """The mean and variance of the scores."""
    result = report.result_of(LayerStatistics)
    moments = {"scores": result.scores, "scaled scores": result.scaled_scores}
    single = {name: numbers for name, numbers in moments.items() if isinstance(numbers, ScoreMoments)}
    if single:
        yield Elastic(partial(_moments, single, display.precision), usual=1, rank=1)


SCORES = {"scores": "scores before scaling", "scaled scores": "scores after scaling"}


def _moments(moments: Mapping[str, ScoreMoments], precision: int, rows: int) -> list[Section]:
    """The mean and variance of the scores as a table, or on one line if there is no room for a table."""
    means = [fixed(numbers.mean, precision) for numbers in moments.values()]
    variances = [scalar(numbers.variance, precision) for numbers in moments.values()]
    if rows:
        columns = [Column(("mean",), means), Column(("variance",), variances)]
        return [Grid("", Column(("",), [SCORES[name] for name in moments], left=True), columns)]
    texts = [
        f"{name}: mean {mean}, variance {variance}"
        for name, mean, variance in zip(moments, means, variances, strict=True)
    ]
    return [Paragraph("; ".join(texts), "line")]


ATTENTION_SCREEN = FirstScreen(
    LayerStatistics,
    (
        Opening(),
        FirstWeights(has_pictures=True),
        Special(_score_moments, "a table if there is room, else a line"),
        Notes(usual=lines_for_notes),
    ),
    finding=weights_finding,
)
