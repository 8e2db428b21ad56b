"""`attncli.cache` and `attncli.cache_policies`: the loss of a model on a text with a smaller cache."""

from collections.abc import Callable, Iterable
from typing import Annotated

from attncli.core.progress import Stage
from attncli.errors import UserError
from attncli.features.cache.names import CACHE_POLICIES, USUAL_BUDGETS
from attncli.features.cache.results import LimitedHeads, PolicyCosts
from attncli.models.loading import in_use
from attncli.models.model_arguments import Model, TextOrReading
from attncli.models.predicted import Judged, judged_reading, read_judged
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.reading_text import TextOrIds, check_made_for
from attncli.records.arguments import (
    Budgets,
    Count,
    KeyValueBits,
    NonBlankText,
    Share,
    Size,
    by,
    checked,
    listed,
    shares,
    some_of,
)
from attncli.records.token_ids import text_or_ids

Policies = Annotated[str | Iterable[str], by(some_of(tuple(CACHE_POLICIES)))]


@checked
def cache(
    model: Model,
    text: TextOrReading,
    *,
    sink: Count | None = None,
    window: Size | None = None,
    needle: NonBlankText | None = None,
    budget: Share | None = None,
    progress: Callable[[Stage], None] | None = None,
) -> LimitedHeads:
    """Measure the increase in loss on a text if a key/value head keeps only its first and last keys.

    A limited head keeps the first `sink` and the last `window` keys. The heads are limited one at a time,
    then growing shares of them are limited together, starting with the least needed. A `needle` is the part
    of the text that the end of the text asks for; with a needle, heads are ordered by the loss on it. A
    `budget`, a share of the cache, selects the heads that keep all keys. Raises UserError for a model without
    a cache or a budget that is too small, and MemoryError if memory runs out.
    """
    from attncli.features.cache.limited_heads import limited_heads

    with in_use(model) as pretrained:
        reading = _judged(pretrained, text, needle)
        return limited_heads(pretrained, reading, sink=sink, window=window, budget=budget, progress=progress)


@checked
def cache_policies(
    model: Model,
    text: TextOrReading,
    *,
    policies: Policies = tuple(CACHE_POLICIES),
    budgets: Budgets = USUAL_BUDGETS,
    bits: KeyValueBits | None = None,
    needle: NonBlankText | None = None,
    every: Size | None = None,
    progress: Callable[[Stage], None] | None = None,
) -> PolicyCosts:
    """Measure the increase in loss on the end of a text if a policy keeps only a share of the earlier keys.

    The prompt is read once. The last tenth of the text, at most 200 tokens, is judged; with `every`, windows
    of that many tokens are judged throughout the text. With `bits`, keys and values are rounded as well.
    Raises UserError for an unknown policy, a text that is too short, or a model that cannot continue from
    cached keys, and MemoryError if memory runs out.
    """
    from attncli.features.cache.prompt_cache import policy_costs, windows

    names = listed(policies)
    if not names and bits is None:
        raise UserError("policies: must name at least one policy unless `bits` is set (got none)")
    with in_use(model) as pretrained:
        reading = _judged(pretrained, text, needle, every)
        readings = windows(pretrained, reading, every)
        return policy_costs(
            pretrained,
            readings,
            policies=names,
            budgets=shares(budgets),
            bits=bits,
            every=every,
            progress=progress,
        )


def _judged(
    model: Pretrained, text: TextOrIds | Reading, needle: str | None, every: int | None = None
) -> Judged:
    if not isinstance(text, Reading):
        return read_judged(model, text_or_ids(text), needle=needle, every=every)
    if needle is not None:
        raise UserError("needle: can only be found in a text, not in a reading: pass the text")
    if isinstance(text, Judged):
        return text
    return judged_reading(check_made_for(model, text, "text"), model)
