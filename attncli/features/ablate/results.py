"""The results of `attn ablate`: the effect of removing heads."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group
from attncli.records.meanings import LOOKED_AT


def _effect(about: str, unit: str = "", label: str = "") -> float | None:
    """Return the type of a number or, for several texts, of a mean with its interval."""
    effect: float | None = column(unit=unit, label=label, about=about, has_interval=True, is_needed=False)
    return effect


class BaselineNumbers(Record):
    """The quality of the predictions with all heads; for several texts, means with 95 % intervals."""

    loss: float | None = _effect("Mean loss per token with all heads", "nats")
    probability: float | None = _effect("Probability of the answer with all heads")
    logit_difference: float | None = _effect(
        "Logit of the answer minus the other token's, with all heads", "logit"
    )


class Effects(BaselineNumbers):
    """The effects of removing heads; those on numbers of the baseline are differences from the baseline."""

    loss: float | None = _effect("Rise of the mean loss per token without the head", "nats")
    probability: float | None = _effect("Change of the answer's probability without the head")
    logit_difference: float | None = _effect("Change of the logit difference without the head", "logit")
    kl: float | None = _effect(
        "KL divergence of the predictions without the head from those with it", "nats", "KL"
    )
    restored: float | None = _effect("Share of the other prompt's logit difference that the swap restores")
    cls_change: float | None = _effect("1 - cosine of the vectors of [CLS] without the head and with it")
    output_change: float | None = _effect("Relative change of the last hidden states, mean over tokens")


class HeadEffect(Effects, shared=LOOKED_AT):
    """The effects of removing one head, at all tokens or at one `token`."""

    layer: int
    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    stack: str
    head: int
    pattern: str = column(about="Pattern of the head on this text; of a linear head, the kind of its layer")
    token: int = column(about="Position of the token at which the head is removed", is_needed=False)
    approximate: float | None = column(
        unit="nats",
        about="|d loss / d gate|, where the gate is a factor on the head's output",
        is_needed=False,
    )
    query: int | None = column(
        about="Position of the token at which removing the head costs the most",
        is_kept=False,
        is_needed=False,
    )
    query_token: str | None = column(is_needed=False)
    key: int | None = column(
        about="Position of the key with the head's largest weight at this token",
        is_kept=False,
        is_needed=False,
    )
    key_token: str | None = column(is_needed=False)
    key_weight: float | None = column(is_kept=False, is_needed=False)
    token_text: str = column(about="Token at which the head is removed", is_needed=False)


class Approximation(Record):
    """The agreement of the gradients with the loss without each head."""

    rank_correlation: float | None = column(
        about="Spearman's correlation of the gradients with the loss without each head"
    )
    heads: int = column(about="Number of heads that it is computed from")


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadEffects(Result):
    """The effects of removing heads; for several texts, means with 95 % intervals.

    `heads` has one row per head that was measured, or per head and token; `baseline` has the numbers with all
    heads, and `joint` the effects of removing all named heads at once. With swap, `back` and `back_baseline`
    are for the opposite direction: the other prompt, with the heads of this prompt. `unshown` is a sentence
    that names the layers whose heads were not measured; the notes also include this sentence.
    """

    heads: Records[HeadEffect] = group(label="Heads")
    back: Records[HeadEffect] | None = group(label="Heads in the opposite direction", is_needed=False)
    baseline: BaselineNumbers | None = group(label="Baseline", is_needed=False)
    back_baseline: BaselineNumbers | None = group(label="Baseline in the opposite direction", is_needed=False)
    joint: Effects | None = group(label="All named heads together", is_needed=False)
    approximation: Approximation | None = group(label="Agreement of the gradients", is_needed=False)
    notes: tuple[str, ...] = ()
    unshown: str = ""
