"""Reports in notebooks: the first screen as text, and the page in a frame as HTML."""

import json
from html import unescape
from html.parser import HTMLParser

import pytest

import attncli
from attncli.notebook import run as notebook_report
from attncli.records.report import Report
from attncli.settings import SPECS
from tests.conftest import Attn, some_seldom
from tests.views.page.pages import heads_report, page_of, random_weights


@pytest.mark.parametrize("experiment", some_seldom(SPECS, ["separate"]))
def test_a_report_is_that_of_the_command_and_its_text_the_first_screen(
    experiment: str, attn: Attn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    drawn = SPECS[experiment].drawn_maps
    command = [experiment, "--seed", "7", *([] if drawn is None else ["--maps", drawn])]
    report = attncli.run(experiment, seed=7)
    assert json.loads(json.dumps(report.to_data())) == json.loads(attn([*command, "--format", "json"]).out)
    assert f"{report}\n" == attn(command).out


class Sanitised(HTMLParser):
    """The text left without frames and styles, which JupyterLab removes from untrusted notebooks."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.is_style = "", False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.is_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self.is_style = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self.is_style else data


def test_html_without_its_frame_is_the_first_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = attncli.run("self", sentence='it\'s "quoted" &amp; <b>bold</b>', tokenizer="whitespace")
    html = report._repr_html_()
    assert html.startswith("<pre") and "<b>" not in html
    screen, _, advice = Sanitised(html).text.rpartition("\n\n")
    assert screen == repr(report) and advice.endswith("run this cell or trust the notebook.")


def test_html_is_the_page_in_a_frame() -> None:
    report = attncli.run("self", sentence='it\'s "quoted" &amp; <b>bold</b>', tokenizer="whitespace")
    before, _, content = report._repr_html_().partition(' srcdoc="')
    tag = before[before.index("<iframe") :]
    assert tag.startswith('<iframe title="attn self" sandbox="allow-scripts" style="')
    page = content.removesuffix('"></iframe></div>')
    assert not set(page) & {'"', "'", "<", ">"}  # nothing ends the attribute
    assert unescape(page) == report.to_html() == page_of(Report(**vars(report)))


def test_a_cell_stays_below_the_limit_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = random_weights(8, 8, 61, 61)
    report = attncli.NotebookReport.of(heads_report([f"w{i}" for i in range(61)], weights))
    whole = report._repr_html_()
    assert "The maps are left out:" not in whole
    monkeypatch.setattr(notebook_report, "MAX_CELL_BYTES", len(whole) - 1)
    cell = report._repr_html_()
    assert len(cell) < len(whole) - 200_000
    assert "The maps are left out: with them, this cell would have 0." in cell
