"""Pictures: the colours of numbers, labels without markup, equal bytes, no warnings."""

import io
import logging
import re
import warnings
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_pdf import PdfFile
from matplotlib.figure import Figure
from matplotlib.image import AxesImage, imread
from rich.cells import cell_len

from attncli.features.diff.question import compare
from attncli.records.report import Mask, NamedTensor, Report
from attncli.settings import SPECS
from attncli.views import Display, load_view, pictures
from attncli.views.canvas import NO_NUMBER
from attncli.views.colours import COOLWARM, VIRIDIS, colours
from attncli.views.matrices import tensor_unit
from attncli.views.pictures import caption, draw, settings
from attncli.views.texts import shortened_text
from tests.conftest import in_turn
from tests.running import ROOT, run
from tests.runs.test_saved import ALL_CASES
from tests.views.test_views import HOSTILE, LESSON

NORMS = ("input", "batch_norm", "batch_norm_eval", "layer_norm", "rms_norm")


def pictured(view: str, report: Report, **display: Any) -> bytes:
    stream = io.StringIO() if view == "svg" else io.BytesIO()
    load_view(view)([report], stream, Display(**display))
    content = stream.getvalue()
    return content if isinstance(content, bytes) else content.encode()


def figure_of(report: Report, **display: Any) -> Figure:
    with matplotlib.rc_context(settings()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure = draw(report, Display(**display))
        figure.draw_without_rendering()
    return figure


def images(figure: Figure) -> list[AxesImage]:
    return [image for axes in figure.axes for image in axes.images]


def labels(figure: Figure, panel: int) -> tuple[list[str], list[str]]:
    """The labels of the rows and columns of a panel."""
    axes = [axes for axes in figure.axes if axes.images][panel]
    return [t.get_text() for t in axes.get_yticklabels()], [t.get_text() for t in axes.get_xticklabels()]


def weights(values: np.ndarray, *axes: str, tokens: tuple[str, ...] = ()) -> Report:
    tensor = NamedTensor((*axes, "query", "key"), values)
    return Report("show", {}, {}, tokens, tensors={"weights": tensor})


UNDRAWN = {
    "pitfalls",  # a list of mistakes has no picture
    *("self-causal", "self-22-tokens", "self-hostile", "self-explained-22-tokens", "self-explained-hostile"),
    *("multihead-explained", "explained-average", "explained-cross", "explained-heads", "explained-norm"),
    *("explained-scale", "heads-rollout", "streamed", "model", "one head of generate", "cache of policies"),
}
"""Cases that are drawn like other cases."""
KINDS = ("svg", "png", "pdf")


def assert_is_a_picture(kind: str, content: bytes) -> None:
    if kind == "png":
        assert content.startswith(b"\x89PNG")
        assert imread(io.BytesIO(content)).std() > 0.01, "an empty picture"
    elif kind == "svg":
        assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
    else:
        assert content.startswith(b"%PDF-")


@pytest.mark.parametrize(
    ("case", "kind"), in_turn([case for case in ALL_CASES if case not in UNDRAWN], KINDS)
)
def test_every_experiment_is_drawn_within_its_picture(
    case: str, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure is laid out once, and a PDF is written without its fonts, which take longest."""
    experiment, given = ALL_CASES[case]
    report = run(experiment, **given)
    figure = figure_of(report)
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= width and drawn.y1 <= height, drawn
    monkeypatch.setattr(pictures, "draw", lambda *_: figure)
    monkeypatch.setattr(PdfFile, "writeFonts", lambda file: file.writeObject(file.fontObject, {}))
    assert_is_a_picture(kind, pictured(kind, report))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("experiment", "kind"), [("self", "pdf"), ("circuit", "svg")])
def test_equal_reports_give_equal_bytes(experiment: str, kind: str) -> None:
    content = pictured(kind, run(experiment))
    assert content == pictured(kind, run(experiment)) and b"date" not in content.lower()
    assert_is_a_picture(kind, content)
    assert b"/FontFile2" in content or kind == "svg"  # TrueType: readers can search and copy the text
    assert b"/ToUnicode" in content or kind == "svg"


def test_a_repeated_word_is_two_rows_and_two_columns() -> None:
    rows, columns = labels(figure_of(run("self")), 0)
    assert rows == columns == ["0 the", "1 cat", "2 walks", "3 on", "4 the", "5 street"]


def test_colours_are_those_of_the_numbers() -> None:
    """Viridis from the smallest number to the largest; grey for missing numbers."""
    figure = figure_of(weights(np.array([[0.0, 1.0], [np.nan, 0.5]])))
    (image,) = images(figure)[:1]
    shown = np.asarray(image.get_array())
    table = colours(VIRIDIS)
    np.testing.assert_allclose(shown[0, 0, :3], table[0])
    np.testing.assert_allclose(shown[0, 1, :3], table[255])
    np.testing.assert_allclose(shown[1, 1, :3], table[128])
    np.testing.assert_allclose(shown[1, 0], NO_NUMBER)


def test_heads_share_their_colours_and_a_skipped_key_takes_none() -> None:
    values = np.array([[[0.9, 0.1], [0.8, 0.2]], [[0.9, 0.3], [0.8, 0.4]]])
    first, second = images(figure_of(weights(values, "head"), skip_first_keys=1))[:2]
    table = colours(VIRIDIS)
    np.testing.assert_allclose(np.asarray(first.get_array())[0, 0], NO_NUMBER)
    np.testing.assert_allclose(np.asarray(first.get_array())[0, 1, :3], table[round(0.1 / 0.4 * 255)])
    np.testing.assert_allclose(np.asarray(second.get_array())[1, 1, :3], table[255])


def test_a_block_with_a_skipped_key_takes_no_colour() -> None:
    """Ten keys in five blocks: the first three are in two of them."""
    pooled = NamedTensor(("query_block", "key_block"), np.array([[0.9, 0.8, 0.3, 0.2, 0.1]] * 5))
    report = Report("heads", {}, {}, tuple("abcdefghij"), tensors={"pooled_mean": pooled})
    (image,) = images(figure_of(report, skip_first_keys=3))[:1]
    shown = np.asarray(image.get_array())
    for block in range(2):
        np.testing.assert_allclose(shown[0, block], NO_NUMBER)
    assert not any(np.allclose(shown[0, block], NO_NUMBER) for block in range(2, 5))


def test_an_atlas_has_every_head_of_every_layer_in_its_place() -> None:
    """12 layers of 12 heads, each filled with its own number."""
    numbers = np.arange(144.0).reshape(12, 12, 1, 1) * np.ones((1, 1, 5, 5))
    figure = figure_of(weights(numbers, "layer", "head"))
    image = np.asarray(images(figure)[0].get_array())
    rows, columns = labels(figure, 0)
    assert rows == [f"layer {layer}" for layer in range(12)] and columns == [str(head) for head in range(12)]
    step = 6  # five keys and a margin
    table = colours(VIRIDIS)
    for layer, head in ((0, 0), (3, 7), (11, 11)):
        panel = image[layer * step : layer * step + 5, head * step : head * step + 5, :3]
        np.testing.assert_allclose(
            panel, np.broadcast_to(table[round((12 * layer + head) / 143 * 255)], panel.shape)
        )


def test_powers_of_ten_on_a_bar_are_far_from_its_ends_and_from_each_other() -> None:
    for low, high in ((1e-4, 1.0), (9e-5, 0.11), (9e-5, 0.9), (1.1e-9, 0.5)):
        maps = NamedTensor(("query_block", "key_block"), np.geomspace(low, high, 12).reshape(3, 4))
        figure = figure_of(Report("self", {}, {}, tensors={"pooled_max": maps}), scale_colors="log")
        (bar,) = (axes for axes in figure.axes if not axes.images)
        assert "attention weight, logarithmic" in texts(figure)
        ticks = np.log10(bar.get_xticks())
        np.testing.assert_allclose(ticks[[0, -1]], np.log10([low, high]))
        inner = ticks[1:-1]
        np.testing.assert_allclose(inner, inner.round(), atol=1e-9)
        assert (np.diff(ticks) > (ticks[-1] - ticks[0]) / 10).all()


@pytest.mark.parametrize("num_tokens", [1, 22, 200])
def test_labels_do_not_touch(num_tokens: int) -> None:
    figure = figure_of(run("self", num_tokens=num_tokens, embed_dim=4))
    canvas = figure.canvas
    for axes in figure.axes:
        for axis in (axes.yaxis, axes.xaxis):
            boxes = [
                t.get_window_extent(canvas.get_renderer()) for t in axis.get_ticklabels() if t.get_text()
            ]  # type: ignore[attr-defined]
            assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_hostile_tokens_are_drawn_as_text() -> None:
    tokens = f"{HOSTILE} <script>alert(1)</script> $x_1$ $\\frac{{ ]]> & \x00 \ud800 \uffff עברית"
    report = weights(np.eye(len(tokens.split())), tokens=tuple(tokens.split()))
    tree = ElementTree.fromstring(pictured("svg", report, figure_width="double"))
    shown = "\n".join(tree.itertext())
    for text in (
        ":smile:",
        "<script>alert(1…",
        "$x_1$",
        "$\\frac{",
        "]]>",
        "\\x1b[31mred\\x1b…",
        "日本語",
        "\\ud800",
    ):
        assert text in shown, text
    assert not [element for element in tree.iter() if element.tag.endswith("script")]
    assert "\u202e" not in shown and "\x1b" not in shown
    pictured("png", report)
    pictured("pdf", report)


@pytest.mark.parametrize(
    ("name", "axes", "unit"),
    [
        ("weights", ("head", "query", "key"), "weight"),
        ("pooled_max", ("query_block", "key_block"), "weight"),
        ("scaled_scores", ("query", "key"), "score"),
        ("entropy", ("layer", "head"), "nats"),
        ("contribution", ("layer", "head"), "logit"),
        ("probability", ("layer", "head"), "probability"),
        ("mean of distance", ("layer", "head"), "tokens"),
        ("entropy.mean by head_dim and causal", ("row", "column"), "nats"),
        ("max_weight decoder", ("layer", "head"), "max weight"),
        ("output", ("query", "dim"), "output"),
    ],
)
def test_numbers_have_a_unit(name: str, axes: tuple[str, ...], unit: str) -> None:
    assert tensor_unit(name, axes) == unit


def test_a_colour_bar_shows_the_unit() -> None:
    figure = figure_of(weights(np.eye(3)))
    (bar,) = (axes for axes in figure.axes if not axes.images)
    assert {"attention weight", "query token", "key token"} <= {*texts(figure)}
    assert [text.get_text() for text in bar.get_xticklabels()][:: len(bar.get_xticks()) - 1] == ["0", "1"]


def test_the_position_precedes_a_word_written_from_right_to_left() -> None:
    rows, _ = labels(figure_of(weights(np.eye(2), tokens=("עברית", "a"))), 0)
    assert rows == ["\u200e0 עברית", "1 a"]


def test_matplotlib_settings_of_the_user_change_nothing() -> None:
    report = run("self")
    before = pictured("png", report)
    with matplotlib.rc_context(
        {"font.size": 30, "text.usetex": True, "image.origin": "lower", "savefig.bbox": "tight"}
    ):
        assert pictured("png", report) == before
        assert matplotlib.rcParams["font.size"] == 30


def test_figures_of_heads_are_grids_by_layer_and_head() -> None:
    """One grid, of the statistic that sorts the heads; all of them with `--show heads`."""
    report = run("heads", sort="entropy")
    assert "entropy (nats)" in texts(figure_of(report)) and len(images(figure_of(report))) == 1
    every = figure_of(report, show=("heads",))
    assert {"induction", "entropy"} <= {*texts(every)} and len(images(every)) > 15
    assert np.asarray(images(every)[0].get_array()).shape[:2] == (2, 4)


def test_curves_are_lines() -> None:
    report = run("scale-demo", factors=[1, 4, 8])
    assert "softmax" in texts(figure_of(report))
    curve, sharpness, legend, gradient = figure_of(report, show=("all",)).axes
    np.testing.assert_array_equal(curve.lines[0].get_ydata(), report.tensors["curve_weights"].values)
    assert [text.get_text() for text in legend.texts] == ["factor 1", "factor 4", "factor 8"]
    looks = [(line.get_linestyle(), line.get_marker()) for line in sharpness.lines]
    assert len({*looks}) == 3 and looks == [
        (line.get_linestyle(), line.get_marker()) for line in legend.lines
    ]
    norms = [row["gradient_norm"] for row in report.statistics["sharpness"]]
    np.testing.assert_array_equal(gradient.lines[0].get_ydata(), norms)
    np.testing.assert_array_equal(
        sharpness.lines[2].get_ydata(), report.statistics["sharpness"][2]["softmax"]
    )


@pytest.mark.parametrize(
    ("values", "scale"),
    in_turn(
        [np.zeros((2, 3)), np.full((2, 3), 0.5), np.full((2, 3), -1.0), np.full((2, 3), np.nan),
         np.array([[1e200, -1e200]]), np.array([[5e-324, 1e200]]), np.array([[-np.inf, 0.0]]),
         np.array([[3, 0, 2]])],
        ["linear", "log", "row"],
    ),
    ids=str,
)  # fmt: skip
def test_any_numbers_are_drawn(values: np.ndarray, scale: str) -> None:
    assert imread(io.BytesIO(pictured("png", weights(values), scale_colors=scale))).std() > 0.01
    shown = np.asarray(images(figure_of(weights(values), scale_colors=scale))[0].get_array())
    np.testing.assert_array_equal((shown == NO_NUMBER).all(axis=-1), ~np.isfinite(values))


@pytest.mark.nightly
def test_long_texts_and_many_heads_are_drawn() -> None:
    assert "attention weight" in texts(figure_of(run("self", sentence=LESSON, explain=True)))
    many = weights(np.random.default_rng(0).random((40, 64, 2, 2)), "layer", "head")
    assert imread(io.BytesIO(pictured("png", many))).shape[0] < 8000
    left_out = weights(np.random.default_rng(0).random((2000, 2, 2)), "batch")
    assert "weights: the first 1,600 of 2,000." in caption(left_out, Display())


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def numbers_in(figure: Figure, panel: int) -> list[str]:
    (axes, *_) = [axes for axes in figure.axes if axes.images][panel:]
    return [text.get_text() for text in axes.texts]


MODEL = str(ROOT / "attncli" / "data" / "tiny-induction")


@pytest.mark.parametrize(
    ("experiment", "given", "title"),
    [
        ("cross", {"sentence": "a", "context": "b c"}, "Cross-attention: a -> b c"),
        ("norm", {}, "Normalisation"),
        (
            "self",
            {"model": MODEL, "layer": 1, "head": 2, "sentence": "a b"},
            "Self-attention, tiny-induction, head 1:2: a b",
        ),
    ],
)
def test_titles_name_what_is_drawn(experiment: str, given: dict[str, Any], title: str) -> None:
    assert texts(figure_of(run(experiment, **given)))[0] == title


def test_a_figure_names_the_predicted_token() -> None:
    asked = {"sentence": "abcabca", "answer": "b"}
    said = " ".join(texts(figure_of(run("why", **asked, against="c"))))
    assert "Contribution of each part to the logit of 'b' minus that of 'c' at the last token" in said
    assert "answer: b;" in caption(run("ablate", **asked), Display())


def test_tokens_in_place_of_a_text_make_a_short_title() -> None:
    weights = NamedTensor(("query", "key"), np.full((90, 90), 1 / 90))
    tokens = tuple(f"token{place}" for place in range(90))
    report = Report("show", {"seed": 0}, {}, tokens, (), {"weights": weights})
    what, text, *_ = texts(figure_of(report))
    assert what == "Attention weights" and text.startswith("token0 ") and text.endswith(" token89")
    assert len(text) < 60


def test_a_narrow_figure_has_its_model_and_its_text_on_one_line_each() -> None:
    name, text, *_ = texts(figure_of(run("why", sentence="abcabca " * 12)))
    assert name == f"{SPECS['why'].title}, tiny-induction"
    assert text.startswith("abcabca abcabca ") and " … " in text and text.endswith(" abcabca")


@pytest.mark.parametrize(
    "text",
    ["In 1998 it cost 1,234.56 and in 2026 it costs 98,765.43 dollars", "价格是123456元" * 9, "7" * 80],
)
def test_a_shortened_text_keeps_whole_numbers(text: str) -> None:
    for most in range(20, 70):
        shorter = shortened_text(text, most)
        assert cell_len(shorter) <= most
        assert {*re.findall(r"[\d.,]+", shorter)} <= {*re.findall(r"[\d.,]+", text)}
        first, _, last = shorter.partition(" … ")
        assert text.startswith(first.rstrip(" …")) and text.endswith(last.lstrip(" …"))


def test_many_layers_of_few_heads_are_folded() -> None:
    """A figure of 29 layers × 9 heads fits a page; each map stands at its layer and head."""
    uniform = np.full((29, 9, 5, 5), 0.2)
    uniform[28, 8, 3] = uniform[3, 2, 1] = np.eye(5)[0]
    figure = figure_of(weights(uniform, "layer", "head", tokens=tuple("abcde")))
    width, height = figure.get_size_inches()
    assert width == pytest.approx(17.5 / 2.54) and 0.6 < width / height < 1.5
    folds = [axes for axes in figure.axes if len(axes.get_yticks()) > 10][:2]
    named = [[label.get_text() for label in axes.get_yticklabels()] for axes in folds]
    assert named == [[f"layer {i}" for i in range(15)], [f"layer {i}" for i in range(15, 29)]]
    yellow = [
        np.argwhere((axes.images[0].get_array() == colours(VIRIDIS)[-1]).all(axis=-1)) for axes in folds
    ]
    assert [places.tolist() for places in yellow] == [[[3 * 6 + 1, 2 * 6]], [[13 * 6 + 3, 8 * 6]]]


def test_a_given_title_is_not_parsed() -> None:
    assert texts(figure_of(run("self", sentence="a b"), title="$x$ \x1b"))[0] == r"$x$ \x1b"


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({}, "UNTRAINED (random weights, seed 7)"),
        ({"projection": "none"}, "UNTRAINED (random embeddings, seed 7)"),
        ({"model": MODEL, "layer": 0, "head": 0}, ""),
    ],
)
def test_pictures_and_pages_state_once_that_weights_are_random(given: dict[str, Any], warning: str) -> None:
    report = run("self", sentence="a b", seed=7, **given)
    drawn = " ".join(texts(figure_of(report)))
    assert warning in drawn and drawn.count("UNTRAINED") == drawn.count("seed 7") == bool(warning)
    stream = io.StringIO()
    load_view("html")([report], stream, Display())
    start = f"{warning}; " if warning else ""
    assert f'"subtitle":"{start}{len(report.tokens)} tokens, ' in stream.getvalue()


def test_only_the_requested_parts_are_drawn() -> None:
    report = run("self", sentence="a b c", causal=True)
    for show, names in (
        ((), {"attention weight"}),
        (("scores",), {"score"}),
        (("output", "weights"), {"attention weight", "output"}),
    ):
        drawn = {*texts(figure_of(report, show=show))}
        assert drawn & {"attention weight", "score", "output"} == names


def test_hidden_keys_are_white_in_weights_without_scores() -> None:
    """A window hides keys before and after a query, so zeros do not form a triangle."""
    figure = figure_of(run("self", num_tokens=7, embed_dim=4, causal=True, window=2), show=("weights",))
    shown = np.asarray(images(figure)[0].get_array())
    distance = np.arange(7)[:, None] - np.arange(7)
    np.testing.assert_array_equal((shown == NO_NUMBER).all(axis=-1), (distance < 0) | (distance > 1))


def white_share(figure: Figure) -> float:
    """The largest white rectangle as a share of the canvas."""
    figure.set_dpi(20)
    figure.canvas.draw()
    is_white = (np.asarray(figure.canvas.buffer_rgba())[..., :3] >= 250).all(axis=-1)  # type: ignore[attr-defined]
    heights, largest = np.zeros(is_white.shape[1], dtype=int), 0
    for row in is_white:
        heights = np.where(row, heights + 1, 0)
        for height in {*heights.tolist()} - {0}:
            fits = np.concatenate([[0], heights >= height, [0]])
            ends = np.flatnonzero(np.diff(fits))
            largest = max(largest, height * int((ends[1::2] - ends[::2]).max()))
    return largest / is_white.size


@pytest.mark.parametrize(
    ("of", "num_tokens", "show"),
    in_turn(
        [
            ("self", {}),
            ("multihead", {"num_heads": 4}),
            ("cross", {"context": "a b c d e f g h i j k"}),
            ("multihead", {"model": MODEL, "layer": 1}),
        ],
        [(num_tokens, show) for num_tokens in (3, 40) for show in ((), ("weights",))],
    ),
)
def test_no_quarter_of_a_picture_is_blank_and_no_texts_touch(
    of: tuple[str, dict[str, Any]], num_tokens: int, show: tuple[str, ...]
) -> None:
    experiment, given = of
    sentence = " ".join(f"word{place}" for place in range(num_tokens // (4 if "model" in given else 1) or 1))
    figure = figure_of(run(experiment, sentence=sentence, **given), show=show)
    written = [*figure.texts, *(axes.title for axes in figure.axes), *(a._left_title for a in figure.axes)]
    boxes = [text.get_window_extent() for text in written if text.get_text()]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert white_share(figure) < 0.25


def test_only_small_maps_show_their_numbers() -> None:
    report = run("self", sentence="a b c", causal=True)
    weights_of_all = report.tensors["weights"].values
    shown = numbers_in(figure_of(report), 0)
    assert shown[0] == "1.00" and shown.count("") == 3
    np.testing.assert_allclose([float(t) for t in shown if t], weights_of_all[np.tri(3) > 0], atol=0.005)
    assert not numbers_in(figure_of(run("self", num_tokens=40, embed_dim=4)), 0)


@pytest.mark.parametrize(("mask", "num_hidden"), [(Mask(), 0), (None, 0), (Mask(causal=True), 1)])
def test_a_weight_of_zero_is_hidden_only_by_a_mask(mask: Mask | None, num_hidden: int) -> None:
    """Without a mask, the weight of a later key may be zero because of scores of 1e4."""
    given = NamedTensor(("query", "key"), np.array([[1.0, 0.0], [0.5, 0.5]]), mask)
    (drawn,) = images(figure_of(Report("self", {}, {}, tensors={"weights": given})))
    assert (np.asarray(drawn.get_array()) == NO_NUMBER).all(axis=-1).sum() == num_hidden


def test_both_sides_of_a_comparison_share_colours_and_are_named() -> None:
    report = compare(run("self"), run("self", causal=True))
    assert "difference (weight of B minus A)" in texts(figure_of(report))
    figure = figure_of(report, show=("weights",))
    assert "From A to B: causal false -> true." in caption(report, Display())
    assert "weights of A" in texts(figure)
    table = colours(VIRIDIS)
    a = report.tensors["weights_a"].values
    shown = np.asarray(images(figure)[1].get_array())
    np.testing.assert_array_equal(shown, table[np.rint(a * 255).astype(int)])


def test_wrong_and_right_share_a_range() -> None:
    report = run("pitfalls", pitfall="no-scaling")
    wrong, right = (np.asarray(image.get_array(), dtype=int) for image in images(figure_of(report))[:2])
    table = colours(COOLWARM).astype(int)
    largest = np.abs(report.tensors["wrong_scores"].values).max()
    for name, shown in (("wrong_scores", wrong), ("right_scores", right)):
        places = 0.5 + 0.5 * report.tensors[name].values.astype(np.float64) / largest
        np.testing.assert_array_equal(shown, table[np.rint(places * 255).astype(int)])


def test_norm_draws_means_and_deviations() -> None:
    report = run("norm")
    feature, example = figure_of(report, show=("all",)).axes
    for axes, place in ((feature, "feature0"), (example, "example0")):
        (bars,) = axes.containers
        expected = [report.statistics[name][f"{place}_mean"] for name in NORMS]
        np.testing.assert_allclose(bars.lines[0].get_ydata().astype(float), expected)
    assert [t.get_text() for t in feature.get_xticklabels()][1].split("\n")[-2:] == ["0.00", "± 1.00"]


def test_each_row_of_an_atlas_is_named_at_its_middle() -> None:
    figure = figure_of(weights(np.arange(256.0).reshape(64, 2, 2), "head"))
    (axes,) = (axes for axes in figure.axes if axes.images)
    assert labels(figure, 0)[0][:2] == ["head 0", "head 8"] and labels(figure, 0)[1][-1] == "+7"
    assert [*axes.get_yticks()][:2] == [0.5, 3.5]  # two rows and one of margin, from -0.5 on


def test_few_rows_of_many_numbers_are_not_blended() -> None:
    shown = imread(io.BytesIO(pictured("png", weights(np.repeat([[0.0], [1.0], [0.0]], 700, axis=1)))))
    through_the_map = shown[:, 300, :3]
    ends, middle = colours(VIRIDIS)[[0, -1]] / 255, colours(VIRIDIS)[128] / 255
    assert all(np.isclose(through_the_map, end, atol=0.02).all(axis=1).sum() > 10 for end in ends)
    assert not np.isclose(through_the_map, middle, atol=0.1).all(axis=1).any()
