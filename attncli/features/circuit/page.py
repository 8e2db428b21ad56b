"""The block of the page on circuits: the graph of the strongest edges."""

from collections.abc import Mapping
from importlib.resources import files

from attncli.features.circuit.graphs import graph_data, layered_graph
from attncli.features.circuit.results import Compositions
from attncli.features.circuit.screens import head_edges
from attncli.records.report import Report, Table, plain
from attncli.views.page.blocks import PageBlock

MEASURES = {"logit": "effect on the next token's logit", "strength": "strength (share × weight)"}
ENDS = ("from_layer", "from_head", "to_layer", "to_head")
"""The columns that repeat the names of the two ends."""


def _data(report: Report) -> object:
    edges = head_edges(report.result)
    data = graph_data(edges)
    if data is None:
        return None
    is_composition = isinstance(report.result, Compositions)
    return {**data, "measure": "composition score" if is_composition else MEASURES[edges[0].measure]}


def _tables(report: Report) -> Mapping[str, Table]:
    """Return the edges with those of the graph first; the names of heads say their layer and number."""
    graph = layered_graph(head_edges(report.result))
    drawn = {(edge.start, edge.end, edge.side) for edge in graph.edges} if graph else set()
    edges = plain(report.statistics["edges"])
    rows = [{name: _short(value) for name, value in row.items() if name not in ENDS} for row in edges]
    rows.sort(key=lambda row: (row["from"], row["to"], row["side"]) not in drawn)
    return {"edges": Table(rows)}


def _short(value: object) -> object:
    """Return a number with the digits that a page can show."""
    return float(f"{value:.8g}") if isinstance(value, float) else value


GRAPH = PageBlock(
    name="graph",
    label="Graph of the strongest edges",
    folder=files(__package__),
    script="graph.js",
    style="graph.css",
    data=_data,
    is_above=True,
    tables=_tables,
)
