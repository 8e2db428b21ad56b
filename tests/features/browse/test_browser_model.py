"""Measurements with the model of the browser: removed heads, contributions, and edited texts."""

import os
import time
from collections.abc import Mapping, Sequence
from threading import Event

import numpy as np
import pytest
from textual.pilot import Pilot

from attncli.errors import UserError
from attncli.features.browse.browser import NO_MODEL, Browser, EditScreen, browse
from attncli.features.browse.browser_choice import Addition, Choice, grids
from attncli.features.browse.browser_panels import HeadPicker, PatternsPanel
from attncli.records.kinds import read_result
from attncli.records.report import Mask, NamedTensor, Report, Table
from tests.features.browse.browsing import WORDS, driven, random_weights, screen_now, screen_text, survey

PATIENCE = 20


def named_survey(tokens: tuple[str, ...] = WORDS, *, layers: int = 3, heads: int = 5) -> Report:
    """Return a survey with causal weights.

    The last head of the last layer looks at the previous token, the other heads at the first token.
    """
    weights = np.zeros((layers, heads, len(tokens), len(tokens)), dtype=np.float32)
    weights[..., 0] = 1
    previous = weights[-1, -1]
    previous[1:, 0] = 0
    previous[np.arange(1, len(tokens)), np.arange(len(tokens) - 1)] = 1
    names = {(layer, head): "first token" for layer in range(layers) for head in range(heads)}
    names[layers - 1, heads - 1] = "previous token"
    rows = Table(
        {
            "layer": layer,
            "head": head,
            "stack": "self",
            "pattern": name,
            "rest_pattern": None if name == "previous token" else "uniform" if head == 2 else "unnamed",
            "sink_mass": 0.25 if name == "previous token" else 1.0,
            "previous_token": 0.875 if name == "previous token" else 0.0,
        }
        for (layer, head), name in names.items()
    )
    patterns = Table(
        {"stack": "self", "pattern": name, "statistic": "", "threshold": 0.3, "rows": 7, "heads": count}
        for name, count in (("first token", layers * heads - 1), ("previous token", 1))
    )
    strongest = {
        "stack": "self",
        "pattern": "previous token",
        "rank": 0,
        "layer": layers - 1,
        "head": heads - 1,
    }
    tables = {
        "heads": rows,
        "patterns": patterns,
        "strongest": Table([{**strongest, "value": 0.875, "key": None}]),
    }
    tensors = {"weights": NamedTensor(("layer", "head", "query", "key"), weights, Mask(causal=True))}
    return Report("heads", {"maps": "self"}, {}, tokens, tensors=tensors, result=read_result("heads", tables))


class Model:
    """A model that answers at once or when told to. `asked` lists its questions."""

    def __init__(self, *, waits: bool = False, error: Exception | None = None) -> None:
        self.text = "the cat sat"
        self.asked: list[object] = []
        self.error = error
        self.may_answer = Event()
        if not waits:
            self.may_answer.set()

    def _answer(self, question: object) -> None:
        self.asked.append(question)
        assert self.may_answer.wait(PATIENCE)
        if self.error is not None:
            raise self.error

    def look(self, text: str) -> Report:
        self._answer(text)
        self.text = text
        return named_survey(tuple(text.split()))

    def without(self, heads: Sequence[str]) -> Mapping[str, float]:
        self._answer(tuple(heads))
        return {"loss": 0.5 * len(heads), "kl": 0.125}

    def addition(self, head: str) -> Addition:
        self._answer(head)
        return Addition(" mat", 12.5, -1.25, 3, 15, [("0 the", 0.25), ("1 cat", -1.5)])


async def answered(app: Browser, pilot: "Pilot[None]") -> None:
    end = time.monotonic() + PATIENCE
    while app.measurement.is_running:
        assert time.monotonic() < end
        await pilot.pause(0.02)
    await pilot.pause()


def test_heads_are_removed_together_and_put_back() -> None:
    model = Model()

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("a")
        await answered(app, pilot)
        assert "without 0:0: loss +0.5000, kl 0.1250" in screen_now(app)
        await pilot.press("down", "right", "a")
        await answered(app, pilot)
        screen = screen_now(app)
        assert "without 0:0, 1:1: loss +1.0000, kl 0.1250" in screen
        picker = app.query_one(HeadPicker)
        assert [line.count("×") for line in (picker.render_line(y).text for y in (1, 2, 3))] == [1, 1, 0]
        await pilot.press("a")
        await answered(app, pilot)
        assert "without 0:0: loss" in screen_now(app)
        await pilot.press("up", "left", "a")
        assert "without" not in screen_now(app) and "0:0 is back" in screen_now(app)

    choice = driven(named_survey(), steps, depth="none", model=model)
    assert model.asked == [("0:0",), ("0:0", "1:1"), ("0:0",)] and choice.removed == ()


def test_the_contribution_of_a_head_stays_with_it() -> None:
    model = Model()
    added = "adds -1.25 to the logit of ' mat' (12.50), 3 of 15 by size: 1 cat -1.5, 0 the"

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("w")
        await answered(app, pilot)
        assert added in screen_now(app)
        await pilot.press("right")
        assert added not in screen_now(app)
        await pilot.press("left")
        assert added in screen_now(app)

    driven(named_survey(), steps, size=(100, 30), depth="none", model=model)
    assert model.asked == ["0:0"]


def test_an_edited_text_keeps_the_head() -> None:
    model = Model()

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("a")
        await answered(app, pilot)
        await pilot.press("down", "c", "e")
        assert isinstance(app.screen, EditScreen) and "the cat" in screen_now(app)
        await pilot.press("q", "w", "enter")
        await answered(app, pilot)
        assert "0 the" in screen_now(app) and "2 satqw" in screen_now(app)

    choice = driven(named_survey(), steps, depth="none", model=model)
    assert model.asked == [("0:0",), "the cat satqw"]
    assert (choice.place, choice.colours.scale, choice.query, choice.removed) == ((1, 0), "log", 2, ())


def test_escape_keeps_the_text() -> None:
    model = Model()

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("e", "x", "escape", "tab")
        assert not isinstance(app.screen, EditScreen)

    assert driven(named_survey(), steps, model=model).query == 1 and model.asked == []


def test_keys_work_during_a_measurement_and_a_second_one_waits() -> None:
    model = Model(waits=True)

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("a")
        await pilot.pause(0.3)
        assert "measuring without 0:0 ... " in screen_now(app)
        await pilot.press("right", "tab", "a", "w")
        assert app.choice.place == (0, 1) and app.choice.query == 1
        assert "measuring without 0:0" in screen_now(app) and "this key takes effect" in screen_now(app)
        model.may_answer.set()
        while len(model.asked) < 3:
            await answered(app, pilot)
        await answered(app, pilot)
        screen = screen_now(app)
        assert "without 0:0, 0:1: loss +1.0000" in screen and "waits" not in screen and "adds -1.25" in screen

    driven(named_survey(), steps, size=(100, 30), depth="none", model=model)
    assert model.asked == [("0:0",), ("0:0", "0:1"), "0:1"]  # of the head that was chosen then


@pytest.mark.parametrize(
    ("keys", "error", "line"),
    [
        (["a"], UserError("model: x has no head"), "model: x has no head"),
        (["w"], MemoryError(), "out of memory: use fewer tokens"),
        (["e", "enter"], UserError("model: x has no head"), "model: x has no head"),
    ],
    ids=["a", "w", "e"],
)
def test_errors_of_the_model_are_shown(keys: list[str], error: Exception, line: str) -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press(*keys)
        await answered(app, pilot)
        assert line in screen_now(app)
        await pilot.press("right")
        assert app.choice.place == (0, 1)

    choice = driven(named_survey(), steps, depth="none", model=Model(error=error))
    assert (choice.removed, choice.effects, choice.additions) == ((), {}, {})


def test_a_saved_report_has_no_model_to_measure() -> None:
    assert NO_MODEL.format("a")[:78] in screen_text(named_survey(), "a")
    assert NO_MODEL.format("w")[:20] not in screen_text(named_survey(), "w", "tab")


def test_a_tensor_without_heads_cannot_be_measured() -> None:
    report = Report(
        "self", {}, {}, WORDS, tensors={"weights": NamedTensor(("query", "key"), random_weights(7, 7))}
    )

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("a")
        assert "a needs a head" in screen_now(app)

    driven(report, steps, depth="none", model=Model())


def test_a_bug_ends_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("a")
        while app.is_running:
            await pilot.pause(0.02)
        assert isinstance(app.failure, ZeroDivisionError)

    driven(named_survey(), steps, model=Model(error=ZeroDivisionError()))

    def run(app: Browser) -> None:
        app.failure = ZeroDivisionError()

    monkeypatch.setattr(Browser, "run", run)
    with pytest.raises(ZeroDivisionError):
        browse(Choice(grids(named_survey())), colors="none")


def test_q_does_not_wait_for_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []

    def run(app: Browser) -> None:
        app.measurement.what = "measuring"

    monkeypatch.setattr(Browser, "run", run)
    monkeypatch.setattr(os, "_exit", codes.append)
    browse(Choice(grids(named_survey())), colors="none")
    assert codes == [0]


def test_it_opens_at_the_most_informative_query() -> None:
    """The last query of a causal map, else the query that looks most at another inner token."""
    assert Choice(grids(named_survey())).query == len(WORDS) - 1
    report = survey()
    values = report.tensors["weights"].values[0, 0, 1:-1, 1:-1].copy()
    np.fill_diagonal(values, 0)
    assert Choice(grids(report)).query == 1 + np.unravel_index(values.argmax(), values.shape)[0]


@pytest.mark.parametrize("depth", ["none", "truecolor"])
def test_heads_are_shown_as_pattern_letters(depth: str) -> None:
    """Letters are lower case, for the rest of the weight, if most heads look at the first token."""

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("right")
        picker = app.query_one(HeadPicker)
        assert [picker.render_line(y).text.rstrip() for y in range(5)] == [
            "   0   2   4",
            "0  f[f]u f f",
            "1  f f u f f",
            "2  f f u f P",
            "layer ↓ head →",
        ]
        screen = screen_now(app)
        assert "0:1 first token (sink_mass 1.00)" in screen
        assert "6 today looks at 0 the 1.00" in screen or "0 the looks at 0 the 1.00" in screen
        await pilot.press("down", "down", *["right"] * 3, "end")
        screen = screen_now(app)
        assert "2:4 previous token (previous_token 0.88)" in screen
        assert "6 today looks at 5 street 1.00" in screen
        await pilot.press("f", "shift+tab")
        assert "5 street is looked at by 6 today 1.00" in screen_now(app)

    driven(named_survey(), steps, depth=depth)


def test_a_click_on_a_pattern_chooses_its_strongest_head() -> None:
    report = named_survey(layers=30, heads=9)

    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        screen = screen_now(app)
        assert "F first token         269" in screen and "P previous token        1  29:8 0.88" in screen
        lines = [line for line in screen.split("\n") if line.strip()]
        assert len(lines) >= 42  # of 50: nothing is half empty
        picker = app.query_one(HeadPicker)
        assert picker.render_line(30).text.startswith("29  f f")
        await pilot.click(PatternsPanel, offset=(3, 2))

    assert driven(report, steps, size=(160, 50), depth="none").place == (29, 8)

    async def narrow(app: Browser, pilot: "Pilot[None]") -> None:
        assert not app.query_one(PatternsPanel).display or not app.query_one(PatternsPanel).region

    driven(report, narrow, size=(80, 24))
