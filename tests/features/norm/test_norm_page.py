"""The spreads on the page, in a real Chromium."""

from tests.running import run
from tests.views.page.pages import Opened, page_of


def test_bars_reach_from_mean_minus_to_mean_plus_deviation(opened: Opened) -> None:
    report = run("norm")
    page = opened(page_of(report))
    figure = page.locator("#curves figure", has_text="example 0")
    states = ["input", "batch_norm", "batch_norm_eval", "layer_norm", "rms_norm"]
    for number, svg in enumerate(figure.locator("svg").all()):
        row = report.statistics[states[number]]
        mean, deviation = row["example0_mean"], row["example0_std"]
        assert (
            figure.locator(".number").nth(number).text_content()
            == f"{round(mean, 2) + 0.0:.2f} ± {deviation:.2f}"
        )
        bar = svg.locator(".spread").first
        ends = [float(bar.get_attribute(name)) for name in ("x1", "x2")]
        assert ends == [mean - deviation, mean + deviation]
