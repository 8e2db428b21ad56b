"""The page in Chromium, offline: what a person sees and does, and that texts are never executed."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Shape, Step, Table, Tensors, Terms
from attncli.system.plain_text import plain_text
from attncli.views.page.blocks import SOURCES
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
    weights_beside,
)
from tests.views.test_views import CASES

HOSTILE = (
    "<script>document.title='taken'</script>",
    "<img src=x onerror=alert(1)>",
    "</script><iframe src=https://example.org>",
    "a\u202eb",
    "[/INST]",
    "&amp;",
    "x" * 300,
)


ATTENTION = ("query", "key")


def sentence_report(seed: int = 0) -> Report:
    """`the cat walks on the street` with weights that all differ."""
    weights = NamedTensor(("query", "key"), random_weights(6, 6, seed=seed))
    return Report("self", {}, {}, SENTENCE, (), {"weights": weights})


def test_hover_shows_the_weights_of_each_of_two_equal_words(opened: Opened) -> None:
    report = sentence_report()
    weights = report.tensors["weights"].values
    page = opened(page_of(report))
    for query in (0, 4):
        token(page, "query", query).hover()
        wait_for_readout(page, f"{query} the looks most at")
        assert weights_beside(page, "key") == texts(weights[query])
        assert weights_beside(page, "query") == texts(weights[:, query])
    assert texts(weights[0]) != texts(weights[4])
    assert page.locator("#map .map-left .label").all_text_contents() == [
        f"{i} {word}" for i, word in enumerate(SENTENCE)
    ]


def test_the_pointer_on_the_map_reads_a_cell(opened: Opened) -> None:
    report = sentence_report()
    page = opened(page_of(report))
    box = page.locator("#map .map-cells").bounding_box()
    for row, column in ((0, 4), (4, 0), (5, 5)):
        page.mouse.move(
            box["x"] + (column + 0.5) * box["width"] / 6, box["y"] + (row + 0.5) * box["height"] / 6
        )
        weight = report.tensors["weights"].values[row, column]
        wait_for_readout(page, f"{row} {SENTENCE[row]} → {column} {SENTENCE[column]}: {weight:.4f}")
    assert page.locator("#map .map-numbers span").all_text_contents() == texts(
        report.tensors["weights"].values.ravel()
    )


def test_a_map_of_200_tokens_is_read_by_zooming_into_it(opened: Opened) -> None:
    """Dragging, Ctrl with the wheel, and keys zoom; tokens at the pointer have their whole labels."""
    tokens = [f"a long name of token {i}" for i in range(200)]
    report = Report("self", {}, {}, tokens, (), {"weights": NamedTensor(ATTENTION, random_weights(200, 200))})
    weights = report.tensors["weights"].values
    page = opened(page_of(report))
    cells, sheet = page.locator("#map .map-cells"), page.locator("#map .map-sheet")
    labels = page.locator("#map .map-left .label")

    def point_at(row: float, column: float) -> None:
        box = sheet.bounding_box()
        page.mouse.move(box["x"] + column * box["width"] / 200, box["y"] + row * box["height"] / 200)

    def wait_for_cell(row: int, column: int) -> None:
        """The number and both labels of a cell."""
        wait_for_readout(page, f": {weights[row, column]:.4f}")
        whole = page.locator("#map .cross").all_text_contents()
        assert whole == [f"{column} {tokens[column]}", f"{row} {tokens[row]}"]

    at_rest = cells.bounding_box()
    steps = {int(label.split()[0]) for label in labels.all_text_contents()}
    (step,) = {after - before for before, after in pairwise(sorted(steps))}
    assert step > 1 and at_rest["height"] > 300
    point_at(120.5, 33.5)
    wait_for_cell(120, 33)
    page.mouse.down()
    point_at(125, 40)
    point_at(139.5, 52.5)
    page.mouse.up()
    zoomed = {int(label.split()[0]) for label in labels.all_text_contents()}
    assert zoomed >= {*range(120, 140)} and len(zoomed) < 60
    assert page.locator(".token[aria-pressed=true]").count() == 0, "a drag selects nothing"
    point_at(130.5, 45.5)
    wait_for_cell(130, 45)
    page.keyboard.down("Control")
    for _ in range(8):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_selector("#map .map-numbers span")
    wait_for_cell(130, 45)
    window = page.locator("#map .window").bounding_box()
    small = page.locator("#map .small-map").bounding_box()
    assert (window["y"] - small["y"]) / small["height"] == pytest.approx(0.64, abs=0.03)
    cells.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    wait_for_readout(page, f": {weights[127, 0]:.4f}")
    assert cells.evaluate("cells => cells.scrollLeft") == 0
    page.keyboard.press("Escape")
    page.wait_for_selector("#map:not(.zoomed)")
    assert cells.bounding_box() == at_rest
    page.keyboard.press("+")
    assert page.locator("#map.zoomed").count() == 1


@pytest.mark.parametrize(
    ("width", "count"), [(390, 5), (390, 40), (800, 200), (1280, 5), (1280, 40), (1280, 200)]
)
def test_labels_of_a_map_neither_overlap_nor_leave_it(opened: Opened, width: int, count: int) -> None:
    weights = NamedTensor(ATTENTION, random_weights(count, count))
    tokens = [("harbour", "a", "·the", "lighthouse")[i % 4] for i in range(count)]
    page = opened(page_of(Report("self", {}, {}, tokens, (), {"weights": weights})), width=width)
    for side, start, size in (("left", "y", "height"), ("top", "x", "width")):
        boxes = page.locator(f"#map .map-{side} .label").evaluate_all(
            "labels => labels.map(label => label.getBoundingClientRect().toJSON())"
        )
        assert len(boxes) >= min(count, 15)
        assert all(one[start] + one[size] <= two[start] + 0.5 for one, two in pairwise(boxes))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cell = page.locator("#map .map-cells").bounding_box()["width"] / count
    assert cell > (60 if count == 5 and width == 1280 else 1)


def test_every_weight_of_128_tokens_is_right_to_four_decimals(opened: Opened) -> None:
    words = [f"word{i}" for i in range(128)]
    weights = random_weights(12, 12, 128, 128, sharpness=2)
    page = opened(page_of(heads_report(words, weights)))
    assert page.locator(".thumbnail").count() == 144
    page.locator('.thumbnail[title="head 5:11"]').click()
    wait_for_title(page, "weights (query × key), head 5:11")
    token(page, "query", 77).hover()
    wait_for_readout(page, "77 word77 looks most at")
    assert weights_beside(page, "key") == texts(weights[5, 11, 77])
    assert weights_beside(page, "query") == texts(weights[5, 11, :, 77])


def test_several_tokens_are_selected_at_once(opened: Opened) -> None:
    report = sentence_report()
    weights = report.tensors["weights"].values
    page = opened(page_of(report))
    token(page, "query", 0).click()
    token(page, "query", 4).click()
    page.mouse.move(0, 0)
    assert page.locator(".card h3").all_text_contents() == ["0 the×", "4 the×"]
    assert page.locator('.token[aria-pressed="true"]').count() == 2
    token(page, "query", 1).hover()
    wait_for_readout(
        page, f"0 the → 1 cat: {weights[0, 1]:.4f}; 4 the → 1 cat: {weights[4, 1]:.4f}; 1 cat → 0 the"
    )
    assert page.locator(".card").count() == 3
    page.get_by_role("button", name="Deselect 0 the").click()
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    page.wait_for_selector(".card", state="detached")


def test_a_card_names_where_a_token_looks_and_its_statistics(opened: Opened) -> None:
    report = run("self", causal=True)
    page = opened(page_of(report))
    token(page, "query", 3).click()
    row = report.tensors["weights"].values[3]
    order = sorted(range(4), key=lambda key: -row[key])
    shown = page.locator(".card .lists div").first.locator("li").all_text_contents()
    assert shown == [f"{key} {SENTENCE[key]}{row[key]:.4f}" for key in order]
    figures = page.locator(".card .statistics").text_content()
    assert f"entropy{report.statistics['rows']['entropy'].values[3]:.4f}" in figures
    assert f"received mass{report.statistics['keys']['received_mass'].values[3]:.4f}" in figures


def test_the_page_works_with_only_a_keyboard(opened: Opened) -> None:
    weights = random_weights(3, 4, 6, 6)
    page = opened(page_of(heads_report(SENTENCE, weights)))

    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    def wait_for_head(layer: int, head: int) -> None:
        wait_for_title(page, f"weights (query × key), head {layer}:{head}")

    for _ in range(40):  # by tab to the overview
        press("Tab")
        if page.evaluate("document.activeElement.className.includes('thumbnail')"):
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press("ArrowRight", "ArrowRight", "ArrowDown")
    wait_for_head(1, 2)
    press("End")
    wait_for_head(2, 3)
    press(",")
    wait_for_head(2, 2)
    for _ in range(40):  # on to the map
        press("Tab")
        if page.evaluate("document.activeElement.className === 'map-cells'"):
            break
    press("ArrowDown", "ArrowRight", "ArrowRight")
    wait_for_readout(page, f"1 cat → 2 walks: {weights[2, 2, 1, 2]:.4f}")
    press("Enter")
    assert page.locator(".card h3").all_text_contents() == ["1 cat×"]
    press("Escape")
    for _ in range(40):  # and to the tokens
        press("Tab")
        if page.evaluate("document.activeElement.className.includes('token')"):
            break
    press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "Enter")
    wait_for_readout(page, "4 the looks most at")
    assert weights_beside(page, "key") == texts(weights[2, 2, 4])


@pytest.mark.parametrize(("maps", "figure"), [("self", "0.2000"), ("encoder", "0.1000"), ("cross", "0.3000")])
def test_a_head_has_the_statistics_of_its_stack(opened: Opened, maps: str, figure: str) -> None:
    stacks = {"encoder": 0.1, "decoder": 0.2, "cross": 0.3}
    rows = Table(
        {"layer": 0, "head": head, "stack": stack, "entropy": entropy}
        for stack, entropy in stacks.items()
        for head in range(2)
    )
    weights = NamedTensor(("layer", "head", "query", "key"), random_weights(1, 2, 6, 6))
    page = opened(
        page_of(
            Report(
                "heads",
                {"maps": maps},
                {},
                SENTENCE,
                (),
                {"weights": weights},
                read_result("", {"heads": rows}),
            )
        )
    )
    assert page.locator("#head-statistics dd").all_text_contents() == [figure]
    page.select_option("#sort", "entropy")
    assert page.locator(".thumbnail .statistic").all_text_contents() == [figure] * 2


def test_colours_follow_the_scale_and_leave_skipped_keys_blank(opened: Opened) -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.9, 0.01, 0.09], [0.98, 0.01, 0.01]], dtype=np.float32)
    report = Report("self", {}, {}, ("a", "b", "c"), (), {"weights": NamedTensor(("query", "key"), weights)})
    page = opened(page_of(report, scale_colors="log", skip_first_keys=1))
    from attncli.views.colours import VIRIDIS, colours, shading

    cells = page.locator("#map .map-cells canvas")
    for scale in ("log", "linear", "row"):
        page.select_option("#scale", scale)
        page.wait_for_timeout(50)
        places = shading(weights, scale, skip_keys=1, from_zero=True).places
        assert (pixels_of(cells)[:, 0, 3] == 0).all()
        expected = colours(VIRIDIS)[np.rint(places[:, 1:] * 255).astype(int)]
        assert np.abs(pixels_of(cells)[:, 1:, :3] - expected.astype(int)).max() <= 3
    page.fill("#skip", "0")
    page.keyboard.press("Tab")
    page.wait_for_timeout(50)
    assert (pixels_of(cells)[..., 3] == 255).all()


def test_lines_of_a_difference_keep_its_sign(opened: Opened) -> None:
    """Positive differences are red, negative ones blue; weights have neither colour."""
    values = np.array([[0.5, -0.5], [-0.5, 0.5]])
    tokens = ("a", "b")
    inks = {}
    for name, numbers in (("difference", values), ("weights", np.full((2, 2), 0.5))):
        report = Report("diff", {}, {}, tokens, (), {name: NamedTensor(("query", "key"), numbers)})
        page = opened(page_of(report))
        pixels = pixels_of(page.locator(".sides > canvas")).reshape(-1, 4)
        drawn = pixels[pixels[:, 3] > 60, :3]
        inks[name] = (drawn[:, 0] > 120).any(), ((drawn[:, 2] > 120) & (drawn[:, 0] > 40)).any()
    assert inks == {"difference": (True, True), "weights": (False, False)}


def test_hidden_keys_are_grey_and_compared_tensors_share_a_range(opened: Opened) -> None:
    page = opened(page_of(run("pitfalls", pitfall="softmax-twice")))
    assert "1.0000" in page.inner_text("#legend") and "0.0000" in page.inner_text("#legend")
    page.select_option("#tensor", label="right weights (query × key)")
    page.wait_for_function("document.getElementById('matrix-title').textContent.startsWith('right')")
    texts = page.locator("#map .map-numbers span").all_inner_texts()
    assert [text == "-" for text in texts] == (np.tri(6) == 0).ravel().tolist()
    background = "c => getComputedStyle(c).backgroundColor"
    assert page.locator("#map .map-cells canvas").evaluate(background) == "rgb(190, 190, 190)"


def test_hostile_tokens_are_shown_as_text(opened: Opened) -> None:
    weights = random_weights(len(HOSTILE), len(HOSTILE))
    report = Report(
        "self",
        {"sentence": HOSTILE[0]},
        {},
        HOSTILE,
        (),
        {HOSTILE[1]: NamedTensor(("query", "key"), weights)},
        read_result("", {HOSTILE[0]: {HOSTILE[1]: 1.5}, "rows of": [{HOSTILE[2]: HOSTILE[1], "b": 2}]}),
        HOSTILE,
    )
    page = opened(page_of(report))
    shown = page.locator('.token[data-side="query"] .word').all_text_contents()
    assert shown == [plain_text(text) for text in HOSTILE]
    token(page, "query", 1).click()
    assert page.locator(".card h3 .word").text_content() == HOSTILE[1]
    assert page.locator("img, iframe, main script, b:has(script)").count() == 0
    assert page.title() == page.locator("#heading").text_content() == f"Self-attention: {HOSTILE[0]}"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_policy_blocks_injected_markup(opened: Opened) -> None:
    text = page_of(sentence_report())
    foreign = (
        "<script>window.taken = 1</script><img src=x onerror='window.taken = 2'><p style='color: red'>p</p>"
    )
    page = opened(text.replace("<main ", f"{foreign}<main "))
    assert page.evaluate("window.taken") is None
    assert page.evaluate("getComputedStyle(document.querySelector('body > p')).color") != "rgb(255, 0, 0)"
    assert "TrustedHTML" in page.evaluate(
        "() => { try { document.body.innerHTML = '<b>'; } catch (error) { return error.message; } }"
    )
    assert len([line for line in page.told if "Content Security Policy" in line]) >= 3
    assert [url for url in page.asked if not url.endswith("/x")] == []  # stopped before it was sent
    page.told.clear()
    page.asked.clear()


TOO_WIDE = """async () => {
    const tensor = document.getElementById("tensor");
    const found = [];
    const look = async (name) => {
        for (const _ of [0, 1]) await new Promise(requestAnimationFrame);
        if (document.documentElement.scrollWidth > innerWidth) found.push(name);
    };
    await look("at first");
    for (const { value, label } of tensor.options) {
        tensor.value = value;
        tensor.dispatchEvent(new Event("change", { bubbles: true }));
        await look(label);
    }
    return found;
}"""


LIKE_OTHERS = ("self", "self-causal", "multihead", "pitfalls-late-mask")


@pytest.mark.parametrize("case", [case for case in CASES if case not in LIKE_OTHERS])
def test_every_experiment_fits_a_phone_and_a_desktop(opened: Opened, case: str) -> None:
    experiment, settings = CASES[case]
    report = run(experiment, **settings)
    page = opened(page_of(report))
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(TOO_WIDE) == [], width
    for note in report.sentences:
        assert page.locator("#notes").get_by_text(note).count() == 1


def test_long_texts_show_maps_of_blocks_and_the_heads_in_full(opened: Opened) -> None:
    report = pooled_report(300, [(2, 7), (5, 11)])
    page = opened(page_of(report))
    assert page.locator(".thumbnail").count() == 144
    assert page.locator(".thumbnail.full").count() == 2
    assert page.input_value("#scale") == "log" and "log scale" in page.inner_text("#legend")
    assert page.locator("#tokens").is_hidden()
    assert page.locator("#map .map-left .label").first.text_content().startswith("0\u20134 word0 word1")
    page.locator(".thumbnail.full").nth(1).click()
    wait_for_title(page, "weights (query × key), head 5:11")
    token(page, "key", 299).hover()
    wait_for_readout(page, "299 word299 looks most at")
    assert weights_beside(page, "query") == texts(report.tensors["weights_5_11"].values[:, 299])


def test_a_streamed_report_shows_its_map_and_its_rows(opened: Opened) -> None:
    report = run("self", num_tokens=70, engine="streaming")
    page = opened(page_of(report))
    assert page.locator("#matrix-title").text_content() == "pooled mean (query block × key block)"
    assert page.locator("#row-curves figcaption b").all_text_contents()[:2] == [
        "entropy",
        "normalized entropy",
    ]
    page.locator("#map .map-cells").hover(position={"x": 1, "y": 1})
    value = report.tensors["pooled_mean"].values[0, 0]
    wait_for_readout(page, f"0\u20131 x0 x1 → 0\u20131 x0 x1: {value:.4f}")


def test_the_steps_of_a_computation_are_shown(opened: Opened) -> None:
    shapes = (Shape("weights", ATTENTION, (2, 3), (3, 1)),)
    rows = ((0, "the", 0.25), (1, "<b>cat</b>", None))
    table = Terms("softmax of query 1", ("key", "text", "weight"), rows, 3, (("sum", "", 1.0),))
    numbers = {"largest score": 0.31, "keys": 3}
    step = Step("Softmax", "w = exp(s) / Σ exp(s)", "Each row sums to one.", shapes, numbers, (table,))
    page = opened(page_of(Report("self", {}, {}, steps=(step, replace(step, title="Output", tables=())))))
    assert page.locator(".step summary").all_text_contents() == ["1 of 2: Softmax", "2 of 2: Output"]
    lines = page.locator(".step").first.locator("p").all_text_contents()
    assert lines == [
        "w = exp(s) / Σ exp(s)",
        "weights (query × key) 2 × 3, strides 3, 1",
        "Each row sums to one.",
    ]
    assert page.locator(".step h3").text_content() == "softmax of query 1 (2 of 3 rows)"
    cells = page.locator(".step td").all_text_contents()
    assert cells == ["0", "the", "0.2500", "1", "<b>cat</b>", "-", "sum", "", "1.0000"]
    assert page.locator(".step").last.locator(".statistics dd").all_text_contents() == ["0.3100", "3"]


def test_numbers_and_their_names_neither_break_nor_overlap(opened: Opened) -> None:
    """A long name, a vector and a long word, on a phone and on a desktop."""
    values = {"query": ", ".join(["-0.1363"] * 40), "largest of all scaled scores of the row": 12.25}
    rows = [
        {
            "layer": 0,
            "head": 0,
            "pattern": "previous token",
            "rest_pattern": "duplicate token",
            "entropy": 1.5,
        }
    ]
    weights = NamedTensor(("layer", "head", "query", "key"), random_weights(1, 2, 6, 6))
    result = read_result("heads", {"heads": [*rows, {**rows[0], "head": 1}], "model": {"sink_rate": 0.25}})
    report = Report("heads", {"seed": 0, "model": "x" * 90}, {}, SENTENCE, (), {"weights": weights}, result)
    report = replace(report, steps=(Step("Softmax", "w", "", values=values),))
    for width in (320, 800, 1280):
        page = opened(page_of(report), width=width)
        page.locator("#notes summary").click()
        assert page.evaluate(BROKEN_NUMBERS) == []
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


BROKEN_NUMBERS = """[...document.querySelectorAll(".statistics dd")].flatMap((element) => {
  const range = document.createRange();
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const broken = [];
  while (walker.nextNode())
    for (const { 0: text, index } of walker.currentNode.textContent.matchAll(/-?[0-9]+([.][0-9]+)?/g)) {
      range.setStart(walker.currentNode, index);
      range.setEnd(walker.currentNode, index + text.length);
      if (range.getClientRects().length > 1) broken.push(text);
    }
  return broken;
})"""
OVERLAPS = """[...document.querySelectorAll(".statistics div")].flatMap((line) => {
  const [box, value] = [line, line.querySelector("dd")].map((element) => element.getBoundingClientRect());
  const [name] = line.querySelector("dt").getClientRects();
  const isOver = value.left < name.right - 1 && value.top < name.bottom - 1;
  return isOver || value.right > box.right + 1 ? [line.textContent] : [];
})"""


@pytest.mark.nightly
def test_every_row_and_step_is_printed_on_paper(opened: Opened) -> None:
    """On paper, nothing scrolls, closed parts are open, and a dark page is light."""
    rows = [{f"a long name {i}": place + i / 7 for i in range(20)} for place in range(300)]
    tokens = [f"t{i}" for i in range(90)]
    weights = NamedTensor(("query", "key"), random_weights(90, 90))
    result = read_result("unknown", {"many": rows})
    page = opened(page_of(Report("self", {"seed": 0}, {}, tokens, (), {"weights": weights}, result)))
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    hidden = """[...document.querySelectorAll("main *")].filter((element) =>
      element.scrollHeight > element.clientHeight + 1 && getComputedStyle(element).overflowY !== "visible"
      && element.clientHeight).map((element) => element.className)"""
    assert page.evaluate(hidden) == []
    assert page.locator(".scroll tr").last.is_visible() and page.locator("#notes dd").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 29, 33)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("#notes dd").first.is_hidden()


def test_reports_are_chosen_from_a_list(opened: Opened) -> None:
    page = opened(page_of(run("self"), run("scale-demo"), run("cross", sentence="a b", context="c d e")))
    page.select_option("#report", "1")
    page.wait_for_function("document.getElementById('heading').textContent.startsWith('Why scores')")
    assert page.locator("#curves polyline").count() >= 3 and page.locator("#matrix").is_hidden()
    page.select_option("#report", "2")
    page.wait_for_function("document.getElementById('heading').textContent.startsWith('Cross')")
    page.wait_for_selector('.token[data-side="key"][data-index="2"]')
    assert page.locator('.token[data-side="query"]').count() == 2


@pytest.mark.nightly
def test_the_theme_follows_the_system_and_the_switch(opened: Opened) -> None:
    text = page_of(sentence_report())
    background = "getComputedStyle(document.body).backgroundColor"
    light = opened(text, color_scheme="light").evaluate(background)
    page = opened(text, color_scheme="dark")
    dark = page.evaluate(background)
    assert dark != light
    page.locator("#theme").click()
    assert page.evaluate(background) == light
    page.locator("#theme").click()
    assert page.evaluate(background) == dark


def test_without_scripts_a_line_explains_the_empty_page(opened: Opened, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(sentence_report()))
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("noscript").count() == 1 and "allow scripts" in page.locator("body").inner_text()
    context.close()


def test_the_sources_are_modules_that_a_browser_loads_as_they_are(browser: Any) -> None:
    """A server may send each file with its imports instead of one joined script."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    text = page_of(sentence_report())
    start = text.index('<script type="module">')
    entry = '<script type="module" src="/page/file.js"></script>'
    document = re.sub(r"<meta http-equiv[^>]*>", "", text[:start]) + entry

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix("http://page.test/")
        if not name:
            route.fulfill(body=document, content_type="text/html; charset=utf-8")
        else:
            source = (SOURCES / "scripts" / name).read_text(encoding="utf-8")
            route.fulfill(body=source, content_type="text/javascript; charset=utf-8")

    page.route("http://page.test/**", answer)
    page.goto("http://page.test/")
    page.wait_for_selector("html[data-drawn]")
    assert errors == [] and page.locator("#map .map-numbers span").count() == 36
    page.close()


def why_report() -> Report:
    contributions = np.linspace(-1, 2, 90).reshape(30, 3)
    rows = [
        {"layer": layer, "module": f"layers.{layer}.attn", "kind": "self", "stack": "self", "head": head,
         "pattern": "induction", "contribution": contributions[layer, head]}
        for layer in range(30)
        for head in range(3)
    ]  # fmt: skip
    patterns = [{"pattern": "induction", "rows": 15}, {"pattern": "unnamed", "rows": None}]
    keys = {
        name: NamedTensor(("key",), np.arange(6) / scale)
        for name, scale in (("contribution", 3), ("weight", 15))
    }
    return Report(
        "why",
        {"head": "29:2"},
        {},
        SENTENCE,
        tensors={"contribution": NamedTensor(("layer", "head"), contributions)},
        result=read_result("", {"heads": Table(rows), "patterns": Table(patterns), "keys": Tensors(keys)}),
    )


@pytest.mark.parametrize("width", [600, 1200])
def test_a_page_without_tokens_has_its_ranked_table_beside_its_map(opened: Opened, width: int) -> None:
    page = opened(page_of(why_report()), width=width)
    tables = page.locator("#tables .table")
    assert [title.split("\n")[0] for title in tables.all_inner_texts()] == [
        "Head 29:2, token by token", "Heads", "Patterns",
    ]  # fmt: skip
    assert tables.nth(0).locator("tbody tr").nth(5).locator("th, td").all_inner_texts() == [
        "5 street",
        "1.6667",
        "0.3333",
    ]
    assert tables.nth(1).locator("thead th").all_inner_texts() == ["head", "pattern", "contribution"]
    assert tables.nth(2).locator("td.number").all_inner_texts() == ["15", "-"]
    assert page.inner_text("#legend").split()[0] == "logit"
    assert page.locator(".map-numbers span").first.is_visible()
    where, there = page.locator(".workspace").bounding_box(), page.locator("#aside").bounding_box()
    assert (there["x"] > where["x"] + where["width"]) == (width == 1200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_colour_bar_is_named_and_the_heads_of_a_layer_fill_their_lines(opened: Opened) -> None:
    page = opened(page_of(heads_report(SENTENCE, random_weights(4, 9, 6, 6))), width=1200)
    assert page.inner_text("#legend").split()[0] == "weight"
    tops = page.locator(".thumbnail").evaluate_all("all => all.slice(0, 9).map(each => each.offsetTop)")
    assert [tops.count(top) for top in dict.fromkeys(tops)] == [3, 3, 3]
