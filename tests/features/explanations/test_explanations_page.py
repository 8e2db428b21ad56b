"""The page block with each way to read an answer, in Chromium."""

from dataclasses import replace

import numpy as np

from attncli.features.explanations.results import ExplainedSource, Explanations, WayOfReading
from attncli.records.report import PictureMaps
from attncli.views.overlays import painted, shaded
from attncli.views.picture_maps import tiles_of
from tests.views.page.pages import Opened, page_of, pixels_of
from tests.views.pictured import several_pictures


def test_the_page_shows_a_card_for_each_way(opened: Opened) -> None:
    """A report as `source --compare --image` writes it: cards with the losses, then the ways."""
    surveyed = several_pictures((3, 5))
    assert surveyed.picture_maps is not None
    row = surveyed.picture_maps.rows[0]
    weights = replace(row.weights, values=row.weights.values[:2])
    maps = PictureMaps(("lost", "rollout"), "ways", 1, (replace(row, weights=weights),), "in each way")
    cells = [{"source": 1, "name": "r1c1", "text": None, "tokens": 1, "lost": 2.0, "rollout": 1.0}]
    cells.append({**cells[0], "source": 2, "name": "r1c2", "lost": 1.0, "rollout": 3.0})
    ways = [{"way": "rollout", "spearman": -1.0, "first": 2, "first_agrees": 0, "runs": 1}]
    result = Explanations(sources=ExplainedSource.rows(cells), ways=WayOfReading.rows(ways))
    report = replace(surveyed, experiment="source", result=result, tensors={}, picture_maps=maps)
    page = opened(page_of(report))
    cards = page.locator("#ways li")
    assert cards.locator("h2").all_text_contents() == ["lost without it", "rollout"]
    assert cards.locator("p").all_text_contents() == [
        "first: r1c1",
        "first: r1c2, not the source with the largest loss, rank correlation -1.00",
    ]
    assert page.locator("#picture-maps").is_hidden()
    for place, tile in enumerate(tiles_of(maps, maps.rows[0])[1:]):
        found = pixels_of(cards.locator("canvas").nth(place))[..., :3]
        expected = painted(tile.look.picture, shaded(tile.look, found.shape[1], found.shape[0], None))
        assert (np.abs(found - expected).max(axis=-1) <= 6).mean() > 0.9
