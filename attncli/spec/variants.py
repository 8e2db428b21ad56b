"""The settings that change attention between its projections and its weights: each one published variant.

They are all off unless asked for; docs/variants.md says what each does.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from attncli.spec.fields import MAX_SIZE, Contradictions, Size, Spec, contradiction

POSITIONS = ("rope", "alibi", "relative_bias")
VARIANTS = (*POSITIONS, "window", "qk_norm", "softcap", "temperature", "sink", "differential")
"""In the order in which they come in: positions, then what is done to query and key, scores, weights."""
DETAILS = {
    "rope_base": "rope",
    "num_buckets": "relative_bias",
    "max_distance": "relative_bias",
    "qk_norm_eps": "qk_norm",
    "lambda_init": "differential",
}
"""The settings that mean something with one variant only."""
UNSTREAMED = {
    "alibi": "streaming adds no bias to scores",
    "relative_bias": "streaming adds no bias to scores",
    "differential": "streaming has one softmax, not two",
}
"""The variants that need the whole matrix of weights, and why."""


def _check_temperature(value: float) -> float:
    if value <= 0:
        raise ValueError(f"must be greater than 0: a small one, as 0.01, is nearly one-hot (got {value:g})")
    return value


class VariantSpec(Spec):
    """What any attention may do differently."""

    group = "Variants"
    off_keys = frozenset(VARIANTS)

    qk_norm: bool = Field(
        False, description="divide each head's query and key by their root mean square, before any rotation"
    )
    qk_norm_eps: float = Field(1e-6, gt=0, description="qk_norm: added to the mean square")
    softcap: float | None = Field(
        None, ge=1e-30, le=1e30, description="bound the scaled scores by c tanh(score / c), before any bias"
    )
    temperature: Annotated[float, AfterValidator(_check_temperature)] = Field(
        1.0,
        description="divide everything that enters the softmax: scores, after softcap and bias, and the sink",
    )
    sink: float | None = Field(
        None, description="a logit in each row's denominator that is no key: weights sum to less than one"
    )
    differential: bool = Field(
        False,
        description="the weights of one half of query and key minus lambda times those of the other half",
    )
    lambda_init: float = Field(
        0.8,
        ge=0,
        le=1,
        description="differential: lambda is exp(a b) - exp(c d) + lambda_init, with vectors a, b, c, d "
        "sampled from N(0, 0.1^2) after the projections",
    )

    def positions(self) -> "PositionSpec | None":
        """Its settings of mask and position; None where queries and keys are two texts."""
        return None

    def variants_on(self) -> list[str]:
        """The variants that are asked for, in the order in which they come in."""
        return self.given(*VARIANTS)

    def unused_keys(self) -> frozenset[str]:
        on = self.variants_on()
        return super().unused_keys() | {detail for detail, variant in DETAILS.items() if variant not in on}

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.differential and self.sink is not None:
            message = "cannot be combined with differential: it has two softmaxes, and a sink is for one"
            yield contradiction("sink", message, "differential")
        for detail, variant in DETAILS.items():
            if not self.given(variant) and self.given(detail):
                yield contradiction(detail, f"needs {variant}", variant)


class PositionSpec(VariantSpec):
    """What attention within one text may know of positions 0, 1, 2, ...; two texts share none."""

    group = "Mask and position"

    causal: bool = Field(False, description="mask the future")
    window: Size | None = Field(
        None,
        description="hide keys |i - j| >= window tokens away; with causal a query sees the last window keys",
    )
    rope: bool = Field(
        False, description="rotate query and key by their positions: dimension n together with n + head_dim/2"
    )
    rope_base: float = Field(
        10000.0, ge=1, description="rope: pair n turns by base^(-2n/head_dim) radians a token"
    )
    alibi: bool = Field(
        False, description="add -slope |i - j| to the scores; slopes 2^(-8/h), 2^(-16/h), ... for h heads"
    )
    relative_bias: bool = Field(
        False,
        description="add a number to each score, one per head and bucket of distances, from a table N(0,1) "
        "sampled after the projections",
    )
    num_buckets: int = Field(
        32, ge=4, le=MAX_SIZE, description="relative_bias: buckets, half of them for keys ahead unless causal"
    )
    max_distance: Size = Field(
        128, description="relative_bias: all distances from here on share the last bucket"
    )

    def positions(self) -> "PositionSpec":
        return self

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        schemes = [key for key in POSITIONS if getattr(self, key)]
        for other in schemes[1:]:
            message = f"cannot be combined with {schemes[0]}: use one way to tell positions"
            yield contradiction(other, message, schemes[0])
        exact = self.num_buckets // 2 if self.causal else self.num_buckets // 4
        if self.relative_bias and self.max_distance <= exact:
            message = f"must be greater than {exact}, the distances that have a bucket each"
            yield contradiction(
                "max_distance", f"{message} (got {self.max_distance})", "num_buckets", "causal"
            )
