"""The page block that shows the text once for each way to read."""

from importlib.resources import files

from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def _ways_data(report: Report) -> dict[str, object] | None:
    return {} if "way_relevance" in report.tensors or report.picture_maps is not None else None


WAYS = PageBlock(
    name="ways",
    label="The text or the picture, once for each way",
    folder=files(__package__),
    script="ways.js",
    style="ways.css",
    data=_ways_data,
    is_above=True,
    replaces=("picture_maps",),
)
