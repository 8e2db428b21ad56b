"""The browser on a picture: the weights of the chosen token, a click on a patch, and the map."""

import numpy as np
import pytest
from textual.pilot import Pilot

from attncli.features.browse.browser import Browser
from attncli.features.browse.browser_choice import Choice, grids
from attncli.features.browse.browser_panels import HeadMap, PictureMap
from attncli.views import Display
from attncli.views.overlays import overlay_lines
from tests.features.browse.browsing import driven, shown
from tests.views.pictured import one_head, survey
from tests.views.terminal.screens import halves


@pytest.mark.parametrize("depth", ["none", "256"])
def test_the_picture_shows_the_weights_of_the_chosen_token(depth: str) -> None:
    report = survey(5, 7, is_whole=True)

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        panel = app.query_one(PictureMap)
        assert not app.query_one(HeadMap).display
        await pilot.press("down", "right", "tab")
        heading, *lines = shown(panel)
        assert heading.startswith("where 1 r1c1 looks, ") and "% on disc.png" in heading
        assert len(lines) > 3 and (depth == "none" or {*"".join(lines)} <= {*"▀▄ "})
        await pilot.press("z")
        assert app.query_one(HeadMap).display and not panel.display

    choice = driven(report, steps, size=(80, 40), depth=depth)
    assert (choice.look.weights == report.tensors["weights"].values[1, 1, 1]).all()


def test_picture_colours_match_other_views() -> None:
    report = one_head(5, 7)

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        panel = app.query_one(PictureMap)
        columns, lines = panel._map_size
        expected = overlay_lines(app.choice.look, (columns, lines), Display(colors="truecolor"))
        for number, line in enumerate(expected):
            papers = [
                tuple(segment.style.bgcolor.get_truecolor())
                for segment in panel.line(number, columns)
                for _ in segment.text
                if segment.style is not None and segment.style.bgcolor is not None
            ]
            assert papers == halves(line.text)[1]

    driven(report, steps, size=(160, 50))


def test_a_click_chooses_a_patch() -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        columns, lines = app.query_one(PictureMap)._map_size
        await pilot.click(PictureMap, offset=(columns - 1, lines))  # below the heading
        await pilot.pause()

    assert driven(survey(2, 2, is_whole=True), steps, size=(160, 50)).query == 4


def test_a_picture_opens_at_the_query_of_the_report() -> None:
    report = one_head(3, 5, **{"from": "r2c4"})
    choice = Choice(grids(report))
    assert report.tokens[choice.query] == "r2c4"
    np.testing.assert_array_equal(choice.look.weights, report.tensors["weights"].values[choice.query])
