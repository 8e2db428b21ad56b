"""The first screens of `attn diff`: for two experiments, surveys or texts."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from rich.cells import cell_len

from attncli.features.diff.results import (
    UNMAPPED,
    HeadChange,
    HeadDifference,
    MovedHead,
    MovedRow,
    ReportDifferences,
    StatisticPair,
    TextDifferences,
    TokenChange,
)
from attncli.records.columns import Records
from attncli.records.report import PLACES, NamedTensor, Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import named_head, number, quoted, token_at, words_of
from attncli.views.first_screen import (
    FirstScreen,
    HeadLabel,
    PageTable,
    Ranked,
    Sentences,
    Special,
    SpecialCells,
    TitleLine,
)
from attncli.views.matrices import pictured, place_names, tensor_matrices
from attncli.views.model_screens import token_cell
from attncli.views.report_sections import TableLabels, statistic_tables
from attncli.views.screens import LEAST_ROWS, LooksAtPictures, MatrixPart, heading_lines
from attncli.views.sections import Column, Elastic, Paragraph, ScreenParts, Section
from attncli.views.survey_findings import KEYS_OF_STATISTICS
from attncli.views.texts import fixed, shortened

NOTES, SURVEY_NOTES = 1, 3
# The number of rows of the matrix if no table follows, and if changed rows or heads follow.
DIFF_ROWS, FEW_DIFF_ROWS = 8, 3
MOST_CHANGED = 2
MORE = {
    "by_head": "heads",
    "changed_heads": "changed statistics",
    "changed_rows": "rows",
    "heads_difference": "heads",
    "side_by_side": "statistics",
}
# The number of statistics below the weights; without weights, as many as fit.
DIFF_STATISTICS = ("scores.variance", "scaled_scores.variance", "entropy.mean", "max_weight.mean")
MOST_STATISTICS, MOST_HEADS = 16, 10


def _settings_and_notes(report: Report, display: Display) -> Iterator[str]:
    """The settings that differ, followed by the first notes if there is no table of heads."""
    count = NOTES if report.tensors else SURVEY_NOTES
    notes = report.notes[:count]
    if report.result_of(ReportDifferences).by_head:
        notes = tuple(note for note in notes if note.endswith(UNMAPPED))
    for note in (report.about, *notes):
        yield shortened(plain_text(note), 2 * display.columns)


def _changes(report: Report, display: Display) -> ScreenParts:
    """Tables of changes: the weights, the largest changes, and the statistics of both sides."""
    result = report.result_of(ReportDifferences)
    yield Elastic(partial(_change_tables, report, result, display), usual=MOST_STATISTICS, least=1)


def _change_tables(
    report: Report, result: ReportDifferences, display: Display, most: int
) -> Iterator[Section]:
    """The difference of the weights, and the changes in tables of at most `most` rows."""
    left_out: list[str] = []
    pairs = result.side_by_side or StatisticPair.rows([])
    if (difference := result.difference) is not None:
        if not pictured(report):
            part = _difference(report, difference, result.by_head, display, most)
            yield part.grid
            left_out += part.left_out()
        yield Paragraph("Where a number is positive, B gives more weight than A.", "line")
        is_whole = not result.by_head and not left_out
        name, moved = ("by_head", result.by_head) if result.by_head else ("changed_rows", result.changed_rows)
        tables: dict[str, Records[Any]] = {} if is_whole or moved is None else {name: moved}
        first = {name: table[: MOST_CHANGED if most >= DIFF_ROWS else 0] for name, table in tables.items()}
        weight_pairs = pairs.where(lambda pair: pair.statistic in DIFF_STATISTICS)
        first_pairs = weight_pairs[: max(most - LEAST_ROWS, 1)]
    else:
        name, changed = (
            ("changed_heads", result.changed_heads)
            if result.changed_heads
            else ("heads_difference", result.heads_difference)
        )
        tables = {} if changed is None else {name: changed}
        first = {name: table[: min(most, MOST_HEADS)] for name, table in tables.items()}
        first_pairs = pairs[: max(most - sum(map(len, first.values())), 1)]
    tables, first = tables | {"side_by_side": pairs}, first | {"side_by_side": first_pairs}
    left_out += [
        f"{count} more {MORE[name]}"
        for name, table in tables.items()
        if (count := len(table) - len(first[name]))
    ]
    for grid in statistic_tables(first, display, TableLabels(report, display)):
        group = grid.first_group(display.width)
        if count := len(grid.columns) - len(group.columns):
            left_out.append(f"{count} columns of {grid.title}")
        yield group
    if left_out:
        yield Paragraph(f"Not shown: {', '.join(left_out)}. See --show all.", "note")


def _difference(
    report: Report, difference: NamedTensor, heads: Records[MovedHead] | None, display: Display, most: int
) -> MatrixPart:
    """B - A of the weights or, for several heads, of the head that changed most."""
    every = list(tensor_matrices(report, "difference", difference))
    place = tuple(
        (axis, head[axis]) for head in (heads or ())[:1] for axis in head if axis in ("batch", *PLACES)
    )
    matrix = next((matrix for matrix in every if matrix.place == place), every[0])
    title = ", ".join(["weights of B minus weights of A", *place_names(matrix.place)])
    if np.isnan(matrix.values).all():
        title += " (no row is in both)"
    elif not np.nan_to_num(matrix.values).any():
        title += " (no weight changed)"
    elif heads:
        title += " (changed most)"
    rows = min(most, FEW_DIFF_ROWS if heads else DIFF_ROWS)
    return MatrixPart(report, {"": matrix}, display, title, rows)


DIFF_STEPS = ("--show weights", "--show statistics", "-o page.html")


def _comparison_finding(report: Report) -> Iterator[str]:
    """Yield the row, the head or the statistic that changed most."""
    result = report.result_of(ReportDifferences)
    if result.changed_rows:
        yield _moved_row(report, result.changed_rows[0])
    elif result.difference is not None:
        yield "No row of weights moved."
    elif result.changed_heads:
        first = result.changed_heads[0]
        count = counted(len({(row.stack, row.layer, row.head) for row in result.changed_heads}), "head")
        change = f"{words_of(first.statistic)} goes from {number(first.a)} to {number(first.b)}"
        yield plain_text(f"{count} changed beyond chance, {named_head(first)} most: its {change}.")
    elif result.heads_difference:
        yield _largest_difference(result.heads_difference)
    elif result.side_by_side:
        pair = max(result.side_by_side, key=lambda pair: abs(pair.difference))
        change = f"The largest change: {pair.statistic} goes from {number(pair.a)} to {number(pair.b)}."
        yield plain_text(change) if pair.difference else "No statistic changed."


def _moved_row(report: Report, row: MovedRow) -> str:
    """Return a sentence on a row of weights, with the keys that gained and lost the most."""
    places = ((name, row[name]) for name in row if name in ("batch", *PLACES))
    place = [(name, index) for name, index in places if isinstance(index, int)]
    of_map = f" in {', '.join(place_names(place))}" if place else ""
    at = row.get("query")
    query = token_at(report, "query", at) if isinstance(at, int) else "one row"
    gained, lost = (token_at(report, "key", key) for key in (row.gained_key, row.lost_key))
    gained, lost = ("itself" if key == query and not report.context_tokens else key for key in (gained, lost))
    changes = []
    if row.gained > 0:
        changes.append(f"{number(row.gained)} more weight to {gained}")
    if row.lost < 0:
        changes.append(f"{number(-row.lost)} less to {lost}")
    return f"What changed most{of_map}: in B, {query} gives {' and '.join(changes)} than in A."


def _largest_difference(rows: Records[HeadDifference]) -> str:
    """Return the head whose weight on one kind of key, such as the previous token, differs most."""
    changes = [
        (abs(value), name, row)
        for row in rows
        for name, value in row.items()
        if name in KEYS_OF_STATISTICS and isinstance(value, float)
    ]
    size, name, row = max(changes, key=lambda change: change[0], default=(0.0, "", rows[0]))
    if not float(number(size)):
        return "No head gives one kind of token more or less weight in B than in A."
    more = "more" if (row.number(name) or 0.0) > 0 else "less"
    keys = KEYS_OF_STATISTICS[name]
    return f"Head {named_head(row)} changes most: in B, it gives {keys} {number(size)} {more} of its weight."


COMPARISON_SCREEN = FirstScreen(
    ReportDifferences,
    (
        Sentences(heading_lines, "title", said=("about",)),
        Sentences(_settings_and_notes, "line"),
        LooksAtPictures(most=1),  # the difference
        Special(_changes, "the tables depend on the differences and the room"),
    ),
    next_steps=lambda *_: DIFF_STEPS,
    finding=_comparison_finding,
)
"""The settings that differ; the difference of the weights, or that of the head that changed most."""


MOST_PREDICTIONS = 5
CHANGED_TITLE = "heads that changed most, with their strongest keys in the row that changed most"
NOT_ALIGNED_TITLE = "heads whose statistics changed most, with their strongest keys from the last token"


def _both_texts(report: Report, display: Display) -> Iterator[str]:
    for side in ("a", "b"):
        settings = report.spec.get(side)
        text = settings.get("sentence") if isinstance(settings, Mapping) else ""
        yield shortened(plain_text(f"{side.upper()}: {' '.join(str(text).split())}"), display.width)


def _is_aligned(heads: Records[HeadChange]) -> bool:
    """True if the texts have tokens in common, so that the heads are sorted by the distance between rows."""
    return heads[0].mean_jensen_shannon is not None


def _changed_most(report: Report, heads: Records[HeadChange], total: int) -> str:
    return CHANGED_TITLE if _is_aligned(heads) else NOT_ALIGNED_TITLE


def _measured(report: Report, heads: Records[HeadChange], display: Display) -> list[Column]:
    """The distance and the token whose row moved furthest, or the statistic if the texts share no token."""
    precision = display.precision
    if not _is_aligned(heads):
        return _statistics(heads, precision)
    return [
        Column(("distance",), [fixed(head.mean_jensen_shannon, precision) for head in heads]),
        Column(("from",), [_moved_query(head) for head in heads], left=True),
    ]


def _moved_query(head: HeadChange) -> str:
    """The query as `13 ·to`, or as `9 ·John → ·Mary`, with both positions if they differ."""
    positions = dict.fromkeys((str(head.query_a), str(head.query_b)))
    tokens = dict.fromkeys((token_cell(head.query_a_token), token_cell(head.query_b_token)))
    return f"{' → '.join(positions)} {' → '.join(tokens)}"


def _keys(report: Report, heads: Records[HeadChange], display: Display) -> list[Column]:
    """For each text, the key to which each head gives the most weight from that query."""
    keys_a = [_key(head.key_a, head.key_a_token, head.weight_a, display.precision) for head in heads]
    keys_b = [_key(head.key_b, head.key_b_token, head.weight_b, display.precision) for head in heads]
    return [Column(("looks at in A",), keys_a, left=True), Column(("looks at in B",), keys_b, left=True)]


def _statistics(heads: Records[HeadChange], precision: int) -> list[Column]:
    return [
        Column(("statistic",), [plain_text(head.statistic).replace("_", " ") for head in heads], left=True),
        Column(("A",), [fixed(head.a, precision) for head in heads]),
        Column(("B",), [fixed(head.b, precision) for head in heads]),
    ]


def _key(key: int, token: str, weight: float | None, precision: int) -> str:
    """A key and its weight, such as `1 ·Mary 0.81`."""
    return f"{key} {token_cell(token)} {fixed(weight, precision)}"


def _predictions(report: Report, display: Display) -> Iterator[str]:
    if predictions := report.result_of(TextDifferences).predictions:
        yield _next_tokens(predictions[:MOST_PREDICTIONS], display)


def _first_notes(report: Report, display: Display) -> Iterator[str]:
    for note in report.notes[:NOTES]:
        yield shortened(plain_text(note), display.width)


def _next_tokens(predictions: Records[TokenChange], display: Display) -> str:
    """`next token, A -> B: ·Mary 0.92 -> 0.00, ·John 0.00 -> 0.75`, with as many tokens as fit on a line."""
    line = "next token, A -> B:"
    for row in predictions:
        number_a, number_b = fixed(row.a, display.precision), fixed(row.b, display.precision)
        if number_a == number_b:
            break
        numbers = f"{number_a} -> {number_b}"
        longer = f"{line}{'' if line.endswith(':') else ','} {token_cell(row.token)} {numbers}"
        if cell_len(longer) > display.columns:
            break
        line = longer
    return line if not line.endswith(":") else f"{line} no probability changed by {0.1**display.precision:g}"


def _texts_finding(report: Report) -> Iterator[str]:
    """Yield the head that changed most, and the next token whose probability changed most."""
    result = report.result_of(TextDifferences)
    head = result.heads[0]
    name = f"Head {named_head(head)} changes most"
    if head.mean_jensen_shannon == 0:
        yield "Every head looks at the same tokens in B as in A."
    elif _is_aligned(result.heads):
        queries = " or ".join(dict.fromkeys(map(quoted, (head.query_a_token, head.query_b_token))))
        in_a, in_b = (
            f"{quoted(token)} ({number(weight)})"
            for token, weight in ((head.key_a_token, head.weight_a), (head.key_b_token, head.weight_b))
        )
        yield f"{name}: from {queries}, it looks at {in_a} in A and at {in_b} in B."
    else:
        change = f"{words_of(head.statistic)} goes from {number(head.a)} in A to {number(head.b)} in B"
        yield plain_text(f"{name}: {change}.")
    for row in (result.predictions or ())[:1]:
        before, after = number(row.a), number(row.b)
        if before == after:
            yield "The next tokens are as likely in B as in A."
        else:
            yield f"The probability of {quoted(row.token)} as next token goes from {before} to {after}."


TWO_TEXTS_SCREEN = FirstScreen(
    TextDifferences,
    (
        TitleLine(),
        Sentences(_both_texts),
        Ranked(
            "heads",
            (SpecialCells(_measured), SpecialCells(_keys)),
            title=_changed_most,
            label=HeadLabel(header=("head",)),
            usual=MOST_HEADS,
            is_cut=True,
        ),
        Sentences(_predictions, "prose"),
        Sentences(_first_notes, "note"),
    ),
    next_steps=lambda *_: DIFF_STEPS,
    page_table=lambda _: PageTable(
        "heads", ("mean_jensen_shannon", "key_a_token", "weight_a", "key_b_token", "weight_b")
    ),
    finding=_texts_finding,
)
"""Both texts; the heads that changed most, with their strongest keys; the next tokens."""
