"""Every number of a step, recomputed independently from only the report's tensors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from attncli.records.report import Report, Shape, Step
from tests.toys.expected_steps import Column, Expected, assert_step, differ, dot, products


def head_of(report: Report, name: str, head: int) -> np.ndarray:
    """A tensor of batch item 0 and this query head, in float64."""
    tensor = report.tensors[name]
    values = tensor.values.astype(np.float64)
    if "batch" in tensor.axes:
        values = values[0]
    if "head" in tensor.axes:
        num_heads = report.tensors["weights"].values.shape[report.tensors["weights"].axes.index("head")]
        values = values[head * values.shape[0] // num_heads]
    return values


class Recomputed:
    """The expected steps of an attention report for one query of one head."""

    def __init__(self, report: Report, token: int, head: int = 0) -> None:
        self.report, self.token, self.head = report, token, head
        self.spec = report.spec
        self.tokens = report.tokens
        self.keys = report.context_tokens or report.tokens
        self.rule: dict[str, Any] = report.statistics.get("score_rule", {})
        self.weights = self.of("weights")[token]
        self.strongest = max(range(len(self.keys)), key=lambda j: (self.weights[j], -j))

    def of(self, name: str) -> np.ndarray:
        return head_of(self.report, name, self.head)

    def key_columns(self, **columns: Column) -> dict[str, Column]:
        return {"key": range(len(self.keys)), "text": self.keys} | columns

    def half_of(self, name: str) -> np.ndarray:
        """The explained half of query or key; the whole tensor without differential attention."""
        matrix = self.of(name)
        count = matrix.shape[1] // (2 if self.spec.get("differential") else 1)
        return matrix[:, :count]

    @property
    def scores(self) -> list[float]:
        query = self.half_of("query")[self.token]
        return [dot(query, key) for key in self.half_of("key")]

    @property
    def softcap(self) -> float | None:
        cap: float | None = (self.rule or self.spec).get("softcap")
        return cap

    @property
    def bias(self) -> np.ndarray | None:
        name = next((name for name in ("bias", "position_bias") if name in self.report.tensors), None)
        return None if name is None else self.of(name)[self.token]

    @property
    def temperature(self) -> float:
        return float(self.spec.get("temperature", 1.0))

    @property
    def factor(self) -> float:
        if self.rule:
            return float(self.rule["scale"])
        scale = self.spec["scale"]
        root = 1 / math.sqrt(self.half_of("query").shape[-1])
        return {"sqrt": root, "fourth-root": root, "none": 1.0}.get(scale) or scale

    @property
    def capped(self) -> list[float]:
        scores, cap = [score * self.factor for score in self.scores], self.softcap
        return scores if cap is None else [cap * math.tanh(score / cap) for score in scores]

    @property
    def biased(self) -> list[float]:
        if self.bias is None:
            return self.capped
        return [score + float(b) for score, b in zip(self.capped, self.bias, strict=True)]

    @property
    def before_mask(self) -> list[float]:
        return [score / self.temperature for score in self.biased]

    def compared(self, worked: Sequence[float]) -> dict[str, Any]:
        return {"largest difference from the report": differ(worked, self.of("scaled_scores")[self.token])}

    def tokens_step(self) -> Expected:
        expected = Expected({"query explained": self.token})
        sides = [("token", "token_ids", self.tokens)]
        if self.report.context_tokens:
            sides.append(("key", "context_token_ids", self.keys))
        for axis, ids, tokens in sides:
            columns: dict[str, Column] = {axis: range(len(tokens)), "text": tokens}
            if ids in self.report.tensors:
                columns["id"] = self.report.tensors[ids].values.tolist()
            expected.table(columns)
        return expected

    def vectors(self, axis: str, name: str, tokens: Sequence[str], most: int = 6) -> dict[str, Column]:
        matrix = self.of(name)
        dims = {str(d): matrix[:, d] for d in range(min(most, matrix.shape[1]))}
        return {axis: range(len(tokens)), "text": tokens} | dims

    def embeddings_step(self) -> Expected:
        vector = self.of("input")[self.token]
        expected = Expected({"mean square of the explained vector": dot(vector, vector) / len(vector)})
        expected.table(self.vectors("token", "input", self.tokens))
        if "context" in self.report.tensors:
            expected.table(self.vectors("key", "context", self.keys))
        return expected

    def projection_step(self) -> Expected:
        expected = Expected()
        if "query_projection" in self.report.tensors:
            axes = self.report.tensors["query_projection"].axes
            matrix = self.of("query_projection")
            rows = matrix if axes[-1] == "embed" else matrix.T
            projected = "projected_query" if "projected_query" in self.report.tensors else "query"
            vector, reported = self.of("input")[self.token], self.of(projected)[self.token]
            expected.values = {
                "query dim 0 in the report": reported[0],
                "largest difference over all dims": differ([dot(row, vector) for row in rows], reported),
            }
            name = "W_Q_h" if "head" in axes else "W_Q"
            columns, total = products("embed", (f"x_{self.token}", vector), (name, rows[0]))
            expected.table(columns, sum=total)
        prefix = "projected_" if "projected_query" in self.report.tensors else ""
        begin = {
            f"query of {self.token}": self.of(f"{prefix}query")[self.token],
            f"key of {self.strongest}": self.of(f"{prefix}key")[self.strongest],
            f"value of {self.strongest}": self.of("value")[self.strongest],
        }
        dims = min(6, *map(len, begin.values()))
        return expected.table(
            {"vector": list(begin)} | {str(d): [v[d] for v in begin.values()] for d in range(dims)}
        )

    def scores_step(self) -> Expected:
        first = "first_weights" if "first_weights" in self.report.tensors else "weights"
        key, reported = int(self.of(first)[self.token].argmax()), self.of("scores")[self.token]
        query, keys = self.half_of("query")[self.token], self.half_of("key")
        columns, total = products("dim", (f"q_{self.token}", query), (f"k_{key}", keys[key]))
        values = {
            f"score of key {key} in the report": reported[key],
            "largest difference over visible keys": differ(self.scores, reported),
        }
        expected = Expected(values).table(columns, sum=total)
        return expected.table(self.key_columns(score=self.scores))

    def scale_step(self) -> Expected:
        scaled = [score * self.factor for score in self.scores]
        dim = self.half_of("query").shape[-1]
        values: dict[str, Any] = {"head_dim": dim, "factor": self.factor}
        if not self.rule and self.spec["scale"] == "fourth-root":
            values["factor on query and key each"] = dim**-0.25
        is_scale_alone = self.softcap is None and self.bias is None and self.temperature == 1
        is_one = "head" not in self.report.tensors["weights"].axes and not self.spec.get("differential")
        if is_scale_alone and is_one:
            for name in ("scores", "scaled_scores"):
                numbers = self.report.tensors[name].values.astype(np.float64)
                visible = numbers[np.isfinite(numbers)]
                figure = self.report.statistics[name]["variance"]
                assert visible.size == 1 or math.isclose(figure, visible.var(ddof=1), rel_tol=1e-4), name
                values[f"variance of all visible {name.replace('_', ' ')}"] = figure
        if is_scale_alone:
            values |= self.compared(scaled)
        return Expected(values).table(self.key_columns(score=self.scores, scaled=scaled))

    def softcap_step(self) -> Expected:
        scaled = [score * self.factor for score in self.scores]
        is_last = self.bias is None and self.temperature == 1
        values = {"cap": self.softcap} | (self.compared(self.capped) if is_last else {})
        return Expected(values).table(self.key_columns(scaled=scaled, capped=self.capped))

    def bias_step(self) -> Expected:
        assert self.bias is not None
        values: dict[str, Any] = {}
        columns: dict[str, Column] = {"score": self.capped}
        if not self.rule:
            columns["distance"] = [abs(self.token - j) for j in range(len(self.keys))]
            if self.spec.get("alibi"):
                slope = 2 ** (-8 * (self.head + 1) / self.spec.get("num_heads", 1))
                values["slope"] = slope
                assert self.bias.tolist() == pytest.approx([-slope * d for d in columns["distance"]])
        if self.temperature == 1:
            values |= self.compared(self.biased)
        return Expected(values).table(self.key_columns(**columns, bias=self.bias, sum=self.biased))

    def temperature_step(self) -> Expected:
        values = {"temperature": self.temperature} | self.compared(self.before_mask)
        return Expected(values).table(self.key_columns(score=self.biased, divided=self.before_mask))

    def query_before(self, title: str) -> np.ndarray:
        """The explained half of the projected query, normalised if that happens before the rotation."""
        name = "projected_query" if "projected_query" in self.report.tensors else "query"
        query = self.half_of(name)[self.token]
        if title == "Rotary positions" and self.spec.get("qk_norm"):
            return query / math.sqrt(dot(query, query) / len(query) + self.spec["qk_norm_eps"])
        return query

    def norm_step(self) -> Expected:
        query = self.query_before("Normalise query and key")
        mean_square = dot(query, query) / len(query)
        root = math.sqrt(mean_square + self.spec["qk_norm_eps"])
        normalised = [float(q) / root for q in query]
        values = {"mean square": mean_square, "root of it and eps": root}
        if not self.spec.get("rope"):
            reported = self.half_of("query")[self.token]
            values["largest difference from the report"] = differ(normalised, reported)
        squares = [float(q) ** 2 for q in query]
        columns = {"dim": range(len(query)), "projected": query, "squared": squares, "normalised": normalised}
        return Expected(values).table(columns, sum={"squared": math.fsum(squares)})

    def rope_step(self) -> Expected:
        query = self.query_before("Rotary positions")
        pairs = len(query) // 2
        angles = [self.token / self.spec["rope_base"] ** (2 * n / len(query)) for n in range(pairs)]
        points = [complex(query[n], query[n + pairs]) for n in range(pairs)]
        turned = [p * complex(math.cos(a), math.sin(a)) for p, a in zip(points, angles, strict=True)]
        worked = [p.real for p in turned] + [p.imag for p in turned]
        values = {
            "position": self.token,
            "base": self.spec["rope_base"],
            "length before": math.sqrt(dot(query, query)),
            "length after": math.hypot(*worked),
            "largest difference from the report": differ(worked, self.half_of("query")[self.token]),
        }
        return Expected(values).table(
            {
                "pair": range(pairs),
                "angle": angles,
                "cos": [math.cos(a) for a in angles],
                "sin": [math.sin(a) for a in angles],
                "dim n": [p.real for p in points],
                f"n + {pairs}": [p.imag for p in points],
                "turned n": [p.real for p in turned],
                f"turned n + {pairs}": [p.imag for p in turned],
            }
        )

    def difference_step(self) -> Expected:
        a, b, c, d = self.report.tensors["lambda_vectors"].values.astype(np.float64)
        exponentials = math.exp(dot(a, b)), math.exp(dot(c, d))
        factor = exponentials[0] - exponentials[1] + self.spec["lambda_init"]
        assert factor == pytest.approx(self.report.statistics["differential"]["lambda"], rel=1e-9)
        first, second = (self.of(f"{which}_weights")[self.token] for which in ("first", "second"))
        weights = [f - factor * s for f, s in zip(first, second, strict=True)]
        values = {
            "exp(a · b)": exponentials[0],
            "exp(c · d)": exponentials[1],
            "lambda_init": self.spec["lambda_init"],
            "lambda": factor,
            "largest difference from the report": differ(weights, self.weights),
        }
        product, total = products("dim", ("a", a), ("b", b))
        taken = [factor * s for s in second]
        columns = {"first": first, "second": second, "lambda · second": taken, "weight": weights}
        totals = {name: math.fsum(column) for name, column in columns.items()}
        expected = Expected(values).table(product, sum=total)
        return expected.table(self.key_columns(**columns), sum=totals)

    def mask_step(self) -> Expected:
        scaled = self.of("scaled_scores")
        hidden = [math.isinf(score) for score in scaled[self.token]]
        expected = Expected(
            {
                "hidden in this row": sum(hidden),
                "hidden in the whole matrix": sum(math.isinf(s) for s in scaled.ravel()),
                "scores in the whole matrix": scaled.size,
            }
        )
        if not any(math.isinf(s) for s in scaled.ravel()):
            return expected
        return expected.table(
            self.key_columns(
                score=self.before_mask,
                sees=["no" if h else "yes" for h in hidden],
                masked=scaled[self.token],
            )
        )

    def softmax_step(self, half: str = "") -> Expected:
        scores = [float(s) for s in self.of(f"{half}scaled_scores")[self.token]]
        reported = self.weights
        if "second_weights" in self.report.tensors:
            reported = self.of(f"{half or 'first_'}weights")[self.token]
        sink = (self.rule or self.spec).get("sink")
        sink = None if sink is None else sink / self.temperature
        everything = scores + ([] if sink is None else [sink])
        largest = max(everything)
        exponentials = [math.exp(s - largest) for s in scores]
        total = math.fsum(math.exp(s - largest) for s in everything)
        weights = [e / total for e in exponentials]
        values: dict[str, Any] = {"largest score": largest, "sum of exponentials": total}
        if sink is not None:
            share = math.exp(sink - largest)
            values |= {"sink": sink, "exponential of the sink": share, "weight of the sink": share / total}
        values["ln Σ exp(score)"] = math.log(math.fsum(map(math.exp, everything)))
        values["largest difference from the report"] = differ(weights, reported)
        columns: dict[str, Column] = {
            "score": scores,
            "minus the max": [s - largest for s in scores],
            "exp": exponentials,
            "weight": weights,
        }
        totals = {"exp": math.fsum(exponentials), "weight": math.fsum(weights)}
        return Expected(values).table(self.key_columns(**columns), sum=totals)

    def no_softmax_step(self) -> Expected:
        scores = self.of("scaled_scores")[self.token]
        weights = [0.0 if math.isinf(s) else float(s) for s in scores]
        values = {"largest difference from the report": differ(weights, self.weights)}
        columns = self.key_columns(score=scores, weight=weights)
        return Expected(values).table(columns, sum={"weight": math.fsum(weights)})

    def weighted(self, weights: Column, matrix: np.ndarray) -> tuple[dict[str, Column], dict[str, Any]]:
        columns: dict[str, Column] = {"weight": weights}
        totals: dict[str, Any] = {"weight": math.fsum(weights)}
        for d in range(min(2, matrix.shape[1])):
            columns[f"value dim {d}"] = matrix[:, d]
            columns[f"times weight {d}"] = [w * v for w, v in zip(weights, matrix[:, d], strict=True)]
            totals[f"times weight {d}"] = dot(np.asarray(weights), matrix[:, d])
        return columns, totals

    def weighted_sum_step(self) -> Expected:
        value = self.of("value")
        name = "head_outputs" if "head_outputs" in self.report.tensors else "output"
        output = self.of(name)[self.token]
        columns, totals = self.weighted(self.weights, value)
        values = {f"{name} dim {d} in the report": output[d] for d in range(min(2, len(output)))}
        worked = [dot(self.weights, value[:, d]) for d in range(value.shape[1])]
        values["largest difference over all dims"] = differ(worked, output)
        return Expected(values).table(self.key_columns(**columns), sum=totals)

    def split_step(self, step: Step) -> Expected:
        query = self.of("projected_query" if "projected_query" in self.report.tensors else "query")
        dim, stride = query.shape[1], step.shapes[0].strides
        assert stride is not None
        num_heads = self.report.tensors["query"].values.shape[-3]
        assert_strides(step.shapes, (len(self.tokens), num_heads, dim))
        dims = range(min(6, dim))
        # One wide product rounds otherwise than a product a head.
        numbers = [row[3] for row in step.tables[0].rows]
        np.testing.assert_allclose(numbers, query[self.token][: len(dims)], atol=1e-5, rtol=1e-4)
        values: dict[str, Any] = {"largest difference from the report": 0.0}
        kv_heads = self.report.tensors["key"].values.shape[-3]
        if kv_heads != num_heads:
            values["key/value head used"] = self.head * kv_heads // num_heads
        place = self.token * stride[0] + self.head * dim
        return Expected(values).table(
            {
                "dim": dims,
                "column of the wide row": [self.head * dim + d for d in dims],
                "place in memory": [place + d for d in dims],
                "number": numbers,
            }
        )

    def merge_step(self, step: Step) -> Expected:
        heads = self.report.tensors["head_outputs"].values.astype(np.float64)
        heads = heads[0] if heads.ndim == 4 else heads
        num_heads, num_tokens, dim = heads.shape
        merged = np.concatenate(list(heads), axis=-1)
        flat = heads.reshape(num_tokens, num_heads * dim)
        columns = [h * dim for h in range(num_heads)]
        sources = [divmod(self.token * num_heads * dim + c, num_tokens * dim) for c in columns]
        real = torch.from_numpy(np.ascontiguousarray(heads)).transpose(0, 1)
        try:
            real.view(num_tokens, -1)
            said = "none"
        except RuntimeError as error:
            said = str(error)
        assert (said == "none") == (num_heads == 1 or num_tokens == 1)
        shapes = [shape.strides for shape in step.shapes]
        assert shapes[1:] == [real.stride(), real.contiguous().stride(), (num_heads * dim, 1)]
        values: dict[str, Any] = {"error of .view without .contiguous()": said}
        for name in ("merged", "output"):
            if name in self.report.tensors and "input" in self.report.tensors:
                values[f"largest difference from {name} in the report"] = differ(merged, self.of(name))
                break
        return Expected(values).table(
            {
                "column": columns,
                "head": range(num_heads),
                "merged": merged[self.token, columns],
                "unmoved": flat[self.token, columns],
                "is of token": [rest // dim for _, rest in sources],
                "of head": [head for head, _ in sources],
            }
        )

    def output_step(self) -> Expected:
        matrix, bias = (
            self.report.tensors[name].values.astype(np.float64)
            for name in ("output_projection", "output_bias")
        )
        merged, output = self.of("merged")[self.token], self.of("output")[self.token]
        worked = [dot(row, merged) + float(b) for row, b in zip(matrix, bias, strict=True)]
        columns, total = products("column", ("merged", merged), ("W_O", matrix[0]))
        values = {
            "bias dim 0": bias[0],
            "sum and bias": worked[0],
            "output dim 0 in the report": output[0],
            "largest difference over all dims": differ(worked, output),
        }
        return Expected(values).table(columns, sum=total)

    def check(self) -> list[str]:
        """Compare every step of the report with the expected one; return the titles."""
        for step in self.report.steps:
            match step.title:
                case "Tokens":
                    expected = self.tokens_step()
                case "Embeddings":
                    expected = self.embeddings_step()
                case "Query, key and value":
                    expected = self.projection_step()
                case "Split into heads":
                    expected = self.split_step(step)
                case "Scores":
                    expected = self.scores_step()
                case "Scale":
                    expected = self.scale_step()
                case "Soft cap":
                    expected = self.softcap_step()
                case "Bias":
                    expected = self.bias_step()
                case "Temperature":
                    expected = self.temperature_step()
                case "Normalise query and key":
                    expected = self.norm_step()
                case "Rotary positions":
                    expected = self.rope_step()
                case "Second softmax":
                    expected = self.softmax_step("second_")
                case "Difference":
                    expected = self.difference_step()
                case "Mask":
                    expected = self.mask_step()
                case "Softmax":
                    expected = self.softmax_step()
                case "No softmax":
                    expected = self.no_softmax_step()
                case "Weighted sum":
                    expected = self.weighted_sum_step()
                case "Merge the heads":
                    expected = self.merge_step(step)
                case "Output projection":
                    expected = self.output_step()
                case title:
                    raise AssertionError(f"no expectation for the step {title}")
            assert_step(step, expected)
        return [step.title for step in self.report.steps]


def assert_strides(shapes: Sequence[Shape], sizes: tuple[int, int, int]) -> None:
    """The wide rows, the view and the transpose share memory: their strides are the same in another order."""
    num_tokens, num_heads, dim = sizes
    wide, viewed, split = shapes
    assert wide.sizes == (num_tokens, num_heads * dim) and viewed.sizes == sizes
    assert split.sizes == (num_heads, num_tokens, dim)
    assert wide.strides is not None and viewed.strides is not None and split.strides is not None
    assert viewed.strides == (wide.strides[0], dim * wide.strides[1], wide.strides[1])
    assert split.strides == (viewed.strides[1], viewed.strides[0], viewed.strides[2])
