"""Where the maps of a picture are: one with its labels, several beside each other, a grid of thumbnails."""

from collections.abc import Mapping
from dataclasses import replace

from attncli.plain_text import plain_text
from attncli.views.labels import LabelledAxis
from attncli.views.matrices import place_names
from attncli.views.terminal.axis_labels import column_header, most_above
from attncli.views.terminal.blocks import ScreenLine, beside, text_line
from attncli.views.terminal.heatmap_plan import GAP, Plan, Subject

Lines = list[ScreenLine]
TokenTexts = Mapping[tuple[str, int], str]
BLANK = text_line("")


def arranged(subject: Subject, plan: Plan, maps: list[Lines]) -> Lines:
    """The maps with their labels and titles."""
    if subject.grid is not None:
        return _atlas(subject, plan, maps, *subject.grid)
    columns = subject.columns if len(maps) == 1 else replace(subject.columns, tokens=())
    header = column_header(columns, plan.block[1], plan.cell_width)
    row_labels = subject.rows.labels(subject.row_token_cells, plan.block[0], plan.rows_per_line)
    labels = [text_line(text) for text in ([""] * (len(header) - 1) + [subject.rows.name, *row_labels])]
    if len(maps) == 1:
        return beside([labels, [*header, *maps[0]]], 1)
    titles = subject.panel_titles
    panels = [[text_line(title), *header, *cells] for title, cells in zip(titles, maps, strict=True)]
    lines: Lines = []
    for start in range(0, len(panels), plan.across):
        first, *others = panels[start : start + plan.across]
        lines += beside([beside([[BLANK, *labels], first], 1), *others], GAP)
    return lines


def _atlas(subject: Subject, plan: Plan, maps: list[Lines], down: int, across: int) -> Lines:
    """Thumbnails: one row per layer, one column per head; more heads than fit continue below."""
    names, cells = subject.row_names, maps[0][0].cells
    width = max(map(len, names))
    # An odd number of rows in half-blocks leaves half a line blank.
    is_apart = plan.rows_per_line == 2 and -(-subject.rows.count // plan.block[0]) % 2
    lines: Lines = []
    for first in range(0, across, plan.across):
        heads = range(first, min(first + plan.across, across))
        lines += [BLANK] if first else []
        titles = _head_titles(subject, heads, cells)
        lines += beside([[ScreenLine("", width)], *([title] for title in titles)], 1)
        for start in range(0, down * across, across):
            lines += [BLANK] if start and not is_apart else []
            row = [maps[start + head] for head in heads]
            lines += beside([[text_line(names[start].ljust(width))], *row], 1)
    return lines


def _head_titles(subject: Subject, heads: range, cells: int) -> Lines:
    """`head 3`, or `3` above narrow thumbnails."""
    places = [subject.matrices[head].place[-1] for head in heads]
    titles = place_names(places)
    if max(map(len, titles)) > cells:
        titles = [str(number) for _, number in places]
    return [text_line(title.ljust(cells)) for title in titles]


def incomplete_tokens(subject: Subject, plan: Plan) -> TokenTexts:
    """`token 12` and its text, for each that a label shortens or leaves out; none where cells are pooled."""
    if plan.is_pooled:
        return {}
    rows, columns = subject.rows, subject.columns
    row_places = rows.shortened_places(rows.token_room(subject.row_token_cells, plan.rows_per_line))
    if subject.grid is not None and rows.tokens:
        row_places = set(range(rows.count))
    has_header = plan.cell_width > 1 and plan.across == 1
    column_places = columns.shortened_places(most_above(plan.cell_width)) if has_header else set()
    if rows.tokens == columns.tokens:
        return _texts(rows, row_places | column_places)
    if columns.tokens and not has_header:
        column_places = set(range(columns.count))
    return {**_texts(rows, row_places), **_texts(columns, column_places)}


def sentences(tokens: TokenTexts) -> list[str]:
    """`token 12 is self-contradictory`."""
    return [f"{name} {place} is {text}" for (name, place), text in tokens.items()]


def _texts(axis: LabelledAxis, places: set[int]) -> TokenTexts:
    return {(axis.noun, place): plain_text(axis.tokens[place]) for place in sorted(places)}
