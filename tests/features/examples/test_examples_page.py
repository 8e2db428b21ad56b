"""The block of the page with the texts of the examples, in a real Chromium."""

from pathlib import Path

from attncli.features.examples.results import ExampleToken, HeadExample, HeadExamples
from attncli.records.report import Report
from tests.running import run
from tests.views.page.pages import Opened, page_of


def test_each_example_has_its_text_shaded_by_the_weights_of_its_query(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("the cat sat on the cat sat\na b a b\n")
    texts = str(tmp_path / "texts.txt")
    report = run("heads", texts=texts, head="1:0", num_examples=1, sort="induction")
    page = opened(page_of(report))
    cards, rows = page.locator("#examples li"), report.table("examples")
    assert cards.count() == len(rows) == 3
    all_weights = report.table("example_weights")
    for card, row in zip(cards.all(), rows, strict=True):
        weights = [each for each in all_weights if each["kind"] == row["kind"]]
        tokens = card.locator(".token")
        assert tokens.locator(".word").all_text_contents() == [each["token"] for each in weights]
        titles = [token.get_attribute("title") for token in tokens.all()]
        assert titles == [f"{each['weight']:.3f}" for each in weights]
        framed = card.locator(".query")
        assert framed.count() == 1 and framed.get_attribute("title") == titles[int(str(row["query"]))]
    written = page.locator("#examples .written").first
    written.focus()
    written.press("ArrowRight")
    expected = f'"{rows[0]["query_token"]}" gives "{all_weights[0]["token"]}" {all_weights[0]["weight"]:.3f}'
    assert expected in page.locator("#readout").inner_text()


def test_words_without_blanks_are_apart_and_a_tap_reads_a_token(opened: Opened) -> None:
    names = ["[CLS]", "the", "cat", "##s", "[SEP]"] * 60
    place = {"kind": "strongest", "rank": 0, "text": "1"}
    last = len(names) - 2
    example = place | {"value": 0.5, "query": last, "query_token": "##s", "key": 1, "key_token": "the"}
    tokens = [place | {"position": i, "token": name, "weight": i / 1000} for i, name in enumerate(names)]
    result = HeadExamples(
        rows=HeadExample.rows([example | {"key_weight": 0.001}]),
        tokens=ExampleToken.rows(tokens),
        num_texts=1,
        **dict.fromkeys(("mean", "lower", "upper", "median"), 0.5),
    )
    spec = {"head": "0:0", "sort": "induction"}
    page = opened(page_of(Report("heads", spec, {}, result=result)), width=390, has_touch=True)
    written = page.locator("#examples .written")
    assert written.inner_text().startswith("[CLS] the cat##s [SEP] [CLS]")
    box, query = written.bounding_box(), written.locator(".query").bounding_box()
    assert box["y"] <= query["y"] <= box["y"] + box["height"] - query["height"]
    written.locator(".query").tap()
    assert f'gives "##s" {last / 1000:.3f}' in page.locator("#readout").text_content()
    assert written.locator(".read").count() == 1
