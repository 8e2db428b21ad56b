"""The graph of the strongest edges as matplotlib draws it."""

from matplotlib.figure import Figure

from attncli.features.circuit.graphs import Graph
from attncli.system.plain_text import plain_text
from attncli.views.arrangement import Rigid
from attncli.views.canvas import TITLE_HEIGHT, axes_at

EDGE_COLOURS = {"key": "#c2410c", "query": "#1d4ed8", "value": "#15803d", "logit": "0.45"}
ROW_HEIGHT, NODE_WIDTH, LEAST_GRAPH, ROW_LABEL = 0.62, 0.62, 4.0, 0.75
THINNEST, THICKEST = 0.4, 3.0


class GraphBlock(Rigid):
    """Draws heads in one row per layer, lowest layer at the bottom; a thicker arrow is a stronger edge."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        most = max(
            sum(row == node_row for _, node_row in graph.nodes.values()) for row in range(len(graph.rows))
        )
        self.across = max(LEAST_GRAPH, NODE_WIDTH * most)
        self.down = ROW_HEIGHT * len(graph.rows)
        self.width, self.height = self.across + ROW_LABEL, self.down + 2 * TITLE_HEIGHT

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the legend of the colours and, below it, the graph."""
        total_width, total_height = figure.get_size_inches()
        x = left
        names = [("K keys", "key"), ("Q queries", "query"), ("V values", "value")]
        if any(edge.strength < 0 for edge in self.graph.edges):
            names.append(("dashed: negative", "logit"))
        for text, side in names:
            place = x / total_width, 1 - top / total_height
            figure.text(*place, text, va="top", fontsize=8, color=EDGE_COLOURS[side])
            x += 0.8
        axes = axes_at(figure, left + ROW_LABEL, top + TITLE_HEIGHT, self.across, self.down)
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.5, len(self.graph.rows) - 0.5)
        axes.set_axis_off()
        # For a text of one token, all strengths are 0.
        strongest = max(abs(edge.strength) for edge in self.graph.edges) or 1.0
        for edge in self.graph.edges:
            (x0, y0), (x1, y1) = self.graph.nodes[edge.start], self.graph.nodes[edge.end]
            # An arrow that skips rows bends around the heads in them.
            bend = 0.12 if y1 - y0 > 1 else 0.0
            axes.annotate(
                "",
                xy=(x1, y1),
                xytext=(x0, y0),
                arrowprops={
                    "arrowstyle": "-|>,head_width=0.15,head_length=0.3",
                    "connectionstyle": f"arc3,rad={bend}",
                    "color": EDGE_COLOURS[edge.side],
                    "linestyle": "--" if edge.strength < 0 else "-",
                    "linewidth": THINNEST + (THICKEST - THINNEST) * abs(edge.strength) / strongest,
                    "shrinkA": 8,
                    "shrinkB": 8,
                },
            )
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "0.6", "linewidth": 0.5}
        for name, (x, row) in self.graph.nodes.items():
            axes.text(x, row, plain_text(name), ha="center", va="center", fontsize=8, bbox=box)
        for row, name in enumerate(self.graph.rows):
            axes.text(-ROW_LABEL / self.across, row, name, va="center", fontsize=7, color="0.4")
