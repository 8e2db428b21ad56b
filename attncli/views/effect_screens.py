"""The first screen of `ablate`: what is lost without each head."""

from collections.abc import Iterator
from dataclasses import replace

from rich.cells import cell_len

from attncli.core.names import EFFECTS
from attncli.plain_text import plain_text
from attncli.records.columns import Records
from attncli.records.effects import BaselineNumbers, HeadEffect, HeadEffects
from attncli.report import Report
from attncli.views import Display
from attncli.views.model_screens import (
    LEAST_ROWS,
    NATS,
    effect_named,
    head_names,
    looked_at_columns,
    nats,
    patterns_on_average,
    some_of,
    tenths,
)
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    notes_in,
    one_line,
    split_header,
    text_line,
    title_line,
)
from attncli.views.texts import fixed

MOST_LINES, FEWEST_HEADS = 30, 4
HIGHEST_GRID = 13
OTHER_LINES = 9
"""The title, the text, the table's title, header and rule, what to type next, and blank lines between.

A header with names of two words has a second line.
"""


def ablate_screen(report: Report, display: Display) -> ScreenParts:
    """The model, what it read and how well it did; the heads in order; a grid; what was removed."""
    result = report.result_of(HeadEffects)
    width, heads, sort = display.width or 0, result.heads, str(report.spec.get("sort"))
    yield title_line(report, display)
    yield text_line(report, display)
    if other := report.spec.get("other"):
        yield one_line(f"other: {' '.join(str(other).split())}", display)
    num_heads = len(report.spec.get("heads") or ())
    summary = list(_summary(result, num_heads, display.precision))
    yield from (Paragraph(line, "") for line in summary)
    is_whole = not report.spec.get("heads") or bool(report.spec.get("approximate"))
    grids = report.tensors.items() if is_whole else ()
    drawings = [tenths(name, tensor, sort, display) for name, tensor in grids]
    height = sum(drawing.most + 2 for drawing in drawings)
    if height > HIGHEST_GRID:
        drawings, height = [replace(drawing, usual=0) for drawing in drawings], 0
    notes = [plain_text(note) for note in report.notes]
    has_second_header = bool(looked_at_columns(heads, display)) or any(
        effect_header[0] for effect_header in map(_effect_header, _effects(heads, sort))
    )
    taken = OTHER_LINES + has_second_header + height
    taken += sum(-(-cell_len(line) // width) for line in (*summary, *notes))
    top = report.spec.get("top")
    usual = min(top or max(FEWEST_HEADS, MOST_LINES - taken), len(heads))
    yield Elastic(
        lambda count: [_ranked(heads[:count], len(heads), sort, display)],
        usual,
        min(LEAST_ROWS, usual),
        min(top or len(heads), len(heads)),
        rank=1,
    )
    yield from drawings
    yield notes_in(notes, display, apart=True)


def _summary(result: HeadEffects, num_heads: int, precision: int) -> Iterator[str]:
    """What was measured with all heads, and without several at once."""
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


def _effect_of(name: str) -> str:
    """`loss` of `loss_low`, the lower end of its interval."""
    return name.removesuffix("_low").removesuffix("_high")


def _ranked(rows: Records[HeadEffect], count: int, sort: str, display: Display) -> Grid:
    """The first heads: what each looks at, and its effects, starting with the one they are sorted by."""
    has_stacks = len({row.stack for row in rows}) > 1
    label = head_names(rows)
    if has_stacks:
        names = [f"{row.stack} {name}" for row, name in zip(rows, label.cells, strict=True)]
        label = Column(label.header, names)
    columns = [
        Column(_effect_header(name), [_number(name, row[name], display.precision) for row in rows])
        for name in _effects(rows, sort)
    ]
    order = "lowest" if effect_named(sort).falls else "largest"
    at_tokens = [
        Column(
            ("at", "token"),
            [f"{row.token} {plain_text(row.token_text)}" for row in rows],
            left=True,
        )
        for row in rows[:1]
        if "token_text" in row
    ]
    title = f"{some_of(len(rows), count, 'swap' if at_tokens else 'head')}, {order} {sort} first"
    looks_at = looked_at_columns(rows, display)
    # Where every head is missed at one token, that is what the screen is about.
    first, last = (looks_at, []) if len(looks_at) == 1 else ([], looks_at)
    columns = [*at_tokens, patterns_on_average(rows), *first, *columns, *last]
    return Grid(title, label, columns).first_group(display.width)


def _effect_header(name: str) -> tuple[str, str]:
    """`loss`, `nats`; a name of two words on two lines."""
    return (name, NATS) if nats(name) else split_header(name)


def _effects(rows: Records[HeadEffect], sort: str) -> list[str]:
    """The effects that were measured, starting with the one that the heads are sorted by."""
    effects = [name for name in rows.cells if _effect_of(name) in EFFECTS]
    return sorted(effects, key=lambda name: not name.startswith(sort))
