"""The block of the page on limited heads: the keys that the selected head forgets."""

from importlib.resources import files

from attncli.features.cache.results import LimitedHeads
from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def _data(report: Report) -> dict[str, object] | None:
    result = report.result_of(LimitedHeads)
    return {} if result.forgotten is not None and result.heads else None


FORGOTTEN = PageBlock(
    name="forgotten",
    label="Heads, and the keys that they forget",
    folder=files(__package__),
    script="forgotten.js",
    style="forgotten.css",
    data=_data,
    is_above=True,
    replaces=("forgotten",),
)
