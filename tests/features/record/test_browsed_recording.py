"""A recording of a program in the browser: there is no model to ask, and no key asks one."""

import pytest
import torch
from torch import nn

from attncli.features.browse.browser import HINTS, NO_MODEL, Browser
from attncli.features.record.listening.listener import Listener
from attncli.features.record.recorder import Recorder
from attncli.features.record.reports import recording_report
from attncli.records.report import Report
from tests.features.browse.browsing import Pilot, driven, screen_text

WIDTH, TOKENS = 12, 7


@pytest.fixture(scope="module")
def recording() -> Report:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 3, 16, batch_first=True).eval()
    recorder = Recorder()
    listener = Listener(recorder.take)
    with listener.listening():
        layer(torch.randn(1, TOKENS, WIDTH))
    return recording_report(recorder, recorder.result(listener.counts))


def test_keys_that_need_a_model_do_nothing_and_are_not_offered(recording: Report) -> None:
    plain, helped = screen_text(recording), screen_text(recording, "question_mark")
    assert screen_text(recording, "a", "w", "e") == plain
    assert NO_MODEL.format("a")[:20] not in plain
    assert "a ablate" in HINTS and "a ablate" not in plain and "w why" not in plain and "e edit" not in plain
    assert "arrows head" in plain and "q quit" in plain.splitlines()[-1]
    assert "remove the head" not in helped and "edit the text" not in helped
    assert "switch between the grid of heads and the ranking" in helped


def test_heads_of_a_recording_are_browsed(recording: Report) -> None:
    async def steps(app: Browser, pilot: "Pilot[None]") -> None:
        await pilot.press("right", "tab")

    choice = driven(recording, steps, depth="none")
    assert choice.place == (0, 1)
