"""Results of `attn cache`: losses by head that keeps few keys, and by policy for a prompt's keys."""

from dataclasses import dataclass

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group

NATS = "nats"


class Lost(Record):
    """Changes in one run, relative to the full cache.

    kl is sum p ln(p / q), with p from the full cache; loss is the rise of -ln p of the next token, needle the
    same for the tokens of the needle, all in nats per token. `worst` is the largest kl of a token, at
    position `worst_at`.
    """

    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS)
    worst_at: int


def need_in(lost: Records[Lost] | Records["HeadNeed"]) -> str:
    """The column that measures how much a head needs the keys that it would forget.

    It is the loss on the needle, if there is one, else the kl of the token that changes most: a head that is
    needed at only one place hardly shows in a mean.
    """
    return "needle" if "needle" in lost.cells else "worst"


class KeyValueHead(Record):
    """A key/value head, which several query heads may share."""

    stack: str
    layer: int
    head: int

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class HeadNeed(KeyValueHead):
    """Changes if one head is limited, as in `Lost`.

    `kept_weight` is the share of its weight on the keys that it would keep, averaged over the queries;
    `bytes` is the size of its full cache; `key` is the forgotten key with the most weight at `query`, the
    query that predicts the token that changes most.
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
    """Changes if several heads, a share of all, are limited together, as in `Lost`.

    `bytes` is the size of the remaining cache, `cache` its share of the full one.
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
    """The losses with the full cache, its bytes and tokens; the numbers of first and last keys of a limited
    head.
    """

    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    bytes: int = column(unit="bytes")
    tokens: int = column(is_needed=False)
    sink: int
    window: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LimitedHeads(Result):
    """Changes if key/value heads keep only the first `sink` and the last `window` keys.

    `heads` is sorted by need, largest first; `forgotten` has the keys with the most weight per head. `curve`
    has one row per share of the heads that are limited together, the least needed first. With a budget,
    `full` has the heads that keep all keys and `at_budget` the changes with all others limited; otherwise
    both are None.
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
        """Number of first keys that a limited head keeps."""
        return self.baseline.sink

    @property
    def window(self) -> int:
        """Number of last keys that a limited head keeps."""
        return self.baseline.window

    @property
    def need(self) -> str:
        """The column by which the heads are sorted; see `need_in`."""
        return need_in(self.heads)

    def forgotten_by(self, heads: Records[HeadNeed]) -> Records[ForgottenKey] | None:
        """The keys that these heads forget."""
        names = {head.name for head in heads}
        return None if self.forgotten is None else self.forgotten.where(lambda key: key.name in names)


class PolicyCost(Record):
    """Changes with one policy at one budget, as in `Lost`; `cache` is the remaining share, in bytes.

    Rounding to few bits is a policy without a budget.
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
    """A policy at all budgets: each column is a list."""

    policy: str
    budget: list[float]
    kl: list[float]
    loss: list[float]
    needle: list[float] = column(is_needed=False)


class PromptBaseline(Record):
    """The losses with the full cache; the numbers of tokens in the prompt and of judged tokens after it."""

    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    prompt: int = column(is_needed=False)
    judged: int = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class PolicyCosts(Result):
    """Changes with each policy at each budget, judged on the last tokens of a text.

    `lines` has the same numbers by policy if there are several budgets.
    """

    policies: Records[PolicyCost] = group()
    lines: Records[PolicyLine] | None = group(is_needed=False)
    baseline: PromptBaseline = group()
    notes: tuple[str, ...] = ()

    @property
    def prompt(self) -> int:
        """Number of tokens in the prompt; the largest of several windows."""
        return self.baseline.prompt

    @property
    def judged(self) -> int:
        """Number of judged tokens."""
        return self.baseline.judged


def budget_lines(policies: Records[PolicyCost]) -> Records[PolicyLine] | None:
    """One row per policy, with lists over the budgets; None if each policy has only one budget."""
    with_budget = policies.where(lambda row: row.budget is not None)
    names = list(dict.fromkeys(with_budget.column("policy")))
    if len(with_budget) < 2 * max(1, len(names)):
        return None
    columns = [name for name in PolicyLine.columns if name in policies.cells and name != "policy"]
    policy_rows = [np.flatnonzero(with_budget.column("policy") == name) for name in names]
    return PolicyLine.table(
        policy=names,
        **{name: [with_budget.column(name)[places].tolist() for places in policy_rows] for name in columns},
    )
