"""Norms against torch, and every term that --explain prints, recomputed."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attncli.records.report import Report
from tests.running import run
from tests.toys.expected_steps import Column, Expected, assert_step, differ
from tests.toys.test_explained_attention import explained, settings_name

Numbers = Sequence[float]


def test_norms_agree_with_torch_if_variances_are_biased() -> None:
    biased = run("norm", variance="biased").statistics["agreement_with_torch"]
    assert all(difference < 1e-5 for difference in biased.values())
    unbiased = run("norm").statistics["agreement_with_torch"]
    assert unbiased["batch_norm"] is None and unbiased["layer_norm"] is None
    assert set(run("norm", kind="layer", batch_size=1).tensors) == {"input", "layer_norm"}


def normalised(numbers: Numbers, variance: float, mean: float, eps: float) -> list[float]:
    return [(x - mean) / math.sqrt(variance + eps) for x in numbers]


def expected_norm(report: Report, title: str) -> Expected:
    data, spec = first_item_free(report, "input"), report.spec
    kind = title.split(" norm")[0].lower()
    numbers = [float(x) for x in (data[:, 0] if kind == "batch" else data[0])]
    axis = "example" if kind == "batch" else "feature"
    unbiased = spec["variance"] == "unbiased"
    mean = statistics.fmean(numbers)
    variance_of = statistics.variance if unbiased else statistics.pvariance
    deviations = [x - mean for x in numbers]
    index: dict[str, Column] = {axis: range(len(numbers)), "x": numbers}
    if title == "Input":
        dims = range(min(6, data.shape[1]))
        columns: dict[str, Column] = {"example": range(len(data))}
        return Expected({"example 0, feature 0": data[0, 0]}).table(
            columns | {str(d): data[:, d] for d in dims}
        )
    if title == "RMS norm":
        mean_square = statistics.fmean(x * x for x in numbers)
        root = math.sqrt(mean_square + spec["eps"])
        worked, reported = [x / root for x in numbers], first_item_free(report, "rms_norm")[0]
        values = {
            "n": len(numbers),
            "mean of squares": mean_square,
            "root of it and eps": root,
            "x": numbers[0],
            "normalised": worked[0],
            "rms_norm of example 0, feature 0 in the report": reported[0],
            "largest difference over all features": differ(worked, reported),
        }
        columns = index | {"squared": [x * x for x in numbers], "normalised": worked}
        totals = {name: math.fsum(column) for name, column in columns.items() if name != axis}
        return Expected(values).table(columns, sum=totals)
    variance = variance_of(numbers)
    if title.endswith("mean and variance"):
        columns = index | {"x - mean": deviations, "squared": [d * d for d in deviations]}
        totals = {name: math.fsum(column) for name, column in columns.items() if name != axis}
        divisor = len(numbers) - unbiased
        values = {"n": len(numbers), "mean": mean, "divided by": divisor, "variance": variance}
        return Expected(values | {"standard deviation": math.sqrt(variance)}).table(columns, sum=totals)
    if title.endswith("running statistics"):
        unbiased_variance, momentum = statistics.variance(numbers), spec["momentum"]
        running = momentum * mean, 1 - momentum + momentum * unbiased_variance
        return Expected(
            {
                "momentum": momentum,
                "mean of the batch": mean,
                "running mean": running[0],
                "running mean in the report": report.tensors["running_mean"].values[0],
                "unbiased variance of the batch": unbiased_variance,
                "running variance": running[1],
                "running variance in the report": report.tensors["running_variance"].values[0],
                "x": numbers[0],
                "normalised in eval mode": (numbers[0] - running[0]) / math.sqrt(running[1] + spec["eps"]),
                "batch_norm_eval in the report": report.tensors["batch_norm_eval"].values[0, 0],
            }
        )
    assert title.endswith("one value normalised")
    output = first_item_free(report, f"{kind}_norm")
    reported = output[:, 0] if kind == "batch" else output[0]
    worked = normalised(numbers, variance, mean, spec["eps"])
    values = {
        "x": numbers[0],
        "x - mean": deviations[0],
        "variance + eps": variance + spec["eps"],
        "its root": math.sqrt(variance + spec["eps"]),
        "normalised": worked[0],
        f"{kind}_norm of example 0, feature 0 in the report": reported[0],
        f"largest difference over all {axis}s": differ(worked, reported),
    }
    columns = index | {"x - mean": deviations, "normalised": worked}
    numbered = {name: column for name, column in columns.items() if name != axis}
    return Expected(values).table(
        columns,
        mean={name: statistics.fmean(column) for name, column in numbered.items()},
        variance={name: variance_of(column) for name, column in numbered.items()},
    )


def first_item_free(report: Report, name: str) -> np.ndarray:
    """A whole tensor, since norm normalises over the batch."""
    return report.tensors[name].values.astype(np.float64)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"variance": "biased", "batch_size": 5, "num_features": 7, "seed": 2},
        {"kind": "layer", "batch_size": 1, "num_features": 3, "eps": 0.5},
        {"kind": "rms", "num_features": 1},
        {"kind": "batch", "momentum": 0.3, "num_features": 2},
    ],
    ids=settings_name,
)
def test_every_term_of_norm(settings: dict[str, Any]) -> None:
    report = explained("norm", **settings)
    for step in report.steps:
        assert_step(step, expected_norm(report, step.title))
    kinds = {"all": 7, "batch": 4, "layer": 3, "rms": 2}
    assert len(report.steps) == kinds[settings.get("kind", "all")]
    for step in report.steps:
        for name, value in step.values.items():
            other = name.removesuffix(" in the report")
            if other != name and other in step.values:
                assert value == pytest.approx(step.values[other], abs=1e-6)
