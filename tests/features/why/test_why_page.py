"""The page block about a score, in Chromium."""

import numpy as np

from attncli.features.why.results import LogitAttribution
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
        first = page.locator("#score table").first.locator("tbody tr").first.locator("th, td")
        largest = int(np.abs(adds[:, key]).argmax())
        assert first.all_text_contents()[:2] == [names[largest], f"{adds[largest, key]:.2f}"]


def test_the_bars_of_a_logit_add_up_over_the_layers(opened: Opened) -> None:
    report = run("why")
    result = report.result_of(LogitAttribution)
    page = opened(page_of(report))
    cells = page.locator("#logit .head-cell")
    ordered = sorted(result.heads, key=lambda head: (head.layer, head.head))
    assert cells.all_text_contents() == [
        f"{head.contribution + 0.0:.2f}".replace("-0.00", "0.00") for head in ordered
    ]
    bars = page.locator("#logit tbody .bar").evaluate_all(
        "bars => bars.map(bar => [bar, bar.parentNode].flatMap(each => "
        "{ const { left, width } = each.getBoundingClientRect(); return [left, width]; }))"
    )
    zero = bars[-1][0]
    scale = bars[-1][1] / result.parts.logit
    numbers = [result.parts.embedding]
    for layer in result.layers:
        numbers += [
            sum(head.contribution or 0 for head in result.heads if head.layer == layer.layer),
            layer.mlp,
        ]
    ends = np.cumsum([0, *numbers, result.parts.biases])
    for (left, width, _, _), start, end in zip(bars, ends[:-1], ends[1:], strict=False):
        assert abs(left - zero - min(start, end) * scale) < 1.5
        assert width < 1.5 or abs(width - abs(end - start) * scale) < 1.5
    cells.nth(7).hover()
    assert (
        "head 1:3 (induction): +3.29, looks at s with weight 0.99" in page.locator("#readout").text_content()
    )
    cells.nth(0).focus()
    page.keyboard.press("ArrowDown")
    assert "head 1:0" in page.locator("#readout").text_content()
