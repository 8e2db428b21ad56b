"""Averages: three ways that agree, and every term that --explain prints, recomputed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attncli.records.report import Report
from tests.running import run
from tests.toys.expected_steps import Column, Expected, assert_step, differ, dot
from tests.toys.test_explained_attention import explained, settings_name

Numbers = Sequence[float]


def test_all_ways_to_average_agree() -> None:
    report = run("average", num_tokens=7, batch_size=2, embed_dim=3)
    assert set(report.statistics["agreement"]) == {"loop_vs_matmul", "loop_vs_softmax"}
    assert report.tensors["weights"].axes == ("batch", "query", "key")
    summed = run("average", num_tokens=7, embed_dim=3, aggregate="sum")
    assert summed.statistics["agreement"]["loop_vs_softmax"] is None
    np.testing.assert_allclose(
        summed.tensors["output"].values, summed.tensors["input"].values.cumsum(axis=0), rtol=1e-5, atol=1e-6
    )
    for method in ("loop", "matmul", "softmax"):
        alone = run("average", num_tokens=7, batch_size=2, embed_dim=3, method=method)
        np.testing.assert_allclose(alone.tensors["output"].values, report.tensors["output"].values, atol=1e-6)


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
        values = {"mean square of the explained vector": dot(vector, vector) / len(vector)}
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
