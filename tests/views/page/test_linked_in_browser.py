"""The address of a page, what pointing at a head or token highlights, and the sheet of a narrow window."""

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from attncli.records.report import NamedTensor, Report
from tests.running import run
from tests.views.page.pages import (
    SENTENCE,
    Opened,
    heads_report,
    page_of,
    random_weights,
    token,
    wait_for_title,
)

DEFAULT = "weights (query × key), head 0:0"


def sentence_heads(seed: int = 0) -> Report:
    """Three layers of four heads on six tokens."""
    return heads_report(SENTENCE, random_weights(3, 4, 6, 6, seed=seed))


def wait_for_address(page: Any, fragment: str) -> None:
    page.wait_for_function("text => location.hash === text", arg=fragment)


def selected(page: Any) -> Any:
    return page.locator(".card h3").all_text_contents()


def wait_for_view(page: Any, title: str, tokens: Sequence[str]) -> None:
    wait_for_title(page, title)
    cards = [f"{name}×" for name in tokens]
    page.wait_for_function(
        "cards => [...document.querySelectorAll('.card h3')].map(each => each.textContent).join() === cards",
        arg=",".join(cards),
    )


def linked(page: Any, about: str) -> Any:
    """The names and classes of all highlighted elements, once those with the attribute are."""
    page.wait_for_function("about => document.querySelector(`main ${about}.linked`)", arg=about)
    return page.locator(".linked").evaluate_all(
        "elements => elements.map(each => each.localName + (each.matches('.token, .thumbnail, .label') ? "
        "'.' + each.classList[0] : '')).sort()"
    )


def test_back_forward_and_reload_show_what_was_chosen(opened: Opened) -> None:
    page = opened(page_of(sentence_heads(), sentence_heads(1)))
    assert page.evaluate("location.hash") == ""
    page.locator('.thumbnail[title="head 1:2"]').click()
    wait_for_address(page, "#head=1:2")
    token(page, "query", 4).click()
    token(page, "key", 2).click()
    wait_for_address(page, "#head=1:2&query=4&key=2")
    length = page.evaluate("history.length")
    page.locator('.thumbnail[title="head 1:2"]').press("ArrowRight")
    wait_for_address(page, "#head=1:3&query=4&key=2")
    assert page.evaluate("history.length") == length
    page.select_option("#sort", "induction")
    page.locator("#order").click()
    page.select_option("#scale", "log")
    page.select_option("#compare", label="head 0:1")
    chosen = "#compare=0:1&query=4&key=2&sort=induction&order=ascending&scale=log"
    wait_for_address(page, chosen)
    page.select_option("#report", "1")
    wait_for_address(page, "#report=2&scale=log")
    for moves, fragment, title, tokens in (
        (1, chosen, DEFAULT, ("4 thehead 0:0", "4 thehead 0:1", "2 walkshead 0:0", "2 walkshead 0:1")),
        (5, "#head=1:2&query=4", "weights (query × key), head 1:2", ("4 the",)),
        (1, "#head=1:2", "weights (query × key), head 1:2", ()),
        (1, "", DEFAULT, ()),
        (-2, "#head=1:2&query=4", "weights (query × key), head 1:2", ("4 the",)),
        (-5, chosen, DEFAULT, ("4 thehead 0:0", "4 thehead 0:1", "2 walkshead 0:0", "2 walkshead 0:1")),
    ):
        page.evaluate(f"history.go({-moves})")
        wait_for_address(page, fragment)
        wait_for_view(page, title, tokens)
    page.reload()
    wait_for_view(page, DEFAULT, ("4 thehead 0:0", "4 thehead 0:1", "2 walkshead 0:0", "2 walkshead 0:1"))
    shown = [page.input_value(f"#{name}") for name in ("report", "sort", "scale", "compare")]
    assert shown == ["0", "induction", "log", "1"]
    page.evaluate("location.hash = 'report=2&head=2:3&key=5'")
    wait_for_view(page, "weights (query × key), head 2:3", ("5 street",))
    assert page.evaluate("location.hash") == "#report=2&head=2:3&key=5"


def test_a_page_opens_on_what_was_asked_and_its_address_on_the_lines(opened: Opened) -> None:
    report = replace(sentence_heads(), spec={"from": ["cat"], "to": ["street"]})
    page = opened(page_of(report), width=1280)
    wait_for_view(page, DEFAULT, ("1 cat",))
    assert page.evaluate("location.hash") == "" and page.locator("#map .map-marks .hit").count() == 1
    page.locator("#map .map-left .label").nth(3).click()
    page.locator("#map .map-top .label").nth(5).click()
    wait_for_address(page, "#query=1&query=3&key=5")
    page.get_by_role("button", name="Lines").click()
    wait_for_address(page, "#query=1&query=3&key=5&view=lines")
    assert page.locator("#map").is_hidden() and page.locator("#tokens").is_visible()
    page.reload()
    page.wait_for_selector("#tokens .token.source")
    assert page.locator("#map").is_hidden()
    page.go_back()
    wait_for_address(page, "#query=1&query=3&key=5")
    page.wait_for_function("document.getElementById('map').checkVisibility()")


def test_a_head_of_the_table_does_not_move_the_page(opened: Opened) -> None:
    page = opened(page_of(run("heads", maps="self")), width=1280)
    page.locator("#aside").get_by_role("button", name="Show head 0:1").first.click()
    wait_for_title(page, "weights (query × key), head 0:1")
    assert page.evaluate("scrollY") == 0


def test_wrong_and_hostile_addresses_are_ignored(opened: Opened) -> None:
    page = opened(page_of(sentence_heads()))
    for fragment in (
        "head=99:99&query=999&key=-1&report=7&layer=3&skip=1e9&compare=9:9",
        "sort=__proto__&scale=constructor&order=toString&range=valueOf&heads=__proto__",
        "tensor=<img src=x onerror=alert(1)>&from=<b>&to=%3Cscript%3Ealert(1)%3C/script%3E",
        "head=%E0%A4%A&query=%&&&=&=head",
    ):
        page.evaluate("text => { location.hash = text }", f"head=1:1&{fragment.replace('head=', 'map=')}")
        wait_for_title(page, "weights (query × key), head 1:1")
        page.evaluate("text => { location.hash = text }", fragment)
        wait_for_title(page, DEFAULT)
        values = [page.input_value(f"#{name}") for name in ("sort", "scale", "range", "layer", "from", "to")]
        assert values == ["", "linear", "each", "", "", ""] and not selected(page)
    page.evaluate("location.hash = 'head=1:1'")
    wait_for_title(page, "weights (query × key), head 1:1")
    page.evaluate("location.hash = 'tables'")  # an anchor, which changes nothing
    page.wait_for_timeout(100)
    assert page.locator("#matrix-title").text_content() == "weights (query × key), head 1:1"
    assert page.locator("#problem").is_hidden() and not page.locator("img, b, main script").count()


def test_a_head_or_token_is_highlighted_everywhere(opened: Opened) -> None:
    report = heads_report(SENTENCE, random_weights(5, 4, 6, 6))
    grid = NamedTensor(("layer", "head"), random_weights(5, 4))
    tensors = {**report.tensors, "induction": grid}
    page = opened(page_of(Report("heads", {"seed": 0}, {}, SENTENCE, (), tensors, report.result)))
    page.locator('.thumbnail[title="head 1:2"]').hover()
    assert linked(page, '[data-head="1:2"]') == ["div.thumbnail", "tr"]
    assert page.locator(".head-grid .pointed").is_visible()
    page.get_by_role("button", name="Show head 2:1").focus()
    page.mouse.move(0, 0)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert linked(page, '[data-head="2:1"]') == ["div.thumbnail", "tr"]
    token(page, "key", 4).hover()
    tokens = ["button.token", "button.token", "span.label", "span.label"]
    assert [name for name in linked(page, '[data-query="4"]') if "." in name] == tokens
    assert page.locator("#map .frame:visible").count() == 2
    box = page.locator("#map .map-cells").bounding_box()
    page.mouse.move(box["x"] + 2.5 * box["width"] / 6, box["y"] + 4.5 * box["height"] / 6)
    assert [name for name in linked(page, '[data-key="2"]') if "." in name] == tokens
    page.mouse.move(0, 0)
    page.select_option("#tensor", label="induction (layer × head)")
    wait_for_title(page, "induction (layer × head)")
    page.locator("tr", has=page.get_by_role("button", name="Show head 2:1")).hover()
    page.wait_for_selector("#map .frame:visible")
    cells = page.locator("#map .map-cells")
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    page.mouse.move(box["x"] + 2.5 * box["width"] / 4, box["y"] + 1.5 * box["height"] / 5)
    assert "tr" in linked(page, '[data-head="1:2"]')


def select_in_map(page: Any, row: int, column: int) -> None:
    """Click a cell of a map of six tokens, scrolled to the lower edge of the window."""
    cells = page.locator("#map .map-cells")
    cells.evaluate("cells => cells.scrollIntoView({ block: 'end', behavior: 'instant' })")
    box = cells.bounding_box()
    x, y = ((place + 0.5) / 6 for place in (column, row))
    cells.click(position={"x": x * box["width"], "y": y * box["height"]})


@pytest.mark.parametrize("width", [800, 390])
def test_a_sheet_shows_what_is_selected_in_a_narrow_window(opened: Opened, width: int) -> None:
    page = opened(page_of(sentence_heads()), width=width)
    sheet, close = page.locator("#selected"), page.get_by_role("button", name="Close", exact=True)
    assert sheet.is_hidden()
    select_in_map(page, 5, 2)
    box, row = sheet.bounding_box(), page.locator("#map .frame").first.bounding_box()
    assert box["y"] + box["height"] == 900 and 0 < box["height"] <= 0.4 * 900
    assert row["y"] + row["height"] <= box["y"] and row["y"] > 0
    assert (
        selected(page) == ["5 street×"] and page.evaluate("document.activeElement.className") == "map-cells"
    )
    page.keyboard.press("Escape")
    assert sheet.is_hidden() and page.evaluate("location.hash") == "#query=5"
    page.keyboard.press("Enter")  # deselects the cell's token, another Enter selects it
    page.keyboard.press("Enter")
    close.click()
    assert (
        page.locator(".card").is_hidden() and page.evaluate("document.activeElement.className") == "map-cells"
    )
    page.keyboard.press("Escape")
    wait_for_address(page, "")
    select_in_map(page, 5, 2)
    page.get_by_role("button", name="Deselect 5 street").click()
    assert (
        sheet.locator(".card").is_hidden()
        and page.evaluate("document.activeElement.className") == "map-cells"
    )
    page.set_viewport_size({"width": 1280, "height": 900})
    select_in_map(page, 5, 2)
    page.locator(".card").wait_for()
    assert close.is_hidden()


def test_a_page_in_a_sandboxed_frame_has_a_sheet_but_no_address(opened: Opened) -> None:
    within = html.escape(page_of(sentence_heads()))
    frame = f'<iframe sandbox="allow-scripts" width=800 height=540 srcdoc="{within}"></iframe>'
    page = opened(f"<!doctype html><html data-drawn>{frame}", unfolded=False)
    inside = page.frame_locator("iframe")
    inside.locator('.thumbnail[title="head 1:2"]').click()
    inside.locator("#matrix-title", has_text="head 1:2").wait_for()
    select_in_map(inside, 4, 2)
    inside.locator(".card").wait_for()
    assert 0 < inside.locator("#selected").bounding_box()["height"] <= 0.4 * 540
    inside.locator("body").press("Escape")
    inside.locator(".card").wait_for(state="hidden")
    assert inside.locator("#problem").is_hidden()
