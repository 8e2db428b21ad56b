"""What a model loses with a smaller cache: by heads that keep few keys, by policies for a prompt's keys."""

from dataclasses import dataclass

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group

NATS = "nats"


class Lost(Record):
    """What is lost in one run, beside one with the whole cache.

    kl is sum p ln(p / q), p with the whole cache; loss is -ln p of what follows, needle the same of the
    needle, in nats per token, minus that with the whole cache. `worst` is the kl of the token hit hardest,
    which is at the position `worst_at`.
    """

    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS)
    worst_at: int


def need_in(lost: Records[Lost] | Records["HeadNeed"]) -> str:
    """What tells how much a head needs what it would forget: the needle, where one is sought, else the token
    that is hit hardest; a head that is needed at one place hardly shows in a mean.
    """
    return "needle" if "needle" in lost.cells else "worst"


class KeyValueHead(Record):
    """A key/value head, which several heads may share."""

    stack: str
    layer: int
    head: int

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class HeadNeed(KeyValueHead):
    """What is lost where one head alone is limited, as in `Lost`.

    `kept_weight` is the share of its weight that is on the keys that it would keep, mean over the queries;
    `bytes` is what it takes of the whole cache; `key` has most weight of those that it forgets at the
    `query`, before the token that is hit hardest.
    """

    kept_weight: float | None
    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS)
    worst_at: int = column(is_needed=False)
    bytes: int = column(unit="bytes", is_needed=False)
    query: int | None = column(is_kept=False, is_needed=False)
    query_token: str | None = column(is_needed=False)
    key: int | None = column(is_kept=False, is_needed=False)
    key_token: str | None = column(is_needed=False)
    key_weight: float | None = column(is_kept=False, is_needed=False)


class ForgottenKey(KeyValueHead):
    """A key that a head would not keep, and its weight from the `query`."""

    query: int
    query_token: str
    key: int
    key_token: str
    key_weight: float


class LostTogether(Record):
    """What is lost where so many heads are limited together, a share of all, as in `Lost`.

    `bytes` is what their cache takes, `cache` the share of the whole.
    """

    limited: int = column(is_needed=False)
    share: float
    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS, is_needed=False)
    worst_at: int = column(is_needed=False)
    bytes: int = column(unit="bytes", is_needed=False)
    cache: float


class CacheBaseline(Record):
    """The losses with the whole cache, its bytes and tokens; the first and last keys of a limited head."""

    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    bytes: int = column(unit="bytes")
    tokens: int = column(is_needed=False)
    sink: int
    window: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LimitedHeads(Result):
    """What is lost where key/value heads keep the first `sink` keys and the last `window` alone.

    `heads` are in the order of their need, the one that needs the rest most first; of each `forgotten` has
    the keys with most weight. `curve` has a row for each share of the heads that are limited together, the
    least needed first. Where a budget was given, `full` are the heads that keep everything, and `at_budget`
    is what that costs; else both are None.
    """

    heads: Records[HeadNeed] = group()
    forgotten: Records[ForgottenKey] | None = group(is_kept=False, is_needed=False)
    curve: Records[LostTogether] = group()
    baseline: CacheBaseline = group()
    full: Records[KeyValueHead] | None = group(is_needed=False)
    at_budget: LostTogether | None = group(is_needed=False)
    notes: tuple[str, ...] = ()

    @property
    def sink(self) -> int:
        """The first keys that a limited head keeps."""
        return self.baseline.sink

    @property
    def window(self) -> int:
        """The last keys that a limited head keeps."""
        return self.baseline.window

    @property
    def need(self) -> str:
        """The column that the heads are in the order of; see `need_in`."""
        return need_in(self.heads)

    def forgotten_by(self, heads: Records[HeadNeed]) -> Records[ForgottenKey] | None:
        """The keys that these heads forget."""
        names = {head.name for head in heads}
        return None if self.forgotten is None else self.forgotten.where(lambda key: key.name in names)


class PolicyCost(Record):
    """What is lost with one policy at one budget, as in `Lost`; `cache` is the share that stays, in bytes.

    Numbers of few bits are a policy without a budget.
    """

    policy: str
    budget: float | None
    cache: float
    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS, is_needed=False)
    worst_at: int = column(is_needed=False)


class PolicyLine(Record):
    """A policy over the budgets: each column is a list."""

    policy: str
    budget: list[float]
    kl: list[float]
    loss: list[float]
    needle: list[float] = column(is_needed=False)


class PromptBaseline(Record):
    """The losses with the whole cache; how many tokens the prompt has, and how many after it are judged."""

    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    prompt: int = column(is_needed=False)
    judged: int = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class PolicyCosts(Result):
    """What is lost with each policy at each budget, judged on the last tokens of a text.

    `lines` are the same by policy, where there are several budgets.
    """

    policies: Records[PolicyCost] = group()
    lines: Records[PolicyLine] | None = group(is_needed=False)
    baseline: PromptBaseline = group()
    notes: tuple[str, ...] = ()

    @property
    def prompt(self) -> int:
        """How many tokens the prompt has; of several windows the longest."""
        return self.baseline.prompt

    @property
    def judged(self) -> int:
        """How many tokens are judged."""
        return self.baseline.judged


def lines_of(policies: Records[PolicyCost]) -> Records[PolicyLine] | None:
    """One row per policy, with lists over the budgets; None where there are not several."""
    with_budget = policies.where(lambda row: row.budget is not None)
    names = list(dict.fromkeys(with_budget.column("policy")))
    if len(with_budget) < 2 * max(1, len(names)):
        return None
    columns = [name for name in PolicyLine.columns if name in policies.cells and name != "policy"]
    of_policies = [np.flatnonzero(with_budget.column("policy") == name) for name in names]
    return PolicyLine.table(
        policy=names,
        **{name: [with_budget.column(name)[places].tolist() for places in of_policies] for name in columns},
    )
