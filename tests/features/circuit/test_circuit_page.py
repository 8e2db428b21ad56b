"""The block of the page about circuits, in a real Chromium."""

import re
from dataclasses import replace

import numpy as np
import pytest

from attncli.features.circuit.graphs import layered_graph
from attncli.features.circuit.results import HeadEdges, PartEdge
from attncli.features.circuit.screens import head_edges
from attncli.records.report import Report
from tests.running import run
from tests.views.page.pages import Opened, page_of

# For each edge: the boxes that its line meets, and the distances of its ends from the boxes that it joins.
GEOMETRY = """edges => edges.map(edge => {
  const svg = edge.ownerSVGElement;
  const boxes = [...svg.querySelectorAll(".node")].map(node => {
    const { x, y, width, height } = node.querySelector("rect").getBBox();
    return { name: node.textContent, x, y, width, height };
  });
  const line = edge.querySelector(".hit");
  const length = line.getTotalLength();
  const points = Array.from({ length: 201 }, (_, i) => line.getPointAtLength((length * i) / 200));
  const isIn = (box, { x, y }) =>
    x > box.x && x < box.x + box.width && y > box.y + 0.2 && y < box.y + box.height - 0.2;
  const [start, end] = edge.textContent.match(/^(\\S+) → (?:\\w+ of )?(\\S+)/).slice(1);
  const [from, to] = [start, end].map(name => boxes.find(box => box.name === name));
  const [left, tip, right] = svg.querySelectorAll(".arrow")[edges.indexOf(edge)].points;
  return {
    met: boxes.filter(box => points.some(point => isIn(box, point))).map(({ name }) => name),
    offStart: Math.abs(points[0].y - from.y),
    offEnd: Math.abs(tip.y - to.y - to.height),
    isAtStart: points[0].x >= from.x && points[0].x <= from.x + from.width,
    isAtEnd: left.x >= to.x && right.x <= to.x + to.width,
  };
})"""


def _many_edges(num_edges: int) -> Report:
    """A report with sampled edges among 30 layers of 9 heads."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(num_edges):
        start, end = sorted(rng.choice(30, 2, replace=False))
        heads = rng.integers(9, size=2)
        rows.append(
            {
                "from": f"{start}:{heads[0]}",
                "to": f"{end}:{heads[1]}",
                "side": ("key", "query", "value")[number % 3],
                "share": 0.5,
                "strength": float(rng.normal()),
                "logit": None,
                "from_layer": int(start),
                "from_head": int(heads[0]),
                "to_layer": int(end),
                "to_head": int(heads[1]),
            }
        )
    report = run("circuit")
    return replace(report, result=replace(report.result_of(HeadEdges), edges=PartEdge.rows(rows)))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("num_edges", [0, 60, 200])
def test_no_edge_passes_through_a_box_and_both_ends_meet_theirs(
    opened: Opened, width: int, num_edges: int
) -> None:
    page = opened(page_of(_many_edges(num_edges) if num_edges else run("circuit")), width=width)
    count = page.locator("#graph select")
    if num_edges:
        count.select_option(str(num_edges))
    edges = page.locator("#graph svg.graph .edge")
    assert edges.count() >= max(num_edges, 12)
    for edge in edges.evaluate_all(GEOMETRY):
        assert edge["met"] == []
        assert edge["offStart"] < 0.2 and edge["offEnd"] < 0.2
        assert edge["isAtStart"] and edge["isAtEnd"]


def test_pointing_at_a_head_leaves_its_edges_and_names_them(opened: Opened) -> None:
    page = opened(page_of(run("circuit")))
    node = page.locator("#graph .node", has_text="0:1").first
    faint = page.locator("#graph .edge.faint")
    assert faint.count() == 0
    node.hover()
    edges = page.locator("#graph svg.graph .edge")
    assert 0 < faint.count() < edges.count()
    left = page.locator("#graph svg.graph .edge:not(.faint) title").all_text_contents()
    assert left and all(
        re.match(r"0:1 → (keys of |queries of |values of )?\S+ -?\d\.\d\d", text) for text in left
    )
    assert "K 2.09 +1" in page.locator("#graph .numbers text").all_text_contents()
    rows = page.locator("#ranked tr.linked").all_text_contents()
    assert rows and all("0:1" in row for row in rows)
    listed = page.locator("#readout").text_content()
    assert "Head 0:1" in listed and "keys of 1:3 2.09" in listed and "logits -0.55" in listed
    page.mouse.move(0, 0)
    assert faint.count() == 0
    node.click()
    assert node.get_attribute("aria-pressed") == "true"
    page.mouse.move(0, 0)
    assert faint.count() > 0


def test_arrow_keys_move_between_heads(opened: Opened) -> None:
    page = opened(page_of(run("circuit")))
    assert page.locator("#graph .node[tabindex='0']").count() == 1
    page.locator("#graph .node[tabindex='0']").focus()
    for key, row in [("Home", "0:"), ("ArrowRight", "0:"), ("ArrowUp", "1:"), ("End", "logits")]:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.textContent").startswith(row)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    pressed = page.locator("#graph .node[aria-pressed='true']")
    assert pressed.count() == 1 and pressed.get_attribute("aria-label").startswith("head 1:")


@pytest.mark.parametrize("settings", [{}, {"weights": True}])
def test_the_table_of_edges_begins_with_the_graph(opened: Opened, settings: dict[str, object]) -> None:
    report = run("circuit", **settings)
    graph = layered_graph(head_edges(report.result))
    assert graph is not None
    page = opened(page_of(report))
    table = page.locator("section.table", has=page.get_by_role("heading", name="edges")).first
    header = table.locator("th").all_text_contents()
    assert not {"from layer", "from head", "to layer", "to head"} & set(header)
    rows = [row.locator("th, td").all_text_contents()[:3] for row in table.locator("tbody tr").all()]
    drawn = sorted(graph.edges, key=lambda edge: -abs(edge.strength))
    assert rows == [[edge.start, edge.end, edge.side] for edge in drawn[: len(rows)]] and len(rows) == 10
