"""The browser for heads: keys and clicks choose, and what is shown are the report's own numbers."""

from dataclasses import replace

import numpy as np
import pytest
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
    screen_text,
    shown,
    survey,
)
from tests.running import run


def test_arrows_go_through_layers_and_heads_and_stop_at_the_edges() -> None:
    assert after(survey()).place == (0, 0)
    assert after(survey(), "down", "right", "right").place == (1, 2)
    assert after(survey(), *["down"] * 9, *["right"] * 9).place == (LAYERS - 1, HEADS - 1)
    assert after(survey(), "down", "right", "up", "up", "left", "left").place == (0, 0)


def test_ranking_follows_the_reports_statistic() -> None:
    report = survey()
    rows = report.statistics["heads"]
    by_entropy = sorted(rows, key=lambda row: -row["entropy"])
    first = by_entropy[0]["layer"], by_entropy[0]["head"]
    choice = after(report, "s", *["up"] * 20)
    assert choice.ranking.statistic == "entropy" and choice.place == first
    assert after(report, "s", *["up"] * 20, "down").place == (by_entropy[1]["layer"], by_entropy[1]["head"])
    by_induction = sorted(rows, key=lambda row: row["induction"])
    smallest = after(report, "s", "s", "r", *["up"] * 20)
    assert smallest.ranking.statistic == "induction"
    assert smallest.place == (by_induction[0]["layer"], by_induction[0]["head"])


def test_a_click_chooses_a_head_and_a_statistic() -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.click(HeadPicker, offset=(2 + 2 * 3, 2))
        await pilot.click(StatisticsPanel, offset=(2, 2))

    choice = driven(survey(), steps)
    assert choice.place == (1, 3)
    assert choice.ranking.statistic == "induction"


def test_the_numbers_are_the_reports() -> None:
    report = survey()
    row = next(r for r in report.statistics["heads"] if (r["layer"], r["head"]) == (1, 2))
    text = screen_text(report, "down", "right", "right")
    assert f"{row['induction']:.4f}" in text and f"{row['entropy']:.4f}" in text


def test_the_bars_are_the_reports_weights() -> None:
    report = survey()
    expected = report.tensors["weights"].values[1, 2, 4]
    bars = bars_of(report, "down", "right", "right", *["tab"] * 4)
    assert list(bars) == [f"{i} {word}" for i, word in enumerate(WORDS)]
    assert list(bars.values()) == [f"{weight:.4f}" for weight in expected]


def test_who_looks_is_the_column() -> None:
    report = survey()
    expected = report.tensors["weights"].values[0, 1, :, 2]
    bars = bars_of(report, "right", "tab", "tab", "f")
    assert list(bars.values()) == [f"{weight:.4f}" for weight in expected]


def test_bars_can_stand_in_the_order_of_their_numbers() -> None:
    report = survey()
    row = report.tensors["weights"].values[0, 0, 0]
    assert list(bars_of(report, "o").values()) == [f"{weight:.4f}" for weight in sorted(row, reverse=True)]


def test_the_longest_bar_is_the_largest_weight_and_others_are_in_proportion() -> None:
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
    """However small all numbers of a row are."""
    report = survey()
    weights = report.tensors["weights"].values.copy()
    weights[0, 0, 0] = 1e-6 * weights[0, 0, 0] / weights[0, 0, 0].max()
    tensors = {**report.tensors, "weights": replace(report.tensors["weights"], values=weights)}

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        lines = shown(app.query_one(TokenBars))[1:]
        assert lines and all(line.split()[2] == "0.0000" for line in lines)
        assert not set("".join(lines)) & set("▏▎▍▌▋▊▉█")

    driven(replace(report, tensors=tensors), steps, size=(160, 50))


@pytest.mark.parametrize(
    ("keys", "token"),
    [
        (["tab"], 1),
        (["shift+tab"], 6),
        (["tab"] * 7, 0),
        (["end"], 6),
        (["end", "home"], 0),
        (["pagedown"], 6),
        (["pagedown", "pageup"], 0),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_keys_choose_tokens(keys: list[str], token: int) -> None:
    assert after(survey(), *keys).query == token


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


def test_two_texts_have_two_tokens() -> None:
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


def test_a_repeated_word_is_two_rows() -> None:
    bars = bars_of(run("self"))
    assert [label for label in bars if label.endswith(" the")] == ["0 the", "4 the"]
