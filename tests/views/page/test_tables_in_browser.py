"""Tables of the page in Chromium: their rows, cells, order and headers."""

from typing import Any

from attncli.records.kinds import read_result
from attncli.records.report import NamedTensor, Report
from attncli.records.values import Table
from tests.views.page.pages import SENTENCE, Opened, page_of, random_weights


def table_page(opened: Opened, kind: str, **tables: list[dict[str, Any]]) -> Any:
    """A page whose result has these tables."""
    weights = NamedTensor(("query", "key"), random_weights(6, 6))
    result = read_result(kind, {name: Table(rows) for name, rows in tables.items()})
    return opened(page_of(Report("ablate", {}, {}, SENTENCE, (), {"weights": weights}, result)))


def test_a_table_shows_ten_rows_and_on_demand_and_on_paper_all(opened: Opened) -> None:
    page = table_page(opened, "unknown", many=[{"name": f"row {i}", "size": i} for i in range(45)])
    table = page.locator("#tables .table")
    rows = table.locator("tbody tr")
    assert rows.count() == 10 and table.locator("[aria-sort]").count() == 0
    table.get_by_role("button", name="Show all 45 rows").click()
    assert rows.count() == 45
    table.locator(".scroll").evaluate("box => (box.scrollTop = 200)")
    tops = table.locator("thead th").evaluate_all("all => all.map((th) => th.getBoundingClientRect().top)")
    assert tops == [table.locator(".scroll").bounding_box()["y"]] * 2  # the headers stay in view
    table.get_by_role("button", name="Show the first 10 rows").click()
    table.locator("thead button", has_text="size").click()
    assert rows.locator("td").first.inner_text() == "44" and rows.count() == 10
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert rows.count() == 45
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert rows.count() == 10


def test_cells_of_each_kind_and_columns_without_any(opened: Opened) -> None:
    row: dict[str, Any] = {
        "token": "  a",
        "few": [1, 2],
        "several": [0.5] * 5,
        "empty": None,
        "flag": True,
        "gap": None,
    }
    row |= {"from": "1:2", "from_layer": 1, "from_head": 2, "layer": 3, "head": 4, "tiny": 1.27e-7}
    page = table_page(opened, "unknown", rows=[row, row | {"gap": 2, "head": None, "flag": False}])
    table = page.locator("#tables .table")
    assert table.locator("thead th").all_inner_texts() == [
        "head", "token", "few", "several", "flag", "gap", "from", "tiny",
    ]  # fmt: skip
    first, second = (table.locator("tbody tr").nth(i).locator("th, td") for i in range(2))
    assert [cell.strip() for cell in first.all_inner_texts()] == [
        "3:4", "a", "1, 2", "5 numbers", "yes", "-", "1:2", "1.3e-7",
    ]  # fmt: skip
    assert first.nth(7).get_attribute("title") == "1.2700e-7"
    assert first.nth(1).text_content() == "  a" and first.nth(3).get_attribute("title").startswith("0.5000, ")
    assert second.first.text_content() == "layer 3"
    style = "cell => [getComputedStyle(cell).textAlign, getComputedStyle(cell).whiteSpace]"
    assert [first.nth(i).evaluate(style)[0] for i in (1, 2)] == ["left", "right"]
    assert first.nth(7).evaluate(style)[1] == "nowrap"


def test_headers_have_labels_sentences_and_units(opened: Opened) -> None:
    row = {"layer": 0, "stack": "self", "head": 1, "pattern": "induction", "loss": 0.5, "kl": 0.25}
    page = table_page(opened, "ablate", heads=[row, row | {"layer": 1, "loss": None}])
    heading = page.locator("#tables th", has_text="loss")
    button = heading.locator("button")
    assert button.inner_text() == "loss nats"
    assert button.get_attribute("title") == "Rise of the mean loss per token without the head (in nats)"
    for order in ("descending", "ascending"):
        button.click()
        assert heading.get_attribute("aria-sort") == order
        assert page.locator("#tables tbody th").all_inner_texts() == [
            "0:1",
            "1:1",
        ]  # missing numbers are last
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert page.locator("#tables h2").first.inner_text() == "Heads"


def test_a_single_row_of_many_columns_is_a_list(opened: Opened) -> None:
    page = table_page(opened, "unknown", wide=[{f"number_{i}": i for i in range(9)}])
    assert page.locator("#tables table").count() == 0
    assert page.locator("#tables dt").all_inner_texts()[:2] == ["number 0", "number 1"]
    assert page.locator("#tables dd").nth(3).inner_text() == "3"
