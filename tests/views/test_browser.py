"""The browser for heads, driven by keys and the mouse: what it shows are the report's own numbers."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from attncli.report import NamedTensor, Report
from attncli.views.browser.app import MOVES, Browser
from attncli.views.browser.atlas import Grid, grids
from attncli.views.browser.choice import Choice
from attncli.views.browser.figures_panel import FiguresPanel
from attncli.views.browser.head_map import HeadMap
from attncli.views.browser.head_picker import HeadPicker
from attncli.views.browser.help import KEYS, HelpScreen
from attncli.views.browser.panel import Panel
from attncli.views.browser.token_bars import TokenBars
from tests.experiments.running import run

LAYERS, HEADS, TOKENS = 3, 5, 7
WORDS = ("the", "cat", "walks", "on", "the", "street", "today")
HOSTILE = ("[/INST]", "[red]x[/red]", ":smile:", "\x1b[31mred", "a\u202eb", "日本語", "👨\u200d👩")

Steps = Callable[[Browser, "Pilot[None]"], Awaitable[None]]


def random_weights(*shape: int) -> np.ndarray:
    weights = np.random.default_rng(0).random(shape).astype(np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


def survey(tokens: tuple[str, ...] = WORDS) -> Report:
    """15 heads with two statistics, of which no order is that of the heads."""
    weights = random_weights(LAYERS, HEADS, len(tokens), len(tokens))
    rows = [
        {
            "layer": layer,
            "module": f"h.{layer}",
            "head": head,
            "kind": "self",
            "entropy": ((layer * HEADS + head) * 4) % 15 / 15,
            "induction": float(weights[layer, head, 1, 0]),
        }
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]
    tensors = {"weights": NamedTensor(("layer", "head", "query", "key"), weights)}
    return Report("heads", {"maps": "self"}, {}, tokens, tensors=tensors, statistics={"heads": rows})


def driven(
    report: Report, steps: Steps, *, size: tuple[int, int] = (80, 24), depth: str = "truecolor"
) -> Choice:
    """The choice after those steps on a screen of that size."""
    choice = Choice(grids(report))

    async def drive() -> None:
        app = Browser(choice, depth=depth)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(drive())
    return choice


def after(report: Report, *keys: str) -> Choice:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press(*keys)

    return driven(report, steps)


def shown(panel: Panel) -> list[str]:
    """The lines of a panel as they stand on the screen."""
    lines = [panel.render_line(y).text for y in range(panel.size.height)]
    return [line for line in lines if line.strip()]


def screen_text(report: Report, *keys: str, size: tuple[int, int] = (80, 24), depth: str = "none") -> str:
    texts: list[str] = []

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press(*keys)
        await pilot.pause()
        update = app.screen._compositor.render_full_update()
        assert update is not None
        texts.extend("".join(strip.text for strip in line) for line in update.strips)

    driven(report, steps, size=size, depth=depth)
    return "\n".join(texts)


def bars_of(report: Report, *keys: str) -> dict[str, str]:
    """The numbers beside the bars, by label."""
    found: dict[str, str] = {}

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press(*keys)
        await pilot.pause()
        for line in shown(app.query_one(TokenBars))[1:]:
            position, token, number, *_ = line.split()
            found[f"{position} {token}"] = number

    driven(report, steps, size=(160, 50))
    return found


# Heads


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
    assert choice.statistic == "entropy" and choice.place == first
    assert after(report, "s", *["up"] * 20, "down").place == (by_entropy[1]["layer"], by_entropy[1]["head"])
    by_induction = sorted(rows, key=lambda row: row["induction"])
    smallest = after(report, "s", "s", "r", *["up"] * 20)
    assert smallest.statistic == "induction"
    assert smallest.place == (by_induction[0]["layer"], by_induction[0]["head"])


def test_a_click_chooses_a_head_and_a_statistic() -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.click(HeadPicker, offset=(2 + 2 * 3, 2))
        await pilot.click(FiguresPanel, offset=(2, 2))

    choice = driven(survey(), steps)
    assert choice.place == (1, 3)
    assert choice.statistic == "induction"


def test_the_figures_are_the_reports() -> None:
    report = survey()
    row = next(r for r in report.statistics["heads"] if (r["layer"], r["head"]) == (1, 2))
    text = screen_text(report, "down", "right", "right")
    assert f"{row['induction']:.4f}" in text and f"{row['entropy']:.4f}" in text


# Tokens


def test_the_bars_are_the_reports_weights() -> None:
    report = survey()
    expected = report.tensors["weights"].values[1, 2, 4]
    bars = bars_of(report, "down", "right", "right", *["tab"] * 4)
    assert list(bars) == [f"{i} {word}" for i, word in enumerate(WORDS)]
    assert list(bars.values()) == [f"{weight:.4f}" for weight in expected]


def test_who_looks_is_the_column() -> None:
    report = survey()
    expected = report.tensors["weights"].values[0, 1, :, 2]
    bars = bars_of(report, "right", "tab", "tab", "w")
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
        await pilot.press("w")
        label = app.query_one(HeadMap).layout_now.label
        await pilot.click(HeadMap, offset=(label + 2 * 3, 2))

    assert driven(survey(), on_the_map).query == 5
    assert driven(survey(), on_a_bar).query == 4
    assert driven(survey(), on_a_column).key == 3


def test_two_texts_have_two_tokens() -> None:
    report = run("cross", sentence="a b", context="c d e")
    weights = report.tensors["weights"].values
    asked = after(report, "tab")
    assert (asked.query, asked.key) == (1, 0)
    turned = after(report, "tab", "w", "tab", "tab")
    assert (turned.query, turned.key) == (1, 2)
    np.testing.assert_array_equal(turned.numbers, weights[:, 2])

    async def follow(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.click(TokenBars, offset=(3, 1 + 2))

    followed = driven(report, follow)
    assert followed.is_received and followed.key == 2


def test_a_repeated_word_is_two_rows() -> None:
    bars = bars_of(run("self"))
    assert [label for label in bars if label.endswith(" the")] == ["0 the", "4 the"]


# Colours


def test_scale_and_sink_change_the_colours_alone() -> None:
    report = survey()
    values = report.tensors["weights"].values[0, 0]
    linear = after(report)
    np.testing.assert_allclose(
        linear.shading.places, (values - values.min()) / (values.max() - values.min()), atol=1e-6
    )
    logarithmic = after(report, "c")
    logs = np.log(values)
    np.testing.assert_allclose(
        logarithmic.shading.places, (logs - logs.min()) / (logs.max() - logs.min()), atol=1e-5
    )
    assert after(report, "c", "c").scale == "row" and after(report, "c", "c", "c").scale == "linear"
    without = after(report, "x")
    assert np.isnan(without.shading.places[:, 0]).all() and without.shading.high == values[:, 1:].max()
    np.testing.assert_array_equal(without.numbers, linear.numbers)


def test_the_map_has_the_colours_of_its_numbers() -> None:
    """The largest weight is yellow, the smallest dark violet: the ends of viridis."""
    report = survey()
    values = report.tensors["weights"].values[0, 0]

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        panel = app.query_one(HeadMap)
        for end, color in ((values.argmax(), (253, 231, 37)), (values.argmin(), (68, 1, 84))):
            row, column = np.unravel_index(end, values.shape)
            x = panel.layout_now.label + 2 * int(column)
            (segment,) = panel.render_line(1 + int(row)).crop(x, x + 1)
            assert segment.style is not None and segment.style.bgcolor is not None
            assert tuple(segment.style.bgcolor.get_truecolor()) == color

    driven(report, steps)


@pytest.mark.parametrize("depth", ["none", "16", "256", "truecolor"])
def test_every_depth_of_colour_shows_the_map(depth: str) -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        update = app.screen._compositor.render_full_update()
        assert update is not None
        styles = [
            segment.style
            for line in update.strips
            for strip in line
            for segment in strip
            if segment.style is not None
        ]
        colored = {
            color
            for style in styles
            for color in (style.color, style.bgcolor)
            if color is not None and not color.is_default
        }
        assert bool(colored) == (depth != "none")
        marks = {character for line in shown(app.query_one(HeadMap))[1:] for character in line[10:].strip()}
        assert (marks <= set("  .:-=+*#%@") and "@" in marks) == (depth == "none")

    driven(survey(), steps, depth=depth)


# What can be browsed


def test_a_larger_map_is_made_to_fit_and_says_so() -> None:
    weights = random_weights(512, 512)
    weights[300, 400] = 1
    tokens = tuple(f"w{i}" for i in range(512))
    report = Report("self", {}, {}, tokens, tensors={"weights": NamedTensor(("query", "key"), weights)})

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        panel = app.query_one(HeadMap)
        (down, along), label = panel.layout_now.block, panel.layout_now.label
        assert f"the largest of {down} × {along} a cell" in panel.render_line(0).text
        line, column = 300 // down // 2, label + 400 // along
        (segment,) = panel.render_line(1 + line).crop(column, column + 1)
        assert segment.style is not None
        color = segment.style.color if 300 // down % 2 == 0 else segment.style.bgcolor
        assert color is not None and tuple(color.get_truecolor()) == (253, 231, 37)
        await pilot.press("z", "end")
        assert "w511" in "\n".join(shown(panel))

    driven(report, steps)


def test_streamed_maps_show_blocks_of_tokens() -> None:
    report = run("self", num_tokens=200, engine="streaming", embed_dim=8)
    pooled_map = report.tensors["pooled_mean"].values
    text = screen_text(report, size=(160, 50))
    assert "pooled_mean" in text and "0-3" in text
    bars = after(report, "tab").numbers
    np.testing.assert_array_equal(bars, pooled_map[1])
    assert after(report, "t").grid.name == "pooled_max"


def test_whole_heads_stand_among_the_pooled_ones() -> None:
    pooled_map, whole = random_weights(2, 3, 4, 4), random_weights(8, 8)
    tensors = {
        "pooled_mean": NamedTensor(("layer", "head", "query_block", "key_block"), pooled_map),
        "weights_1_2": NamedTensor(("query", "key"), whole),
    }
    report = Report("heads", {}, {}, tuple("abcdefgh"), tensors=tensors)
    np.testing.assert_array_equal(after(report, "down", "right", "right").matrix.values, whole)
    np.testing.assert_array_equal(after(report, "down", "right").matrix.values, pooled_map[1, 1])
    assert after(report, "down", "right", "right").title == "weights (query × key), layer 1, head 2"


@pytest.mark.parametrize(
    ("experiment", "settings", "places"),
    [
        ("average", {"num_tokens": 4}, 1),
        ("self", {"causal": True}, 1),
        ("multihead", {"num_heads": 2}, 2),
        ("multihead", {"num_heads": 2, "num_tokens": 3, "batch_size": 5}, 10),
        ("cross", {"sentence": "a b", "context": "c d e"}, 1),
    ],
    ids=str,
)
def test_every_experiment_with_maps_opens(experiment: str, settings: dict[str, object], places: int) -> None:
    report = run(experiment, **settings)
    found: list[Grid] = grids(report)
    assert found[0].name == "weights" and found[0].num_places == places
    choice = after(report, *["right"] * 20, *["down"] * 20, "end", "c", "x", "w")
    assert choice.number == places - 1


def test_statistics_of_rows_are_those_of_the_chosen_token() -> None:
    report = run("multihead", num_heads=2)
    entropy = report.statistics["rows"]["entropy"].values
    text = screen_text(report, "right", "tab", "tab", size=(160, 50))
    assert f"{entropy[1].mean():.4f}" in text and f"{entropy[1, 2]:.4f}" in text


@pytest.mark.parametrize("experiment", ["norm", "scale-demo"])
def test_other_reports_have_nothing_to_browse(experiment: str) -> None:
    assert grids(run(experiment)) == []


# Screens


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 12), (10, 4)], ids=str)
def test_every_size_has_straight_lines(size: tuple[int, int]) -> None:
    text = screen_text(survey(HOSTILE), "tab", "z", size=size)
    assert {cell_len(line) for line in text.split("\n")} == {size[0]}


def test_a_resized_screen_shows_the_same_choice() -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("down", "tab")
        await pilot.resize_terminal(160, 50)
        await pilot.pause()
        bars, head_map = app.query_one(TokenBars).region, app.query_one(HeadMap).region
        assert bars.y == head_map.y and bars.right == 160
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        bars, head_map = app.query_one(TokenBars).region, app.query_one(HeadMap).region
        assert bars.y > head_map.y and bars.right == 80

    choice = driven(survey(), steps)
    assert choice.place == (1, 0) and choice.query == 1


def test_hostile_tokens_stand_as_they_are() -> None:
    text = screen_text(survey(HOSTILE), size=(160, 50), depth="truecolor")
    for token in ("[/INST]", "[red]x[/red]", ":smile:", "\\x1b[31mred", "a\\u202eb", "日本語"):
        assert token in text
    assert not {"\x1b", "\u202e", "\u200d"} & set(text)


def test_help_names_every_key_and_goes_away() -> None:
    named = (
        " ".join(KEYS).replace("Shift+Tab", "shift+tab").replace("PgUp", "pageup").replace("PgDn", "pagedown")
    )
    arrows = {"up": "↑", "down": "↓", "left": "←", "right": "→"}
    assert all(arrows.get(key, key).lower() in named.lower() for key in MOVES)

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("down")
        await pilot.press("question_mark")
        assert not isinstance(app.screen, HelpScreen)

    assert driven(survey(), steps).place == (0, 0)


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
def test_the_user_leaves(key: str, code: int) -> None:
    codes: list[int | None] = []

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running
        codes.append(app.return_code)

    driven(survey(), steps)
    assert codes == [code]
