"""Weights painted over a picture, against loops over pixels, and the tokens whose weights these are."""

import io
import sys
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from attncli.errors import UserError
from attncli.features.diff.question import compare
from attncli.records.report import Box, NamedTensor
from attncli.views.overlays import (
    EVERY_QUERY,
    FAINT,
    STRONG,
    LookTile,
    grey,
    painted,
    report_overlays,
    shaded,
    spread,
    tensor_looks,
)
from tests.views.pictured import drawn_picture, one_head, patches, survey, tokens_of_patches
from tests.views.test_views import shown


def naive(boxes: list[Box | None], weights: np.ndarray, width: int, height: int) -> np.ndarray:
    """For each pixel, the sum over the boxes that cover its centre."""
    found = np.full((height, width), np.nan)
    for y, x in np.ndindex(height, width):
        at = [
            weights[i]
            for i, box in enumerate(boxes)
            if box and box[0] <= (x + 0.5) / width < box[2] and box[1] <= (y + 0.5) / height < box[3]
        ]
        if at:
            found[y, x] = sum(at)
    return found


@pytest.mark.parametrize(("rows", "columns", "width", "height"), [(2, 2, 7, 5), (3, 5, 40, 24), (1, 1, 1, 1)])
def test_patches_have_their_weight(rows: int, columns: int, width: int, height: int) -> None:
    boxes = [None, *patches(rows, columns)]
    weights = np.random.default_rng(1).random(len(boxes))
    np.testing.assert_allclose(spread(boxes, weights, width, height), naive(boxes, weights, width, height))


def test_overlapping_boxes_add_up_and_uncovered_pixels_are_missing() -> None:
    boxes: list[Box | None] = [(0.1, 0.2, 0.7, 0.9), None, (0.5, 0.0, 0.9, 0.6), (0.3, 0.3, 0.3, 0.8)]
    weights = np.array([0.25, 0.5, 0.125, 1.0])
    found = spread(boxes, weights, 31, 23)
    np.testing.assert_allclose(found, naive(boxes, weights, 31, 23), atol=1e-15)
    assert np.isnan(found).any() and np.nanmax(found) == pytest.approx(0.375)


def test_a_pixel_that_covers_several_patches_is_their_mean() -> None:
    boxes, weights = patches(12, 20), np.random.default_rng(2).random((3, 240))
    expected = weights.reshape(3, 4, 3, 5, 4).mean(axis=(2, 4))
    np.testing.assert_allclose(spread(boxes, weights, 5, 4), expected)


def test_without_boxes_every_pixel_is_missing() -> None:
    assert np.isnan(spread([None, (0.5, 0.5, 0.5, 0.5)], np.ones(2), 3, 2)).all()


def test_larger_weights_cover_more_of_the_picture() -> None:
    report = one_head(3, 5)
    (look,) = tensor_looks(report, "weights")
    rgb = painted(look.picture, shaded(look, 70, 42, None))
    image = Image.open(io.BytesIO(look.picture.png))
    assert (grey(look.picture, 70, 42) == np.asarray(image.convert("L"))).all()
    below = np.asarray(image.convert("RGB"))
    weights = report.tensors["weights"].values[0, 1:].reshape(3, 5)
    places = np.kron(weights / weights.max(), np.ones((14, 14)))[..., np.newaxis]
    colours = matplotlib.colormaps["viridis"](places[..., 0], bytes=True)[..., :3]
    cover = FAINT + (STRONG - FAINT) * places
    assert np.abs((1 - cover) * below + cover * colours - rgb).max() < 4


def test_weights_on_and_beside_the_picture_add_up() -> None:
    first = ("[CLS]", "reg1", "reg2")
    (look,) = tensor_looks(one_head(3, 5, first), "weights")
    assert {name for name, _ in look.outside} == {*first} and len(look.strongest) == 15
    assert [weight for _, weight in look.strongest] == sorted((w for _, w in look.strongest), reverse=True)
    assert sum(weight for _, weight in look.outside + look.strongest) == pytest.approx(1, abs=1e-6)
    assert look.share == pytest.approx(1 - sum(weight for _, weight in look.outside))


@pytest.mark.parametrize(
    ("asked", "query"),
    [({}, "[CLS]"), ({"from": "r2c4"}, "r2c4"), ({"from": ["r3c1"]}, "r3c1"), ({"from": "0.5,0.9"}, "r3c3")],
)
def test_a_query_is_named_by_its_token_or_by_a_point(asked: dict[str, Any], query: str) -> None:
    report = one_head(3, 5, **asked)
    (look,) = tensor_looks(report, "weights")
    assert look.query == query
    assert (look.weights == report.tensors["weights"].values[report.tokens.index(query)]).all()


def test_without_a_class_token_looks_are_the_mean_of_all_queries() -> None:
    report = one_head(3, 5, first=())
    (look,) = tensor_looks(report, "weights")
    assert look.query == EVERY_QUERY
    np.testing.assert_allclose(look.weights, report.tensors["weights"].values.mean(axis=0))


def test_several_queries_are_averaged() -> None:
    report = one_head(3, 5, **{"from": ["r1c1", "r3c5"]})
    (look,) = tensor_looks(report, "weights")
    assert look.query == "r1c1, r3c5"
    np.testing.assert_allclose(look.weights, report.tensors["weights"].values[[1, 15]].mean(axis=0))


def test_a_layer_with_fewer_heads_has_fewer_looks() -> None:
    report = survey(layers=2, heads=3)
    values = report.tensors["looks"].values.copy()
    values[1, 2] = np.nan
    report = replace(report, tensors={"looks": NamedTensor(("layer", "head", "key"), values)})
    assert [look.place for look in tensor_looks(report, "looks")][-1] == (("layer", 1), ("head", 1))


def test_a_caption_that_is_too_wide_is_shortened() -> None:
    report = one_head()
    weights = np.zeros(len(report.tokens))
    weights[3] = 1.0
    (look,) = tensor_looks(report, "weights")
    tile = LookTile("11:2", replace(look, weights=weights))
    assert [tile.caption_in(cells) for cells in (9, 8, 7)] == ["11:2 100%", "11:2 all", "11:2"]


def test_words_look_at_the_picture_of_the_context() -> None:
    tokens = tokens_of_patches(3, 5)
    picture = replace(drawn_picture(50, 30, [None, *patches(3, 5)]), axis="context_tokens")
    weights = np.random.default_rng(3).random((2, 4, 16)).astype(np.float32)
    report = replace(
        one_head(),
        experiment="cross",
        spec={"model": "vit"},
        tokens=("a", "disc", "on", "dark"),
        context_tokens=tokens,
        tensors={"weights": NamedTensor(("head", "query", "key"), weights)},
        pictures=(picture,),
    )
    ((_, _, (words,)),) = report_overlays(report)
    assert [tile.name for tile in words] == ["a", "disc", "on", "dark"]
    np.testing.assert_allclose(words[1].look.weights, weights[:, 1].mean(axis=0))
    asked = replace(report, spec={**report.spec, "from": "disc"})
    ((_, _, (heads,)),) = report_overlays(asked)
    assert [tile.name for tile in heads] == ["0", "1"] and (heads[1].look.weights == weights[1, 1]).all()


def test_a_comparison_keeps_the_picture_that_both_reports_share() -> None:
    a, b = one_head(3, 5), one_head(3, 5, head=2)
    weights = b.tensors["weights"].values[:, ::-1]
    b = replace(b, tensors={"weights": NamedTensor(("query", "key"), weights)})
    found = list(report_overlays(compare(a, b)))
    titles = [title.rpartition(": ")[2] for title, *_ in found]
    assert titles == ["B minus A", "A", "B"]
    looks = [groups[0][0].look for _, _, groups in found]
    np.testing.assert_allclose(looks[0].weights, looks[2].weights - looks[1].weights)
    assert np.isnan(looks[0].share) and shaded(looks[0], 20, 12, None).is_diverging
    other = replace(b, pictures=(replace(b.pictures[0], name="other.png"),))
    assert compare(a, other).pictures == ()


@pytest.mark.parametrize("damage", ["cut", "size", "no picture"])
def test_a_damaged_picture_is_refused_in_one_line(damage: str) -> None:
    picture = drawn_picture(50, 30, [None])
    png = {
        "cut": picture.png[:60],
        "size": picture.png[:16] + (10**6).to_bytes(4) + picture.png[20:],
        "no picture": picture.png[:8],
    }[damage]
    with pytest.raises(UserError, match=r"^disc\.png: the picture in the report is"):
        grey(replace(picture, png=png), 5, 3)


def test_the_heatmap_of_a_picture_has_only_its_maps() -> None:
    """It has neither a table of patches nor a map of scores, unless --show requests them."""
    report = one_head(3, 5)
    scores = NamedTensor(("query", "key"), np.zeros((16, 16)))
    report = replace(report, tensors={**report.tensors, "scores": scores})

    text = shown("heatmap", [report])
    assert "where [CLS] looks" in text and "scores" not in text and "strongest" not in text
    assert "r1c1" not in text and text.count("\n") < 25
    assert "scores (query × key)" in shown("heatmap", [report], show=("scores",))


def test_a_weight_of_zero_leaves_the_picture_unchanged() -> None:
    report = one_head(3, 5)
    weights = np.zeros_like(report.tensors["weights"].values)
    weights[:, 1] = 1  # all on the first patch
    report = replace(report, tensors={"weights": NamedTensor(("query", "key"), weights)})
    (look,) = tensor_looks(report, "weights")
    rgb = painted(look.picture, shaded(look, 70, 42, None))
    below = np.asarray(Image.open(io.BytesIO(look.picture.png)).convert("RGB"))
    is_first = np.zeros((42, 70), dtype=bool)
    is_first[:14, :14] = True
    assert (rgb[~is_first] == below[~is_first]).all() and (rgb[is_first] != below[is_first]).any()


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = drawn_picture(8, 6, [None], "new.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r'^pictures: needs: pip install "attncli\[images\]"$'):
        grey(picture, 4, 3)
