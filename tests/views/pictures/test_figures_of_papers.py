"""Figures in the columns of a paper: sizes, fonts, text that neither overlaps nor is cut, and captions."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_pdf import PdfFile
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from attncli.features.circuit.graphs import Edge, Graph
from attncli.features.circuit.picture import GraphPanel
from attncli.records.report import NamedTensor, Report
from attncli.views import Display
from attncli.views.canvas import LABEL_SIZE
from attncli.views.pictures import caption
from tests.conftest import Attn
from tests.running import run
from tests.views.pictures.test_pictures import figure_of, images, pictured, texts, weights
from tests.views.test_views import LESSON

CENTIMETRE = 1 / 2.54


def visible_texts(figure: Figure) -> list[Text]:
    every = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    hidden = [axes.title for axes in figure.axes]
    return [text for text in every if text not in hidden]


def map_of(count: int) -> Report:
    tokens = tuple((LESSON.split() * 9)[:count])
    return weights(np.random.default_rng(0).dirichlet(np.ones(count), count), tokens=tokens)


@pytest.mark.parametrize(("count", "step", "has_numbers"), [(12, 1, True), (40, 2, False), (120, 10, False)])
def test_a_map_is_legible_in_one_column(count: int, step: int, has_numbers: bool) -> None:
    """Text of 6 points or more, inside the figure, never over other text; square cells."""
    figure = figure_of(map_of(count))
    width, height = figure.get_size_inches()
    assert width == pytest.approx(8.5 * CENTIMETRE) and height < 11 * CENTIMETRE
    drawn = visible_texts(figure)
    assert min(float(text.get_fontsize()) for text in drawn) >= LABEL_SIZE == 6
    boxes = [text.get_window_extent() for text in drawn]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(
        box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes
    )
    (axes,) = (axes for axes in figure.axes if axes.images)
    assert len(axes.get_yticklabels()) == len(axes.get_xticklabels()) == -(-count // step)
    assert bool(axes.texts) is has_numbers and axes.images[0].get_interpolation() == "nearest"
    place = axes.get_window_extent()
    assert place.width == pytest.approx(place.height)


@pytest.mark.parametrize(("width", "centimetres"), [("single", 8.5), ("double", 17.5)])
def test_the_width_is_that_of_columns(width: str, centimetres: float) -> None:
    content = pictured("pdf", run("self"), figure_width=width).decode("latin-1")
    (box,) = re.findall(r"/MediaBox \[ 0 0 ([0-9.]+) ", content)
    assert float(box) == pytest.approx(centimetres * CENTIMETRE * 72, abs=0.01)


def test_many_heads_take_both_columns_unless_one_is_requested() -> None:
    many = weights(np.random.default_rng(0).random((4, 12, 5, 5)), "layer", "head")
    widths = [figure_of(many, figure_width=width).get_size_inches()[0] for width in (None, "single")]
    assert widths == pytest.approx([17.5 * CENTIMETRE, 8.5 * CENTIMETRE])


def test_an_svg_has_its_text_as_text() -> None:
    content = pictured("svg", run("self", sentence="--> a <b> c"))
    assert content == pictured("svg", run("self", sentence="--> a <b> c"))
    assert "attention weight</text>" in content.decode() and "2 &lt;b&gt;</text>" in content.decode()


def test_negative_cells_without_numbers_are_crossed_out() -> None:
    values = np.where(np.eye(40) > 0, -1.0, 0.5)
    report = Report("show", {}, {}, tensors={"scores": NamedTensor(("query", "key"), values)})
    figure = figure_of(report)
    (axes,) = (axes for axes in figure.axes if axes.images)
    (strokes,) = axes.collections
    assert isinstance(strokes, LineCollection) and len(strokes.get_segments()) == 40
    assert "score, crossed out: negative" in texts(figure)
    small = Report("show", {}, {}, tensors={"scores": NamedTensor(("query", "key"), values[:3, :3])})
    assert "score" in texts(figure_of(small)), "a minus sign is enough"


def test_a_survey_is_a_grid_and_maps_are_asked_for() -> None:
    report = run("heads", maps="self")
    assert np.asarray(images(figure_of(report))[0].get_array()).shape[:2] == (2, 4)
    assert "induction" in texts(figure_of(report)), "the pattern that most heads show"


def test_no_edge_lies_behind_a_head() -> None:
    """Three heads in each of five rows; every edge from the lowest row to the highest."""
    nodes = {f"{row}:{place}": ((place + 0.5) / 3, row) for row in range(5) for place in range(3)}
    pairs = [(f"0:{start}", f"4:{end}") for start in range(3) for end in range(3)]
    signs = [(-1) ** number for number in range(9)]
    edges = [
        Edge(start, end, "key", None, sign * 1.0, None)
        for (start, end), sign in zip(pairs, signs, strict=True)
    ]
    panel = GraphPanel(Graph(nodes, edges, [f"layer {row}" for row in range(5)]))
    across = 2.5
    boxes = panel._boxes(across)
    for edge, points in panel._routes(boxes, across):
        for x, y in points[1:-1]:
            assert all(abs(x - middle) > size / 2 for middle, row, size in boxes.values() if row == y), edge
    assert "end in a bar are negative" in panel.legend


def test_a_caption_is_written_beside_the_figure(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PdfFile, "writeFonts", lambda file: file.writeObject(file.fontObject, {}))
    to = tmp_path / "map.pdf"
    beside = tmp_path / "map.pdf.caption.txt"
    beside.write_text("of before")
    assert attn(["self", "a b c", "--causal", "-o", str(to), "--figure-width", "double"]).code == 0
    said = beside.read_text(encoding="utf-8")
    assert said.startswith("Self-attention: a b c\n") and "Colour: attention weight, from 0 to 1." in said
    assert "causal: True" in said and "torch " in said and "17.5 cm wide (double column)" in said
    assert {path.name for path in tmp_path.iterdir()} == {to.name, beside.name}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--format", "csv", "--figure-width", "single"],
            "--figure-width: csv has no width; --figure-width works with png, svg, pdf",
        ),
        (
            ["--format", "svg", "--figure-width", "wide"],
            "--figure-width: must be one of single, double (got wide)",
        ),
    ],
)
def test_a_width_is_refused_in_one_line(attn: Attn, flags: list[str], message: str) -> None:
    ended = attn(["self", "a b", *flags])
    assert ended.code == 2 and ended.err.strip() == message


@pytest.mark.parametrize("given", [{}, {"title": "Mine"}, {"title": ""}])
def test_a_caption_has_the_title(given: dict[str, Any]) -> None:
    first, *_ = caption(run("self", sentence="a b"), Display(**given)).split("\n")
    assert first == {"Mine": "Mine", None: "Self-attention: a b"}.get(given.get("title"), first)
