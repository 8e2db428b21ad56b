"""The first screen of `ablate`: what is lost without each head."""

from collections.abc import Iterator

from rich.cells import cell_len

from attncli.core.names import EFFECTS, stack_label
from attncli.features.ablate.results import BaselineNumbers, HeadEffect, HeadEffects
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.first_screen import (
    FirstScreen,
    HeadGrids,
    LookedAtCells,
    Notes,
    PatternCells,
    Ranked,
    ReadLine,
    Sentences,
    ShortenedLine,
    SpecialCells,
    TitleLine,
    lines_of,
)
from attncli.views.model_screens import NATS, effect_named, looked_at_columns, nats, some_of
from attncli.views.report_sections import asked_top, split_header
from attncli.views.sections import Column
from attncli.views.texts import fixed

MOST_LINES, FEWEST_HEADS = 30, 4
HIGHEST_GRID = 13
OTHER_LINES = 9
"""The title, the text, the table's title, header and rule, what to type next, and blank lines between.

A header with names of two words has a second line.
"""


def _sort(report: Report) -> str:
    return str(report.spec.get("sort"))


def is_of_all_heads(report: Report) -> bool:
    """Whether all heads were measured, as a grid of them shows."""
    return not report.spec.get("heads") or bool(report.spec.get("approximate"))


def _other_prompt(report: Report) -> str:
    other = report.spec.get("other")
    return f"other: {other}" if other else ""


def _heads_below(report: Report, display: Display) -> int:
    """How many heads there is room for beside the grids, the summary and the notes."""
    heads = report.result_of(HeadEffects).heads
    drawings = GRIDS.drawings(report, display)
    has_second_header = bool(looked_at_columns(heads, display)) or any(
        effect_header[0] for effect_header in map(_effect_header, _effects(heads, _sort(report)))
    )
    taken = OTHER_LINES + has_second_header + (lines_of(drawings) if any(d.usual for d in drawings) else 0)
    lines = (*_summary(report, display), *map(plain_text, report.notes))
    taken += sum(-(-cell_len(line) // display.columns) for line in lines)
    return asked_top(report) or max(FEWEST_HEADS, MOST_LINES - taken)


def _most_heads(report: Report, display: Display) -> int:
    return asked_top(report) or len(report.result_of(HeadEffects).heads)


def _summary(report: Report, display: Display) -> Iterator[str]:
    """What was measured with all heads, and without several at once."""
    result, precision = report.result_of(HeadEffects), display.precision
    num_heads = len(report.spec.get("heads") or ())
    if result.baseline:
        yield f"with all heads: {_numbers(result.baseline, precision)}"
    if result.joint:
        yield f"without {num_heads} heads at once: {_numbers(result.joint, precision, signed=True)}"
    if approximation := result.approximation:
        correlation = fixed(approximation.rank_correlation, precision)
        yield f"rank correlation of approximate and loss, on {approximation.heads} heads: {correlation}"


def _numbers(numbers: BaselineNumbers, precision: int, *, signed: bool = False) -> str:
    names = (name for name in EFFECTS if name in numbers)
    parts = (
        f"{name} {_number(name, numbers[name], precision, signed)} {nats(name)}".rstrip() for name in names
    )
    return ", ".join(parts)


def _number(name: str, value: object, precision: int, signed: bool = True) -> str:
    """A number with its sign where it is a difference."""
    is_more = effect_named(_effect_of(name)).is_difference and isinstance(value, float) and value > 0
    return ("+" if signed and is_more else "") + fixed(value, precision)


MOST_LOST = {
    "loss": "{alone} the loss rises most",
    "kl": "{alone} the predictions move most",
    "probability": "{alone} the answer's probability falls most",
    "logit_difference": "{alone} the difference of the logits falls most",
    "restored": "{head} alone restores most of the other prompt's difference of logits",
    "cls_change": "{alone} [CLS] turns most",
    "output_change": "{alone} the output changes most",
    "approximate": "By its gradient {head} counts most",
}
"""What the first head is first in, by what the heads are sorted by."""


def _finding(report: Report) -> Iterator[str]:
    """What is lost without all of them, and the head without which most is lost, if anything is."""
    result, precision = report.result_of(HeadEffects), Display().precision
    for line in _summary(report, Display()):
        yield f"{line[0].upper()}{line[1:]}."
    sort = _sort(report)
    first = next(iter(result.heads), None)
    number = None if first is None else first.number(sort)
    effect = effect_named(sort)
    if (
        first is None
        or number is None
        or sort not in MOST_LOST
        or not (-number if effect.negative_is_better else number) > 0
    ):
        return
    head = f"{stack_label(first.stack)} {first.layer}:{first.head}".strip()
    where = f" at token {first.token} {plain_text(first.token_text)}" if "token_text" in first else ""
    is_swap = report.spec.get("method") == "swap"
    alone = f"With {head} alone as on the other prompt" if is_swap else f"Without {head} alone"
    numbers = [first.get(f"{sort}{end}") for end in ("_low", "_high")]
    low, high = (fixed(each, precision) for each in numbers)
    interval = "" if None in numbers else f" ({low} to {high})"
    unit = f" {nats(sort)}".rstrip()
    most = MOST_LOST[sort].format(head=head, alone=alone)
    yield f"{most}{where}: {_number(sort, number, precision)}{unit}{interval}."
    if effect.is_difference and not is_swap:
        direction = "rises" if effect.negative_is_better else "falls"
        yield f"Where it {direction}, the model does better without the head."
    if first.get("query_token") is not None:
        yield "query: the token where a head is missed most; key: what it looks at most from there."


def _effect_of(name: str) -> str:
    """`loss` of `loss_low`, the lower end of its interval."""
    return name.removesuffix("_low").removesuffix("_high")


def _at_token(report: Report, rows: Records[HeadEffect], display: Display) -> list[Column]:
    """The token at which a head was replaced, where each was at one."""
    if "token_text" not in rows.cells:
        return []
    return [Column(("at", "token"), [f"{row.token} {plain_text(row.token_text)}" for row in rows], left=True)]


def _lost(report: Report, rows: Records[HeadEffect], display: Display) -> list[Column]:
    """The effects, starting with the one that heads are sorted by."""
    return [
        Column(_effect_header(name), [_number(name, row[name], display.precision) for row in rows])
        for name in _effects(rows, _sort(report))
    ]


def _title(report: Report, rows: Records[HeadEffect], total: int) -> str:
    effect, name = effect_named(_sort(report)), _sort(report).replace("_", " ")
    change = f"{'fall' if effect.negative_is_better else 'rise'} in {name}" if effect.is_difference else name
    what = "swap" if "token_text" in rows.cells else "head"
    return f"{some_of(len(rows), total, what)}, largest {change} first"


def _effect_header(name: str) -> tuple[str, str]:
    """`loss`, `nats`; a name of two words on two lines."""
    return (name, NATS) if nats(name) else split_header(name)


def _effects(rows: Records[HeadEffect], sort: str) -> list[str]:
    """The effects that were measured, starting with the one that the heads are sorted by."""
    effects = [name for name in rows.cells if _effect_of(name) in EFFECTS]
    return sorted(effects, key=lambda name: not name.startswith(sort))


GRIDS = HeadGrids(_sort, highest=HIGHEST_GRID, shows=is_of_all_heads)
SCREEN = FirstScreen(
    HeadEffects,
    (
        TitleLine(),
        ReadLine(),
        ShortenedLine(_other_prompt),
        Sentences(_summary),
        Ranked(
            "heads",
            # Where every head is missed at one token, that is what the screen is about.
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
        Notes(apart=True),
    ),
    finding=_finding,
)
"""The model, what it read and how well it did; the heads in order; a grid; what was removed."""
