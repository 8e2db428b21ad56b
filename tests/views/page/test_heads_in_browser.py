"""Many heads on the page in Chromium: thumbnails, rankings, all heads of a layer, two maps, axes."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table
from tests.running import run
from tests.views.page.pages import (
    SENTENCE,
    Opened,
    heads_report,
    page_of,
    pixels_of,
    pooled_report,
    random_weights,
    texts,
    token,
    wait_for_readout,
    wait_for_title,
)

TEXT = "the cat sat because the cat was tired"


def captions(page: Any) -> dict[str, str]:
    """The number below each thumbnail, in order."""
    names = page.locator(".thumbnail .caption span:first-child").all_text_contents()
    return dict(zip(names, page.locator(".thumbnail .statistic").all_text_contents(), strict=True))


def ink_of(swatch: Any) -> list[int]:
    colour = swatch.evaluate("element => getComputedStyle(element).backgroundColor")
    return [int(part) for part in re.findall(r"\d+", colour)]


def drawn(page: Any) -> np.ndarray:
    """The colours of the visible lines between the tokens."""
    page.wait_for_timeout(50)
    pixels = pixels_of(page.locator(".sides > canvas")).reshape(-1, 4)
    return pixels[pixels[:, 3] > 90, :3]


def test_heads_and_tables_are_sorted_in_either_order(opened: Opened) -> None:
    page = opened(page_of(heads_report(SENTENCE, random_weights(3, 4, 6, 6))))
    page.select_option("#sort", "induction")
    wait_for_title(page, "weights (query × key), head 2:3")
    assert [*captions(page).items()][:2] == [("2:3", "0.0110"), ("2:2", "0.0100")]
    heading = page.locator("#tables th button", has_text="induction")
    for order, first in (("descending", "2:3"), ("ascending", "0:0")):
        heading.click()
        assert page.locator("#tables th[aria-sort]").get_attribute("aria-sort") == order
        assert page.locator("#tables tbody tr").first.locator("th").text_content() == first
    page.get_by_role("button", name="Largest first").click()
    wait_for_title(page, "weights (query × key), head 0:0")
    assert next(iter(captions(page).items())) == ("0:0", "0.0000")
    page.select_option("#layer", "1")
    wait_for_title(page, "weights (query × key), head 1:0")
    assert [*captions(page)] == ["1:0", "1:1", "1:2", "1:3"]
    page.select_option("#sort", "")
    wait_for_title(page, "weights (query × key), head 1:0")


@pytest.mark.parametrize(
    ("queries", "keys", "said"),
    [
        (["cat#2"], ["the#1", "5"], "weight from 24-27 ·cat to 1-3 the, 5 c"),
        ([], ["cat"], "weight to 4-7 ·cat, 24-27 ·cat"),
        (["last", "a#2"], ["-3"], "weight from 10 a, 37 d to 35 r"),
    ],
)
def test_the_weight_between_tokens_is_that_of_the_survey(
    opened: Opened, queries: list[str], keys: list[str], said: str
) -> None:
    """--from and --to on a causal model, where early queries do not see the key; a word of several tokens."""
    found = run("heads", sentence=TEXT, **{"from": queries, "to": keys})
    expected = {f"{row['layer']}:{row['head']}": row["from_to_weight"] for row in found.table("heads")}
    page = opened(page_of(run("heads", sentence=TEXT, maps="self")))
    for side, names in (("from", queries), ("to", keys)):
        page.fill(f"#{side}", " ".join(names))
        page.keyboard.press("Tab")
    shown = {place: float(number) for place, number in captions(page).items()}
    assert shown == pytest.approx(expected, abs=6e-5)
    assert [*shown.values()] == sorted(shown.values(), reverse=True)
    assert page.locator("#sort option:checked").text_content() == said


def test_the_page_of_a_survey_starts_with_its_tokens_and_its_first_head(opened: Opened) -> None:
    """If one of the two boxes is edited, the heads are ranked by both."""
    found = run("heads", sentence=TEXT, maps="self", **{"from": ["tired"], "to": ["cat#1", "sat"]})
    first = max(found.table("heads"), key=lambda row: row["from_to_weight"])
    page = opened(page_of(found))
    wait_for_title(page, f"weights (query × key), head {first['layer']}:{first['head']}")
    assert [page.input_value(box) for box in ("#from", "#to")] == ["tired", "cat#1 sat"]
    page.fill("#to", "was")
    page.press("#to", "Enter")
    assert "weight from 32-36" not in page.locator("#sort option:checked").inner_text()
    assert page.locator("#sort option:checked").inner_text().startswith("weight from ")


@pytest.mark.parametrize("name", ["the cat", 'said "it now'])
def test_a_name_with_a_blank_is_one_name_when_its_box_is_edited(opened: Opened, name: str) -> None:
    """The name is that of a token or of the words that form it."""
    weights = np.full((2, 2, 4, 4), 0.1)
    weights[1, 0, 2, 1] = 0.9
    report = heads_report(["a", name, "on", "5"], weights)
    page = opened(page_of(replace(report, spec={**report.spec, "from": [], "to": [name]})))
    quoted = '"' + name.replace('"', '""') + '"'
    assert page.input_value("#to") == quoted
    page.fill("#from", "on")
    page.press("#from", "Enter")
    page.fill("#to", f'{quoted} "5"')
    page.press("#to", "Enter")
    assert page.locator("#sort option:checked").inner_text() == f"weight from 2 on to 1 {name}, 3 5"
    assert next(iter(captions(page).items())) == ("1:0", "1.0000")


@pytest.mark.parametrize("width", [390, 1040])
def test_a_click_on_a_thumbnail_scrolls_to_its_map(opened: Opened, width: int) -> None:
    """Arrow keys do not scroll away from the thumbnails."""
    page = opened(page_of(heads_report(SENTENCE, random_weights(9, 4, 6, 6))), width=width)
    page.locator(".thumbnail").nth(2).focus()
    page.keyboard.press("ArrowRight")
    wait_for_title(page, "weights (query × key), head 0:3")
    assert page.evaluate("scrollY") < 60
    page.locator(".thumbnail").nth(1).click()
    wait_for_title(page, "weights (query × key), head 0:1")
    page.wait_for_function("document.getElementById('map').getBoundingClientRect().top < innerHeight / 2")
    assert page.locator("#matrix-title").bounding_box()["y"] >= 0


def test_an_unknown_token_does_not_rank_heads(opened: Opened) -> None:
    page = opened(page_of(heads_report(SENTENCE, random_weights(3, 4, 6, 6))))
    page.fill("#to", "dog")
    page.keyboard.press("Tab")
    assert page.locator("#to").evaluate("input => input.validationMessage") == "The text has no token dog"
    assert page.input_value("#sort") == "" and set(captions(page).values()) == {""}
    page.fill("#to", "street")
    page.keyboard.press("Tab")
    assert page.locator("#to").evaluate("input => input.validationMessage") == ""
    assert page.input_value("#sort") == "sought"


def test_all_heads_of_a_layer_are_lines_in_their_colours(opened: Opened) -> None:
    weights = random_weights(3, 4, 6, 6, sharpness=3)
    page = opened(page_of(heads_report(SENTENCE, weights)))
    page.locator('.thumbnail[title="head 1:2"]').click()
    page.get_by_role("button", name="All heads of layer 1").click()
    keys = page.locator(".head-keys button")
    token(page, "query", 3).hover()
    wait_for_readout(page, "3 on looks most at")
    said = [
        f"head {head}{SENTENCE[row.argmax()]} {row.max():.2f}" for head, row in enumerate(weights[1, :, 3])
    ]
    assert keys.all_text_contents() == said
    token(page, "key", 3).hover()
    wait_for_readout(page, "3 on looks most at")
    columns = enumerate(weights[1, :, :, 3])
    said = [f"head {head}{SENTENCE[column.argmax()]} {column.max():.2f}" for head, column in columns]
    page.wait_for_function(
        "text => document.querySelector('.head-keys').textContent === text", arg="".join(said)
    )
    bands = token(page, "query", 0).evaluate("element => element.style.backgroundImage")
    assert bands.count("rgb") == 2 * 4, "a band for each head"
    inks = [ink_of(keys.nth(head).locator(".swatch")) for head in range(4)]
    assert len({tuple(ink) for ink in inks}) == 4
    page.mouse.move(0, 0)
    page.get_by_role("button", name="All off").click()
    assert len(drawn(page)) == 0
    for head in (3, 0):
        keys.nth(head).click()
        assert np.abs(drawn(page) - inks[head]).max() < 30
        keys.nth(head).click()
    page.keyboard.press(".")
    wait_for_title(page, "weights (query × key), head 1:3")
    assert (
        keys.count() == 4 and page.locator('.head-keys [aria-current="true"]').text_content() == "head 3\xa0"
    )


def test_two_compared_maps_share_range_cells_and_lines(opened: Opened) -> None:
    weights = random_weights(2, 3, 6, 6, sharpness=2)
    weights[1, 2] = random_weights(6, 6, sharpness=0.1)
    page = opened(page_of(heads_report(SENTENCE, weights)))
    page.select_option("#compare", label="head 1:2")
    assert page.locator("#map-name").text_content() == " head 0:0"
    assert page.locator("#compared-name").text_content() == " head 1:2"
    assert page.locator("#compared-map .map-numbers span").all_text_contents() == texts(weights[1, 2].ravel())
    assert f"{max(weights[0, 0].max(), weights[1, 2].max()):.4f}" in page.inner_text("#legend")
    boxes = [page.locator(f"#{name} .map-cells").bounding_box() for name in ("map", "compared-map")]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["width"] == boxes[1]["width"]
    for box in boxes:
        page.mouse.move(box["x"] + 3.5 * box["width"] / 6, box["y"] + 1.5 * box["height"] / 6)
        one, other = weights[0, 0, 1, 3], weights[1, 2, 1, 3]
        cell = "1 cat → 3 on"
        wait_for_readout(page, f"head 0:0: {cell}: {one:.4f} | head 1:2: {cell}: {other:.4f}")
        assert page.locator(".frame:visible").count() == 4
        page.mouse.move(0, 0)
    token(page, "query", 4).click()
    named = page.locator(".card h3 .quiet").all_text_contents()
    assert named == ["head 0:0", "head 1:2"]
    page.locator('.thumbnail[title="head 0:1"]').click(modifiers=["Shift"])
    page.wait_for_function("document.getElementById('compared-name').textContent === ' head 0:1'")
    wait_for_title(page, "weights (query × key), head 0:0")
    page.select_option("#compare", "")
    page.wait_for_selector("#compared-map", state="hidden")


def test_a_whole_head_beside_a_pooled_one(opened: Opened) -> None:
    page = opened(page_of(pooled_report(300, [(2, 7)])))
    page.select_option("#compare", label="head 2:7")
    page.locator("#compared-map .map-cells").hover(position={"x": 0.5, "y": 0.5})
    wait_for_readout(page, "0 word0 → 0 word0:")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press(".")
    wait_for_title(page, "pooled mean (query block × key block), head 0:1")


@pytest.mark.parametrize("width", [1280, 390])
def test_thumbnails_are_large_enough_to_read(opened: Opened, width: int) -> None:
    weights = random_weights(12, 12, 13, 13)
    page = opened(page_of(heads_report([f"w{i}" for i in range(13)], weights)), width=width)
    least = {"small": 20, "medium": 60, "large": 200}
    for size, pixels in least.items():
        page.select_option("#size", size)
        boxes = page.locator(".thumbnail canvas").evaluate_all("all => all.map(c => c.clientWidth)")
        assert len(boxes) == 144 and min(boxes) >= pixels, size
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
    canvas = page.locator('.thumbnail[title="head 0:1"] canvas')
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 4.5 * box["width"] / 13, box["y"] + 2.5 * box["height"] / 13)
    said = f"head 0:1: 2 w2 → 4 w4: {weights[0, 1, 2, 4]:.4f}"
    page.wait_for_function(
        "text => document.getElementById('thumbnail-readout').textContent === text", arg=said
    )
    wait_for_title(page, "weights (query × key), head 0:0")


@pytest.mark.parametrize(("layers", "heads"), [(6, 12), (30, 9)])
def test_all_heads_are_cells_of_a_grid_that_fits_the_first_screen(
    opened: Opened, layers: int, heads: int
) -> None:
    """Cells are tiny maps, or colours of the statistic by which the small maps beside them are sorted."""
    from attncli.views.colours import VIRIDIS, colours

    page = opened(page_of(heads_report(SENTENCE, random_weights(layers, heads, 6, 6))))
    cells = page.locator(".grid-cells")
    page.wait_for_function("document.querySelector('.grid-cells').clientWidth > 0")
    box = cells.bounding_box()
    assert box["y"] + box["height"] < 900 and box["height"] / layers > 8
    assert page.locator(".thumbnail").first.bounding_box()["y"] < 700
    page.select_option("#sort", "induction")
    wait_for_title(page, f"weights (query × key), head {layers - 1}:{heads - 1}")
    page.wait_for_timeout(50)
    pixels = pixels_of(cells.locator("canvas"))
    for layer, head in ((0, 0), (layers // 2, 3), (layers - 1, heads - 1)):
        row, column = (layer + 0.4) * box["height"] / layers, (head + 0.4) * box["width"] / heads
        expected = colours(VIRIDIS)[round(255 * (layer * heads + head) / (layers * heads - 1))]
        assert np.abs(pixels[int(row), int(column), :3] - expected).max() <= 2
    cells.click(position={"x": 3.5 * box["width"] / heads, "y": 2.5 * box["height"] / layers})
    wait_for_title(page, "weights (query × key), head 2:3")
    assert page.locator(".grid-said").text_content() == f"head 2:3: induction {(2 * heads + 3) / 1000:.4f}"


@pytest.mark.parametrize("width", [390, 1280])
def test_numbers_below_a_curve_do_not_overlap_on_a_phone(opened: Opened, width: int) -> None:
    page = opened(page_of(run("cache", sentence=TEXT)), width=width)
    for axis in page.locator("figure .x-axis").all():
        boxes = sorted((span.bounding_box() for span in axis.locator("span").all()), key=lambda box: box["x"])
        assert len(boxes) > 2
        assert all(one["x"] + one["width"] < two["x"] for one, two in pairwise(boxes))


def test_curves_have_axes_with_round_numbers(opened: Opened) -> None:
    report = run("scale-demo")
    page = opened(page_of(report))
    figure = page.locator("#more-curves figure", has_text="curve weights")
    up = [float(text) for text in figure.locator(".y-axis span").all_text_contents()]
    across = [float(text) for text in figure.locator(".x-axis span").all_text_contents()]
    assert up == [0.1, 0.05, 0.0] and across == [-4, -2, 0, 2, 4]
    assert figure.locator(".x-name").text_content() == "curve logits"
    points = figure.locator("polyline").get_attribute("points").split()
    x, y = np.array([point.split(",") for point in points], dtype=float).T
    values = report.tensors["curve_weights"].values
    np.testing.assert_allclose((1 - y / 120) * (max(up) - min(up)) + min(up), values, atol=1e-4)
    places = report.tensors["curve_logits"].values
    share = page.locator("#more-curves figure .x-axis span", has_text="-2").first.evaluate(
        "e => e.style.left"
    )
    assert float(share.rstrip("%")) == pytest.approx(
        100 * (-2 - places[0]) / (places[-1] - places[0]), abs=0.01
    )
    assert x[0] == 0 and x[-1] == 480


def test_a_chart_names_its_lines_at_their_ends_and_has_a_table(opened: Opened) -> None:
    report = run("scale-demo")
    rows = report.table("sharpness")
    page = opened(page_of(report))
    figure = page.locator("#curves figure").first
    assert figure.locator("figcaption").text_content().strip() == "Softmax of scaled logits (softmax)"
    names = figure.locator(".line-ends span")
    assert sorted(names.all_text_contents()) == sorted(f"factor {row['factor']:g}" for row in rows)
    tops = [box["y"] for box in (name.bounding_box() for name in names.all())]
    assert all(after - before > 10 for before, after in pairwise(sorted(tops)))
    lines = figure.locator("polyline").evaluate_all(
        "all => all.map(each => [each.getAttribute('class'), each.getAttribute('stroke-dasharray')])"
    )
    assert len({line[0] for line in lines}) == len({line[1] for line in lines}) == len(rows)
    figure.locator(".numbers summary").click()
    figure.locator(".numbers tbody tr").first.wait_for()
    shown = figure.locator(".numbers tbody tr").first.locator("th, td").all_text_contents()
    assert [float(cell) for cell in shown] == pytest.approx([0, *(r["softmax"][0] for r in rows)], abs=1e-4)


@pytest.mark.parametrize("width", [1280, 390])
def test_selecting_a_token_leaves_it_under_the_pointer(opened: Opened, width: int) -> None:
    page = opened(page_of(heads_report(SENTENCE, random_weights(2, 12, 6, 6))), width=width)
    page.get_by_role("button", name="Lines").click()
    page.get_by_role("button", name="All heads of layer 0").click()
    for index in (3, 1):
        token(page, "query", index).click()
        page.wait_for_timeout(100)
        assert token(page, "query", index).evaluate("element => element.matches(':hover')")


def test_a_slider_leads_from_step_to_step(opened: Opened) -> None:
    steps = (0, 50, 300)
    grids = random_weights(3, 2, 4)
    tensors = {
        "step": NamedTensor(("point",), np.array(steps, dtype=np.float64)),
        "loss": NamedTensor(("point",), np.array([np.nan, 2.5, 1.5])),
        "induction": NamedTensor(("step", "layer", "head"), grids),
        "entropy": NamedTensor(("step", "layer", "head"), grids + 1),
    }
    statistics = {"steps": Table({"step": step} for step in steps)}
    page = opened(page_of(Report("watch", {}, {}, tensors=tensors, result=read_result("", statistics))))
    wait_for_title(page, "induction (layer × head), step 300")
    slider = page.locator("#step")
    assert page.locator("#overview").is_hidden() and page.locator("#range").input_value() == "all"
    assert slider.get_attribute("max") == "2" and slider.input_value() == "2"
    slider.fill("1")
    wait_for_title(page, "induction (layer × head), step 50")
    assert page.locator("#step-number").text_content() == "50"
    page.keyboard.press("Escape")
    page.select_option("#tensor", label="entropy (step × layer × head)")
    wait_for_title(page, "entropy (layer × head), step 50")
    slider.press("ArrowLeft")
    wait_for_title(page, "entropy (layer × head), step 0")
    page.select_option("#compare", "2")
    page.wait_for_function("document.getElementById('compared-name').textContent.includes('step 300')")
    assert page.locator("#more-curves figcaption b").all_text_contents() == ["loss"]
