"""First screens as data: what they show and what they need follow from their parts."""

from dataclasses import dataclass, replace
from io import StringIO

import pytest

from attncli.records.columns import Record, Records, Result, UntypedResult, column, group
from attncli.records.kinds import KINDS
from attncli.report import Report
from attncli.views import Display
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    Notes,
    NumberCells,
    Ranked,
    Sentences,
    SpecialCells,
    TitleLine,
)
from attncli.views.layout import Screen, fitted
from attncli.views.sections import Column
from attncli.views.tables import FIRST_SCREENS


class SizedHead(Record):
    stack: str
    layer: int
    head: int
    size: float
    half: float = column(of=lambda head: head.size / 2)


@dataclass(frozen=True, kw_only=True, repr=False)
class SizedHeads(Result):
    heads: Records[SizedHead] = group()


SCREEN = FirstScreen(
    SizedHeads,
    (
        TitleLine(),
        Sentences(lambda report, _: iter([f"sorted by {report.spec['sort']}"]), settings={"sort": str}),
        Ranked(
            "heads",
            (
                NumberCells("size", "large"),
                NumberCells("half"),
                NumberCells("missing"),
                SpecialCells(lambda _, rows, __: [Column(("last",), ["x"] * len(rows))]),
            ),
            title=lambda _, rows, total: f"{len(rows)} of {total}",
            usual=5,
            least=2,
            left_out=lambda rows, total: f"{total - len(rows)} more",
        ),
        Notes(apart=True),
    ),
)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setitem(KINDS, "sizes", SizedHeads)
    heads = SizedHead.table(
        stack=["a"] * 7, layer=[0] * 7, head=[*range(7)], size=[float(i) for i in range(7)]
    )
    return Report("sizes", {"sort": "size"}, {}, result=SizedHeads(heads=heads), about="7.", notes=("N.",))


def drawn(report: Report, height: int | None = None, width: int = 80) -> list[str]:
    display = Display(width=width, height=height, precision=2)
    stream = StringIO()
    screen = Screen(stream, display)
    for section in fitted([*SCREEN.sections(report, display)], display):
        screen.draw(section)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_screen_shows_its_parts_in_their_order(report: Report) -> None:
    assert drawn(report) == [
        "sizes: 7",
        "sorted by size",
        "",
        "5 of 7",
        "head  large  half  last",
        "───────────────────────",
        *(f" 0:{i}   {i:.2f}  {i / 2:.2f}     x" for i in range(5)),
        "",
        "2 more",
        "",
        "N.",
    ]


@pytest.mark.parametrize(("height", "count"), [(9, 2), (13, 5), (16, 7), (40, 7)])
def test_a_ranked_table_has_the_rows_that_fit(report: Report, height: int, count: int) -> None:
    lines = drawn(report, height)
    assert f"{count} of 7" in lines
    assert len(lines) <= max(height, 10) and (f"{7 - count} more" in lines) == (count < 7)


def test_what_a_screen_needs_follows_from_its_parts(report: Report) -> None:
    assert SCREEN.suits(report)
    assert not SCREEN.suits(replace(report, about=""))
    assert not SCREEN.suits(replace(report, spec={}))
    assert not SCREEN.suits(replace(report, spec={"sort": 3}))
    assert not SCREEN.suits(replace(report, result=UntypedResult(undeclared=report.statistics)))


def test_heads_of_several_stacks_are_named_with_them(report: Report) -> None:
    heads = SizedHead.table(stack=["a", "b"], layer=[0, 1], head=[2, 3], size=[1.0, 2.0])
    (label,) = HeadLabel().columns(report, heads, Display())
    assert label.cells == ["a 0:2", "b 1:3"]
    (label,) = HeadLabel(has_stacks=False).columns(report, heads, Display())
    assert label.cells == ["0:2", "1:3"]


def test_each_first_screen_is_of_a_kind_and_has_a_name_of_its_own() -> None:
    assert all(screen.kind is kind for kind, screen in FIRST_SCREENS.items())
    assert {*FIRST_SCREENS} <= {*KINDS.values()}
