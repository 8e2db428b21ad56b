"""The first screens of a smaller cache: heads that keep few keys, and policies over budgets."""

from collections.abc import Sequence
from functools import partial

from attncli.report import PLACES, Numbers, Report, Row
from attncli.views import Display
from attncli.views.matrices import head_name
from attncli.views.model_screens import looked_at_columns, some_of, tenths
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    one_line,
    text_line,
    titled,
)
from attncli.views.texts import fixed

MOST_HEADS, LEAST_HEADS = 10, 3
LOST = ("kl", "loss", "needle")
SIGNED = ("loss", "needle")
MEANS = {
    "kl": "kl, in nats per token",
    "loss": "loss, in nats per token more",
    "needle": "loss of the needle, in nats per token more",
}


def cache_screen(report: Report, display: Display) -> ScreenParts:
    """What was read, and what is lost: by head and together, or by policy and budget."""
    yield one_line(titled(report), display, "title")
    yield text_line(report, display)
    if report.table("policies"):
        yield from _policies(report, display)
    else:
        yield from _heads(report, display)


def _baseline(report: Report, precision: int) -> str:
    baseline = report.numbers("baseline")
    losses = (f"{name} {fixed(baseline[name], precision)}" for name in ("loss", "needle") if name in baseline)
    return f"with the whole cache: {', '.join(losses)}"


def _heads(report: Report, display: Display) -> ScreenParts:
    heads, curve, baseline = report.table("heads"), report.table("curve"), report.numbers("baseline")
    size = _size(baseline["bytes"])
    kept = f"a limited head keeps {baseline['sink']} + {baseline['window']} keys"
    yield Paragraph(f"{_baseline(report, display.precision)}, {size}; {kept}", "")
    need = "needle" if "needle" in heads[0] else "worst"
    usual = min(MOST_HEADS, len(heads))
    yield Elastic(
        lambda count: [_needed(heads[:count], len(heads), need, display)],
        usual,
        min(LEAST_HEADS, usual),
        len(heads),
        rank=1,
    )
    for name, tensor in report.tensors.items():
        if tensor.axes == PLACES:
            yield tenths(name, tensor, need, display)
    yield _together(curve, display)
    if at_budget := report.numbers("at_budget"):
        yield _whole(at_budget, report.table("full"), display)


def _needed(rows: Sequence[Row], count: int, need: str, display: Display) -> Grid:
    """The heads that need most, the weight on the keys that each would keep, and what it would forget."""
    names = [need, *(name for name in (*LOST, "worst") if name in rows[0] and name != need)]
    lost = [Column(("", name), [_lost(name, row[name], display.precision) for row in rows]) for name in names]
    kept = Column(("weight", "kept"), [fixed(row["kept_weight"], display.precision) for row in rows])
    columns = [*lost, kept, *looked_at_columns(rows, display, "forgets")]
    title = f"{some_of(len(rows), count, 'key/value head')} by {need}, largest first"
    return Grid(title, Column(("", "head"), [head_name(row) for row in rows]), columns).first_group(
        display.width
    )


def _lost(name: str, value: object, precision: int) -> str:
    number = fixed(value, precision)
    return f"+{number}" if name in SIGNED and isinstance(value, float) and value > 0 else number


def _together(curve: Sequence[Row], display: Display) -> Grid:
    """The curve, a column for each share of the heads; of every second one where not all fit."""
    grids = [_curve(list(curve)[::-step][::-1], display) for step in (1, 2, 4)]
    fitting = (grid for grid in grids if len(grid.first_group(display.width).columns) == len(grid.columns))
    return next(fitting, grids[-1])


def _curve(rows: Sequence[Row], display: Display) -> Grid:
    names = ["cache", *(name for name in LOST if name in rows[0])]
    columns = [
        Column(
            ("", _percent(row["share"])),
            [_percent(row["cache"]), *(_lost(name, row[name], display.precision) for name in names[1:])],
        )
        for row in rows
    ]
    title = "limited together, the least needed first, and what of the cache is left"
    return Grid(title, Column(("", "heads"), names), columns)


def _whole(numbers: Numbers, full: Sequence[Row], display: Display) -> Paragraph:
    """What the budget costs, and the heads that keep everything."""
    lost = ", ".join(
        f"{name} {_lost(name, numbers[name], display.precision)}" for name in LOST if name in numbers
    )
    names = ", ".join(map(head_name, full)) or "no head"
    return Paragraph(f"{_percent(numbers['cache'])} of the cache: {lost}. Whole: {names}", "line")


def _policies(report: Report, display: Display) -> ScreenParts:
    rows = report.table("policies")
    yield Paragraph(_baseline(report, display.precision), "")
    names = [name for name in ("needle", "kl", "loss") if name in rows[0]]
    policies = list(dict.fromkeys(str(row["policy"]) for row in rows))
    for rank, name in enumerate(names):
        most = len(policies)
        grid = _by_budget(rows, policies, name, display)
        yield Elastic(partial(_or_none, grid), most, 0 if rank else most, most, rank)


def _or_none(grid: Grid, room: int) -> list[Section]:
    """The whole of it, or nothing."""
    return [grid] if room == len(grid.label.cells) else []


def _by_budget(rows: Sequence[Row], policies: Sequence[str], name: str, display: Display) -> Grid:
    """A row for each policy, a column for each budget."""
    budgets = list(dict.fromkeys(row["budget"] for row in rows if row["budget"] is not None))
    cells = {(row["policy"], row["budget"]): _lost(name, row[name], display.precision) for row in rows}
    columns = [
        Column(("", f"{budget:g}"), [cells.get((policy, budget), "") for policy in policies])
        for budget in budgets
    ]
    if rest := {row["policy"]: row for row in rows if row["budget"] is None}:
        column = [
            f"{_lost(name, rest[policy][name], display.precision)} ({rest[policy]['cache']:.2f})"
            if policy in rest
            else ""
            for policy in policies
        ]
        columns.append(Column(("", "all keys"), column))
    title = f"{MEANS[name]}, by the share of the cache that stays"
    return Grid(title, Column(("", "policy"), list(policies), left=True), columns).first_group(display.width)


def _percent(share: object) -> str:
    return f"{float(str(share)):.0%}"


def _size(num_bytes: object) -> str:
    size = float(str(num_bytes))
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
