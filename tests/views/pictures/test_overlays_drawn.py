"""Pictures with weights over them as PNG and SVG: the same pixels as in other views, beside numbers."""

import io
from dataclasses import replace
from itertools import pairwise

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from attncli.records.report import Report
from attncli.views import Display, load_view
from attncli.views.overlays import painted, shaded, tensor_looks
from attncli.views.pictures import caption, draw
from tests.views.pictured import one_head, survey


def test_one_head_is_large_with_axes_and_its_numbers_in_the_caption() -> None:
    report = one_head(3, 5, ("[CLS]", "reg1"))
    (look,) = tensor_looks(report, "weights")
    figure = draw(report, Display())
    (axes,) = (axes for axes in figure.axes if axes.images)
    image = np.asarray(axes.images[0].get_array())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x (pixels)", "y (pixels)")
    assert (image == painted(look.picture, shaded(look, 70, 42, None))).all()
    text = caption(report, Display())
    assert "where [CLS] looks" in text and look.strongest[0][0] in text and "reg1" in text


def test_every_head_has_a_small_picture_and_each_layer_its_mean() -> None:
    figure = draw(survey(layers=2, heads=3), Display())
    captions = [text.get_text().split()[0] for text in figure.texts if text.get_va() == "bottom"]
    assert captions == [*("picture", "rollout", "0:0", "0:1", "0:2", "mean", "1:0", "1:1", "1:2", "mean")]
    lefts = [axes.get_position().x0 for axes in figure.axes if axes.images]
    assert lefts[2:6] == lefts[6:]


def test_the_files_open_and_a_name_is_no_markup() -> None:
    report = one_head(2, 2)
    report = replace(report, pictures=(replace(report.pictures[0], name="<script>$x$.png"),))
    png, svg = io.BytesIO(), io.StringIO()
    load_view("png")([report], png, Display())
    load_view("svg")([report], svg, Display())
    assert Image.open(png).size[0] > 600
    assert "<script" not in svg.getvalue() and "&lt;script&gt;$x$.png" in svg.getvalue()


def test_the_patch_that_looks_has_a_frame() -> None:
    def frames(report: Report) -> list[tuple[float, ...]]:
        patches = [patch for axes in draw(report, Display()).axes for patch in axes.patches]
        boxes = [patch.get_bbox() for patch in patches if isinstance(patch, Rectangle)]
        return [tuple(round(edge, 6) for edge in box.extents) for box in boxes if box.width > 1]

    assert frames(one_head(3, 5)) == []
    assert frames(one_head(3, 5, **{"from": "r2c4"})) == [(41.5, 13.5, 55.5, 27.5)] * 2


def test_captions_of_narrow_pictures_are_whole_and_apart() -> None:
    figure = draw(survey(40, 1, layers=2, heads=12), Display())
    figure.draw_without_rendering()
    captions = [text for text in figure.findobj(Text) if text.get_text().endswith(("%", "…"))]
    boxes = [caption.get_window_extent() for caption in captions]
    assert [caption.get_text()[-1] for caption in captions] == ["%"] * 27
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))
