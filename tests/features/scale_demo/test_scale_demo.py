"""Effects of scaling on variances and a softmax, and every term that --explain prints, recomputed."""

import math
import statistics
from typing import Any

import numpy as np
import pytest

from attncli.records.report import Report
from tests.running import run
from tests.toys.expected_steps import Column, Expected, assert_step, differ, dot, products
from tests.toys.test_explained_attention import explained, settings_name


def test_raw_variance_grows_and_scaled_variance_does_not() -> None:
    report = run("scale-demo", head_dim=[4, 64, 1024], batch_size=64, num_tokens=16)
    rows = report.statistics["variance"]
    assert [row["head_dim"] for row in rows] == [4, 64, 1024]
    for row in rows:
        assert row["raw_scores"] == pytest.approx(row["head_dim"], rel=0.25)
        assert row["scaled_scores"] == pytest.approx(1, rel=0.25)
    norms = [row["gradient_norm"] for row in run("scale-demo", factors=[1, 8, 64]).statistics["sharpness"]]
    assert norms == sorted(norms, reverse=True) and norms[-1] < 1e-4


def test_default_sizes_and_a_single_size() -> None:
    rows = run("scale-demo", batch_size=256).statistics["variance"]
    assert [row["head_dim"] for row in rows] == [4, 16, 64, 256]
    assert [row["raw_scores"] / row["head_dim"] for row in rows] == pytest.approx([1] * 4, rel=0.1)
    alone = run("scale-demo", head_dim=16).statistics["variance"]
    assert alone["head_dim"] == 16 and alone["raw_scores"] == pytest.approx(19.0138, abs=5e-5)


def first_item(report: Report, name: str) -> np.ndarray:
    tensor = report.tensors[name]
    values = tensor.values.astype(np.float64)
    return values[0] if "batch" in tensor.axes else values


def expected_score(report: Report, number: int) -> Expected:
    dims = report.spec["head_dim"]
    suffix = f"_{number}" if len(dims) > 1 else ""
    query, key = (first_item(report, f"{name}{suffix}")[0] for name in ("query", "key"))
    raw, scaled = (first_item(report, f"{name}{suffix}")[0, 0] for name in ("raw_scores", "scaled_scores"))
    factor = factor_of(report, dims[number])
    score = dot(query, key)
    assert score == pytest.approx(raw, abs=1e-5) and score * factor == pytest.approx(scaled, abs=1e-5)
    values = {
        "head_dim": dims[number],
        "score": score,
        "score in the report": raw,
        "factor": factor,
        "scaled score": score * factor,
        "scaled score in the report": scaled,
    }
    columns, total = products("dim", ("q_0", query), ("k_0", key))
    return Expected(values).table(columns, sum=total)


def factor_of(report: Report, dim: int) -> float:
    root = 1 / math.sqrt(dim)
    scale = report.spec["scale"]
    return {"sqrt": root, "fourth-root": root, "none": 1.0}.get(scale) or scale


def expected_variances(report: Report) -> Expected:
    dims = report.spec["head_dim"]
    rows, values = [], {}
    for number, dim in enumerate(dims):
        suffix = f"_{number}" if len(dims) > 1 else ""
        for name in ("query", "key", "raw_scores", "scaled_scores"):
            numbers = [float(x) for x in report.tensors[f"{name}{suffix}"].values.ravel()]
            mean, variance = statistics.fmean(numbers), statistics.variance(numbers)
            squares = variance * (len(numbers) - 1)
            rows.append((f"{name.replace('_', ' ')}, head_dim {dim}", len(numbers), mean, squares, variance))
            figures = report.statistics["variance"]
            figure = (figures[number] if len(dims) > 1 else figures)[name]
            assert variance == pytest.approx(figure, rel=1e-4)
            if name == "raw_scores":
                values[f"factor², head_dim {dim}"] = factor_of(report, dim) ** 2
                values[f"factor² · variance, head_dim {dim}"] = factor_of(report, dim) ** 2 * variance
    names = ("numbers", "n", "mean", "Σ (x - mean)²", "variance")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Expected(values).table(columns)


def expected_sharpened(report: Report, number: int) -> Expected:
    factor, logits = report.spec["factors"][number], report.spec["logits"]
    scaled = [factor * x for x in logits]
    shifted = [x - max(scaled) for x in scaled]
    exponentials = [math.exp(x) for x in shifted]
    weights = [e / math.fsum(exponentials) for e in exponentials]
    surprise = [-w * math.log(w) if w else 0.0 for w in weights]
    figures = report.statistics["sharpness"][number]
    assert math.fsum(surprise) == pytest.approx(figures["entropy"], abs=1e-9)
    count = range(len(weights))
    jacobian = [[weights[i] * ((i == j) - weights[j]) for j in count] for i in count]
    norm = math.sqrt(math.fsum(entry**2 for row in jacobian for entry in row))
    assert norm == pytest.approx(figures["gradient_norm"], abs=1e-9)
    values = {
        "largest weight": max(weights),
        "entropy (nats)": math.fsum(surprise),
        "norm of the Jacobian diag(w) - w wᵀ": norm,
        "largest difference from the report": differ(weights, figures["softmax"]),
    }
    columns: dict[str, Column] = {
        "key": count,
        "logit": logits,
        "times factor": scaled,
        "minus the max": shifted,
        "exp": exponentials,
        "weight": weights,
        "-w ln w": surprise,
    }
    totals = {name: math.fsum(columns[name]) for name in ("exp", "weight", "-w ln w")}
    return Expected(values).table(columns, sum=totals)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"head_dim": [3, 16], "scale": "fourth-root", "num_tokens": 5, "batch_size": 2},
        {"scale": "none", "logits": [0.5], "factors": [1, 0, -3]},
        {"scale": 0.2, "logits": [float(i % 7) for i in range(30)], "factors": [1, 8, 200]},
    ],
    ids=settings_name,
)
def test_every_term_of_scale_demo(settings: dict[str, Any]) -> None:
    report = explained("scale-demo", **settings)
    dims, factors = report.spec["head_dim"], report.spec["factors"]
    expected = [expected_score(report, number) for number in range(len(dims))]
    expected.append(expected_variances(report))
    expected += [expected_sharpened(report, number) for number in range(len(factors))]
    for step, other in zip(report.steps, expected, strict=True):
        assert_step(step, other)
