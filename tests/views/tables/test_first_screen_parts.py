"""First screens as data: their parts determine what they show and need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
import pytest

from attncli.records.columns import Record, Records, Result, UntypedResult, column, group
from attncli.records.kinds import RESULT_CLASSES
from attncli.records.report import NamedTensor, Report
from attncli.views import Display
from attncli.views.first_screen import (
    Element,
    FirstScreen,
    HalfWidthCells,
    HeadGrids,
    HeadLabel,
    IntervalCells,
    Notes,
    NumberCells,
    PlaceCells,
    Ranked,
    RowCells,
    Sentences,
    SpecialCells,
    StatisticCells,
    TableColumn,
    TextCells,
    TitleLine,
)
from attncli.views.layout import Screen, fitted
from attncli.views.sections import Column


class SizedHead(Record):
    stack: str
    layer: int
    head: int
    size: float
    half: float = column(of=lambda head: head.size / 2)


class Door(Record):
    name: str
    width: int


@dataclass(frozen=True, kw_only=True, repr=False)
class SizedHeads(Result):
    heads: Records[SizedHead] = group()
    doors: Records[Door] | None = group(is_needed=False)


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
    monkeypatch.setitem(RESULT_CLASSES, "sizes", f"{__name__}:SizedHeads")
    heads = SizedHead.table(
        stack=["a"] * 7, layer=[0] * 7, head=[*range(7)], size=[float(i) for i in range(7)]
    )
    return Report("sizes", {"sort": "size"}, {}, result=SizedHeads(heads=heads), about="7.", notes=("N.",))


def drawn(
    report: Report, height: int | None = None, width: int = 80, parts: Sequence[Element] = SCREEN.parts
) -> list[str]:
    display = Display(width=width, height=height, precision=2)
    stream = StringIO()
    screen = Screen(stream, display)
    for section in fitted([*replace(SCREEN, parts=tuple(parts)).sections(report, display)], display):
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


def test_statistics_of_heads_follow_the_columns_of_their_place(report: Report) -> None:
    heads = SizedHead.table(stack=["a", "b"], layer=[0, 1], head=[2, 3], size=[1.0, 2.0])
    places = PlaceCells().columns(report, heads, Display())
    assert [(column.header, column.cells, column.repeated) for column in places] == [
        (("", "stack"), ["a", "b"], True)
    ]
    assert PlaceCells().columns(report, heads[:1], Display()) == []
    every = StatisticCells().columns(report, heads, Display(precision=1))
    assert [(column.header, column.cells) for column in every] == [
        (("", "size"), ["1.0", "2.0"]),
        (("", "half"), ["0.5", "1.0"]),
    ]
    halves = StatisticCells(lambda *_: ["half", "stack"]).columns(report, heads, Display())
    assert [column.header for column in halves] == [("", "half")]


def test_a_part_is_shown_only_if_the_report_has_it(report: Report) -> None:
    parts = (TitleLine(), Sentences(lambda *_: iter(["a line"]), shows=lambda report: bool(report.notes)))
    assert drawn(report, parts=parts) == ["sizes: 7", "a line"]
    assert drawn(replace(report, notes=()), parts=parts) == ["sizes: 7"]


def test_a_ranked_table_without_room_is_left_out(report: Report) -> None:
    ranked = Ranked(
        "heads", (NumberCells("size"),), usual=lambda *_: 2, least=lambda *_: 0, is_cut=lambda _: True
    )
    assert len(drawn(report, parts=[ranked])) == 5
    assert drawn(report, height=3, parts=[ranked]) == []


def test_grids_of_heads_have_numbers_if_each_layer_has_a_line(report: Report) -> None:
    sizes = NamedTensor(("layer", "head"), np.linspace(0, 0.9, 50).reshape(5, 10))
    with_grid = replace(report, tensors={"size": sizes})
    in_numbers, in_tenths = (
        drawn(with_grid, height, parts=[HeadGrids(has_numbers=True)]) for height in (20, 6)
    )
    assert in_numbers[-1].split()[-2:] == ["0.88", "0.90"]
    assert in_tenths[1].startswith("size: 9 is the largest") and any("9" in line for line in in_tenths[2:])


class Rated(Record):
    name: str
    rate: float
    lower: float | None
    upper: float | None


@pytest.mark.parametrize(
    ("cells", "header", "texts", "left"),
    [
        (NumberCells("rate", ("a", "rate"), 1), ("a", "rate"), ["0.5", "0.2"], False),
        (NumberCells("rate", if_any=True), ("", "rate"), ["0.50", "0.25"], False),
        (TextCells("name", most=6, words={"oak": "tree"}), ("", "name"), ["tree", "a lon…"], True),
        (TextCells("name", "wood", beside=60), ("", "wood"), ["oak", "a long \\n name"], True),
        (TextCells("name", "wood", beside=68), ("", "wood"), ["oak", "a long \\n n…"], True),
        (RowCells("rate", lambda row: f"{row.rate:.0%}"), ("", "rate"), ["50%", "25%"], False),
        (IntervalCells(), ("", "95 %"), ["0.40-0.70", "-"], True),
        (HalfWidthCells("rate", "upper"), ("", ""), ["±0.20", ""], False),
    ],
)
def test_cells_are_declared_by_the_columns_of_rows(
    cells: TableColumn, header: tuple[str, str], texts: list[str], left: bool
) -> None:
    rows = Rated.rows(
        [
            {"name": "oak", "rate": 0.5, "lower": 0.4, "upper": 0.7},
            {"name": "a long \n name", "rate": 0.25, "lower": None, "upper": None},
        ]
    )
    report = Report("self", {}, {}, ())
    assert cells.columns(report, rows, Display(width=80, precision=2)) == [Column(header, texts, left=left)]
    assert NumberCells("lower", if_any=True).columns(report, rows[1:], Display()) == []
