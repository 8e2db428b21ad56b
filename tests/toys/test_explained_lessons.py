"""What --explain prints for average, norm and scale-demo: every term, recomputed."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attncli.records.report import Report
from tests.running import run
from tests.toys.expected_steps import Column, Expected, assert_step, differ, dot, products
from tests.toys.test_explained_attention import explained, settings_name

Numbers = Sequence[float]


def first_item(report: Report, name: str) -> np.ndarray:
    tensor = report.tensors[name]
    values = tensor.values.astype(np.float64)
    return values[0] if "batch" in tensor.axes else values


class RecomputedAverage:
    """The expected steps of an average for one token."""

    def __init__(self, report: Report, token: int) -> None:
        self.report, self.token, self.spec = report, token, report.spec
        self.source, self.output = first_item(report, "input"), first_item(report, "output")[token]
        self.count = len(report.tokens)
        self.seen = token + 1 if self.spec["over"] == "past" else self.count
        self.mean = self.spec["aggregate"] == "mean"
        self.ones = [1.0 if j < self.seen else 0.0 for j in range(self.count)]
        self.weights = [one / self.seen for one in self.ones] if self.mean else self.ones

    def columns(self, **columns: Column) -> dict[str, Column]:
        return {"token": range(self.count), "text": self.report.tokens} | columns

    def mixed(self, weights: Numbers) -> list[float]:
        return [dot(np.asarray(weights), self.source[:, d]) for d in range(self.source.shape[1])]

    def difference(self, weights: Numbers) -> dict[str, Any]:
        return {"largest difference from the report": differ(self.mixed(weights), self.output)}

    def tokens(self) -> Expected:
        return Expected({"query explained": self.token}).table(
            {"token": range(self.count), "text": self.report.tokens}
        )

    def embeddings(self) -> Expected:
        vector = self.source[self.token]
        dims = {str(d): self.source[:, d] for d in range(min(6, len(vector)))}
        values = {"mean square of the worked vector": dot(vector, vector) / len(vector)}
        return Expected(values).table(self.columns() | dims)

    def by_a_loop(self) -> Expected:
        dims = range(min(5, self.source.shape[1]))
        seen = self.source[: self.seen]
        sums = {str(d): math.fsum(seen[:, d]) for d in dims}
        totals = {"sum": sums}
        if self.mean:
            totals["mean"] = {name: total / self.seen for name, total in sums.items()}
        columns: dict[str, Column] = {"token": range(self.seen), "text": self.report.tokens[: self.seen]}
        columns |= {str(d): seen[:, d] for d in dims}
        return Expected({"tokens seen": self.seen} | self.difference(self.weights)).table(columns, **totals)

    def by_a_matrix(self) -> Expected:
        columns: dict[str, Column] = {"one": self.ones} if self.mean else {}
        totals: dict[str, Any] = {"one": self.seen} if self.mean else {}
        columns["weight"], totals["weight"] = self.weights, math.fsum(self.weights)
        for d in range(min(2, self.source.shape[1])):
            values = self.source[:, d]
            columns[f"value dim {d}"] = values
            columns[f"times weight {d}"] = [w * v for w, v in zip(self.weights, values, strict=True)]
            totals[f"times weight {d}"] = dot(np.asarray(self.weights), values)
        return Expected(self.difference(self.weights)).table(self.columns(**columns), sum=totals)

    def by_a_softmax(self) -> Expected:
        scores = [0.0 if one else -math.inf for one in self.ones]
        exponentials = [math.exp(score) for score in scores]
        weights = [e / math.fsum(exponentials) for e in exponentials]
        values = {} if self.spec["softmax_twice"] else self.difference(weights)
        columns = self.columns(score=scores, exp=exponentials, weight=weights)
        totals = {"exp": math.fsum(exponentials), "weight": math.fsum(weights)}
        return Expected(values).table(columns, sum=totals)

    def softmax_again(self) -> Expected:
        exponentials = [math.exp(weight) for weight in self.weights]
        twice = [e / math.fsum(exponentials) for e in exponentials]
        values = {"weight on hidden tokens": math.fsum(twice[self.seen :])} | self.difference(twice)
        columns: dict[str, Column] = {"weight": self.weights, "exp": exponentials, "weight again": twice}
        totals = {name: math.fsum(column) for name, column in columns.items()}
        return Expected(values).table(self.columns(**columns), sum=totals)

    def side_by_side(self) -> Expected:
        ways = ["loop", "matrix", *(["softmax"] if self.mean else [])]
        outputs = [*([self.mixed(self.weights)] * len(ways)), self.output]
        dims = range(min(6, self.source.shape[1]))
        agreement = self.report.statistics["agreement"]
        values = {"largest difference of loop and matrix, over all tokens": agreement["loop_vs_matmul"]}
        if self.mean:
            said = "largest difference of loop and softmax, over all tokens"
            values[said] = agreement["loop_vs_softmax"]
        columns: dict[str, Column] = {"way": [*ways, "in the report"]}
        return Expected(values).table(columns | {str(d): [o[d] for o in outputs] for d in dims})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"token": 0},
        {"token": 2, "embed_dim": 3, "over": "all"},
        {"aggregate": "sum", "token": 3, "embed_dim": 1},
        {"method": "softmax", "token": 4},
        {"method": "softmax", "softmax_twice": True, "token": 1},
        {"method": "loop", "token": 1},
        {"method": "matmul", "num_tokens": 7, "batch_size": 3, "embed_dim": 2, "token": 4},
        {"num_tokens": 200, "embed_dim": 2, "token": 150},
    ],
    ids=settings_name,
)
def test_every_term_of_an_average(settings: dict[str, Any]) -> None:
    report = explained("average", **settings)
    expected = RecomputedAverage(report, settings.get("token", len(report.tokens) - 1))
    titles = [step.title for step in report.steps]
    for step in report.steps:
        assert_step(step, getattr(expected, step.title.lower().replace(" ", "_"))())
    method, mean = report.spec["method"], report.spec["aggregate"] == "mean"
    assert ("By a loop" in titles) == (method in ("all", "loop"))
    assert ("By a matrix" in titles) == (method in ("all", "matmul"))
    assert ("By a softmax" in titles) == (mean and method in ("all", "softmax"))
    assert ("Side by side" in titles) == (method == "all")


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
    """A tensor whole: in norm the batch is what is normalised."""
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


def test_scale_demo_draws_the_same_with_and_without_explain() -> None:
    assert run("scale-demo").statistics == explained("scale-demo").statistics
