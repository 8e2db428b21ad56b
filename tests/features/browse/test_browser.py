"""The browser for heads: keys and clicks choose, and the numbers are those of the report."""

from dataclasses import replace

import numpy as np
from textual.pilot import Pilot

from attncli.features.browse.browser import Browser
from attncli.features.browse.browser_panels import HeadMap, HeadPicker, StatisticsPanel, TokenBars
from tests.features.browse.browsing import (
    HEADS,
    LAYERS,
    WORDS,
    after,
    bars_of,
    driven,
    press,
    shown,
    survey,
)
from tests.running import run


def test_arrows_choose_layers_and_heads_and_stop_at_the_edges() -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        places = [app.choice.place]
        for keys in (["down", "right", "right"], ["down"] * 3 + ["right"] * 5, ["up"] * 3 + ["left"] * 5):
            await press(app, pilot, *keys)
            places.append(app.choice.place)
        assert places == [(0, 0), (1, 2), (LAYERS - 1, HEADS - 1), (0, 0)]

    driven(survey(), steps)


def test_ranking_follows_the_reports_statistic() -> None:
    report = survey()
    rows = report.statistics["heads"]
    by_entropy = sorted(rows, key=lambda row: -row["entropy"])
    first = by_entropy[0]["layer"], by_entropy[0]["head"]
    by_induction = sorted(rows, key=lambda row: row["induction"])

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await press(app, pilot, "s", *["up"] * 15)
        assert app.choice.ranking.statistic == "entropy" and app.choice.place == first
        await press(app, pilot, "down")
        assert app.choice.place == (by_entropy[1]["layer"], by_entropy[1]["head"])
        await press(app, pilot, "s", "r", *["up"] * 15)
        assert app.choice.ranking.statistic == "induction"
        assert app.choice.place == (by_induction[0]["layer"], by_induction[0]["head"])

    driven(report, steps)


def test_a_click_chooses_a_head_and_a_statistic() -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.click(HeadPicker, offset=(2 + 2 * 3, 2))
        await pilot.click(StatisticsPanel, offset=(2, 2))

    choice = driven(survey(), steps)
    assert choice.place == (1, 3)
    assert choice.ranking.statistic == "induction"


def test_bars_show_the_weights_of_the_report() -> None:
    report = survey()
    expected = report.tensors["weights"].values[1, 2, 4]
    bars = bars_of(report, "down", "right", "right", *["tab"] * 4)
    assert list(bars) == [f"{i} {word}" for i, word in enumerate(WORDS)]
    assert list(bars.values()) == [f"{weight:.4f}" for weight in expected]


def test_flipping_shows_the_column() -> None:
    report = survey()
    expected = report.tensors["weights"].values[0, 1, :, 2]
    bars = bars_of(report, "right", "tab", "tab", "f")
    assert list(bars.values()) == [f"{weight:.4f}" for weight in expected]


def test_bars_can_be_sorted_by_size() -> None:
    report = survey()
    row = report.tensors["weights"].values[0, 0, 0]
    assert list(bars_of(report, "o").values()) == [f"{weight:.4f}" for weight in sorted(row, reverse=True)]


def test_bars_are_proportional_to_the_weights() -> None:
    report = survey()
    row = report.tensors["weights"].values[0, 0, 0]
    lengths: list[int] = []

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        for line in shown(app.query_one(TokenBars))[1:]:
            lengths.append(line.count("█") * 8 + sum(" ▏▎▍▌▋▊▉".find(c) for c in line if c in "▏▎▍▌▋▊▉"))

    driven(report, steps, size=(160, 50))
    expected = row / row.max() * max(lengths)
    np.testing.assert_allclose(lengths, expected, atol=0.5)
    assert max(lengths) > 100


def test_a_number_shown_as_zero_has_no_bar() -> None:
    """A number that rounds to zero has no bar, however small all numbers of the row are."""
    report = survey()
    weights = report.tensors["weights"].values.copy()
    weights[0, 0, 0] = 1e-6 * weights[0, 0, 0] / weights[0, 0, 0].max()
    tensors = {**report.tensors, "weights": replace(report.tensors["weights"], values=weights)}

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        lines = shown(app.query_one(TokenBars))[1:]
        assert lines and all(line.split()[2] == "0.0000" for line in lines)
        assert not set("".join(lines)) & set("▏▎▍▌▋▊▉█")

    driven(replace(report, tensors=tensors), steps, size=(160, 50))


def test_keys_choose_tokens() -> None:
    moves = {"tab": 1, "home": 0, "shift+tab": 6, "pageup": 0, "end": 6, "tab ": 0, "pagedown": 6}

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        for key, token in moves.items():
            await press(app, pilot, key.strip())
            assert app.choice.query == token, key

    driven(survey(), steps)


def test_a_click_chooses_a_token() -> None:
    async def on_the_map(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.click(HeadMap, offset=(3, 1 + 5))

    async def on_a_bar(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.click(TokenBars, offset=(3, 1 + 4))

    async def on_a_column(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("f")
        layout = app.query_one(HeadMap).layout_now
        await pilot.click(HeadMap, offset=(layout.label + layout.cell_width * 3, 2))

    assert driven(survey(), on_the_map).query == 5
    assert driven(survey(), on_a_bar).query == 4
    assert driven(survey(), on_a_column).key == 3


def test_two_texts_have_separate_tokens() -> None:
    report = run("cross", sentence="a b", context="c d e")
    weights = report.tensors["weights"].values
    asked = after(report, "tab")
    assert (asked.query, asked.key) == (1, 0)
    turned = after(report, "tab", "f", "tab", "tab")
    assert (turned.query, turned.key) == (1, 2)
    np.testing.assert_array_equal(turned.numbers, weights[:, 2])

    async def follow(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.click(TokenBars, offset=(3, 1 + 2))

    followed = driven(report, follow)
    assert followed.is_received and followed.key == 2
