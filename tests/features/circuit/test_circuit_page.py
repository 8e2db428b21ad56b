"""The block of the page about circuits, in a real Chromium."""

import re

from tests.running import run
from tests.views.page.pages import Opened, page_of


def test_a_click_on_a_head_of_the_graph_leaves_its_edges(opened: Opened) -> None:
    page = opened(page_of(run("circuit")))
    node = page.locator("#graph .node", has_text="0:1").first
    assert page.locator("#graph .edge.faint").count() == 0
    node.click()
    assert node.get_attribute("aria-pressed") == "true"
    assert re.search(r"0:1 -K-> 1:1 \d\.\d\d", page.locator("#graph [role=status]").text_content())
    edges, faint = (page.locator(f"#graph .edge{part}").count() for part in ("", ".faint"))
    assert 0 < faint < edges
    node.click()
    assert page.locator("#graph .edge.faint").count() == 0
