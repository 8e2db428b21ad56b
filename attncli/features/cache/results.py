"""The results of `attn cache`: losses if a head keeps few keys, and losses by policy for a prompt's keys."""

from dataclasses import dataclass

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.meanings import LOOKED_AT, Meaning

NATS = "nats"


LOST = {
    "kl": Meaning(
        "KL divergence of the next-token predictions from those with the full cache, mean over tokens",
        NATS,
        "KL",
    ),
    "loss": Meaning("Rise of the mean loss per token", NATS),
    "needle": Meaning("Rise of the loss per token of the needle", NATS),
    "worst": Meaning("Largest KL divergence of a token", NATS, "worst KL"),
    "worst_at": Meaning("Position of the token that changes most"),
}
"""Changes in one run, relative to the full cache."""


class Lost(Record, shared=LOST):
    """Changes in one run, relative to the full cache.

    kl is sum p ln(p / q), with p from the full cache; loss is the rise of -ln p of the next token, in nats
    per token.
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


class HeadNeed(KeyValueHead, shared=LOST | LOOKED_AT):
    """The changes if one head is limited, as in `Lost`."""

    kept_weight: float | None = column(
        about="Share of the head's weight on the keys that it would keep, mean over queries"
    )
    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS)
    worst_at: int = column(is_needed=False)
    bytes: int = column(unit="bytes", about="Size of the head's full cache", is_needed=False)
    query: int | None = column(
        about="Position of the query that predicts the token that changes most",
        is_kept=False,
        is_needed=False,
    )
    query_token: str | None = column(is_needed=False)
    key: int | None = column(
        about="Position of the forgotten key with the largest weight at this query",
        is_kept=False,
        is_needed=False,
    )
    key_token: str | None = column(about="The forgotten key", is_needed=False)
    key_weight: float | None = column(is_kept=False, is_needed=False)


class ForgottenKey(KeyValueHead, shared=LOOKED_AT):
    """A key that a head would not keep, and the weight that the `query` puts on it."""

    query: int
    query_token: str
    key: int = column(about="Position of a key that the head would not keep")
    key_token: str
    key_weight: float


class LostTogether(Record, shared=LOST):
    """The changes if several heads are limited together, as in `Lost`."""

    limited: int = column(about="Number of limited heads", is_needed=False)
    share: float = column(about="Share of all heads that are limited")
    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS, is_needed=False)
    worst_at: int = column(is_needed=False)
    bytes: int = column(unit="bytes", about="Size of the remaining cache", is_needed=False)
    cache: float = column(about="Size of the remaining cache as a share of the full one")


class CacheBaseline(Record):
    """The losses and size of the full cache, and how many keys a limited head keeps."""

    loss: float | None = column(unit=NATS, about="Mean loss per token with the full cache")
    needle: float | None = column(
        unit=NATS, about="Mean loss per token of the needle with the full cache", is_needed=False
    )
    bytes: int = column(unit="bytes", about="Size of the full cache")
    tokens: int = column(about="Number of tokens", is_needed=False)
    sink: int = column(about="Number of first keys that a limited head keeps")
    window: int = column(about="Number of last keys that a limited head keeps")


@dataclass(frozen=True, kw_only=True, repr=False)
class LimitedHeads(Result):
    """The changes if key/value heads keep only the first `sink` and the last `window` keys.

    `heads` is sorted by need, largest first; `forgotten` has the forgotten keys with the most weight for each
    head. `curve` has one row per share of heads that are limited together, starting with the least needed.
    With a budget, `full` has the heads that keep all keys and `at_budget` the changes with all others
    limited; otherwise both are None.
    """

    heads: Records[HeadNeed] = group(label="Heads")
    forgotten: Records[ForgottenKey] | None = group(label="Forgotten keys", is_kept=False, is_needed=False)
    curve: Records[LostTogether] = group(label="Heads limited together")
    baseline: CacheBaseline = group(label="Full cache")
    full: Records[KeyValueHead] | None = group(label="Heads that keep all keys", is_needed=False)
    at_budget: LostTogether | None = group(label="At the budget", is_needed=False)
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


class PolicyCost(Record, shared=LOST):
    """The changes with one policy at one budget, as in `Lost`.

    Rounding to few bits is a policy without a budget.
    """

    policy: str = column(about="Rule for the keys that are kept")
    budget: float | None = column(about="Share of the keys that are kept; none for rounding to few bits")
    cache: float = column(about="Size of the remaining cache as a share of the full one")
    kl: float | None = column(unit=NATS)
    loss: float | None = column(unit=NATS)
    needle: float | None = column(unit=NATS, is_needed=False)
    worst: float | None = column(unit=NATS, is_needed=False)
    worst_at: int = column(is_needed=False)


class PolicyLine(Record, shared=LOST):
    """A policy at all budgets; each column holds a list."""

    policy: str = column(about="Rule for the keys that are kept")
    budget: list[float] = column(about="Shares of the keys that are kept")
    kl: list[float]
    loss: list[float]
    needle: list[float] = column(is_needed=False)


class PromptBaseline(Record):
    """The losses with the full cache, and the numbers of tokens."""

    loss: float | None = column(unit=NATS, about="Mean loss per token with the full cache")
    needle: float | None = column(
        unit=NATS, about="Mean loss per token of the needle with the full cache", is_needed=False
    )
    prompt: int = column(about="Number of tokens in the prompt", is_needed=False)
    judged: int = column(about="Number of tokens after the prompt that are judged", is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class PolicyCosts(Result):
    """The changes with each policy at each budget, judged on the last tokens of a text.

    If there are several budgets, `lines` has these changes in one row per policy.
    """

    policies: Records[PolicyCost] = group(label="Policies")
    lines: Records[PolicyLine] | None = group(label="Policies at all budgets", is_needed=False)
    baseline: PromptBaseline = group(label="Full cache")
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
