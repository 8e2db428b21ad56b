"""The results of `attn cache`: losses if a head keeps few keys, and losses by policy for a prompt's keys."""

from dataclasses import dataclass

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group

NATS = "nats"


class Lost(Record):
    """Changes in one run, relative to the full cache.

    kl is sum p ln(p / q), with p from the full cache; loss is the rise of -ln p of the next token, and needle
    is that rise for the tokens of the needle, all in nats per token. `worst` is the largest kl of a token, at
    position `worst_at`.
    """

    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS)
    worst_at: int


def need_in(lost: Records[Lost] | Records["HeadNeed"]) -> str:
    """The column that measures how much a head needs the keys that it would forget.

    This is the loss on the needle if there is one, and otherwise the kl of the token that changes most,
    because a mean hardly shows a head that is needed at only one place.
    """
    return "needle" if "needle" in lost.cells else "worst"


class KeyValueHead(Record):
    """A key/value head, which may be shared by several query heads."""

    stack: str
    layer: int
    head: int

    @property
    def name(self) -> str:
        """LAYER:HEAD."""
        return f"{self.layer}:{self.head}"


class HeadNeed(KeyValueHead):
    """The changes if one head is limited, as in `Lost`.

    `kept_weight` is the share of the head's weight on the keys that it would keep, averaged over the queries;
    `bytes` is the size of the head's full cache; `key` is the forgotten key with the most weight at `query`,
    the query that predicts the token that changes most.
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
    """A key that a head would not keep, and the weight that the `query` puts on it."""

    query: int
    query_token: str
    key: int
    key_token: str
    key_weight: float


class LostTogether(Record):
    """The changes if several heads, a share of all heads, are limited together, as in `Lost`.

    `bytes` is the size of the remaining cache, and `cache` is that size as a share of the full cache.
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
    """The losses and size of the full cache, and how many keys a limited head keeps."""

    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    bytes: int = column(unit="bytes")
    tokens: int = column(is_needed=False)
    sink: int
    window: int


@dataclass(frozen=True, kw_only=True, repr=False)
class LimitedHeads(Result):
    """The changes if key/value heads keep only the first `sink` and the last `window` keys.

    `heads` is sorted by need, largest first; `forgotten` has the forgotten keys with the most weight for each
    head. `curve` has one row per share of heads that are limited together, starting with the least needed.
    With a budget, `full` has the heads that keep all keys and `at_budget` the changes with all others
    limited; otherwise both are None.
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
        """The number of leading keys that a limited head keeps."""
        return self.baseline.sink

    @property
    def window(self) -> int:
        """The number of trailing keys that a limited head keeps."""
        return self.baseline.window

    @property
    def need(self) -> str:
        """The column that the heads are sorted by; see `need_in`."""
        return need_in(self.heads)

    def forgotten_by(self, heads: Records[HeadNeed]) -> Records[ForgottenKey] | None:
        """The keys that these heads forget."""
        names = {head.name for head in heads}
        return None if self.forgotten is None else self.forgotten.where(lambda key: key.name in names)


class PolicyCost(Record):
    """The changes with one policy at one budget, as in `Lost`; `cache` is the remaining share of bytes.

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
    """A policy at all budgets; each column holds a list."""

    policy: str
    budget: list[float]
    kl: list[float]
    loss: list[float]
    needle: list[float] = column(is_needed=False)


class PromptBaseline(Record):
    """The losses with the full cache, and the numbers of prompt tokens and of judged tokens after them."""

    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    prompt: int = column(is_needed=False)
    judged: int = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class PolicyCosts(Result):
    """The changes with each policy at each budget, judged on the last tokens of a text.

    If there are several budgets, `lines` has these changes in one row per policy.
    """

    policies: Records[PolicyCost] = group()
    lines: Records[PolicyLine] | None = group(is_needed=False)
    baseline: PromptBaseline = group()
    notes: tuple[str, ...] = ()

    @property
    def prompt(self) -> int:
        """The number of tokens in the prompt, or in the longest prompt of several windows."""
        return self.baseline.prompt

    @property
    def judged(self) -> int:
        """The number of judged tokens."""
        return self.baseline.judged


def budget_lines(policies: Records[PolicyCost]) -> Records[PolicyLine] | None:
    """One row per policy, with lists over the budgets, or None if each policy has only one budget."""
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
