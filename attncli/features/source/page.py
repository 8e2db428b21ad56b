"""The blocks of the page about an answer: its tokens beside its sources, and the text in each way to read."""

from importlib.resources import files

from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def _answer_data(report: Report) -> dict[str, object] | None:
    return {} if "source_weights" in report.tensors else None


def _ways_data(report: Report) -> dict[str, object] | None:
    return {} if "way_relevance" in report.tensors or report.picture_maps is not None else None


ANSWER = PageBlock(
    name="answer",
    label="The answer and its sources",
    folder=files(__package__),
    script="answer.js",
    style="answer.css",
    data=_answer_data,
    is_above=True,
)
WAYS = PageBlock(
    name="ways",
    label="The answer and its sources",
    folder=files(__package__),
    script="ways.js",
    style="ways.css",
    data=_ways_data,
    is_above=True,
    replaces=("picture_maps",),
)
