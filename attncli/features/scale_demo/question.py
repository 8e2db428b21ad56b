"""`attn scale-demo`: the variance of scores grows with head_dim, and a softmax of large scores saturates."""

from math import inf
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from attncli.errors import RunError
from attncli.records.report import NamedTensor, Report, Step
from attncli.settings.fields import (
    BYTES_PER_VECTOR_ENTRY,
    CONFIG_ONLY,
    MAX_SIZE,
    Everyday,
    ExplainSpec,
    Scale,
    Size,
)
from attncli.settings.pages import SampledPage
from attncli.settings.text import Texts


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
    examples = (
        "attn scale-demo",
        "attn scale-demo --head-dim 16",
        "attn scale-demo --head-dim 64,1024 --scale none",
        "attn scale-demo --logits 0.1,-0.2,0.3 --factors 1,8,64",
    )
    next_steps = ("--head-dim 1024", "--factors 1,2,4", "--scale none")
    group = "Options"
    heading_keys = ("batch_size", "head_dim", "scale", "seed")

    num_tokens: Annotated[Size, Everyday()] = Field(8, description="number of queries and keys per sequence")
    batch_size: Annotated[Size, Everyday()] = Field(4, description="number of sequences")
    head_dim: Annotated[Sizes, Everyday("one or more sizes of query and key")] = Field(
        [4, 16, 64, 256],
        min_length=1,
        description="size of query and key; with several sizes statistics.variance is a list",
    )
    scale: Annotated[Scale, Everyday("score factor: sqrt, fourth-root, none, or a number")] = Field(
        "sqrt", description="factor on the scores: sqrt, fourth-root, none, or a number"
    )
    logits: Annotated[list[float], Everyday("logits to sharpen")] = Field(
        [0.1, -0.2, 0.3, -0.2, 0.5], min_length=1, description="logits to sharpen"
    )
    factors: Annotated[list[float], Everyday("factors on the logits")] = Field(
        [1.0, 8.0, 64.0], min_length=1, description="factors on the logits"
    )
    curve: Annotated[list[float], CONFIG_ONLY] = Field(
        [-5.0, 5.0, 0.1], description="start, stop (excluded) and step of the logits of the softmax curve"
    )

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        rows = self.batch_size * self.num_tokens
        return rows * (self.num_tokens + max(self.head_dim)) * BYTES_PER_VECTOR_ENTRY

    def result_kind(self) -> str:
        return self.experiment

    def unmeasured(self) -> set[str]:
        return {"variance" if len(self.head_dim) > 1 else "variance.N"}

    @field_validator("curve")
    @classmethod
    def _curve_is_a_range(cls, value: list[float]) -> list[float]:
        if len(value) != 3:
            raise ValueError(f"must be start, stop and step (got {len(value)} numbers)")
        start, stop, step = value
        if step <= 0 or stop <= start:
            raise ValueError(f"must rise from start to stop by a positive step (got {value})")
        if (stop - start) / step > 100_000:
            raise ValueError("must have at most 100000 points: use a larger step")
        return value


def steps(spec: ScaleDemoSpec, report: Report) -> tuple[Step, ...]:
    """Explain scores, variances and sharpness step by step."""
    from attncli.features.scale_demo.explained import scale_demo_steps

    return scale_demo_steps(report, head_dims=spec.head_dim, scale=spec.scale)


AXES = {
    "query": ("query", "dim"),
    "key": ("key", "dim"),
    "raw_scores": ("query", "key"),
    "scaled_scores": ("query", "key"),
}


def run(spec: ScaleDemoSpec, texts: Texts, draws: Any) -> Report:
    """Report the variances for each head_dim, the softmax for each factor, and the softmax curve."""
    import torch

    from attncli.features.scale_demo.explained import tensor_name
    from attncli.features.scale_demo.results import ScaleEffects, ScoreVariances, SharpenedSoftmax
    from attncli.features.scale_demo.scaling import score_tensors, score_variances, sharpened
    from attncli.runs.report_parts import build_report, named
    from attncli.toys.sampling import choose_device

    device = choose_device(spec.device)
    variances: list[ScoreVariances] = []
    score_maps: dict[str, NamedTensor] = {}
    for number, head_dim in enumerate(spec.head_dim):
        shape = (spec.batch_size, spec.num_tokens, head_dim)
        query, key = (torch.randn(shape, generator=draws.generator).to(device) for _ in range(2))
        scores = score_tensors(query, key, spec.scale)
        variances.append(score_variances(scores, head_dim))
        if inf in variances[-1].values():
            raise RunError(f"scale-demo: the scores overflow float32: use a smaller scale (got {spec.scale})")
        if spec.explain:
            score_maps |= {
                tensor_name(name, number, len(spec.head_dim)): named(tensor, *AXES[name])
                for name, tensor in scores.items()
            }
    curve_logits = torch.arange(*spec.curve, dtype=torch.float64)
    logits = named(torch.tensor(spec.logits, dtype=torch.float64), "key")
    tensors = {
        **score_maps,
        "logits": logits,
        "curve_logits": named(curve_logits, "point"),
        "curve_weights": named(curve_logits.softmax(dim=-1), "point"),
    }
    result = ScaleEffects(
        logits=logits,
        variance=ScoreVariances.rows(variances),
        sharpness=SharpenedSoftmax.rows(sharpened(spec.logits, factor) for factor in spec.factors),
    )
    notes = [
        "Scaling keeps the scores at unit variance for every head_dim, so softmax stays diffuse.",
        "gradient_norm is the Frobenius norm of the softmax Jacobian: it vanishes as the row saturates.",
    ]
    return build_report(spec, texts, tensors, result, notes)


PAGE = SampledPage(run=run, steps=steps)
