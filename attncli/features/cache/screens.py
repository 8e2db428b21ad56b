"""The first screens of `cache`: losses by limited head and losses by policy."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from attncli.errors import readable_bytes
from attncli.features.cache.results import (
    HeadNeed,
    LimitedHeads,
    LostTogether,
    PolicyCost,
    PolicyCosts,
    need_in,
)
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import number, percent, quoted, signed
from attncli.views.first_screen import (
    FirstScreen,
    HeadGrids,
    HeadLabel,
    LookedAtCells,
    NumberCells,
    PageTable,
    Ranked,
    ReadLine,
    Sentences,
    Special,
    SpecialCells,
    TitleLine,
)
from attncli.views.model_screens import some_of
from attncli.views.sections import Column, Elastic, Grid, ScreenParts, Section
from attncli.views.texts import fixed

MOST_LIMITED, LEAST_LIMITED = 10, 3
LOST = ("kl", "loss", "needle")
SIGNED = ("loss", "needle")
MEANS = {
    "kl": "kl (how far predictions move), nats per token",
    "loss": "increase in loss, nats per token",
    "needle": "increase in the needle's loss, nats per token",
}


def _whole_cache(report: Report, display: Display) -> Iterator[str]:
    """The losses and size of the full cache, and the keys that a limited head keeps."""
    result = report.result_of(LimitedHeads)
    losses = _whole_losses(result.baseline.loss, result.baseline.needle, display.precision)
    yield f"{losses}, {readable_bytes(result.baseline.bytes)}; limited heads keep {_limit_text(result)}"


def _limit_text(result: LimitedHeads) -> str:
    """The kept keys in words: `the first 4 and last 64 keys`, `the first key and the last 7`."""
    first, last = result.sink, result.window
    if first > 1 and last > 1:
        return f"the first {first} and last {last} keys"
    if not first:
        return "the last key" if last == 1 else f"the last {last} keys"
    first_keys = "the first key" if first == 1 else f"the first {first} keys"
    return f"{first_keys} and the last{'' if last == 1 else f' {last}'}"


def _whole_losses(loss: float | None, needle: float | None, precision: int) -> str:
    needle_part = "" if needle is None else f", needle {fixed(needle, precision)}"
    return f"full cache: loss {fixed(loss, precision)}{needle_part}"


def _need(report: Report) -> str:
    return report.result_of(LimitedHeads).need


def _losses(report: Report, rows: Records[HeadNeed], display: Display) -> list[Column]:
    """The changes without the keys that a head would forget, starting with the sorted column."""
    need = need_in(rows)
    names = [need, *(name for name in (*LOST, "worst") if name in rows.cells and name != need)]
    return [
        Column(("", name), [_lost(name, head[name], display.precision) for head in rows]) for name in names
    ]


def _title(report: Report, rows: Records[HeadNeed], total: int) -> str:
    heads = some_of(len(rows), total, "key/value head")
    return f"{heads}, sorted by {need_in(rows)}, largest first; kl: how far predictions move"


def _lost(name: str, value: object, precision: int) -> str:
    number = fixed(value, precision)
    return f"+{number}" if name in SIGNED and isinstance(value, float) and value > 0 else number


def _together(report: Report, display: Display) -> ScreenParts:
    """The curve, with one column per share of heads; on a narrow screen, every second or fourth share."""
    curve = report.result_of(LimitedHeads).curve
    grids = [_curve(curve[::-step][::-1], display) for step in (1, 2, 4)]
    fitting = (grid for grid in grids if len(grid.first_group(display.width).columns) == len(grid.columns))
    yield next(fitting, grids[-1])


def _curve(curve: Records[LostTogether], display: Display) -> Grid:
    names = [name for name in LOST if name in curve.cells]
    columns = [
        Column(
            ("", f"{row.share:.0%}"),
            [f"{row.cache:.0%}", *(_lost(name, row[name], display.precision) for name in names)],
        )
        for row in curve
    ]
    title = "heads limited together (least needed first), and the share of the cache left"
    return Grid(title, Column(("", "heads"), ["cache", *names]), columns)


def _at_budget(report: Report, display: Display) -> Iterator[str]:
    """The changes at the budget, and the heads that keep all keys."""
    result = report.result_of(LimitedHeads)
    if (at_budget := result.at_budget) is None:
        return
    lost = ", ".join(
        f"{name} {_lost(name, at_budget[name], display.precision)}" for name in LOST if name in at_budget
    )
    names = ", ".join(head.name for head in result.full or ()) or "none"
    yield f"With {at_budget.cache:.0%} of the cache: {lost}. Heads that keep all keys: {names}"


def _limited_finding(report: Report) -> Iterator[str]:
    """Yield the head that needs its forgotten keys most, and the loss with many heads limited."""
    result = report.result_of(LimitedHeads)
    first, need = result.heads[0], result.heads[0].number(result.need)
    if need is None or float(number(need)) <= 0:
        yield f"No head needs the keys that it would forget: it keeps {_limit_text(result)}."
    else:
        token, query = first.get("key_token"), first.get("query_token")
        keys = "its old keys" if token is None else f"its old keys, above all {quoted(token)},"
        at = "" if query is None else f" after {quoted(query)}"
        change = f"moves the prediction{at} by {number(need)} nats"
        if result.need == "needle":
            change = f"adds {number(need)} nats per token to the needle's loss"
        yield f"Head {first.name} without {keys} {change}, the most of {counted(len(result.heads), 'head')}."
    row = result.at_budget or max(result.curve, key=lambda row: row.share)
    is_all = result.at_budget is None and row.share == 1
    limited = "all heads" if is_all else f"{percent(row.share)} of the heads"
    name = "needle" if row.get("needle") is not None else "loss"
    what = "the needle's loss" if name == "needle" else "the loss"
    left, change = percent(row.cache), signed(row.number(name))
    yield f"With {limited} limited, {left} of the cache is left; {what} changes by {change} nats per token."


LIMITED_SCREEN = FirstScreen(
    LimitedHeads,
    (
        TitleLine(said=()),
        ReadLine(),
        Sentences(_whole_cache),
        Ranked(
            "heads",
            (
                SpecialCells(_losses),
                NumberCells("kept_weight", ("weight", "kept")),
                LookedAtCells("forgets", "forgotten"),
            ),
            title=_title,
            label=HeadLabel(has_stacks=False),
            usual=MOST_LIMITED,
            least=LEAST_LIMITED,
            rank=1,
            is_cut=True,
        ),
        HeadGrids(_need),
        Special(_together, "one column per share of the heads"),
        Sentences(_at_budget, "line"),
    ),
    page_table=lambda _: PageTable("heads", ("worst", "loss", "kept_weight")),
    finding=_limited_finding,
)
"""The text, and the changes with each head limited and with shares of them limited together."""


def _whole_prompt(report: Report, display: Display) -> Iterator[str]:
    baseline = report.result_of(PolicyCosts).baseline
    yield _whole_losses(baseline.loss, baseline.needle, display.precision)


def _policies(report: Report, display: Display) -> ScreenParts:
    """One table per loss; the less important losses appear only if there is room."""
    result = report.result_of(PolicyCosts)
    policies = list(dict.fromkeys(row.policy for row in result.policies))
    most = len(policies)
    names = [name for name in ("needle", "kl", "loss") if name in result.policies.cells]
    for rank, name in enumerate(names):
        grid = _by_budget(result.policies, policies, name, display)
        yield Elastic(partial(_or_none, grid), most, 0 if rank else most, most, rank)


def _or_none(grid: Grid, room: int) -> list[Section]:
    """Return the whole table, or nothing if the table does not fit."""
    return [grid] if room == len(grid.label.cells) else []


def _by_budget(costs: Records[PolicyCost], policies: Sequence[str], name: str, display: Display) -> Grid:
    """One row per policy, one column per budget."""
    budgets = list(dict.fromkeys(row.budget for row in costs if row.budget is not None))
    cells = {(row.policy, row.budget): _lost(name, row[name], display.precision) for row in costs}
    columns = [
        Column(("", f"{budget:g}"), [cells.get((policy, budget), "") for policy in policies])
        for budget in budgets
    ]
    without_budget = {
        row.policy: f"{cells[row.policy, None]} ({row.cache:.2f})" for row in costs if row.budget is None
    }
    if without_budget:
        columns.append(Column(("", "all keys"), [without_budget.get(policy, "") for policy in policies]))
    title = f"{MEANS[name]}, by share of the cache kept"
    return Grid(title, Column(("", "policy"), [*map(plain_text, policies)], left=True), columns).first_group(
        display.width
    )


def _policies_finding(report: Report) -> Iterator[str]:
    """Yield the policy that costs the least with the smallest and with the largest budget."""
    policies = report.result_of(PolicyCosts).policies
    name = "needle" if "needle" in policies.cells else "loss"
    costs = {(row.budget, row.policy): cost for row in policies if (cost := row.number(name)) is not None}
    budgets = sorted({budget for budget, _ in costs if budget is not None})
    texts = []
    for budget in dict.fromkeys([*budgets[:1], *budgets[-1:]]):
        policy, cost = _least({policy: cost for (at, policy), cost in costs.items() if at == budget})
        texts.append(f"with {percent(budget)} of the cache, {policy} ({signed(cost)})")
    if texts:
        what = "the needle's loss" if name == "needle" else "loss"
        yield f"The policies that cost least {what}, in nats per token: {'; '.join(texts)}."
    if rounded := {policy: cost for (at, policy), cost in costs.items() if at is None}:
        policy, cost = _least(rounded)
        yield f"Rounding all keys costs least as {policy}: {signed(cost)}."


def _least(costs: Mapping[str, float]) -> tuple[str, float]:
    """Return the name and the cost of the policy that costs the least."""
    policy = min(costs, key=lambda policy: costs[policy])
    return plain_text(policy), costs[policy]


POLICIES_SCREEN = FirstScreen(
    PolicyCosts,
    (
        TitleLine(said=()),
        ReadLine(),
        Sentences(_whole_prompt),
        Special(_policies, "one cell per row of the result, by policy and budget"),
    ),
    page_table=lambda _: PageTable("policies", ("policy", "budget", "loss", "kl")),
    finding=_policies_finding,
    main=("lines",),
)
"""The text, and the changes by policy and budget."""
