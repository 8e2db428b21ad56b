"""The blocks of the page about an answer and its sources, in a real Chromium."""

from dataclasses import replace

import numpy as np

from attncli.features.explanations.results import ExplainedSource, Explanations, WayOfReading
from attncli.records.report import PictureMaps
from attncli.views.overlays import painted, shaded
from attncli.views.picture_maps import tiles_of
from tests.running import run
from tests.views.page.pages import Opened, page_of, pixels_of
from tests.views.pictured import several_pictures


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
    assert shares == [f"{round(70 * number / weights.max())}%" for number in weights[:, order[0]]]


def test_a_picture_stands_in_each_way_side_by_side(opened: Opened) -> None:
    """As `source --compare --image` has it: what is lost first, then the ways, in cards."""
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
    assert cards.locator("h3").all_text_contents() == ["lost without it", "rollout"]
    assert cards.locator("p").all_text_contents() == [
        "first: r1c1",
        "first: r1c2, not the one without which most is lost, rank correlation -1.00",
    ]
    assert page.locator("#picture-maps").is_hidden()
    for place, tile in enumerate(tiles_of(maps, maps.rows[0])[1:]):
        found = pixels_of(cards.locator("canvas").nth(place))[..., :3]
        expected = painted(tile.look.picture, shaded(tile.look, found.shape[1], found.shape[0], None))
        assert (np.abs(found - expected).max(axis=-1) <= 6).mean() > 0.9
