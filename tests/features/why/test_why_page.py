"""The page block about a score, in Chromium."""

import numpy as np

from tests.running import run
from tests.views.page.pages import Opened, page_of


def test_a_click_on_a_key_shows_the_parts_of_its_score(opened: Opened) -> None:
    report = run("why", sentence="to be or not to b", head="1:2")
    page = opened(page_of(report))
    score = report.numbers("score")
    keys = page.locator("#score .score-keys button")
    assert keys.count() == len(report.tokens)
    assert keys.nth(int(score["key"])).get_attribute("aria-pressed") == "true"
    adds = report.tensors_of("key_parts")["key_adds"].values
    names = [row["part"] for row in report.table("part_names")]
    for key in (int(score["key"]), 3):
        keys.nth(key).click()
        first = page.locator("#score table").first.locator("tbody tr").first
        largest = int(np.abs(adds[:, key]).argmax())
        assert first.locator("td").all_text_contents()[:2] == [names[largest], f"{adds[largest, key]:.4f}"]
