"""The first screen of `attn spread`."""

from collections.abc import Iterator

from attn_spread.results import HeadSpread, HeadSpreads
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.views.findings import named_head, number
from attncli.views.first_screen import FirstScreen, Notes, NumberCells, Ranked, ReadLine, TitleLine
from attncli.views.model_screens import some_of


def title(report: Report, heads: Records[HeadSpread], total: int) -> str:
    """Title of the table: `3 of 8 heads`."""
    return some_of(len(heads), total, "head")


def finding(report: Report) -> Iterator[str]:
    """Yield the head that looks at the most keys."""
    for widest in report.result_of(HeadSpreads).heads[:1]:
        yield f"Head {named_head(widest)} spreads its weight the widest, over {number(widest.spread)} tokens."


SCREEN = FirstScreen(
    HeadSpreads,
    (
        TitleLine(),
        ReadLine(),
        Ranked("heads", (NumberCells("spread"),), title=title, usual=8),
        Notes(apart=True),
    ),
    finding=finding,
)
