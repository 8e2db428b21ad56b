"""Pictures on the page in Chromium: the painted weights, and the choice of the query."""

import wave
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from attncli.records.kinds import read_result
from attncli.records.report import Report, Table
from attncli.views.overlays import painted, shaded, tensor_looks
from attncli.views.picture_maps import tiles_of
from tests.views.page.pages import Opened, page_of, pixels_of, wait_for_readout
from tests.views.pictured import drawn_picture, one_head, several_pictures, spoken, survey, written_words


def is_painted(canvas: Any, report: Report, name: str, place: tuple[int, ...] = ()) -> bool:
    """Return True if nearly every pixel is as in other views; browsers resample edges differently."""
    found = pixels_of(canvas)[..., :3]
    (look,) = (look for look in tensor_looks(report, name) if tuple(n for _, n in look.place) == place)
    expected = painted(look.picture, shaded(look, found.shape[1], found.shape[0], None))
    return bool((np.abs(found - expected).max(axis=-1) <= 6).mean() > 0.9)


def asked_from(report: Report, query: str) -> Report:
    return replace(report, spec={**report.spec, "from": query})


def point_at(page: Any, x: float, y: float) -> tuple[float, float]:
    page.locator(".overlay").evaluate("stage => stage.scrollIntoView({ block: 'center' })")
    area = page.locator(".overlay").bounding_box()
    return area["x"] + x * area["width"], area["y"] + y * area["height"]


@pytest.mark.nightly
def test_a_click_on_a_patch_makes_it_the_query(opened: Opened) -> None:
    report = survey(5, 7, is_whole=True)
    page = opened(page_of(report))
    stage, thumbnail = page.locator(".overlay canvas"), page.locator('.thumbnail[title="head 1:2"] canvas')
    assert is_painted(stage, report, "weights", (0, 0)) and is_painted(thumbnail, report, "weights", (1, 2))
    page.mouse.click(*point_at(page, 0.5, 0.9))
    wait_for_readout(page, "head 0:0 r5c4 looks most at")
    of_patch = asked_from(report, "r5c4")
    assert is_painted(stage, of_patch, "weights", (0, 0))
    assert is_painted(thumbnail, of_patch, "weights", (1, 2))
    thumbnail.hover()
    wait_for_readout(page, "head 1:2 r5c4 looks most at")
    assert is_painted(stage, of_patch, "weights", (1, 2))
    assert page.locator("#matrix-title").text_content() == "weights, head 1:2"


def choose_head(page: Any, head: str) -> None:
    """Click a small map; a page opens on the head with the clearest look."""
    page.locator(f'.thumbnail[title="head {head}"]').click()
    page.locator("#matrix-title", has_text=f"head {head}").wait_for()


def test_arrow_keys_move_and_enter_selects_the_query(opened: Opened) -> None:
    report = survey(5, 7, is_whole=True)
    page = opened(page_of(report))
    choose_head(page, "0:0")
    page.locator(".overlay").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    wait_for_readout(page, "head 0:0 r2c1 looks most at")
    page.keyboard.press("End")
    wait_for_readout(page, "r5c7 looks most at")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    wait_for_readout(page, "r5c7 looks most at")
    frame = page.locator(".overlay .frame").evaluate("f => f.style.inset.split(' ').map(parseFloat)")
    np.testing.assert_allclose(frame, [80, 0, 0, 600 / 7], atol=1e-3)


def test_tokens_beside_the_picture_show_their_weight_and_can_be_the_query(opened: Opened) -> None:
    report = one_head(3, 5, ("[CLS]", "reg1"))
    weights = report.tensors["weights"].values
    page = opened(page_of(report))
    tiles = page.locator(".elsewhere .tile")
    names = ["all tokens (mean)", "[CLS]", "reg1"]
    assert tiles.locator(".name").all_text_contents() == names
    assert tiles.locator(".weight").all_text_contents() == [
        "",
        f"{weights[0, 0]:.4f}",
        f"{weights[0, 1]:.4f}",
    ]
    tiles.nth(2).click()
    wait_for_readout(page, "reg1 looks most at")
    assert is_painted(page.locator(".overlay canvas"), asked_from(report, "reg1"), "weights")
    tiles.nth(0).click()
    wait_for_readout(page, "all tokens (mean) looks most at")


def test_looks_of_a_caption_have_the_statistics_of_their_own_stack(opened: Opened) -> None:
    report = survey(2, 2, layers=1, heads=2)
    (picture,), rows = report.pictures, report.table("heads")
    of_words = [{**row, "stack": "decoder", "entropy": 7.0} for row in rows]
    across = [{**row, "stack": "cross", "kind": "cross", "entropy": 3.0} for row in rows]
    caption = replace(
        report,
        tokens=("[CLS]", "a", "cat"),
        context_tokens=report.tokens,
        pictures=(replace(picture, axis="context_tokens"),),
        result=read_result("heads", {**report.statistics, "heads": Table([*of_words, *across])}),
    )
    page = opened(page_of(caption))
    assert "3.0000" in page.locator("#head-statistics").text_content()
    assert "attn cross --head LAYER:HEAD" in page.locator("#picture > .quiet").text_content()


def test_a_page_with_only_looks_names_the_command_for_the_rest(opened: Opened) -> None:
    report = survey(5, 7)
    page = opened(page_of(report))
    assert "attn self --head LAYER:HEAD" in page.locator("#picture > .quiet").text_content()
    choose_head(page, "0:0")
    assert is_painted(page.locator(".overlay canvas"), report, "looks", (0, 0))
    page.mouse.click(*point_at(page, 0.5, 0.9))
    weight = report.tensors["looks"].values[0, 0, 1 + 4 * 7 + 3]
    wait_for_readout(page, f"32 r5c4: {weight:.4f}")
    page.select_option("#tensor", label="rollout (query × key)")
    page.wait_for_function("() => document.getElementById('overview').hidden")
    assert is_painted(page.locator(".overlay canvas"), report, "rollout")


def test_each_written_word_has_a_small_picture_and_can_be_chosen(opened: Opened) -> None:
    report = written_words(" a", " disc", ".")
    page = opened(page_of(report))
    tiles = page.locator(".elsewhere button")
    assert tiles.locator(".name").all_text_contents() == ["all tokens (mean)", "a", "disc", "."]
    tiles.nth(2).click()
    wait_for_readout(page, "a looks most at")
    (look,) = tensor_looks(asked_from(report, " a"), "weights")  # the word after which it wrote `disc`
    found = pixels_of(page.locator(".overlay canvas"))[..., :3]
    expected = painted(look.picture, shaded(look, found.shape[1], found.shape[0], None))
    assert (np.abs(found - expected).max(axis=-1) <= 6).mean() > 0.9


def test_pictures_fit_a_phone_and_their_names_are_text(opened: Opened) -> None:
    report = survey(2, 2, layers=2, heads=16, is_whole=True)
    name = "<img src=x onerror=alert(1)>\u202e.png"
    page = opened(page_of(replace(report, pictures=(replace(report.pictures[0], name=name),))), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert "<img src=x onerror=alert(1)>" in page.locator("#picture > .quiet").text_content()
    assert page.locator("#picture img").count() == 0


def test_the_weights_of_a_damaged_picture_are_drawn(opened: Opened) -> None:
    report = survey(2, 2, layers=1, heads=2, is_whole=True)
    picture = replace(report.pictures[0], png=report.pictures[0].png[:40])
    page = opened(page_of(replace(report, pictures=(picture,))))
    assert len(np.unique(pixels_of(page.locator(".overlay canvas"))[..., :3].reshape(-1, 3), axis=0)) == 4


def test_heads_share_the_lines_of_a_phone_evenly(opened: Opened) -> None:
    page = opened(page_of(survey(2, 2, layers=6, heads=8, is_whole=True)), width=390)
    page.locator("#size").select_option("small")
    tops = page.locator(".thumbnail").evaluate_all("all => all.slice(0, 8).map(one => one.offsetTop)")
    assert [tops.count(top) for top in dict.fromkeys(tops)] == [4, 4]


def test_several_pictures_stand_in_rows_before_their_maps(opened: Opened) -> None:
    report = several_pictures((3, 5), (4, 4), num_pictures=9, names=("<b>.png", "[red].png"))
    maps = report.picture_maps
    assert maps is not None
    page = opened(page_of(report))
    assert page.locator("#picture-maps thead th").all_text_contents() == ["picture", "2:0", "2:1", "mean"]
    assert page.locator("#picture-maps tbody th").all_text_contents() == ["<b>.png", "[red].png"]
    assert "Only the first 2 of 9 pictures are shown." in page.locator("#picture-maps").text_content()
    canvases = page.locator("#picture-maps td canvas")
    for number, row in enumerate(maps.rows):
        for column, tile in enumerate(tiles_of(maps, row)[1:], start=1):
            found = pixels_of(canvases.nth(4 * number + column))[..., :3]
            expected = painted(row.picture, shaded(tile.look, found.shape[1], found.shape[0], None))
            assert (np.abs(found - expected).max(axis=-1) <= 6).mean() > 0.9


def recorded(seconds: int) -> bytes:
    """A sound that is loud in its second half only."""
    stream = BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((1, 1, 8000, 0, "NONE", ""))
        sound.writeframes(bytes([128]) * (4000 * seconds) + bytes([28, 228]) * (2000 * seconds))
    return stream.getvalue()


def test_a_sound_is_a_wave_over_seconds(opened: Opened) -> None:
    picture = replace(drawn_picture(60, 12, ()), seconds=4.0, sound=recorded(4))
    page = opened(page_of(spoken([" a", " b"], picture)))
    heights = (pixels_of(page.locator(".wave"))[..., 3] > 0).sum(axis=0)
    half = len(heights) // 2
    assert heights[: half - 20].max() <= 2 and heights[half + 20 :].min() > 60
    ticks = page.locator("#sound .time-axis span")
    assert ticks.all_text_contents()[0] == "0.0 s" and ticks.last.text_content() == "4.0"
    box, last = page.locator(".wave").bounding_box(), ticks.last.bounding_box()
    assert last["x"] + last["width"] / 2 == pytest.approx(box["x"] + box["width"], abs=2)


@pytest.mark.nightly
def test_a_click_on_a_word_plays_it_and_the_pointer_finds_it(opened: Opened) -> None:
    picture = replace(drawn_picture(60, 12, ()), seconds=2.0, sound=recorded(2))
    page = opened(page_of(spoken([" a", " b", " c", " d"], picture)))
    now = "() => document.querySelector('audio').currentTime"
    words = page.locator(".spoken button")
    words.nth(2).click()
    page.wait_for_function("() => document.querySelector('.spoken-now')?.textContent === 'c'")
    assert 1.0 <= page.evaluate(now) < 1.5
    page.wait_for_function("() => document.querySelector('audio').paused")  # at the end of the word
    assert 1.5 <= page.evaluate(now) < 1.7
    area = page.locator(".overlay.sound").bounding_box()
    point = area["x"] + 0.4 * area["width"], area["y"] + area["height"] / 2
    page.mouse.move(*point)
    assert page.locator(".under").all_text_contents() == ["b"]
    strip = page.locator(".heard").bounding_box()
    assert strip["x"] - area["x"] == pytest.approx(area["width"] / 4, abs=2)
    assert strip["width"] == pytest.approx(area["width"] / 4, abs=2)
    page.mouse.click(*point)
    page.wait_for_function("() => !document.querySelector('audio').paused")
    assert 0.8 <= page.evaluate(now) < 1.2
