"""The block of the page that shows an answer's tokens next to their sources."""

from importlib.resources import files

from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def _answer_data(report: Report) -> dict[str, object] | None:
    return {} if "source_weights" in report.tensors else None


ANSWER = PageBlock(
    name="answer",
    label="The answer and its sources",
    folder=files(__package__),
    script="answer.js",
    style="answer.css",
    data=_answer_data,
    is_above=True,
)
