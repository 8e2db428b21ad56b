"""Pages of every kind of result at several sizes, light and dark: what axe-core, boxes and messages show."""

import io
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import axe_playwright_python
import numpy as np
import pytest
from PIL import Image

from attncli.records.kinds import RESULT_CLASSES
from tests.conftest import in_turn, some_seldom
from tests.views.page.every_kind import COMMANDS, REPORTS, page_of_kind, write_files
from tests.views.page.pages import Opened

GEOMETRY = (Path(__file__).parent / "geometry.js").read_text()
AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
PAGES = [*COMMANDS, *REPORTS]
FIRST = (1280, 800)
ZOOMED = (640, 400)
"""What a window of the first size shows at 200 %."""
SIZES = (FIRST, (1040, 800), (800, 600), ZOOMED, (390, 844))
VIEWS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
PAPER = (718, 1047)
"""A4 within Chromium's margins, in pixels."""
TILE = 16
"""Pixels of the squares of a screen that are empty or not."""
FIRST_SCREEN = "#ranked table, #ranked dl, #pictures :is(canvas, svg, img, .written)"
FEW_ROWS = [["tbody tr:nth-child(n + 6)"], [".token-list .token:nth-child(n + 12)"]]
"""More of the same, which every day's run leaves out."""

PageText = Callable[[str], str]


@pytest.fixture(scope="module")
def page_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageText]:
    """The page of each kind, written once."""
    folder = tmp_path_factory.mktemp("kinds")
    write_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield cache(lambda name: page_of_kind(name, folder))


def violations(page: Any, leave_out: list[list[str]]) -> list[str]:
    """What axe-core finds with all of its rules: the rule, the element and the reason."""
    page.evaluate(AXE)
    context = {"include": [["html"]], "exclude": leave_out}
    found = page.evaluate("context => axe.run(context, { resultTypes: ['violations'] })", context)
    return [
        f"{rule['id']}: {node['target'][0]}: {node['failureSummary'].splitlines()[1].strip()}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def screen(page: Any) -> np.ndarray:
    """The red, green and blue of what a reader sees before scrolling."""
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)


def empty_share(pixels: np.ndarray) -> float:
    """The share of the tiles without a pixel that differs from the page's ground, which is its last one's."""
    down, across = (size // TILE for size in pixels.shape[:2])
    drawn = (np.abs(pixels - pixels[-1, 0]).max(axis=-1) > 2)[: down * TILE, : across * TILE]
    tiles = drawn.reshape(down, TILE, across, TILE).any(axis=(1, 3))
    return float(1 - tiles.mean())


def unfold(page: Any) -> None:
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")


def resize(page: Any, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_every_kind_has_a_page() -> None:
    """With each command and report that is not a kind, a page of one is tested in another form."""
    assert {*RESULT_CLASSES} <= {*PAGES}


@pytest.mark.parametrize(("name", "size", "scheme"), in_turn(PAGES, VIEWS))
def test_a_page_has_no_faults(
    opened: Opened, page_text: PageText, name: str, size: tuple[int, int], scheme: str, record_property: Any
) -> None:
    page = opened(page_text(name), color_scheme=scheme)
    resize(page, FIRST)
    record_property("empty", empty_share(screen(page)))
    assert page.locator(FIRST_SCREEN).filter(visible=True).count() > 0
    faults = page.evaluate(GEOMETRY)
    resize(page, size)
    unfold(page)
    faults += [*page.evaluate(GEOMETRY), *violations(page, FEW_ROWS)]
    assert faults == []


BROKEN = """<!doctype html><html lang="en"><title>Faults</title><main><h1>Faults</h1>
<p style="position: absolute; top: 80px">one text</p><p style="position: absolute; top: 84px">another</p>
<div style="width: 20px; overflow: hidden; white-space: nowrap">a long word</div>
<div style="width: 30px; border: 1px solid; white-space: nowrap">leaves its box</div>
<p style="width: 3em; overflow-wrap: anywhere; position: relative; top: 99px">0.123456789</p>
<div style="width: 2000px; height: 1px"></div><p style="color: #ddd; position: absolute; top: 400px">faint</p>
<div style="width: 20px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap">with dots</div>"""


def test_faults_are_found(opened: Opened) -> None:
    page = opened(BROKEN.replace("<html", "<html data-drawn"))
    faults = page.evaluate(GEOMETRY)
    kinds = [*dict.fromkeys(fault.partition(":")[0] for fault in faults)]
    assert kinds == ["cut", "outside", "broken", "over", "sideways"]
    assert [fault.partition(":")[0] for fault in violations(page, [])] == ["color-contrast"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_faults_at_any_size(opened: Opened, page_text: PageText, name: str) -> None:
    for size, scheme in VIEWS:
        page = opened(page_text(name), color_scheme=scheme)
        resize(page, size)
        faults = page.evaluate(GEOMETRY)
        unfold(page)
        assert [*faults, *page.evaluate(GEOMETRY), *violations(page, [])] == [], (size, scheme)


def some_nightly(names: list[str], often: tuple[str, ...]) -> list[Any]:
    return some_seldom(names, {*names} - {*often})


CONTROLS = """[...document.querySelectorAll(".controls button, select, input, button.more")]
  .filter((element) => element.checkVisibility()).map((element) => element.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("name", some_nightly(PAGES, ("heads", "self, explained")))
def test_a_page_is_printed_whole(opened: Opened, page_text: PageText, name: str) -> None:
    """On paper nothing scrolls or is folded, and there are no controls; a dark page is light."""
    page = opened(page_text(name), color_scheme="dark")
    resize(page, PAPER)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 29, 33)"
    assert [*page.evaluate(GEOMETRY), *page.evaluate(CONTROLS)] == []
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")


TABBABLE = """() => {
  window.tabbed = [...document.querySelectorAll("a, button, input, select, summary, [tabindex]")].filter(
    (element) =>
      element.tabIndex >= 0 && !element.disabled && element.checkVisibility({ visibilityProperty: true }));
  return tabbed.length;
}"""
FOCUSED = """() => {
  const element = document.activeElement;
  const { outlineStyle, outlineWidth } = getComputedStyle(element);
  const { top, bottom } = element.getBoundingClientRect();
  const isSeen = outlineStyle !== "none" && parseFloat(outlineWidth) > 0 && bottom > 0 && top < innerHeight;
  return [window.tabbed.indexOf(element), isSeen, element.outerHTML.slice(0, 80)];
}"""


@pytest.mark.parametrize("name", some_nightly(PAGES, ("heads", "why of a score")))
def test_tab_reaches_everything_in_order(opened: Opened, page_text: PageText, name: str) -> None:
    page = opened(page_text(name))
    resize(page, FIRST)
    for place in range(page.evaluate(TABBABLE)):
        page.keyboard.press("Tab")
        reached, is_seen, element = page.evaluate(FOCUSED)
        assert (reached, is_seen) == (place, True), element
