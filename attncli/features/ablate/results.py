"""What a model loses without a head: the loss, the prediction, the output."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


def _effect(unit: str = "") -> float | None:
    """A number that is a mean over texts, where there are several, with its interval."""
    effect: float | None = column(unit=unit, has_interval=True, is_needed=False)
    return effect


class BaselineNumbers(Record):
    """What a model predicts with all heads; of several texts means with 95 % intervals."""

    loss: float | None = _effect("nats")
    probability: float | None = _effect()
    logit_difference: float | None = _effect("logit")


class Effects(BaselineNumbers):
    """What is lost without heads: in nats, logits and shares, differences from the baseline with a sign."""

    kl: float | None = _effect("nats")
    restored: float | None = _effect()
    cls_change: float | None = _effect()
    output_change: float | None = _effect()


class HeadEffect(Effects):
    """What is lost without a head, at all tokens or at one `token`.

    `kind` is self, cross or linear: a head of a layer without a softmax, whose `pattern` is what mixes its
    tokens. `approximate` is |d loss / d gate|. Of a single text `query` is the token where the head is missed
    most, and `key` what it looks at most from there.
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
    """How well gradients order the heads: Spearman's correlation with the exact losses of some of them."""

    rank_correlation: float | None
    heads: int


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadEffects(Result):
    """What is lost without heads, means over the texts with 95 % intervals.

    `heads` has one row per head that was measured, `baseline` the numbers with all heads. `joint` is what is
    lost without all named heads at once. Where heads give what they gave on another prompt, a row may be for
    one token, and `back` and `back_baseline` are those of the other prompt, whose heads give what they gave
    on this one. `unshown` names layers whose heads are not among them, in a sentence; it is a note as well.
    """

    heads: Records[HeadEffect] = group()
    back: Records[HeadEffect] | None = group(is_needed=False)
    baseline: BaselineNumbers | None = group(is_needed=False)
    back_baseline: BaselineNumbers | None = group(is_needed=False)
    joint: Effects | None = group(is_needed=False)
    approximation: Approximation | None = group(is_needed=False)
    notes: tuple[str, ...] = ()
    unshown: str = ""
