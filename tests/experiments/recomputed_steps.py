"""Every number of a step once more, from the report's tensors alone, by arithmetic of its own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attncli.report import Report, Shape, Step, Terms

Column = Sequence[Any]


@dataclass
class Expected:
    """A step's values, its tables (a column by name, whole) and the totals of each by row and column."""

    values: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Column]] = field(default_factory=list)
    totals: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def table(self, columns: Mapping[str, Column], **totals: Mapping[str, Any]) -> "Expected":
        self.tables.append(dict(columns))
        self.totals.append({name: dict(total) for name, total in totals.items()})
        return self


def assert_step(step: Step, expected: Expected) -> None:
    """Every value, every cell and every total is the expected one, and there is none besides."""
    assert step.values.keys() == expected.values.keys(), step.title
    for name, value in step.values.items():
        _assert_same(value, expected.values[name], f"{step.title}: {name}")
    assert len(step.tables) == len(expected.tables), step.title
    for table, columns, totals in zip(step.tables, expected.tables, expected.totals, strict=True):
        _assert_table(table, columns, totals)


def _assert_table(table: Terms, columns: dict[str, Column], totals: dict[str, dict[str, Any]]) -> None:
    assert list(table.columns) == list(columns), table.title
    index = list(columns[table.columns[0]])
    assert table.count == len(index) >= len(table.rows) > 0
    shown = [index.index(row[0]) for row in table.rows]
    assert shown == sorted(set(shown))
    for row, place in zip(table.rows, shown, strict=True):
        for name, cell in zip(table.columns, row, strict=True):
            _assert_same(cell, columns[name][place], f"{table.title}: {name}, row {place}")
    assert [total[0] for total in table.totals] == list(totals), table.title
    for total in table.totals:
        for name, cell in zip(table.columns[1:], total[1:], strict=True):
            _assert_same(cell, totals[str(total[0])].get(name, ""), f"{table.title}: {total[0]}, {name}")


def _assert_same(actual: Any, expected: Any, what: str) -> None:
    if isinstance(expected, str) or expected is None or isinstance(expected, bool):
        assert actual == expected, what
    elif not math.isfinite(expected):
        assert actual is None, what
    elif "largest difference" in what:
        # Rounding itself: computed in another order it is another number of its size.
        assert abs(actual - expected) <= 1e-5 * max(1.0, abs(expected)), what
        assert actual < 1e-3, what
    else:
        assert actual is not None and math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12), (
            f"{what}: {actual} for {expected}"
        )


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


def dot(left: np.ndarray, right: np.ndarray) -> float:
    """A dot product by fsum: no order of summation is shared with the steps."""
    return math.fsum(float(a) * float(b) for a, b in zip(left, right, strict=True))


def products(axis: str, left: tuple[str, np.ndarray], right: tuple[str, np.ndarray]) -> tuple[Any, Any]:
    """The columns of a dot product written out, and its total."""
    columns = {
        axis: range(len(left[1])),
        left[0]: left[1],
        right[0]: right[1],
        "product": [a * b for a, b in zip(left[1], right[1], strict=True)],
    }
    return columns, {"product": dot(left[1], right[1])}


def differ(worked: Any, reported: Any) -> float:
    """The largest difference, over what is finite on both sides."""
    pairs = zip(np.ravel(worked), np.ravel(reported), strict=True)
    return max((abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)), default=0.0)


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

    @property
    def scores(self) -> list[float]:
        query = self.of("query")[self.token]
        return [dot(query, key) for key in self.of("key")]

    @property
    def factor(self) -> float:
        if self.rule:
            return float(self.rule["scale"])
        scale = self.spec["scale"]
        dim = self.of("query").shape[-1]
        return {"sqrt": 1 / math.sqrt(dim), "fourth-root": 1 / math.sqrt(dim), "none": 1.0}.get(
            scale
        ) or scale

    @property
    def before_mask(self) -> list[float]:
        scores = [score * self.factor for score in self.scores]
        if self.rule.get("softcap"):
            scores = [self.rule["softcap"] * math.tanh(score / self.rule["softcap"]) for score in scores]
        if "bias" in self.report.tensors:
            bias = self.of("bias")[self.token]
            scores = [score + float(b) for score, b in zip(scores, bias, strict=True)]
        return scores

    def tokens_step(self) -> Expected:
        expected = Expected({"query worked out": self.token})
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
        expected = Expected({"mean square of the worked vector": dot(vector, vector) / len(vector)})
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
            vector, reported = self.of("input")[self.token], self.of("query")[self.token]
            expected.values = {
                "query dim 0 in the report": reported[0],
                "largest difference over all dims": differ([dot(row, vector) for row in rows], reported),
            }
            name = "W_Q_h" if "head" in axes else "W_Q"
            columns, total = products("embed", (f"x_{self.token}", vector), (name, rows[0]))
            expected.table(columns, sum=total)
        begin = {
            f"query of {self.token}": self.of("query")[self.token],
            f"key of {self.strongest}": self.of("key")[self.strongest],
            f"value of {self.strongest}": self.of("value")[self.strongest],
        }
        dims = min(6, *map(len, begin.values()))
        return expected.table(
            {"vector": list(begin)} | {str(d): [v[d] for v in begin.values()] for d in range(dims)}
        )

    def scores_step(self) -> Expected:
        key, reported = self.strongest, self.of("scores")[self.token]
        columns, total = products(
            "dim", (f"q_{self.token}", self.of("query")[self.token]), (f"k_{key}", self.of("key")[key])
        )
        values = {
            f"score of key {key} in the report": reported[key],
            "largest difference over visible keys": differ(self.scores, reported),
        }
        expected = Expected(values).table(columns, sum=total)
        return expected.table(self.key_columns(score=self.scores))

    def scale_step(self) -> Expected:
        scaled = [score * self.factor for score in self.scores]
        dim = self.of("query").shape[-1]
        values: dict[str, Any] = {"head_dim": dim, "factor": self.factor}
        if not self.rule and self.spec["scale"] == "fourth-root":
            values["factor on query and key each"] = dim**-0.25
        if "head" not in self.report.tensors["weights"].axes:
            for name in ("scores", "scaled_scores"):
                numbers = self.report.tensors[name].values.astype(np.float64)
                visible = numbers[np.isfinite(numbers)]
                figure = self.report.statistics[name]["variance"]
                assert visible.size == 1 or math.isclose(figure, visible.var(ddof=1), rel_tol=1e-4), name
                values[f"variance of all visible {name.replace('_', ' ')}"] = figure
        if not self.rule.get("softcap") and "bias" not in self.report.tensors:
            values["largest difference from the report"] = differ(
                scaled, self.of("scaled_scores")[self.token]
            )
        return Expected(values).table(self.key_columns(score=self.scores, scaled=scaled))

    def softcap_step(self) -> Expected:
        scaled = [score * self.factor for score in self.scores]
        cap = self.rule["softcap"]
        capped = [cap * math.tanh(score / cap) for score in scaled]
        return Expected({"cap": cap}).table(self.key_columns(scaled=scaled, capped=capped))

    def bias_step(self) -> Expected:
        bias, total = self.of("bias")[self.token], self.before_mask
        scores = [t - b for t, b in zip(total, bias, strict=True)]
        reported = self.of("scaled_scores")[self.token]
        values = {"largest difference from the report": differ(total, reported)}
        return Expected(values).table(self.key_columns(score=scores, bias=bias, sum=total))

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
                scaled=self.before_mask,
                sees=["no" if h else "yes" for h in hidden],
                masked=scaled[self.token],
            )
        )

    def softmax_step(self) -> Expected:
        scores = [float(s) for s in self.of("scaled_scores")[self.token]]
        sink = self.rule.get("sink")
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
        values["largest difference from the report"] = differ(weights, self.weights)
        columns: dict[str, Column] = {
            "score": scores,
            "less the max": [s - largest for s in scores],
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
        query = self.of("query")
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
            said = "nothing: it works"
        except RuntimeError as error:
            said = str(error)
        assert (said == "nothing: it works") == (num_heads == 1 or num_tokens == 1)
        shapes = [shape.strides for shape in step.shapes]
        assert shapes[1:] == [real.stride(), real.contiguous().stride(), (num_heads * dim, 1)]
        values: dict[str, Any] = {"torch says to .view without .contiguous()": said}
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
        """Every step of the report against its expectation; the titles."""
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
    """The wide rows, the view and the transpose share one memory: the same strides, only moved."""
    num_tokens, num_heads, dim = sizes
    wide, viewed, split = shapes
    assert wide.sizes == (num_tokens, num_heads * dim) and viewed.sizes == sizes
    assert split.sizes == (num_heads, num_tokens, dim)
    assert wide.strides is not None and viewed.strides is not None and split.strides is not None
    assert viewed.strides == (wide.strides[0], dim * wide.strides[1], wide.strides[1])
    assert split.strides == (viewed.strides[1], viewed.strides[0], viewed.strides[2])
