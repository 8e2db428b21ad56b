"""Parts of survey screens: heads by pattern, and a letter for each head."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import Any

import numpy as np
from rich.cells import cell_len

from attncli.core.names import (
    FIRST_TOKEN,
    HEAD_PATTERNS,
    NOT_MEASURED,
    REQUESTED_PATTERNS,
    UNNAMED,
    stack_label,
)
from attncli.records.columns import R, Records
from attncli.records.report import Report, Row
from attncli.records.surveys import MIN_ROWS, HeadsOfPattern, HeadSurvey, SignedHead, SurveyedHead
from attncli.system.plain_text import counted, plain_text
from attncli.views import TEXT_WIDTH, Display
from attncli.views.first_screen import (
    Element,
    HeadLabel,
    NumberCells,
    PageTable,
    PlaceCells,
    Ranked,
    Sentences,
    Special,
    SpecialCells,
    StatisticCells,
    field_rows,
)
from attncli.views.matrices import head_name
from attncli.views.model_screens import head_grid, some_of
from attncli.views.report_sections import TableLabels, requested_top
from attncli.views.screens import LooksAtPictures, PictureRows, WholeMatrix
from attncli.views.sections import (
    GAP,
    LEAST_LINES,
    LEAST_ROWS,
    Column,
    Drawing,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
)
from attncli.views.texts import (
    DECIMALS,
    NAMED_WEIGHT,
    NO_NUMBER,
    ScreenLine,
    beside,
    fixed,
    half_width,
    kinds_read,
    named_weight,
    plain_line,
    text_name,
    wrap_cells,
)

SHORT_NAMES = {"special_mass - sink_mass": "special, not first"}
REPEATED = ("duplicate token", "induction")

NO_PATTERN = NO_NUMBER
LINEAR, LINEAR_LETTER = "linear", "L"
LETTERS_TITLE = (
    "Each head's pattern. If several fit, U has priority, and F gives way.",
    "Each head's pattern (L: no softmax). If several fit, U has priority.",
)
"""The titles for models in which every layer has a softmax, and for all other models."""


def pattern_letter(pattern: object) -> str:
    """Return the letter of a pattern in a grid of heads, or ? if the pattern is unknown or not measured."""
    if pattern == UNNAMED:
        return NO_PATTERN
    return HEAD_PATTERNS[str(pattern)].letter if pattern in HEAD_PATTERNS else "?"


def pattern_part(title: str, patterns: Records[HeadsOfPattern], report: Report, display: Display) -> Elastic:
    """Return the table of patterns.

    Patterns that do not fit are listed on a line below the table, as are those without heads.
    """
    survey, labels = report.result_of(HeadSurvey), TableLabels(report, display)
    has_heads = [place for place, row in enumerate(patterns) if row.heads]
    # The least informative patterns are dropped first; among equals, the one shown least clearly.
    by_worth = sorted(
        has_heads,
        key=lambda place: (_worth(patterns[place].pattern), -_clearest(patterns[place], survey)),
    )

    def of(count: int) -> Iterator[Section]:
        every = range(len(patterns))
        fitting = [place for place in every if place in by_worth[:count] or count > len(has_heads)]
        rows, others = (
            patterns.taken(places) for places in (fitting, [*filterfalse(fitting.__contains__, every)])
        )
        if rows:
            yield pattern_grid(title, rows, report, labels, display.width)
        if others:
            texts = [f"{title}: " if title and not rows else "", "; ".join(_joined_patterns(others))]
            yield Paragraph("".join(texts), "line" if rows else "prose")

    return Elastic(of, len(has_heads) + 1, rank=1)


def _worth(pattern: str) -> int:
    """Return 0 for a pattern with few heads, 1 for a pattern with many, 2 for a pattern with no heads."""
    known = HEAD_PATTERNS.get(pattern)
    return 2 if known is None else int(known.precedence != 1)


def _clearest(row: HeadsOfPattern, survey: HeadSurvey) -> float:
    """Return the statistic of a pattern's strongest head, or -1 if it has no number."""
    values = [head.value for head in survey.strongest_of(row.stack, row.pattern)]
    return max((value for value in values if value is not None), default=-1.0)


def _joined_patterns(patterns: Records[HeadsOfPattern]) -> Iterator[str]:
    """Return `8 C current token, 2 U uniform`, `none: N next token`, `not measured: I induction`."""
    kinds = {
        "": [row for row in patterns if row.heads],
        "none: ": [row for row in patterns if row.heads == 0],
        "not measured: ": [row for row in patterns if row.heads is None],
    }
    for name, rows in kinds.items():
        texts = [plain_text(f"{row.heads or ''} {_lettered(row)}").strip() for row in rows]
        if texts:
            yield f"{name}{', '.join(texts)}"


def _lettered(row: HeadsOfPattern) -> str:
    return f"{pattern_letter(row.pattern)} {row.pattern}"


def pattern_grid(
    title: str, patterns: Records[HeadsOfPattern], report: Report, labels: TableLabels, width: int | None
) -> Grid:
    """Return each pattern with its letter, the number of heads above the threshold, and its strongest heads.

    Over many texts, also return the amount measured and the uncertainty of the numbers.
    """
    label = Column(("", ""), [plain_text(_lettered(row)) for row in patterns], left=True)
    columns = [Column(("", "heads"), [_head_count(row) for row in patterns])]
    if report.result_of(HeadSurvey).intervals:
        columns += [
            Column(("", f"{text_name(report)}s"), [_whole(row.texts) for row in patterns]),
            Column(("", "rows"), [_whole(row.num_rows) for row in patterns]),
        ]
        starts, header = [""] * len(patterns), "strongest, ± half of its interval"
    else:
        statistics = [row.statistic or "" for row in patterns]
        names = [SHORT_NAMES.get(name, name) for name in statistics]
        longest = max(len(plain_text(name)) for name in ("statistic", *names)) + 1
        starts = [f"{plain_text(name):<{longest}}" for name in names]
        header = f"{'statistic':<{longest}}strongest (layer:head)"
    taken = label.width + sum(GAP + column.width for column in columns) + GAP + len(starts[0])
    room = None if width is None else width - taken
    cells: list[list[str]] = []
    for start, row in zip(starts, patterns, strict=True):
        if row.heads is None:
            cells.append([_too_few(row, report)])
        else:
            first, *more = _strongest_and_named(row, report, labels, room)
            cells.append([start + first, *(" " * len(start) + names for names in more)])
    heights = [len(lines) for lines in cells]
    columns = [replace(column, cells=_with_blanks(column.cells, heights)) for column in columns]
    label = replace(label, cells=_with_blanks(label.cells, heights))
    strongest = Column(("", header), [line for lines in cells for line in lines], left=True)
    return Grid(plain_text(title), label, [*columns, strongest])


def _with_blanks(cells: Sequence[str], heights: Sequence[int]) -> list[str]:
    """Put empty cells below each cell, one for every further line of its row."""
    return [
        line for cell, height in zip(cells, heights, strict=True) for line in (cell, *[""] * (height - 1))
    ]


def _head_count(row: HeadsOfPattern) -> str:
    """Return the number of heads above the threshold, like `59 > 0.3`."""
    if row.heads is None:
        return NO_NUMBER
    above = "      " if row.threshold is None else f" > {row.threshold:.1f}"
    return f"{row.heads}{above}"


def _whole(count: int | None) -> str:
    return NO_NUMBER if count is None else f"{count:,}"


MOST_NAMED = 10
"""The largest number of heads of a pattern that are all named."""


def _strongest_and_named(
    row: HeadsOfPattern, report: Report, labels: TableLabels, room: int | None
) -> list[str]:
    """Return the strongest heads that fit, with their numbers, and the names of all heads if they are few."""
    strongest = list(_strongest(row, report, labels))
    names = pattern_heads(row, report.result_of(HeadSurvey))
    fitting = [count for count in range(len(strongest), 0, -1) if _fits(_padded(strongest[:count]), room)]
    for count in fitting:
        with_numbers = {text.partition(" ")[0] for text in strongest[:count]}
        others = [name for name in names if name not in with_numbers]
        line = "  ".join(filter(None, (_padded(strongest[:count]), " ".join(others))))
        if _fits(line, room):
            return [line]
    first = _padded(strongest[: fitting[0] if fitting else 1])
    with_numbers = {text.partition(" ")[0] for text in strongest[: fitting[0] if fitting else 1]}
    more = " ".join(name for name in names if name not in with_numbers)
    return [first, *(wrap_cells(more, room or TEXT_WIDTH) if more else ())]


def _fits(line: str, room: int | None) -> bool:
    return room is None or cell_len(line) <= room


def _padded(texts: Sequence[str]) -> str:
    """Join the heads and their numbers, in columns if they are short."""
    least_width = len("29:8 0.90 ±0.01" if any("±" in text for text in texts) else "29:8 0.90")
    return "  ".join(f"{text:<{least_width}}" for text in texts).rstrip()


def pattern_heads(row: HeadsOfPattern, survey: HeadSurvey) -> list[str]:
    """Return the heads that show a pattern, strongest first; none if there are many or not all are known."""
    heads = survey.heads.where(lambda head: head.stack == row.stack)
    names = (row.statistic or "").split(" - ")  # `special_mass` minus `sink_mass`
    if row.threshold is None or not {*names} <= heads.cells.keys():
        return []
    first, *others = map(heads.column, names)
    values = first - sum(others)
    if np.isnan(values).any():
        return []
    lower = {
        (each.layer, each.head): each.lower
        for each in survey.intervals
        if (each.stack, each.statistic) == (row.stack, row.statistic)
    }
    least = [
        lower.get((head.layer, head.head), value) for head, value in zip(heads, values.tolist(), strict=True)
    ]
    above = [place for place, low in enumerate(least) if low is not None and low > row.threshold]
    is_whole = len(above) <= MOST_NAMED and len(above) == row.heads
    in_order = sorted(above, key=lambda place: -values[place])
    return [head_name(heads[place]) for place in in_order] if is_whole else []


def _strongest(row: HeadsOfPattern, report: Report, labels: TableLabels) -> Iterator[str]:
    """Return the strongest heads, each with half of its interval or with the key that it looks at."""
    survey = report.result_of(HeadSurvey)
    for head in survey.strongest_of(row.stack, row.pattern):
        if head.value is None or head.value < 0.5 * 10**-DECIMALS:
            continue
        text = f"{head_name(head)} {fixed(head.value, DECIMALS)}"
        if survey.intervals:
            text += f" {half_width(head.value, head.upper)}".rstrip()
        elif head.key is not None:
            text += f" → {_key(head.key, row.stack, report, labels)}"
        yield text


def _key(key: int, stack: str, report: Report, labels: TableLabels) -> str:
    """Return the position of a key, with its token unless the report's tokens may be another stack's."""
    if stack_label(stack) and report.spec.get("maps") != "none":
        return str(key)
    return labels.place("query" if stack == "decoder" else "key", key)


def _too_few(row: HeadsOfPattern, report: Report) -> str:
    """Return the message that a pattern has too few rows, and how to measure the pattern."""
    if row.pattern in REPEATED and "program" in report.spec and not report.tokens:
        return "token names unknown: use --tokens FILE"
    if report.result_of(HeadSurvey).intervals:
        if (row.num_rows or 0) >= MIN_ROWS:
            return "texts too short: uniform weights would show it"
        return "too few rows: use more texts" if row.num_rows else "these texts have no such rows"
    num_rows = row.num_rows or 0
    if row.pattern == "special tokens" and not num_rows:
        return f"no special token {'is left' if report.spec.get('skip_sink') else 'in this text'}"
    is_repeated = row.pattern in REPEATED
    rows = {0: "no rows", 1: "one row"}.get(num_rows, f"{num_rows} rows")
    what = "a word" if report.spec.get("words") else "a token"
    repeat = f"{rows} {'repeats' if num_rows == 1 else 'repeat'} {what}"
    count = repeat if is_repeated else rows if not num_rows else f"only {rows}"
    if any(
        kind.on_grid for kind in kinds_read(report)
    ):  # the model's processor determines the number of tokens
        return count
    is_of_tokens = not any(map(report.spec.get, ("probe", "words", "program")))
    return f"{count}: {'omit the text for more' if is_repeated and is_of_tokens else 'use a longer text'}"


def head_letters(heads: Mapping[str, Sequence[Row]], display: Display, linear: Sequence[Row] = ()) -> Elastic:
    """Return a letter for each head, with stacks one below the other, or side by side if lines are scarce.

    If most heads look mainly at the first token, those heads show the letter of their other weights, dim or
    in lower case. Heads of `linear` layers have an L, unless a layer has both kinds of heads.
    """
    is_carpet = any(map(is_mostly_first, heads.values()))
    of_both = _with_linear(heads, linear)
    title = (REST_TITLE if is_carpet else LETTERS_TITLE)[of_both is not heads]
    heads = of_both

    def grid(rows: Sequence[Row], display: Display, most_lines: int | None) -> list[ScreenLine]:
        letters = {head_place(row): head_letter(row, is_carpet) for row in rows}
        first = {head_place(row) for row in rows if row.get("pattern") == FIRST_TOKEN}
        return head_grid(letters, display, most_lines, first if is_carpet and display.has_color else ())

    whole = {stack: grid(rows, display, None) for stack, rows in heads.items()}
    usual = sum(map(len, whole.values()))

    def of(lines: int) -> Iterator[Section]:
        if len(heads) == 1:
            ((_, rows),) = heads.items()
            yield Drawing(title, [line.text.rstrip() for line in grid(rows, display, lines)])
        elif lines >= usual:
            for stack, drawn in whole.items():
                yield Drawing(f"{stack}: {title}", [line.text.rstrip() for line in drawn])
        else:
            part = replace(display, width=(display.columns + GAP) // len(heads) - GAP)
            blocks = [[plain_line(stack), *grid(rows, part, lines - 1)] for stack, rows in heads.items()]
            yield Drawing(title, [line.text.rstrip() for line in beside(blocks, GAP)])

    return Elastic(of, usual, min(usual, LEAST_LINES))


@dataclass(frozen=True)
class HeadLetters(Element):
    """A letter for each head of a table of the result.

    If the grid `is_above` what the user requested, it gives up lines in favour of the request.
    """

    heads: str
    is_above: Callable[[Report], bool] = lambda _: False
    has_linear: bool = False

    def sections(self, report: Report, display: Display) -> ScreenParts:
        stacks = by_stack(field_rows(report, self.heads))
        plain = {plain_text(stack): rows for stack, rows in stacks.items()}
        letters = head_letters(plain, display, field_rows(report, "linear") if self.has_linear else ())
        yield _yielding_grid(letters) if self.is_above(report) else letters


def _yielding_grid(grid: Elastic) -> Elastic:
    """Return a grid of heads that gives up lines in favour of what the user requested."""
    return replace(grid, of=lambda lines: grid.of(lines) if lines >= LEAST_LINES else [], least=0, rank=1)


def _with_linear(heads: Mapping[str, Sequence[Row]], linear: Sequence[Row]) -> Mapping[str, Sequence[Row]]:
    """Add the heads of layers without a softmax to those of the only stack, if no layer has both kinds."""
    if linear and len(heads) == 1:
        ((stack, rows),) = heads.items()
        if not {head_place(row)[0] for row in rows} & {head_place(row)[0] for row in linear}:
            return {stack: [*rows, *linear]}
    return heads


def head_place(row: Row) -> tuple[int, int]:
    """Return the layer and the head."""
    return int(str(row.get("layer"))), int(str(row.get("head")))


def head_letter(row: Row, is_carpet: bool) -> str:
    """Return the letter of a head; in lower case, for its other weights, if many look at the first token."""
    if "mixer" in row:
        return LINEAR_LETTER
    if not is_carpet or row.get("pattern") != FIRST_TOKEN:
        return pattern_letter(row.get("pattern"))
    rest = row.get("rest_pattern")
    return pattern_letter(FIRST_TOKEN if rest in (None, UNNAMED, NOT_MEASURED) else rest).lower()


REST_TITLE = (
    "Lower case: F heads, by their other weights (f: no pattern).",
    "Lower case: F heads, by their other weights (f: no pattern). L: no softmax.",
)


def by_stack(heads: Records[R]) -> dict[str, Records[R]]:
    """Group the heads by stack."""
    of_heads: list[str] = heads.column("stack").tolist()
    return {
        stack: heads.taken([place for place, name in enumerate(of_heads) if name == stack])
        for stack in dict.fromkeys(of_heads)
    }


def is_mostly_first(heads: Sequence[Row]) -> bool:
    """Return True if over half of the heads look at the first token and their other weights are known."""
    first = [row for row in heads if row.get("pattern") == FIRST_TOKEN]
    return 2 * len(first) > len(heads) and all("rest_pattern" in row for row in first)


MOST_HEADS = 16


def _lists_heads(report: Report) -> bool:
    """Return True if the heads themselves are listed: sorted, requested, or without a known pattern."""
    survey = report.result_of(HeadSurvey)
    is_listed = not survey.patterns or bool(report.spec.get("table")) or is_cut(report)
    return bool(survey.heads) and is_listed


def _shows_patterns(report: Report) -> bool:
    return bool(report.result_of(HeadSurvey).heads) and not _lists_heads(report)


def _patterns(report: Report, display: Display) -> ScreenParts:
    """Return the patterns of each stack."""
    survey = report.result_of(HeadSurvey)
    stacks = dict.fromkeys(survey.patterns.column("stack"))
    for stack in stacks:
        yield pattern_part(stack if len(stacks) > 1 else "", survey.patterns_of(stack), report, display)


ROLLOUT_TITLE = "rollout: attention multiplied over all layers (query × key)"


def stack_sizes(survey: HeadSurvey) -> list[str]:
    """Return the size of each stack, like `6 layers × 12 heads`."""
    sizes = [size_of(stack, heads) for stack, heads in by_stack(survey.heads).items()]
    return [*sizes, size_of(LINEAR, survey.linear)] if survey.linear else sizes


def size_of(stack: str, of_stack: Records[Any]) -> str:
    """Return the size of a stack, like `6 layers × 12 heads`, after its name if there are several stacks."""
    layers, num_heads = np.unique(of_stack.column("layer"), return_counts=True)
    least, most = int(num_heads.min()), int(num_heads.max())
    heads = counted(most, "head") if least == most else f"{least} to {most} heads"
    name = f"{stack_label(stack)} ".lstrip()
    return f"{name}{counted(len(layers), 'layer')} × {heads}"


def is_cut(report: Report) -> bool:
    """Return True if the report holds only some of the heads or holds them in a different order."""
    return bool(report.spec.get("top") or report.spec.get("sort") or report.spec.get("pattern"))


def _is_whole(report: Report) -> bool:
    """Return True if a list of heads shows everything: with `table`, or if there are no patterns."""
    return bool(report.spec.get("table")) or not is_cut(report)


def _usual_heads(report: Report, display: Display) -> int:
    num_heads = len(report.result_of(HeadSurvey).heads)
    return num_heads if _is_whole(report) else requested_top(report) or MOST_HEADS


def _least_heads(report: Report, display: Display) -> int:
    return _usual_heads(report, display) if _is_whole(report) else LEAST_ROWS


def _heads_title(report: Report, heads: Records[SurveyedHead], total: int) -> str:
    return f"{some_of(len(heads), total, 'head')}{_order(report)}"


LITTLE_KNOWN = ("participation", "local_mass")
"""Statistics that a first screen leaves to the table, unless heads are sorted by them."""


def _sorted_by(report: Report, heads: Records[SurveyedHead]) -> list[str]:
    return [name for name in heads.cells if name == report.spec.get("sort")]


def _beside_sorted(report: Report, heads: Records[SurveyedHead]) -> list[str]:
    """Return the weight from other tokens, beside the weight from the tokens that the user named."""
    asked = REQUESTED_PATTERNS if report.spec.get("sort") in REQUESTED_PATTERNS else ()
    return [name for name in heads.cells if name in asked and name != report.spec.get("sort")]


def _other_statistics(report: Report, heads: Records[SurveyedHead]) -> list[str]:
    first = (*_sorted_by(report, heads), *_beside_sorted(report, heads))
    left_out = (*first, *(() if _is_whole(report) else LITTLE_KNOWN))
    return [name for name in heads.cells if name not in left_out]


def _half_widths(report: Report, heads: Records[SurveyedHead], display: Display) -> list[Column]:
    """Return half the interval of the statistic that heads are sorted by, if the report has intervals."""
    halves = {
        (row.stack, row.layer, row.head): half_width(row.mean, row.upper, display.precision)
        for row in report.result_of(HeadSurvey).intervals
        if row.statistic == report.spec.get("sort")
    }
    cells = [halves.get((head.stack, head.layer, head.head)) or NO_NUMBER for head in heads]
    return [Column(("", ""), cells)] if halves else []


def _order(report: Report) -> str:
    """Return what the heads are sorted by, in words if it is the weight between named tokens."""
    spec = report.spec
    if not spec.get("sort"):
        return ""
    name = str(spec.get("sort"))
    if name == NAMED_WEIGHT:
        name = named_weight(report)
    return plain_text(f", sorted by {name}, {'smallest' if spec.get('ascending') else 'largest'} first")


MOST_TIMED = 5
"""The number of heads named in the line about distances in time."""


def _in_time(report: Report, display: Display) -> Iterator[str]:
    """Return `encoder, mean distance in time: 0:4 0.04 s, 0:1 0.11 s ... 2:2 10.57 s`, for tokens in time."""
    for stack, heads in by_stack(report.result_of(HeadSurvey).heads).items():
        far = [head for head in heads if head.get("distance_seconds") is not None]
        far.sort(key=lambda head: head.number("distance_seconds") or 0.0)
        if not far:
            continue
        cells = [f"{head_name(head)} {fixed(head.number('distance_seconds'), 2)} s" for head in far]
        dots = "" if len(cells) <= MOST_TIMED else " ... "
        nearest = ", ".join(cells[: MOST_TIMED - bool(dots)])
        where = f"{stack_label(stack)}, mean" if stack_label(stack) else "mean"
        yield f"{where} distance in time: {nearest}{dots}{cells[-1] if dots else ''}"


HEADS_OR_PATTERNS: tuple[Element, ...] = (
    Ranked(
        "heads",
        (
            PlaceCells(),
            StatisticCells(_sorted_by),
            SpecialCells(_half_widths),
            StatisticCells(_beside_sorted),
            StatisticCells(_other_statistics),
        ),
        title=_heads_title,
        label=HeadLabel(has_stacks=False),
        usual=_usual_heads,
        least=_least_heads,
        is_cut=lambda report: not _is_whole(report),
        shows=_lists_heads,
    ),
    Special(_patterns, "patterns that do not fit are named in a sentence", shows=_shows_patterns),
    Sentences(_in_time, shows=_shows_patterns),
    HeadLetters(
        "heads",
        is_above=lambda report: "rollout" in report.tensors,
        has_linear=True,
        shows=_shows_patterns,
    ),
)
"""The patterns and a letter for each head; or the heads themselves, if they are sorted or requested."""
SIGNED_COLUMNS = (
    *("first_share", "previous_share", "current_share", "local_share", "distance", "half_life"),
    *("negative_share", "row_sum", "row_size", "one_key_share"),
)


def _signed_title(report: Report, heads: Records[SignedHead], total: int) -> str:
    """Return the title for heads without a softmax: what mixes their tokens, and the base of the shares."""
    mixers = ", ".join(dict.fromkeys(head.mixer for head in field_rows(report, "linear") if head.mixer))
    mixers = mixers or "layers without a softmax"
    count, rest = some_of(len(heads), total, "head"), "" if len(heads) == total else "; --show linear has all"
    return f"{count} of {plain_text(mixers)}: shares of |w|, as weights have signs; lengths in tokens{rest}"


def _usual_signed(report: Report, display: Display) -> int:
    return len(field_rows(report, "linear")) if _is_whole(report) else MOST_HEADS


def _least_signed(report: Report, display: Display) -> int:
    return len(field_rows(report, "linear")) if report.spec.get("table") else LEAST_ROWS


SIGNED_HEADS = Ranked(
    "linear",
    tuple(map(NumberCells, SIGNED_COLUMNS)),
    title=_signed_title,
    label=HeadLabel(has_stacks=False),
    usual=_usual_signed,
    least=_least_signed,
    rank=1,
    is_cut=lambda report: not report.spec.get("table"),
    shows=lambda report: bool(field_rows(report, "linear")),
)
"""Statistics of the signed weights of heads in layers without a softmax."""
MAPS = (LooksAtPictures(), PictureRows(), WholeMatrix("rollout", ROLLOUT_TITLE))
"""Where heads look in one or more pictures; the rollout of a text."""


def survey_main(report: Report) -> tuple[str, ...]:
    """Return the statistic of the pattern that most heads show, then the weight on the previous token."""
    shown = [row for row in report.result_of(HeadSurvey).patterns if row.statistic and row.heads]
    most = max(shown, key=lambda row: row.heads or 0, default=None)
    return *([str(most.statistic)] if most is not None else []), "previous_token"


def survey_table(report: Report) -> PageTable | None:
    """Return the heads by the statistic that they are sorted by, or the strongest heads of each pattern."""
    survey, sort = report.result_of(HeadSurvey), report.spec.get("sort")
    if isinstance(sort, str) and survey.heads and sort in survey.heads.cells:
        return PageTable("heads", ("pattern", sort))
    if survey.strongest:
        # The value of a uniform head is an entropy, which is not comparable with shares of weight.
        return PageTable("strongest", ("pattern", "value"), by="value", last=("pattern", "uniform"))
    return PageTable("heads", ("pattern", "max_weight")) if survey.heads else None
