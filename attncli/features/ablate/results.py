"""The results of `attn ablate`: the effect of removing heads."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


def _effect(unit: str = "") -> float | None:
    """Return the type of a number or, for several texts, of a mean with its interval."""
    effect: float | None = column(unit=unit, has_interval=True, is_needed=False)
    return effect


class BaselineNumbers(Record):
    """The quality of the predictions with all heads; for several texts, means with 95 % intervals."""

    loss: float | None = _effect("nats")
    probability: float | None = _effect()
    logit_difference: float | None = _effect("logit")


class Effects(BaselineNumbers):
    """The effects of removing heads; those on numbers of the baseline are differences from the baseline."""

    kl: float | None = _effect("nats")
    restored: float | None = _effect()
    cls_change: float | None = _effect()
    output_change: float | None = _effect()


class HeadEffect(Effects):
    """The effects of removing one head, at all tokens or at one `token`.

    `kind` is self or cross, or linear for a head without a softmax; the `pattern` of a linear head is the
    kind of its layer. `approximate` is |d loss / d gate|. For a single text, `query` is the token where
    removing the head costs the most, and `key` is the token to which the head gives the most weight at this
    query.
    """

    layer: int
    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    stack: str
    head: int
    pattern: str
    token: int = column(is_needed=False)
    approximate: float | None = column(unit="nats", is_needed=False)
    query: int | None = column(is_kept=False, is_needed=False)
    query_token: str | None = column(is_needed=False)
    key: int | None = column(is_kept=False, is_needed=False)
    key_token: str | None = column(is_needed=False)
    key_weight: float | None = column(is_kept=False, is_needed=False)
    token_text: str = column(is_needed=False)


class Approximation(Record):
    """Spearman's correlation, over some heads, between the gradients and the loss without each head."""

    rank_correlation: float | None
    heads: int


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadEffects(Result):
    """The effects of removing heads; for several texts, means with 95 % intervals.

    `heads` has one row per head that was measured, or per head and token; `baseline` has the numbers with all
    heads, and `joint` the effects of removing all named heads at once. With swap, `back` and `back_baseline`
    are for the opposite direction: the other prompt, with the heads of this prompt. `unshown` is a sentence
    that names the layers whose heads were not measured; the notes also include this sentence.
    """

    heads: Records[HeadEffect] = group()
    back: Records[HeadEffect] | None = group(is_needed=False)
    baseline: BaselineNumbers | None = group(is_needed=False)
    back_baseline: BaselineNumbers | None = group(is_needed=False)
    joint: Effects | None = group(is_needed=False)
    approximation: Approximation | None = group(is_needed=False)
    notes: tuple[str, ...] = ()
    unshown: str = ""
