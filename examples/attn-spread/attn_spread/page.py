"""The block of the page about how far heads look."""

from importlib.resources import files

from attn_spread.results import HeadSpreads
from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def data(report: Report) -> dict[str, float] | None:
    """The largest spread; no block without heads."""
    heads = report.result_of(HeadSpreads).heads
    return {"largest": max(head.spread for head in heads)} if heads else None


BLOCK = PageBlock(
    name="spread",
    label="How far each head looks",
    folder=files(__package__),
    script="spread.js",
    style="spread.css",
    data=data,
)
