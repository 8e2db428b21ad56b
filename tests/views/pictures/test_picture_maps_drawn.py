"""Several pictures, each with its maps, in PNG and SVG files, on a terminal, and from a saved report."""

import io
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from attncli.records.report import Report
from attncli.runs.saved_reports import parse_reports
from attncli.views import Display, load_view
from attncli.views.overlays import painted, shaded
from attncli.views.picture_maps import tiles_of
from attncli.views.pictures import caption, draw
from tests.views.pictured import several_pictures
from tests.views.test_views import shown


def images_of(report: Report) -> list[np.ndarray]:
    return [np.asarray(axes.images[0].get_array()) for axes in draw(report, Display()).axes if axes.images]


def test_each_picture_stands_first_in_its_row_and_its_maps_behind_it() -> None:
    report = several_pictures((3, 5), (4, 4))
    maps = report.picture_maps
    assert maps is not None
    expected = []
    for row in maps.rows:
        original, *tiles = tiles_of(maps, row)
        expected.append(np.asarray(Image.open(io.BytesIO(row.picture.png)).convert("RGB")))
        height, width = expected[-1].shape[:2]
        expected += [painted(row.picture, shaded(tile.look, width, height, None)) for tile in tiles]
        assert original.is_picture
        assert [tile.look.weights.tolist() for tile in tiles] == row.weights.values.tolist()
    drawn = images_of(report)
    assert len(drawn) == 8
    assert all((image == other).all() for image, other in zip(drawn, expected, strict=True))


def test_columns_stand_below_each_other_and_have_their_names_once() -> None:
    report = several_pictures((3, 5), (5, 3), (2, 9))
    figure = draw(report, Display())
    boxes = [axes.get_position() for axes in figure.axes if axes.images]
    lefts = [round(box.x0, 6) for box in boxes]
    assert lefts[:4] == lefts[4:8] == lefts[8:] == sorted(set(lefts))
    assert all(one.y0 > other.y1 for one, other in pairwise(boxes[::4]))
    texts = [text.get_text() for text in figure.texts]
    for once in ("picture", "2:0", "2:1", "mean", "0.png", "1.png", "2.png"):
        assert texts.count(once) == 1
    assert "where [CLS] looks: the heads of layer 2 and their mean." in caption(report, Display())


def test_pictures_without_a_row_are_counted() -> None:
    report = several_pictures((2, 2), (2, 2), num_pictures=1500)
    assert "Only the first 2 of 1,500 pictures are shown." in [
        text.get_text() for text in draw(report, Display()).texts
    ]
    assert (
        "Not shown: 1,499 pictures. See --show weights or -o page.html for the first 2 pictures"
        in " ".join(shown("table", [report], height=24, width=80).split())
    )
    assert "Only the first 2 of 1,500 pictures are shown." in " ".join(shown("heatmap", [report]).split())


LONG = "a-very-long-name-" * 14 + ".png"
HOSTILE = ("<script>$x$.png", "[red]x[/red].png", "\u202eevil\x07\x1b[31m.png", LONG, "Ünï é.png")


def test_names_of_files_are_no_markup_and_long_ones_are_cut() -> None:
    report = several_pictures(*[(2, 2)] * 5, names=HOSTILE)
    svg = io.StringIO()
    load_view("svg")([report], svg, Display(figure_width="double"))
    assert "<script" not in svg.getvalue() and "&lt;script&gt;$x$.png" in svg.getvalue()
    for view in ("table", "heatmap"):
        text = shown(view, [report], show=("weights",), width=80)
        assert "[red]x[/red].png" in text and "\\u202eevil\\x07\\x1b[31m.png" in text
        assert "\x07" not in text and max(map(len, text.splitlines())) <= 80
    figure = draw(report, Display())
    figure.draw_without_rendering()
    label = next(text for text in figure.texts if text.get_text().startswith("a-very-long"))
    first = next(axes for axes in figure.axes if axes.images).get_window_extent()
    assert label.get_window_extent().x1 < first.x0 and len(label.get_text().splitlines()) == 4


@pytest.mark.parametrize("view", ["table", "heatmap"])
@pytest.mark.parametrize("colors", ["none", "16", "256", "truecolor"])
def test_a_terminal_has_the_names_once_in_groups_that_fit(view: str, colors: str) -> None:
    names = tuple(f"2:{head}" for head in range(9))
    report = several_pictures((3, 5), (4, 4), maps=names)
    text = shown(view, [report], show=("weights",), width=60, colors=colors)
    assert text.count("2:0") == text.count("2:8") == 1
    assert [line.strip() for line in text.splitlines()].count("1.png") == 2


def test_a_saved_report_draws_the_same() -> None:
    report = several_pictures((3, 5), (4, 4), num_pictures=3)
    (again,) = parse_reports(shown("json", [report]), "x").reports
    saved = shown("json", [again])
    assert saved == shown("json", [*parse_reports(saved, "x").reports])
    assert all((one == other).all() for one, other in zip(images_of(report), images_of(again), strict=True))


def test_another_part_is_shown_without_the_maps() -> None:
    report = several_pictures((3, 5))
    assert "where [CLS] looks" not in shown("table", [report], show=("statistics",))
    assert sum(len(axes.images) for axes in draw(report, Display(show=("heads",))).axes) == 1
