"""The first screen of `attn ablate`."""

from collections.abc import Iterator

from rich.cells import cell_len

from attncli.core.names import EFFECTS, LOOKED_AT
from attncli.features.ablate.results import BaselineNumbers, HeadEffect, HeadEffects
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import ends, named_head, number, quoted, signed, words_of
from attncli.views.first_screen import (
    FirstScreen,
    HeadGrids,
    LookedAtCells,
    Notes,
    PageTable,
    PatternCells,
    Ranked,
    ReadLine,
    Sentences,
    ShortenedLine,
    SpecialCells,
    TitleLine,
    grid_lines,
)
from attncli.views.model_screens import NATS, effect_named, looked_at_columns, nats, some_of
from attncli.views.report_sections import requested_top, split_header
from attncli.views.sections import Column
from attncli.views.texts import fixed

MOST_LINES, FEWEST_HEADS = 30, 4
HIGHEST_GRID = 13
FIXED_LINES = 9
"""The title, the text, the table's title, header and rule, the line Next, and the blank lines between them.

A header with names of two words takes another line.
"""


def _sort(report: Report) -> str:
    return str(report.spec.get("sort"))


def shows_all_heads(report: Report) -> bool:
    """Return True if all heads were measured, so that a grid can show them."""
    return not report.spec.get("heads") or bool(report.spec.get("approximate"))


def _other_prompt(report: Report) -> str:
    other = report.spec.get("other")
    return f"other: {other}" if other else ""


def _heads_below(report: Report, display: Display) -> int:
    """Return the number of heads that fit on the screen below the grids, the summary and the notes."""
    heads = report.result_of(HeadEffects).heads
    drawings = GRIDS.drawings(report, display)
    has_second_header = bool(looked_at_columns(heads, display)) or any(
        effect_header[0] for effect_header in map(_effect_header, _effects(heads, _sort(report)))
    )
    taken = FIXED_LINES + has_second_header + (grid_lines(drawings) if any(d.usual for d in drawings) else 0)
    lines = (*_summary(report, display), *map(plain_text, _notes(report)))
    taken += sum(-(-cell_len(line) // display.columns) for line in lines)
    return requested_top(report) or max(FEWEST_HEADS, MOST_LINES - taken)


def _notes(report: Report) -> Iterator[str]:
    """Yield the meaning of the columns whose names do not explain them, then the notes."""
    heads = report.result_of(HeadEffects).heads
    meanings = ["kl: how far predictions move"] if "kl" in heads.cells else []
    if {*LOOKED_AT} <= heads.cells.keys() and any(row.key is not None for row in heads):
        is_one = len({(row.query, row.query_token) for row in heads}) == 1
        worst, strongest = ("from", "looks at") if is_one else ("worst token", "strongest key")
        meanings += [f"{worst}: the token where the prediction loses the most without the head"]
        meanings += [f"{strongest}: the key with the head's largest weight there, and this weight"]
    if meanings:
        yield f"{'; '.join(meanings)}."
    yield from report.notes


def _most_heads(report: Report, display: Display) -> int:
    return requested_top(report) or len(report.result_of(HeadEffects).heads)


def _summary(report: Report, display: Display) -> Iterator[str]:
    """Yield the numbers with all heads, and the effects of removing several heads at once."""
    result, precision = report.result_of(HeadEffects), display.precision
    num_heads = len(report.spec.get("heads") or ())
    if result.baseline:
        yield f"with all heads: {_numbers(result.baseline, precision)}"
    if result.joint:
        yield f"without {num_heads} heads at once: {_numbers(result.joint, precision, signed=True)}"
    if approximation := result.approximation:
        correlation = fixed(approximation.rank_correlation, precision)
        yield f"rank correlation of approximate with loss, over {approximation.heads} heads: {correlation}"


def _numbers(numbers: BaselineNumbers, precision: int, *, signed: bool = False) -> str:
    names = (name for name in EFFECTS if name in numbers)
    parts = (
        f"{name} {_number(name, numbers[name], precision, signed)} {nats(name)}".rstrip() for name in names
    )
    return ", ".join(parts)


def _number(name: str, value: object, precision: int, signed: bool = True) -> str:
    """Format a number; a difference gets a sign."""
    is_more = effect_named(_effect_name(name)).is_difference and isinstance(value, float) and value > 0
    return ("+" if signed and is_more else "") + fixed(value, precision)


LARGEST_EFFECTS = {
    "loss": "{change} raises the loss most",
    "kl": "{change} moves the predictions most",
    "probability": "{change} lowers the answer's probability most",
    "logit_difference": "{change} lowers the difference between the logits most",
    "restored": "{change} restores the most of the other prompt's logit difference",
    "cls_change": "{change} turns [CLS] most",
    "output_change": "{change} changes the output most",
    "approximate": "The loss depends most on {head}, by its gradient",
}
"""The sentence about the first head, by the effect that heads are sorted by."""


def _finding(report: Report) -> Iterator[str]:
    """Yield the head with the largest effect, and the next one or the effect of several heads at once."""
    result, sort = report.result_of(HeadEffects), _sort(report)
    effect, unit = effect_named(sort), f" {nats(sort)}".rstrip()
    text = signed if effect.is_difference else number
    verb = "swapping" if report.spec.get("method") == "swap" else "removing"
    first, *others = result.heads
    value = first.number(sort) if sort in first else None
    is_worse = value is not None and (-value if effect.negative_is_better else value) > 0
    if is_worse and sort in LARGEST_EFFECTS:
        head = _swapped(first)
        most = LARGEST_EFFECTS[sort].format(head=head, change=f"{verb.capitalize()} {head}")
        between, start = ends(first, f"{sort}_low", f"{sort}_high"), ""
        if effect.is_difference and result.baseline is not None and sort in result.baseline:
            start = f", from {number(result.baseline.number(sort))} with all heads"
        yield f"{most}: {text(value)}{unit}{between}{start}."
        if others and not result.joint:
            yield f"The next is {_swapped(others[0])} with {text(others[0].number(sort))}."
    else:
        yield f"No head matters here: {verb} one makes {words_of(sort)} no worse."
    if result.joint is not None and sort in result.joint:
        count = counted(len(report.spec.get("heads") or ()), "head")
        yield f"{verb.capitalize()} {count} at once: {text(result.joint.number(sort))}{unit}."


def _swapped(row: HeadEffect) -> str:
    """Return a head, and the token at which it was swapped if tokens were swapped separately."""
    where = f" at {quoted(row.token_text)} (token {row.token})" if "token_text" in row else ""
    return f"{named_head(row)}{where}"


def _effect_name(name: str) -> str:
    """Return the effect of a column, such as `loss` for `loss_low`, the lower end of its interval."""
    return name.removesuffix("_low").removesuffix("_high")


def _at_token(report: Report, rows: Records[HeadEffect], display: Display) -> list[Column]:
    """Return a column with the token at which each head was swapped, if tokens were swapped separately."""
    if "token_text" not in rows.cells:
        return []
    return [Column(("at", "token"), [f"{row.token} {plain_text(row.token_text)}" for row in rows], left=True)]


def _lost(report: Report, rows: Records[HeadEffect], display: Display) -> list[Column]:
    """Return the columns of effects, starting with the effect that heads are sorted by."""
    return [
        Column(_effect_header(name), [_number(name, row[name], display.precision) for row in rows])
        for name in _effects(rows, _sort(report))
    ]


def _title(report: Report, rows: Records[HeadEffect], total: int) -> str:
    effect, name = effect_named(_sort(report)), _sort(report).replace("_", " ")
    change = f"{'fall' if effect.negative_is_better else 'rise'} in {name}" if effect.is_difference else name
    what = "swap" if "token_text" in rows.cells else "head"
    return f"{some_of(len(rows), total, what)}, sorted by {change}, largest first"


def _effect_header(name: str) -> tuple[str, str]:
    """Return the two lines of a header: the effect and its unit, or the two words of the name."""
    return (name, NATS) if nats(name) else split_header(name)


def _effects(rows: Records[HeadEffect], sort: str) -> list[str]:
    """Return the effects that were measured, starting with the effect that heads are sorted by."""
    effects = [name for name in rows.cells if _effect_name(name) in EFFECTS]
    return sorted(effects, key=lambda name: not name.startswith(sort))


GRIDS = HeadGrids(_sort, highest=HIGHEST_GRID, shows=shows_all_heads)
SCREEN = FirstScreen(
    HeadEffects,
    (
        TitleLine(),
        ReadLine(),
        ShortenedLine(_other_prompt),
        Sentences(_summary),
        Ranked(
            "heads",
            # The token comes first if each row is about a single token.
            (
                SpecialCells(_at_token),
                PatternCells(),
                LookedAtCells(of=(1,)),
                SpecialCells(_lost),
                LookedAtCells(of=(2,)),
            ),
            title=_title,
            usual=_heads_below,
            most=_most_heads,
            rank=1,
            is_cut=True,
            settings={"sort": str},
        ),
        GRIDS,
        Notes(_notes, apart=True),
    ),
    finding=_finding,
    page_table=lambda report: PageTable("heads", ("pattern", _sort(report), "kl")),
)
"""The model, its text and its predictions; the heads sorted by effect; a grid; notes."""
