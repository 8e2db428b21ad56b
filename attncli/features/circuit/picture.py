"""The graph of the strongest edges as matplotlib draws it: no edge lies behind a head."""

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from attncli.features.circuit.graphs import Edge, Graph
from attncli.system.plain_text import plain_text
from attncli.views.canvas import LABEL_SIZE, LINE, SINGLE, axes_at, text_width, widest, write

COLOURS = {"key": "#b45309", "query": "#1d4ed8", "value": "#15803d", "logit": "0.35"}
STROKES = {"key": (0, ()), "query": (0, (4, 1.5)), "value": (0, (1, 1.2)), "logit": (0, (6, 1, 1, 1))}
"""Strokes tell the sides apart in print without colour."""
NAMES = {"key": "into keys", "query": "queries", "value": "values", "logit": "logits"}
BOX_HEIGHT, LEGEND = 0.16, LABEL_SIZE * LINE
LEAST_ROW, LARGEST_ROW, USUAL_HEIGHT = 0.42, 0.8, 3.0
"""The inches from one row to the next: as many as give the usual height, within limits."""
PORT = 0.07
"""The inches between two edges at a box."""
LEAST_APART, EDGES_APART = 0.06, 0.04
"""The inches between a head and an edge that passes it, and between two such edges."""
THINNEST, THICKEST = 0.4, 2.0
HEAD = 0.05
"""The length of an arrow's head, in inches."""


Box = tuple[float, float, float]
"""The middle of a head's box, and its width."""


def _gap(heads: list[Box], taken: list[float], x: float, across: float) -> float:
    """Return the place nearest to x where an edge passes a row: apart from heads, and from other edges."""

    def is_free(x: float, apart: float) -> bool:
        is_beside = all(abs(x - head) >= size / 2 + LEAST_APART - 1e-9 for head, _, size in heads)
        return 0 <= x <= across and is_beside and all(abs(x - other) >= apart - 1e-9 for other in taken)

    beside = [head + side * (size / 2 + LEAST_APART) for head, _, size in heads for side in (-1, 1)]
    beside += [other + side * EDGES_APART for other in taken for side in (-1, 1)]
    for apart in (EDGES_APART, 0.0):
        if free := [each for each in (x, *beside) if is_free(each, apart)]:
            return min(free, key=lambda each: abs(each - x))
    return x


class GraphPanel:
    """Heads in one row per layer, the lowest at the bottom; a thicker arrow is a stronger edge.

    An edge leaves a head at the top and enters the later one from below. Where it passes a row, it runs
    through the gap between two heads. A negative edge ends in a bar.
    """

    title = "strongest edges"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = {name: plain_text(name) for name in graph.nodes}
        self.box = widest([*self.names.values()]) + 0.1
        most = max(
            sum(row == node_row for _, node_row in graph.nodes.values()) for row in range(len(graph.rows))
        )
        self.row_height = min(max(USUAL_HEIGHT / max(1, len(graph.rows) - 1), LEAST_ROW), LARGEST_ROW)
        self.left = widest(graph.rows) + 0.08
        self.fits_single = self.left + most * (self.box + 4 * LEAST_APART) <= SINGLE
        self.sides = [side for side in NAMES if any(edge.side == side for edge in graph.edges)]
        self.has_negative = any(edge.strength < 0 for edge in graph.edges)
        strongest = self.strongest
        measures = " or ".join(dict.fromkeys(edge.measure for edge in graph.edges))
        self.legend = (
            f"The {len(graph.edges)} strongest edges between {len(graph.nodes)} nodes, in one row per layer. "
            f"Width of an edge: {measures}, the widest {strongest:.3g} in absolute value."
            f"{' Edges that end in a bar are negative.' if self.has_negative else ''}"
        )

    @property
    def _ends(self) -> tuple[list[str], list[str]]:
        return [edge.start for edge in self.graph.edges], [edge.end for edge in self.graph.edges]

    @property
    def strongest(self) -> float:
        """The largest strength, or 1 if all are 0, as for a text of one token."""
        return max(abs(edge.strength) for edge in self.graph.edges) or 1.0

    def height(self, width: float) -> float:
        """Return the height of the legend and the rows."""
        return LEGEND * 2 + 0.05 + self.row_height * (len(self.graph.rows) - 1) + BOX_HEIGHT

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the legend and, below it, the graph."""
        self._draw_legend(figure, left, top, width)
        across, down = width - self.left, self.height(width) - 2 * LEGEND - 0.05
        axes = axes_at(figure, left + self.left, top + 2 * LEGEND + 0.05, across, down)
        axes.set_xlim(0, across)
        axes.set_ylim(-BOX_HEIGHT / 2, down - BOX_HEIGHT / 2)
        axes.set_axis_off()
        boxes = self._boxes(across)
        for edge, points in self._routes(boxes, across):
            self._draw_edge(axes, edge, points)
        for name, (x, y, size) in boxes.items():
            box = (x - size / 2, y - BOX_HEIGHT / 2), size, BOX_HEIGHT
            style = "round,pad=0,rounding_size=0.03"
            axes.add_patch(
                FancyBboxPatch(*box, boxstyle=style, facecolor="white", edgecolor="0.4", linewidth=0.5)
            )
            axes.text(x, y, self.names[name], ha="center", va="center", fontsize=LABEL_SIZE)
        for row, name in enumerate(self.graph.rows):
            axes.text(-self.left, row * self.row_height, name, va="center", fontsize=LABEL_SIZE, color="0.35")

    def _draw_legend(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw a stroke per side, and what the ends mean, in two lines."""
        axes = axes_at(figure, left, top, width, LEGEND)
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(0, 1)
        x = 0.0
        for side in self.sides:
            axes.plot([x, x + 0.25], [0.5] * 2, color=COLOURS[side], linestyle=STROKES[side], linewidth=1)
            axes.text(x + 0.29, 0.5, NAMES[side], va="center", fontsize=LABEL_SIZE)
            x += 0.37 + text_width(NAMES[side])
        ends = "; arrow: positive, bar: negative" if self.has_negative else ""
        write(figure, f"thicker: stronger{ends}", left, top + LEGEND, LABEL_SIZE)

    def _boxes(self, across: float) -> dict[str, Box]:
        """Return the middle and the width of each box: as wide as its edges need, if the row has room."""
        boxes: dict[str, Box] = {}
        for name, (x, row) in self.graph.nodes.items():
            count = sum(other_row == row for _, other_row in self.graph.nodes.values())
            edges = max(sum(name == end for end in ends) for ends in self._ends)
            size = max(self.box, min(PORT * edges, across / count - 4 * LEAST_APART))
            boxes[name] = min(max(x * across, size / 2), across - size / 2), row * self.row_height, size
        return boxes

    def _routes(
        self, boxes: dict[str, Box], across: float
    ) -> Iterator[tuple[Edge, list[tuple[float, float]]]]:
        """Yield each edge with the points where it leaves, passes each row, and enters, weakest first."""
        starts = {name: self._ports(name, boxes, is_start=True) for name in boxes}
        entries = {name: self._ports(name, boxes, is_start=False) for name in boxes}
        passed: dict[int, list[float]] = {}
        for edge in sorted(self.graph.edges, key=lambda edge: abs(edge.strength)):
            first, last = self.graph.nodes[edge.start][1], self.graph.nodes[edge.end][1]
            points = [(starts[edge.start][edge], boxes[edge.start][1])]
            last_x = entries[edge.end][edge]
            for row in range(first + 1, last):
                x = points[-1][0] + (last_x - points[-1][0]) / (last - row + 1)
                taken = passed.setdefault(row, [])
                taken.append(
                    _gap([box for box in boxes.values() if box[1] == row * self.row_height], taken, x, across)
                )
                points.append((taken[-1], row * self.row_height))
            yield edge, [*points, (last_x, boxes[edge.end][1])]

    def _ports(self, name: str, boxes: dict[str, Box], *, is_start: bool) -> dict[Edge, float]:
        """Return where each edge meets the box: from left to right in the order of the other ends."""
        edges = [edge for edge in self.graph.edges if name == (edge.start if is_start else edge.end)]
        edges.sort(key=lambda edge: boxes[edge.end if is_start else edge.start][0])
        x, _, size = boxes[name]
        room = size - 0.06
        return {edge: x + room * ((number + 0.5) / len(edges) - 0.5) for number, edge in enumerate(edges)}

    def _draw_edge(self, axes: Axes, edge: Edge, points: list[tuple[float, float]]) -> None:
        """Draw curves between the rows, and straight upwards beside the heads of a row."""
        half = BOX_HEIGHT / 2
        (x, y), *others = points
        y += half
        vertices, codes = [(x, y)], [Path.MOVETO]
        for number, (next_x, row_y) in enumerate(others):
            is_last = number == len(others) - 1
            next_y = row_y - half - (HEAD if is_last else 0.0)
            middle = (y + next_y) / 2
            vertices += [(x, middle), (next_x, middle), (next_x, next_y)]
            codes += [Path.CURVE4] * 3
            x, y = next_x, next_y
            if not is_last:
                y = row_y + half
                vertices.append((x, y))
                codes.append(Path.LINETO)
        style = {"color": COLOURS[edge.side], "capstyle": "butt", "joinstyle": "round"}
        width = THINNEST + (THICKEST - THINNEST) * abs(edge.strength) / self.strongest
        path = Path(vertices, codes)
        line = {"linewidth": width, "linestyle": STROKES[edge.side]}
        axes.add_patch(PathPatch(path, fill=False, **line, **style))
        reach = 0.02 + width / 72
        if edge.strength < 0:
            end = [(x - reach, y + HEAD / 2), (x + reach, y + HEAD / 2)]
            axes.add_patch(PathPatch(Path([(x, y), (x, y + HEAD / 2)]), fill=False, linewidth=width, **style))
            axes.add_patch(PathPatch(Path(end), fill=False, linewidth=1, **style))
        else:
            end = [(x - reach, y), (x + reach, y), (x, y + HEAD)]
            axes.add_patch(PathPatch(Path([*end, end[0]], closed=True), linewidth=0, **style))
