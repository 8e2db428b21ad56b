"""Screens of the browser: colours, sizes, all kinds of reports, hostile tokens, and help."""

import re

import numpy as np
import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from attncli.features.browse.browser import KEYS, MOVES, Browser, HelpScreen
from attncli.features.browse.browser_choice import Choice, grids
from attncli.features.browse.browser_panels import HeadMap, TokenBars
from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report, Table
from attncli.views.colours import VIRIDIS, colours, levels, palette
from attncli.views.terminal import cell_lines, character_lines
from tests.features.browse.browsing import (
    HEADS,
    HOSTILE,
    WORDS,
    after,
    driven,
    random_weights,
    screen_text,
    shown,
    survey,
)
from tests.running import run


def test_scale_and_sink_only_change_the_colours() -> None:
    report = survey()
    values = report.tensors["weights"].values[0, 0]
    logs = np.log(values)

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        choice = app.choice
        numbers = choice.numbers
        np.testing.assert_allclose(choice.shading.places, values / values.max(), atol=1e-6)
        await pilot.press("c")
        expected = (logs - logs.min()) / (logs.max() - logs.min())
        np.testing.assert_allclose(choice.shading.places, expected, atol=1e-5)
        await pilot.press("c")
        assert choice.colours.scale == "row"
        await pilot.press("c", "x")
        assert choice.colours.scale == "linear" and choice.shading.high == values[:, 1:].max()
        assert np.isnan(choice.shading.places[:, 0]).all()
        np.testing.assert_array_equal(choice.numbers, numbers)

    driven(report, steps)


def test_the_map_has_the_colours_of_viridis() -> None:
    """The largest weight is yellow, the end of viridis; the smallest has the colour of its share of that."""
    report = survey()
    values = report.tensors["weights"].values[0, 0]
    least = colours(VIRIDIS)[int(values.min() / values.max() * 256)]

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        panel = app.query_one(HeadMap)
        for end, color in ((values.argmax(), (253, 231, 37)), (values.argmin(), tuple(least))):
            row, column = np.unravel_index(end, values.shape)
            x = panel.layout_now.label + panel.layout_now.cell_width * int(column)
            (segment,) = panel.render_line(1 + int(row)).crop(x, x + 1)
            assert segment.style is not None and segment.style.bgcolor is not None
            assert tuple(segment.style.bgcolor.get_truecolor()) == color

    driven(report, steps)


@pytest.mark.parametrize("depth", ["none", "16"])
def test_every_depth_of_colour_shows_the_map(depth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line decides about colours, regardless of the environment."""
    if depth != "none":
        monkeypatch.setenv("NO_COLOR", "1")

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

    driven(survey(WORDS * 4), steps, depth=depth)  # so many that the bars scroll


@pytest.mark.parametrize("depth", ["none", "16", "truecolor"])
def test_cells_match_a_heatmap(depth: str) -> None:
    """Mixtures of 16 colours, characters with a blank between wide cells, and a dot for a missing number."""
    choice = after(survey(), "x")
    places = choice.shading.places

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("x")
        await pilot.pause()
        panel = app.query_one(HeadMap)
        width = panel.layout_now.cell_width
        if depth == "none":
            expected = character_lines(places, width)
        else:
            lines = cell_lines(levels(places), palette(depth, False), width)
            expected = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
        cells = [panel.render_line(1 + row).text[panel.layout_now.label :] for row in range(len(places))]
        assert [line.rstrip() for line in cells] == [line.rstrip() for line in expected]

    driven(survey(), steps, size=(100, 30), depth=depth)


def test_a_large_map_is_pooled_to_fit() -> None:
    weights = random_weights(512, 512)
    weights[300, 400] = 1
    tokens = tuple(f"w{i}" for i in range(512))
    report = Report("self", {}, {}, tokens, tensors={"weights": NamedTensor(("query", "key"), weights)})

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        panel = app.query_one(HeadMap)
        (down, along), label = panel.layout_now.block, panel.layout_now.label
        assert f"the largest of {down} × {along} per cell" in panel.render_line(0).text
        line, column = 300 // down // 2, label + 400 // along
        (segment,) = panel.render_line(1 + line).crop(column, column + 1)
        assert segment.style is not None
        color = segment.style.color if 300 // down % 2 == 0 else segment.style.bgcolor
        assert color is not None and tuple(color.get_truecolor()) == (253, 231, 37)
        await pilot.press("z", "end")
        assert "w511" in "\n".join(shown(panel))

    driven(report, steps)


@pytest.mark.parametrize("depth", ["none", "truecolor"])
def test_z_switches_to_the_whole_map_and_back(depth: str) -> None:
    """Even without colours, a cell of a small map is one number, as in one line per query."""

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        panel = app.query_one(HeadMap)
        lines = shown(panel)
        await pilot.press("z")
        whole = shown(panel)
        rows_per_line = 1 if depth == "none" else 2
        assert [line.strip("▸ ").split()[0] for line in whole[1:]] == [
            str(row) for row in range(0, len(WORDS), rows_per_line)
        ]
        await pilot.press("z")
        assert shown(panel) == lines

    driven(survey(), steps, depth=depth)


@pytest.mark.nightly
def test_full_maps_replace_pooled_maps() -> None:
    pooled_map, whole = random_weights(2, 3, 4, 4), random_weights(8, 8)
    tensors = {
        "pooled_mean": NamedTensor(("layer", "head", "query_block", "key_block"), pooled_map),
        "weights_1_2": NamedTensor(("query", "key"), whole),
    }
    report = Report("heads", {}, {}, tuple("abcdefgh"), tensors=tensors)
    np.testing.assert_array_equal(after(report, "down", "right", "right").matrix.values, whole)
    np.testing.assert_array_equal(after(report, "down", "right").matrix.values, pooled_map[1, 1])
    assert after(report, "down", "right", "right").matrix.title == "weights (query × key), head 1:2"
    assert after(report, "down", "right", "tab", "tab", "right").query == 4  # the first of block 2
    assert after(report, *["tab"] * 2, "down", "right", "right", "tab", "left").query == 2


def test_row_statistics_belong_to_the_chosen_token() -> None:
    report = run("multihead", num_heads=2)
    entropy = report.statistics["rows"]["entropy"].values
    text = screen_text(report, "right", "tab", "tab", size=(160, 50))
    assert f"{entropy[1].mean():.4f}" in text and f"{entropy[1, 2]:.4f}" in text


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (10, 4)], ids=str)
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


def test_hostile_tokens_are_shown_literally() -> None:
    text = screen_text(survey(HOSTILE), size=(160, 50), depth="truecolor")
    for token in ("[/INST]", "[red]x[/red]", ":smile:", "\\x1b[31mred", "a\\u202eb", "日本語"):
        assert token in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_help_lists_every_key_and_closes() -> None:
    named = (
        " ".join(KEYS).replace("Shift+Tab", "shift+tab").replace("PgUp", "pageup").replace("PgDn", "pagedown")
    )
    arrows = {"up": "↑", "down": "↓", "left": "←", "right": "→"}
    assert all(arrows.get(key, key).lower() in named.lower() for key in MOVES)
    assert max(map(cell_len, KEYS)) + 2 + max(map(cell_len, KEYS.values())) <= 76  # the frame

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("down")
        await pilot.press("question_mark")
        assert not isinstance(app.screen, HelpScreen)

    assert driven(survey(), steps).place == (0, 0)


def test_a_browser_can_open_ranked_and_without_the_sink() -> None:
    report = survey()
    choice = Choice(grids(report), sort="induction", skip_first_keys=2, scale="log")
    best = max(report.statistics["heads"], key=lambda row: row["induction"])
    assert choice.place == (best["layer"], best["head"]) and choice.ranking.is_on
    assert np.isnan(choice.shading.places[:, :2]).all() and choice.shading.scale == "log"


@pytest.mark.parametrize(
    "values",
    [
        np.ones((1, 1)),
        np.full((2, 3, 4, 5), np.nan),
        np.zeros((2, 1, 3)),
        -np.ones((3, 7)),
        np.arange(12).reshape(3, 4) - 5,
    ],
    ids=["one token", "no number", "zeros", "negative", "whole numbers"],
)
def test_no_key_fails_on_odd_matrices(values: np.ndarray) -> None:
    axes = ("layer", "head", "query", "key")[4 - values.ndim :]
    report = Report("self", {}, {}, tensors={"weights": NamedTensor(axes, values)})
    text = screen_text(report, *MOVES, "z", "z", size=(40, 8))
    assert {cell_len(line) for line in text.split("\n")} == {40}


def test_statistics_of_other_stacks_are_left_out() -> None:
    """With an encoder and a decoder, each layer and head appears in several rows."""
    weights = NamedTensor(("layer", "head", "query", "key"), random_weights(1, 1, 2, 2))
    rows = Table(
        {"layer": 0, "head": 0, "stack": stack, "entropy": entropy}
        for stack, entropy in (("encoder", 0.25), ("decoder", 0.5), ("cross", 0.75))
    )
    for maps, entropy in (("encoder", 0.25), ("self", 0.5), ("cross", 0.75)):
        report = Report(
            "heads", {"maps": maps}, {}, tensors={"weights": weights}, result=read_result("", {"heads": rows})
        )
        assert grids(report)[0].statistics["entropy"].item() == entropy


def test_the_last_head_of_a_layer_is_marked_only_in_its_line() -> None:
    text = screen_text(survey(), *["right"] * (HEADS - 1))
    assert text.count("[") == text.count("]") == 1
