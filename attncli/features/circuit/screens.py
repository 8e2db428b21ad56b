"""The first screens of circuits, with the strongest edges as text and as a table; also a graph in DOT."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from attncli.features.circuit.graphs import (
    FEW,
    LOGITS,
    Edge,
    into_logits,
    layer_and_head,
    layered_graph,
    strong_edges,
)
from attncli.features.circuit.results import Compositions, HeadEdges
from attncli.records.columns import Result
from attncli.records.report import Report
from attncli.system.plain_text import plain_text
from attncli.views import Display, NothingToDraw
from attncli.views.findings import number, signed
from attncli.views.first_screen import (
    Element,
    FirstScreen,
    Notes,
    PageTable,
    ReadLine,
    Sentences,
    TitleLine,
)
from attncli.views.sections import Column, Drawing, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import NO_NUMBER, fixed, half_width, title, wrap_cells

if TYPE_CHECKING:
    from attncli.views.canvas import Panel


def head_edges(result: Result | None) -> list[Edge]:
    """The edges between heads and to the logits, strongest first."""
    match result:
        case HeadEdges():
            edges = [
                Edge(edge.start, edge.end, edge.side, edge.share, number, edge.share_high, measure)
                for edge in result.edges
                for measure, number in [
                    ("strength", edge.strength) if edge.logit is None else ("logit", edge.logit)
                ]
                if edge.from_head is not None and number is not None
            ]
        case Compositions():
            edges = [
                Edge(edge.start, edge.end, edge.side, edge.score, edge.score, None)
                for edge in result.edges
                if edge.score is not None
            ]
        case _:
            edges = []
    return sorted(edges, key=lambda edge: -abs(edge.strength))


def letter_lines(edges: Sequence[Edge], most_lines: int, width: int) -> list[str]:
    """Lines such as `16:0 -K-> 17:3, 18:6, 18:7 -> logits`, with as many of the strongest edges as fit.

    A negative edge is written as `16:0 -K-| 17:3`.
    """
    to_logits = {edge.start for edge in into_logits(edges)}
    between = strong_edges(edges)
    lines: list[str] = []
    for count in range(1, len(between) + 1):
        longer = _lines(between[:count], to_logits, width)
        if len(longer) > most_lines:
            break
        lines = longer
    return lines


def _lines(edges: Iterable[Edge], to_logits: set[str], width: int) -> list[str]:
    """One line for each head, side, sign and continuation to the logits, with lower layers first."""
    groups: dict[tuple[tuple[int, int], str, str, bool], list[str]] = {}
    for edge in edges:
        arrow = f"-{edge.letter}-{'>' if edge.strength > 0 else '|'}"
        group = layer_and_head(edge.start), edge.start, arrow, edge.end in to_logits
        groups.setdefault(group, []).append(edge.end)
    lines: list[str] = []
    longest = max((len(head) for _, head, _, _ in groups), default=0)
    before = ""
    for (_, head, arrow, writes_logits), ends in sorted(groups.items()):
        name = "" if head == before else plain_text(head)
        start, end = f"{name:>{max(longest, 5)}} {arrow} ", " -> logits" if writes_logits else ""
        text = ", ".join(sorted(ends, key=layer_and_head)) + end
        first, *continued = wrap_cells(text, width - len(start))
        lines += [start + first, *(" " * len(start) + line for line in continued)]
        before = head
    return lines


USUAL_LINES, USUAL_ROWS, LEAST_ROWS = 9, 5, 3


EdgeColumns = Callable[[Sequence[Edge], int], list[Column]]


MOST_LINES = 60
LOWERS = "; -| is negative"


def _edge_table(edges: Sequence[Edge], columns: EdgeColumns, display: Display, count: int) -> Grid:
    """A table of the strongest edges between heads."""
    strongest = edges[:count]
    label = Column(("", "head"), [plain_text(edge.start) for edge in strongest], left=True)
    ends = [
        Column(("", "feeds"), [plain_text(edge.end) for edge in strongest], left=True),
        Column(("", "side"), [edge.side for edge in strongest], left=True),
    ]
    title = f"the strongest {len(strongest)} of {len(edges):,} edges between heads"
    return Grid(title, label, [*ends, *columns(strongest, display.precision)])


def _cancels(edge: Edge) -> bool:
    """True if the parts cancel, so that the share is missing or above 1 in absolute value."""
    return edge.share is None or abs(edge.share) > 1


def _share_columns(edges: Sequence[Edge], precision: int) -> list[Column]:
    """The shares, the half-widths of their intervals, and the number that the edges are sorted by."""
    columns = [
        Column(
            ("", "share"), [NO_NUMBER if _cancels(edge) else fixed(edge.share, precision) for edge in edges]
        )
    ]
    if any(edge.high is not None and not _cancels(edge) for edge in edges):
        columns.append(
            Column(("", ""), ["" if _cancels(edge) else half_width(edge.share, edge.high) for edge in edges])
        )
    return [*columns, Column(("", edges[0].measure), [fixed(edge.strength, precision) for edge in edges])]


def _composition_columns(edges: Sequence[Edge], precision: int) -> list[Column]:
    return [Column(("", "composition"), [fixed(edge.share, precision) for edge in edges])]


@dataclass(frozen=True)
class StrongestEdges(Element):
    """The strongest edges as text, and a table of the edges between heads with the given columns."""

    columns: EdgeColumns

    def sections(self, report: Report, display: Display) -> ScreenParts:
        edges, width = head_edges(report.result), display.columns
        between = [edge for edge in edges if edge.end != LOGITS]
        every = len(letter_lines(edges, MOST_LINES, width))

        def graph(lines: int) -> Iterator[Section]:
            if drawn := letter_lines(edges, lines, width):
                title = "the strongest edges, into keys (K), queries (Q) and values (V)"
                yield Drawing(title + LOWERS * any("-| " in line for line in drawn), drawn)

        yield Elastic(graph, min(USUAL_LINES, every), min(LEAST_ROWS, every), every)
        yield Elastic(
            lambda count: [_edge_table(between, self.columns, display, count)] if between else [],
            min(USUAL_ROWS, len(between)),
            min(LEAST_ROWS, len(between)),
            min(MOST_LINES, len(between)),
            rank=1,
        )
        if not between:
            yield Paragraph("No edges between heads: a head feeds only heads of later layers.", "line")


def _into_logits(report: Report, display: Display) -> Iterator[str]:
    """The heads that add the most to the logits."""
    edges = [edge for edge in head_edges(report.result) if edge.end == LOGITS][:FEW]
    if edges:
        names = (f"{edge.start} {fixed(edge.strength, display.precision)}" for edge in edges)
        yield f"added to the next token's logit: {', '.join(names)}"


def _copying(report: Report, display: Display) -> Iterator[str]:
    """The heads that copy the most."""
    scored = report.result_of(Compositions).copying.where(lambda head: head.score is not None)
    if copying := scored.sorted(lambda head: -(head.score or 0.0))[:FEW]:
        names = (f"{head.name} {fixed(head.score, display.precision)}" for head in copying)
        yield f"best copying heads: {', '.join(names)}"


def _notes(report: Report) -> Iterator[str]:
    yield report.how_to_read
    between = [edge for edge in head_edges(report.result) if edge.end != LOGITS]
    if isinstance(report.result, HeadEdges) and any(map(_cancels, between[:USUAL_ROWS])):
        yield (
            f"share {NO_NUMBER}: parts of opposite signs cancel, so that this part is larger than their sum."
        )
    yield from report.notes


def _fed_most(report: Report) -> str | None:
    """The head at the end of the strongest edge between heads."""
    edge = report.result_of(HeadEdges).strongest_between_heads()
    return None if edge is None else f"{edge.to_layer}:{edge.to_head}"


def _picture(report: Report, names: Collection[str]) -> "Panel | None":
    graph = layered_graph(head_edges(report.result)) if "edges" in names else None
    if graph is None:
        return None
    from attncli.features.circuit.picture import GraphPanel  # with matplotlib

    return GraphPanel(graph)


READS = {"key": "the keys", "query": "the queries", "value": "the values"}
"""What an edge of each side writes into."""


def _edges_finding(report: Report) -> Iterator[str]:
    """Yield the strongest edge between heads, and the head that adds the most to the logits."""
    edges = head_edges(report.result)
    between = next((edge for edge in edges if edge.end != LOGITS), None)
    if between is None:
        yield "No head feeds another: a head feeds only heads of later layers."
    else:
        numbers = [] if _cancels(between) else [f"share {number(between.share)}"]
        if between.measure == "logit":
            numbers.append(f"{signed(between.strength)} on the logit of the likeliest next token")
        into = READS.get(between.side, between.side)
        start, end = plain_text(between.start), plain_text(between.end)
        measures = f" ({', '.join(numbers)})" if numbers else ""
        yield f"The strongest edge between heads: {start} writes into {into} of {end}{measures}."
    if last := next((edge for edge in edges if edge.end == LOGITS), None):
        change = "adds most to" if last.strength > 0 else "takes most from"
        yield f"Of the heads, {plain_text(last.start)} {change} the logits: {signed(last.strength)}."


def _page_table(report: Report) -> PageTable:
    """The edges with the number that they are sorted by."""
    edges = head_edges(report.result)
    return PageTable("edges", ("from", "to", "side", edges[0].measure if edges else "strength"))


CIRCUIT_SCREEN = FirstScreen(
    HeadEdges,
    (
        TitleLine(said=()),
        ReadLine(),
        StrongestEdges(_share_columns),
        Sentences(_into_logits, "line"),
        Notes(_notes, apart=True),
    ),
    next_head=_fed_most,
    picture=_picture,
    page_table=_page_table,
    finding=_edges_finding,
)
"""The strongest edges as text and as a table; the heads that add the most to the logits."""


def _compositions_finding(report: Report) -> Iterator[str]:
    """Yield the highest composition, and the head that copies best."""
    edges = head_edges(report.result)
    if not edges:
        yield "No head can feed another: a head feeds only heads of later layers."
    for edge in edges[:1]:
        into, start, end = READS.get(edge.side, edge.side), plain_text(edge.start), plain_text(edge.end)
        yield f"The best fit: {start} can write into {into} of {end} (composition {number(edge.strength)})."
    scores = report.result_of(Compositions).copying.where(lambda head: head.score is not None)
    if scores:
        best = max(scores, key=lambda head: head.score or 0.0)
        copies = f"{best.name} copies best: {number(best.score)}, where 1 is a head that only copies"
        yield f"Head {copies}." if (best.score or 0.0) > 0 else "No head copies the tokens that it looks at."


COMPOSITIONS_SCREEN = FirstScreen(
    Compositions,
    (
        TitleLine(said=()),
        StrongestEdges(_composition_columns),
        Sentences(_copying, "line"),
        Notes(_notes, apart=True),
    ),
    picture=_picture,
    page_table=lambda _: PageTable("edges", ("from", "to", "side", "score")),
    finding=_compositions_finding,
)
"""The highest compositions as text and as a table; the heads that copy the most."""


def write_dot(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write one Graphviz digraph per report (https://graphviz.org/doc/info/lang.html)."""
    for report in reports:
        stream.writelines(f"{line}\n" for line in _dot_lines(report, display))


def _dot_lines(report: Report, display: Display) -> Iterator[str]:
    graph = layered_graph(head_edges(report.result))
    if graph is None:
        raise NothingToDraw(f"this {report.experiment} report has no edges: use a report from attn circuit")
    yield f"digraph {_quoted(display.title or title(report))} {{"
    yield "  rankdir=BT; node [shape=box];"
    for row in range(len(graph.rows)):
        names = " ".join(_quoted(name) for name, (_, node_row) in graph.nodes.items() if node_row == row)
        yield f"  {{ rank=same; {names} }}"
    for edge in graph.edges:
        label = f"{edge.letter} {fixed(edge.strength, display.screen_precision)}".strip()
        style = "dashed" if edge.strength < 0 else "solid"
        yield f"  {_quoted(edge.start)} -> {_quoted(edge.end)} [label={_quoted(label)}, style={style}];"
    yield "}"


def _quoted(text: str) -> str:
    return '"' + plain_text(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
