"""What several ways to read a model say of the sources of an answer, and how well they predict removal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.sources import NATS


class ExplainedSource(Record, others=float):
    """A source, what the answer loses without it, and behind that what each way gives it."""

    source: int
    name: str
    text: str | None
    tokens: int = column(is_kept=False)
    lost: float | None = column(unit=NATS)


class WayOfReading(Record):
    """A way to read, beside what is lost without each source.

    `spearman` is the rank correlation with that, `first` the source that the way puts first, `first_agrees`
    1 where its loss is largest. `runs` are passes through the model, a backward pass counting as two.
    """

    way: str
    spearman: float | None
    first: int
    first_agrees: int
    runs: int = column(is_kept=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanations(Result):
    """An answer, and which sources each way says that it came from.

    `tokens` (way, token) is what each way gives the tokens of the prompt, NaN for a way of sources alone.
    """

    sources: Records[ExplainedSource] = group()
    ways: Records[WayOfReading] = group()
    answer: str = ""
    ids: Sequence[int] = ()
    tokens: npt.NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()


class ComparedWay(Record):
    """A way to read against removal: means over prompts, with 95 % intervals.

    `gap` is `morf` - `lerf`: nats per token of the answer that are lost as its first (last) sources are
    removed first, mean over the share that is gone. `spearman` is the rank correlation with what is lost
    without each source, `first` the share of prompts in which the first is the same, `right` in which it is
    the right one, where that is known. `over_position` is the gap minus that of the best ordering by position
    or length alone, in pairs; `is_better` is 1 where its interval is above 0.
    """

    way: str
    kind: str
    prompts: int = column(is_kept=False)
    gap: float | None = column(unit=NATS, has_interval=True)
    morf: float | None = column(unit=NATS, has_interval=True)
    lerf: float | None = column(unit=NATS, has_interval=True)
    spearman: float | None = column(has_interval=True)
    first: float | None
    right: float | None
    over_position: float | None = column(unit=NATS, has_interval=True)
    is_better: int | None
    runs: float


class PromptWay(Record):
    """A way to read on one prompt."""

    prompt: str
    way: str
    gap: float | None = column(unit=NATS)
    morf: float | None = column(unit=NATS)
    lerf: float | None = column(unit=NATS)
    spearman: float | None
    first: int


class RefusedWay(Record):
    """A way that is not right for the model, and why."""

    refused: str
    reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparedWays(Result):
    """Ways to read against removal over prompts, the best first; orderings that read nothing beside them.

    `position` is the best of those that know position and length alone.
    """

    ways: Records[ComparedWay] = group("compared")
    prompts: Records[PromptWay] = group(is_kept=False)
    refused: Records[RefusedWay] | None = group(is_needed=False)
    position: str = ""
    num_prompts: int = 0
    mean_sources: float = 0.0
    mean_tokens: float = 0.0
    notes: tuple[str, ...] = ()
