"""The block of the page on circuits: the graph of the strongest edges."""

from importlib.resources import files

from attncli.features.circuit.graphs import graph_data, layered_graph
from attncli.features.circuit.screens import head_edges
from attncli.records.report import Report
from attncli.views.page.blocks import PageBlock


def _data(report: Report) -> object:
    return graph_data(layered_graph(head_edges(report.result)))


GRAPH = PageBlock(
    name="graph",
    label="Graph of the strongest edges",
    folder=files(__package__),
    script="graph.js",
    style="graph.css",
    data=_data,
)
