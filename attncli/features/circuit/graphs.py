"""A layered graph of the strongest edges between heads, for pictures and pages."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from attncli.system.plain_text import plain_text, whole_number

LETTERS = {"key": "K", "query": "Q", "value": "V", "logit": ""}


LOGITS = "logits"


LINEAR = "linear:"


MOST_DRAWN = 40
"""The most edges in a picture; more would be unreadable."""


MOST_ON_PAGE = 200
"""The most edges between heads that a page can draw."""


FAINT = 0.1
"""Edges below this share of the largest strength are not drawn."""


class Edge(NamedTuple):
    """An edge from a head, or from another part in a saved report, to a later head or to the logits."""

    start: str
    end: str
    side: str
    share: float | None
    strength: float
    """The number that edges are sorted by; `measure` is its name."""
    high: float | None
    """The upper end of the share's interval over several texts."""
    measure: str = "strength"

    @property
    def letter(self) -> str:
        """K, Q or V, or an empty string for an edge to the logits."""
        return LETTERS.get(self.side, "")


def layer_and_head(name: str) -> tuple[int, int]:
    """The layer and head in `18:6` or `linear:18:6`, for sorting; other names come after all heads."""
    first, _, second = name.removeprefix(LINEAR).partition(":")
    layer, head = whole_number(first), whole_number(second)
    return (10**9, 0) if layer is None or head is None else (layer, head)


def strong_edges(edges: Sequence[Edge]) -> list[Edge]:
    """The edges between heads that are not negligible next to the strongest one."""
    between = [edge for edge in edges if edge.end != LOGITS]
    return [edge for edge in between if abs(edge.strength) >= FAINT * abs(between[0].strength)]


def into_logits(edges: Sequence[Edge]) -> list[Edge]:
    """The edges from heads to the logits that are not negligible next to the strongest one."""
    into = [edge for edge in edges if edge.end == LOGITS]
    return [edge for edge in into if abs(edge.strength) >= FAINT * abs(into[0].strength)]


FEW = 6
"""The most heads that a line names."""


class Graph(NamedTuple):
    """The x (0 to 1) and row (counted from the lowest layer) of each head, and the edges between heads."""

    nodes: dict[str, tuple[float, int]]
    edges: list[Edge]
    rows: list[str]


def layered_graph(every: Sequence[Edge]) -> Graph | None:
    """The graph of the strongest edges, which are sorted by strength, or None without edges.

    Each row has the heads of one layer, and each head is placed above the heads that feed it.
    """
    between = strong_edges(every)[:MOST_DRAWN]
    heads = {name for edge in between for name in (edge.start, edge.end)}
    into = into_logits(every)
    edges = [*between, *into[:FEW], *(edge for edge in into[FEW:] if edge.start in heads)]
    if not edges:
        return None
    by_row: dict[int, list[str]] = {}
    for name in sorted({name for edge in edges for name in (edge.start, edge.end)}, key=layer_and_head):
        by_row.setdefault(layer_and_head(name)[0], []).append(name)
    nodes: dict[str, tuple[float, int]] = {}
    for row, names in enumerate(by_row.values()):
        wanted = {
            name: _mean([nodes[edge.start][0] for edge in edges if edge.end == name and edge.start in nodes])
            for name in names
        }
        for place, name in enumerate(sorted(names, key=lambda name: wanted[name])):
            nodes[name] = ((place + 0.5) / len(names), row)
    return Graph(nodes, edges, [_row_title(names[0]) for names in by_row.values()])


def _row_title(name: str) -> str:
    return LOGITS if name == LOGITS else f"layer {layer_and_head(name)[0]}"


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.5


def graph_data(every: Sequence[Edge]) -> dict[str, Any] | None:
    """The strongest edges for the page, with the numbers of the heads that they join; None without edges.

    `drawn` is the number of edges between heads that the page draws first, and `always` the number of edges
    into the logits that it draws whatever their heads are.
    """
    edges = [*[edge for edge in every if edge.end != LOGITS][:MOST_ON_PAGE], *into_logits(every)]
    names = sorted({name for edge in edges for name in (edge.start, edge.end)}, key=layer_and_head)
    places = {name: place for place, name in enumerate(names)}
    if not edges:
        return None
    return {
        "heads": [[plain_text(name), _row_title(name)] for name in names],
        "edges": [
            [places[edge.start], places[edge.end], edge.side, float(f"{edge.strength:.4g}")] for edge in edges
        ],
        "drawn": len(strong_edges(every)[:MOST_DRAWN]),
        "always": FEW,
    }
