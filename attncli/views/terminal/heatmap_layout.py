"""Where the maps of a picture stand: one with its labels, several beside each other, a grid of thumbnails."""

from dataclasses import replace

from attncli.views.matrices import Matrix, place_names
from attncli.views.sides import Side
from attncli.views.terminal.axis_labels import column_header
from attncli.views.terminal.blocks import ScreenLine, beside, text_line
from attncli.views.terminal.heatmap_plan import Plan
from attncli.views.terminal.heatmap_subject import Subject

GAP = 2


def _labelled(side: Side, plan: Plan, most: int | None, header: int) -> list[ScreenLine]:
    """The labels of the rows, below the axis's name and beside the lines of the column header."""
    texts = side.labels(most, plan.block[0], plan.rows_per_line)
    above = [""] * (header - 1) + [side.name]
    return [text_line(text) for text in (*above, *texts)]


def one(subject: Subject, plan: Plan, cells: list[ScreenLine], most: int | None) -> list[ScreenLine]:
    """A map below its columns' labels and beside its rows'."""
    header = column_header(subject.columns, plan.block[1], plan.cell_width)
    labels = _labelled(subject.rows, plan, most, len(header))
    return beside([labels, [*header, *cells]], 1)


def several(subject: Subject, plan: Plan, maps: list[list[ScreenLine]], most: int | None) -> list[ScreenLine]:
    """Maps with titles, `across` of them beside the labels of their rows."""
    header = column_header(replace(subject.columns, tokens=()), plan.block[1], plan.cell_width)
    labels = _labelled(subject.rows, plan, most, len(header))
    lines: list[ScreenLine] = []
    for start in range(0, len(maps), plan.across):
        panels = []
        for matrix, cells in zip(
            subject.matrices[start : start + plan.across], maps[start : start + plan.across], strict=True
        ):
            panels.append([text_line(_panel_title(subject, matrix)), *header, *cells])
        lines += beside([beside([[text_line(""), *labels], panels[0]], 1), *panels[1:]], GAP)
    return lines


def _panel_title(subject: Subject, matrix: Matrix) -> str:
    return ", ".join(place_names(matrix.place[i] for i in subject.varying))


def _row_place(matrix: Matrix) -> str:
    return ", ".join(place_names(matrix.place[:-1]))


def place_width(subject: Subject) -> int:
    """Cells that the names of an atlas's rows take."""
    return max(len(_row_place(matrix)) for matrix in subject.matrices)


def atlas(subject: Subject, plan: Plan, maps: list[list[ScreenLine]]) -> list[ScreenLine]:
    """Thumbnails: a row for each layer, a column for each head; more heads than fit go on below."""
    assert subject.grid is not None
    down, across = subject.grid
    width, cells = place_width(subject), maps[0][0].cells
    num_rows = -(-subject.rows.count // plan.block[0])
    lines: list[ScreenLine] = []
    for first in range(0, across, plan.across):
        heads = range(first, min(first + plan.across, across))
        lines += [text_line("")] if first else []
        lines += beside(
            [[ScreenLine("", width)], *([title] for title in _head_titles(subject, heads, cells))], 1
        )
        for layer in range(down):
            place = _row_place(subject.matrices[layer * across])
            # An odd row of half-blocks leaves half a line blank.
            is_apart = plan.rows_per_line == 2 and num_rows % 2
            lines += [text_line("")] if layer and not is_apart else []
            row = [maps[layer * across + head] for head in heads]
            lines += beside([[text_line(place.ljust(width))], *row], 1)
    return lines


def _head_titles(subject: Subject, heads: range, cells: int) -> list[ScreenLine]:
    """`head 3`, or `3` above narrow thumbnails."""
    places = [subject.matrices[head].place[-1] for head in heads]
    titles = place_names(places)
    if max(map(len, titles)) > cells:
        titles = [str(number) for _, number in places]
    return [text_line(title.ljust(cells)) for title in titles]
