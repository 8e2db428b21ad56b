"""The first screens of `cache`: what heads that keep few keys lose, and what policies lose."""

from collections.abc import Sequence
from functools import partial

from attncli.errors import readable_bytes
from attncli.plain_text import plain_text
from attncli.records.caches import HeadNeed, LimitedHeads, LostTogether, PolicyCost, PolicyCosts
from attncli.records.columns import Records
from attncli.report import PLACES, Report
from attncli.views import Display
from attncli.views.model_screens import head_names, looked_at_columns, some_of, tenths
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    text_line,
    title_line,
)
from attncli.views.texts import fixed

MOST_LIMITED, LEAST_LIMITED = 10, 3
LOST = ("kl", "loss", "needle")
SIGNED = ("loss", "needle")
MEANS = {
    "kl": "kl (how far predictions move), in nats per token",
    "loss": "loss, in nats per token more",
    "needle": "loss of the needle, in nats per token more",
}


def limited_heads_screen(report: Report, display: Display) -> ScreenParts:
    """What was read, and what is lost by each head alone, and by shares of them together."""
    result = report.result_of(LimitedHeads)
    yield title_line(report, display)
    yield text_line(report, display)
    baseline, count = result.baseline, len(result.heads)
    losses = _whole_losses(baseline.loss, baseline.needle, display.precision)
    kept = f"limited: the first {result.sink} and last {result.window} keys"
    yield Paragraph(f"{losses}, {readable_bytes(baseline.bytes)}; {kept}", "")
    usual = min(MOST_LIMITED, count)
    yield Elastic(
        lambda most: [_needed(result.heads[:most], count, result.need, display)],
        usual,
        min(LEAST_LIMITED, usual),
        count,
        rank=1,
    )
    for name, tensor in report.tensors.items():
        if tensor.axes == PLACES:
            yield tenths(name, tensor, result.need, display)
    yield _together(result.curve, display)
    if result.at_budget is not None:
        yield _whole(result, result.at_budget, display)


def _whole_losses(loss: float | None, needle: float | None, precision: int) -> str:
    of_needle = "" if needle is None else f", needle {fixed(needle, precision)}"
    return f"with the whole cache: loss {fixed(loss, precision)}{of_needle}"


def _needed(heads: Records[HeadNeed], count: int, need: str, display: Display) -> Grid:
    """The heads that need most, the weight on the keys that each would keep, and what it would forget."""
    names = [need, *(name for name in (*LOST, "worst") if name in heads.cells and name != need)]
    lost = [
        Column(("", name), [_lost(name, head[name], display.precision) for head in heads]) for name in names
    ]
    kept = Column(("weight", "kept"), [fixed(head.kept_weight, display.precision) for head in heads])
    columns = [*lost, kept, *looked_at_columns(heads, display, "forgets")]
    title = (
        f"{some_of(len(heads), count, 'key/value head')}, largest {need} first; kl: how far predictions move"
    )
    return Grid(title, head_names(heads), columns).first_group(display.width)


def _lost(name: str, value: object, precision: int) -> str:
    number = fixed(value, precision)
    return f"+{number}" if name in SIGNED and isinstance(value, float) and value > 0 else number


def _together(curve: Records[LostTogether], display: Display) -> Grid:
    """The curve, a column for each share of the heads; of every second one where not all fit."""
    grids = [_curve(curve[::-step][::-1], display) for step in (1, 2, 4)]
    fitting = (grid for grid in grids if len(grid.first_group(display.width).columns) == len(grid.columns))
    return next(fitting, grids[-1])


def _curve(curve: Records[LostTogether], display: Display) -> Grid:
    names = [name for name in LOST if name in curve.cells]
    columns = [
        Column(
            ("", f"{row.share:.0%}"),
            [f"{row.cache:.0%}", *(_lost(name, row[name], display.precision) for name in names)],
        )
        for row in curve
    ]
    title = "limited together, the least needed first, and what of the cache is left"
    return Grid(title, Column(("", "heads"), ["cache", *names]), columns)


def _whole(result: LimitedHeads, at_budget: LostTogether, display: Display) -> Paragraph:
    """What the budget costs, and the heads that keep everything."""
    lost = ", ".join(
        f"{name} {_lost(name, at_budget[name], display.precision)}" for name in LOST if name in at_budget
    )
    names = ", ".join(head.name for head in result.full or ()) or "no head"
    return Paragraph(f"{at_budget.cache:.0%} of the cache: {lost}. Whole: {names}", "line")


def policies_screen(report: Report, display: Display) -> ScreenParts:
    """What was read, and what is lost by policy and budget."""
    result = report.result_of(PolicyCosts)
    yield title_line(report, display)
    yield text_line(report, display)
    baseline = result.baseline
    yield Paragraph(_whole_losses(baseline.loss, baseline.needle, display.precision), "")
    policies = list(dict.fromkeys(row.policy for row in result.policies))
    most = len(policies)
    names = [name for name in ("needle", "kl", "loss") if name in result.policies.cells]
    for rank, name in enumerate(names):
        grid = _by_budget(result.policies, policies, name, display)
        yield Elastic(partial(_or_none, grid), most, 0 if rank else most, most, rank)


def _or_none(grid: Grid, room: int) -> list[Section]:
    """The whole of it, or nothing."""
    return [grid] if room == len(grid.label.cells) else []


def _by_budget(costs: Records[PolicyCost], policies: Sequence[str], name: str, display: Display) -> Grid:
    """A row for each policy, a column for each budget."""
    budgets = list(dict.fromkeys(row.budget for row in costs if row.budget is not None))
    cells = {(row.policy, row.budget): _lost(name, row[name], display.precision) for row in costs}
    columns = [
        Column(("", f"{budget:g}"), [cells.get((policy, budget), "") for policy in policies])
        for budget in budgets
    ]
    of_all_keys = {
        row.policy: f"{cells[row.policy, None]} ({row.cache:.2f})" for row in costs if row.budget is None
    }
    if of_all_keys:
        columns.append(Column(("", "all keys"), [of_all_keys.get(policy, "") for policy in policies]))
    title = f"{MEANS[name]}, by the share of the cache that stays"
    return Grid(title, Column(("", "policy"), [*map(plain_text, policies)], left=True), columns).first_group(
        display.width
    )
