"""The block of the page for `attn spread`."""

from importlib.resources import files

from attn_spread.results import HeadSpreads
from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def data(report: Report) -> dict[str, float] | None:
    """Return the largest spread, or None if there are no heads."""
    heads = report.result_of(HeadSpreads).heads
    return {"largest": max(head.spread for head in heads)} if heads else None


BLOCK = PageBlock(
    name="spread",
    label="Spread of each head",
    folder=files(__package__),
    script="spread.js",
    style="spread.css",
    data=data,
)
