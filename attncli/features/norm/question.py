"""`attn norm`: batch, layer and RMS normalisation of random data, shown before and after."""

from typing import Annotated, Any, Literal

from pydantic import Field

from attncli.records.report import Report, Step
from attncli.settings.fields import (
    BYTES_PER_VECTOR_ENTRY,
    Contradictions,
    Everyday,
    ExplainSpec,
    Size,
    contradiction,
)
from attncli.settings.pages import SampledPage
from attncli.settings.text import Texts

OUTPUTS = {"batch": ("batch_norm", "batch_norm_eval"), "layer": ("layer_norm",), "rms": ("rms_norm",)}
"""The output tensors of each kind of norm."""


class NormSpec(ExplainSpec):
    experiment = "norm"
    title = "Normalisation"
    examples = (
        "attn norm --batch-size 32 --num-features 100",
        "attn norm --kind layer --explain",
        "attn norm --kind layer --variance biased --format json",
    )
    next_steps = ("--variance biased", "--batch-size 4", "--explain", "--show all")
    group = "Options"
    heading_keys = ("batch_size", "kind", "num_features", "variance", "seed")

    kind: Annotated[Literal["batch", "layer", "rms", "all"], Everyday()] = Field(
        "all", description="normalisation to apply"
    )
    batch_size: Annotated[Size, Everyday()] = Field(32, description="number of examples")
    num_features: Annotated[Size, Everyday()] = Field(100, description="features per example")
    eps: Annotated[float, Everyday("number added to the variance")] = Field(
        1e-5, gt=0, description="number added to the variance to avoid division by zero"
    )
    momentum: Annotated[float, Everyday("weight of this batch in the running mean")] = Field(
        0.1, ge=0, le=1, description="weight of this batch in the running mean and variance"
    )
    variance: Annotated[Literal["unbiased", "biased"], Everyday("divide by n - 1 or by n")] = Field(
        "unbiased", description="divide by n - 1 (unbiased) or by n, as torch's own layers do (biased)"
    )

    def needed_bytes(self, num_queries: int, num_keys: int) -> int:
        return 5 * self.batch_size * self.num_features * BYTES_PER_VECTOR_ENTRY

    def result_kind(self) -> str:
        return self.experiment

    def unmeasured(self) -> set[str]:
        return {name for kind, names in OUTPUTS.items() if self.kind not in (kind, "all") for name in names}

    def contradictions(self) -> Contradictions:
        yield from super().contradictions()
        if self.kind in ("batch", "all") and self.batch_size == 1:
            message = (
                "must be at least 2 for a variance over the batch (got 1), unless `kind` is layer or rms"
            )
            yield contradiction("batch_size", message, "kind")
        if self.kind in ("layer", "all") and self.num_features == 1 and self.variance == "unbiased":
            message = "must be at least 2 for an unbiased variance (got 1), unless `variance` is biased"
            yield contradiction("num_features", message, "variance", "kind")


def _form(spec: NormSpec) -> Any:
    from attncli.features.norm.normalisation import NormForm

    is_unbiased = spec.variance == "unbiased"
    return NormForm(kind=spec.kind, eps=spec.eps, momentum=spec.momentum, is_unbiased=is_unbiased)


def steps(spec: NormSpec, report: Report) -> tuple[Step, ...]:
    """Explain each norm step by step."""
    from attncli.features.norm.explained import norm_steps

    return norm_steps(report, _form(spec))


def run(spec: NormSpec, texts: Texts, draws: Any) -> Report:
    """Report the normalised data, its first feature and example, and the differences from torch's modules."""
    import torch

    from attncli.features.norm.normalisation import normalised
    from attncli.runs.report_parts import build_report, named
    from attncli.toys.sampling import choose_device

    shape, device = (spec.batch_size, spec.num_features), choose_device(spec.device)
    data = torch.randn(shape, generator=draws.generator).to(device)
    result = normalised(data, _form(spec))
    notes = []
    if spec.kind != "rms":
        notes.append(
            "Batch and layer norm divide by the unbiased standard deviation (n - 1); torch's own layers "
            "divide by the biased one (n)."
            if spec.variance == "unbiased"
            else "Batch and layer norm divide by the biased standard deviation (n), as torch's own layers do."
        )
    if result.running:
        notes.append(
            "Eval mode uses the running mean and unbiased variance, one step after their start at 0 and 1."
        )
    outputs = {"input": data, **result.outputs}
    tensors = {name: named(output, "batch", "dim") for name, output in outputs.items()}
    tensors |= {name: named(statistic, "dim") for name, statistic in result.running.items()}
    return build_report(spec, texts, tensors, result.effects, notes)


PAGE = SampledPage(run=run, steps=steps)
