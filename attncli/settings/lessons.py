"""The settings of the lessons around attention: averaging, scaling, normalising, and the classic mistakes."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from attncli.core.row_statistics import ROW_STATISTICS
from attncli.settings.fields import (
    BYTES_PER_TOP_KEY,
    BYTES_PER_VECTOR_ENTRY,
    BYTES_PER_WEIGHT,
    MAX_SIZE,
    Contradictions,
    Count,
    ExplainRowSpec,
    ExplainSpec,
    Group,
    Scale,
    Size,
    contradiction,
    in_group,
)
from attncli.settings.text import TOKENIZER_HELP, TextSpec


class AverageSpec(TextSpec, ExplainRowSpec):
    experiment = "average"
    title = "Averages over tokens"
    module = "attncli.toys.average"
    explained_by = "attncli.toys.explained_lessons:average_steps"
    examples = (
        'attn average "the cat walks on the street" --embed-dim 2',
        "attn average --num-tokens 8 --batch-size 4 --embed-dim 2 --seed 1337",
        "attn average --embedding integers --num-tokens 3 --embed-dim 2 --aggregate sum",
    )
    next_steps = ("--over all", "--embed-dim 2", "--explain", "--show output")
    group = "Averaging"
    heading_keys = ("file", "batch_size", "embedding", "embed_dim", "method", "over", "aggregate", "seed")

    tokenizer: Literal["words", "whitespace"] = Field("words", description=TOKENIZER_HELP)

    method: Literal["loop", "matmul", "softmax", "all"] = Field(
        "all", description="how: a loop, a matrix product, a masked softmax, or all three compared"
    )
    over: Literal["past", "all"] = Field("past", description="average each token with its past, or with all")
    aggregate: Literal["mean", "sum"] = Field("mean", description="what: mean or sum")
    softmax_twice: bool = Field(
        False, description="the mistake of applying softmax to the finished weights: the future leaks in"
    )
    top_k: Annotated[Count, Group("Output")] = Field(3, description="keys named for each query")

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        rows = (self.batch_size or 1) * num_queries
        row_bytes = self.embed_dim * BYTES_PER_VECTOR_ENTRY + min(self.top_k, num_queries) * BYTES_PER_TOP_KEY
        return num_queries**2 * BYTES_PER_WEIGHT + rows * row_bytes

    def row_statistics(self) -> tuple[str, ...]:
        return (*ROW_STATISTICS, "logsumexp", "received_mass") if self.aggregate == "mean" else ()

    def single_statistics(self) -> tuple[str, ...]:
        return in_group("agreement", "loop_vs_matmul", "loop_vs_softmax") if self.method == "all" else ()

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.method == "softmax" and self.aggregate == "sum":
            message = "must be loop or matmul with aggregate sum: a softmax row sums to one, so it averages"
            yield contradiction("method", message, "aggregate")
        if self.softmax_twice and self.method != "softmax":
            message = f"needs method softmax: there is no first softmax otherwise (got {self.method!r})"
            yield contradiction("softmax_twice", message, "method")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


SIZE_SCHEMA = {"type": "integer", "exclusiveMinimum": 0, "maximum": MAX_SIZE}
Sizes = Annotated[
    list[Size],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [SIZE_SCHEMA, {"type": "array", "items": SIZE_SCHEMA, "minItems": 1}]}),
]


class ScaleDemoSpec(ExplainSpec):
    experiment = "scale-demo"
    title = "Why scores are scaled"
    main_table = "variance"
    module = "attncli.toys.scale_demo"
    explained_by = "attncli.toys.explained_lessons:scale_demo_steps"
    examples = (
        "attn scale-demo --head-dim 16",
        "attn scale-demo --head-dim 16 --head-dim 64 --head-dim 256",
        "attn scale-demo --logits 0.1,-0.2,0.3 --factors 1,8,64",
    )
    next_steps = ("--head-dim 256", "--factors 1,2,4", "--scale none")
    group = "Options"
    heading_keys = ("batch_size", "head_dim", "scale", "seed")

    num_tokens: Size = Field(8, description="queries and keys in a sequence")
    batch_size: Size = Field(4, description="sequences")
    head_dim: Sizes = Field(
        [16], min_length=1, description="size of query and key; several give one row each"
    )
    scale: Scale = Field("sqrt", description="factor on the scores: sqrt, fourth-root, none, or a number")
    logits: list[float] = Field([0.1, -0.2, 0.3, -0.2, 0.5], min_length=1, description="what is sharpened")
    factors: list[float] = Field([1.0, 8.0, 64.0], min_length=1, description="by how much it is sharpened")
    curve: list[float] = Field(
        [-5.0, 5.0, 0.1], description="start, stop (left out) and step of the logits of the softmax curve"
    )

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        rows = self.batch_size * self.num_tokens
        return rows * (self.num_tokens + max(self.head_dim)) * BYTES_PER_VECTOR_ENTRY

    def single_statistics(self) -> tuple[str, ...]:
        variance = "variance.N" if len(self.head_dim) > 1 else "variance"
        of_row = ("factor", "softmax.N", "max_weight", "entropy", "gradient_norm")
        return (
            *in_group(variance, "head_dim", "query", "key", "raw_scores", "scaled_scores"),
            *in_group("sharpness.N", *of_row),
        )

    @field_validator("curve")
    @classmethod
    def _curve_is_a_range(cls, value: list[float]) -> list[float]:
        if len(value) != 3:
            raise ValueError(f"must be start, stop and step (got {len(value)} numbers)")
        start, stop, step = value
        if step <= 0 or stop <= start:
            raise ValueError(f"must rise from start to stop by a positive step (got {value})")
        if (stop - start) / step > 100_000:
            raise ValueError("must have at most 100000 points: take a larger step")
        return value


OUTPUTS = {"batch": ("batch_norm", "batch_norm_eval"), "layer": ("layer_norm",), "rms": ("rms_norm",)}
"""What each kind of norm gives."""


class NormSpec(ExplainSpec):
    experiment = "norm"
    title = "Normalisation"
    module = "attncli.toys.norm"
    explained_by = "attncli.toys.explained_lessons:norm_steps"
    examples = (
        "attn norm --batch-size 32 --num-features 100",
        "attn norm --kind layer --explain",
        "attn norm --kind layer --variance biased --format json",
    )
    next_steps = ("--variance biased", "--batch-size 4", "--explain", "--show all")
    group = "Options"
    heading_keys = ("batch_size", "kind", "num_features", "variance", "seed")

    kind: Literal["batch", "layer", "rms", "all"] = Field("all", description="which normalisation")
    batch_size: Size = Field(32, description="examples")
    num_features: Size = Field(100, description="features of an example")
    eps: float = Field(1e-5, gt=0, description="added to the variance, against division by zero")
    momentum: float = Field(
        0.1, ge=0, le=1, description="share of this batch in the running mean and variance"
    )
    variance: Literal["unbiased", "biased"] = Field(
        "unbiased", description="divide by n - 1 as the lesson does, or by n as torch's own layers do"
    )

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        return 5 * self.batch_size * self.num_features * BYTES_PER_VECTOR_ENTRY

    def single_statistics(self) -> tuple[str, ...]:
        outputs = [name for kind, names in OUTPUTS.items() if self.kind in (kind, "all") for name in names]
        of_each = ("feature0_mean", "feature0_std", "example0_mean", "example0_std")
        names = [name for output in ("input", *outputs) for name in in_group(output, *of_each)]
        return (*names, *in_group("agreement_with_torch", *outputs))

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.kind in ("batch", "all") and self.batch_size == 1:
            message = "must be at least 2 for a variance over the batch (got 1): or kind layer or rms"
            yield contradiction("batch_size", message, "kind")
        if self.kind in ("layer", "all") and self.num_features == 1 and self.variance == "unbiased":
            message = "must be at least 2 for an unbiased variance (got 1): or variance biased"
            yield contradiction("num_features", message, "variance", "kind")


PitfallName = Literal[
    "softmax-twice",
    "no-scaling",
    "uniform-projections",
    "merged-heads",
    "vocabulary-labels",
    "wrong-axis",
    "late-mask",
]
STATISTICS = {
    "softmax-twice": ("weight_on_future", "first_row_on_itself"),
    "no-scaling": ("score_variance", "mean_max_weight"),
    "uniform-projections": ("score_variance", "mean_max_weight"),
    "merged-heads": ("difference_from_input", "rows_of_one_token"),
    "vocabulary-labels": ("rows_named_wrongly", "labels"),
    "wrong-axis": ("row_sum_error", "column_sum_error"),
    "late-mask": ("smallest_row_sum", "weight_on_future"),
}
"""What each mistake is measured by, computed wrongly and rightly."""


class PitfallsSpec(TextSpec):
    experiment = "pitfalls"
    title = "A classic mistake"
    module = "attncli.toys.pitfalls"
    examples = (
        "attn pitfalls",
        "attn pitfalls softmax-twice --num-tokens 8",
        "attn pitfalls merged-heads --format json",
    )
    next_steps = ("late-mask", "no-scaling", "--show all")
    argument = "pitfall"
    group = "Pitfalls"
    heading_keys = ("pitfall", "file", "embedding", "embed_dim", "num_heads", "seed")

    tokenizer: Literal["words", "whitespace"] = Field("words", description=TOKENIZER_HELP)
    pitfall: PitfallName | None = Field(
        None, description="the mistake to show, wrong beside right (default: one line for each)"
    )
    num_heads: Size = Field(4, description="heads that are split and merged")

    def can_run_together(self) -> bool:
        return False

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        pairs = 2 * num_queries * (num_queries + self.embed_dim) + 4 * self.embed_dim**2
        return pairs * BYTES_PER_WEIGHT

    def single_statistics(self) -> tuple[str, ...]:
        if self.pitfall is None:
            return in_group("pitfalls.N", "wrong", "right")
        own = STATISTICS[self.pitfall]
        wrong_and_right = (*in_group("wrong", *own), *in_group("right", *own))
        if self.pitfall == "no-scaling":
            grown = [f"{side}_{name}" for name in own for side in ("wrong", "right")]
            return (*wrong_and_right, *in_group("growth.N", "head_dim", *grown))
        readings = in_group("readings.N", "weight") if self.pitfall == "vocabulary-labels" else ()
        return (*wrong_and_right, *readings)

    def unused_keys(self) -> frozenset[str]:
        splits_heads = self.pitfall in (None, "merged-heads")
        return super().unused_keys() | {"batch_size"} | (set() if splits_heads else {"num_heads"})

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.batch_size:
            yield contradiction("batch_size", "is not for pitfalls: each shows one sequence")
        if "num_heads" in self.unused_keys():
            if self.given("num_heads"):
                yield contradiction("num_heads", f"is not used by {self.pitfall}", "pitfall")
        elif self.embed_dim % self.num_heads:
            message = f"({self.embed_dim}) must be divisible by num_heads ({self.num_heads})"
            yield contradiction("embed_dim", message, "num_heads")
