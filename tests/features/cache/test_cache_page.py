"""The block of the page about limited heads, in a real Chromium."""

from attncli.views.texts import readable
from tests.running import run
from tests.views.page.pages import Opened, page_of


def test_a_cell_of_the_grid_shows_the_keys_its_head_forgets(opened: Opened) -> None:
    report = run("cache")
    heads, forgotten = report.table("heads"), report.table("forgotten")
    page = opened(page_of(report))
    panel = page.locator("#forgotten .forgotten-text")
    title = panel.locator("h2")
    assert title.text_content() == f"Keys that head {heads[0]['layer']}:{heads[0]['head']} forgets"
    grid = report.tensors["worst"].values
    layer, head = 0, grid.shape[1] - 1
    cells = page.locator("#forgotten .head-cell")
    assert cells.all_text_contents() == [f"{number:.2f}" for number in grid.flatten()]
    cells.nth(head).click()
    assert title.text_content() == f"Keys that head {layer}:{head} forgets"
    keys = [row for row in forgotten if (row["layer"], row["head"]) == (layer, head)]
    tokens = panel.locator(".token")
    assert tokens.count() == len(report.tokens)
    for row in keys:
        assert tokens.nth(row["key"]).get_attribute("title") == f"{row['key_weight']:.4f}"
    assert panel.locator(".token.forgotten").count() == len(keys)
    spelled = readable(report).tokens
    said = [
        f'token {row["key"]} "{spelled[row["key"]]}" ({row["key_weight"]:.2f})'
        for row in keys
        if row is keys[0] or row["key_weight"] >= 0.005
    ]
    query = f'token {keys[0]["query"]} "{spelled[keys[0]["query"]]}"'
    assert (
        panel.get_by_text(
            f"From {query}, the head gives the most weight to {', '.join(said)}", exact=True
        ).count()
        == 1
    )
    assert "query" in (tokens.nth(keys[0]["query"]).get_attribute("class") or "")
    name = f"Show head {heads[1]['layer']}:{heads[1]['head']}"
    page.locator("#aside").get_by_role("button", name=name).click()
    assert title.text_content() == f"Keys that head {heads[1]['layer']}:{heads[1]['head']} forgets"
    cells.nth(head).focus()
    page.keyboard.press("ArrowDown")
    assert title.text_content() == f"Keys that head {layer + 1}:{head} forgets"
    assert page.locator("#forgotten .forgotten-curve polyline").count() == 2
