"""The block of the page about an answer and its sources, in a real Chromium."""

from tests.running import run
from tests.views.page.pages import Opened, page_of


def test_a_token_of_an_answer_shows_its_weight_on_each_source(opened: Opened) -> None:
    report = run("source", answer="green")
    weights = report.tensors["source_weights"].values
    page = opened(page_of(report))
    order = [int(str(row["source"])) - 1 for row in report.table("sources")]
    items = page.locator("#answer .sources li")
    assert items.locator(".said").all_text_contents() == [str(row["text"]) for row in report.table("sources")]
    numbers = items.locator(".number")
    lost = [round(float(str(row["lost"])), 2) + 0.0 for row in report.table("sources")]  # of -0.0, too
    assert numbers.all_text_contents() == [f"{number:.2f}" for number in lost]
    tokens = page.locator("#answer .token")
    assert "".join(tokens.all_text_contents()) == "green"
    tokens.nth(3).hover()
    assert numbers.all_text_contents() == [f"{weights[3, place]:.2f}" for place in order]
    items.nth(0).hover()
    shares = [token.evaluate("e => e.style.getPropertyValue('--share')") for token in tokens.all()]
    assert shares == [f"{round(52 * number / weights.max())}%" for number in weights[:, order[0]]]
    assert "weight of each token on this source" in page.locator("#answer .legend").text_content()
