"""Statistics of signed rows, a few rows at a time, against loops over the whole matrix in float64."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import isnan, log

import pytest
import torch
from torch import Tensor

from attncli.core.signed_layer import SignedLayer
from attncli.core.signed_rows import signed_statistics
from tests.conftest import in_turn


@dataclass(frozen=True)
class GivenMatrix(SignedLayer):
    """A layer with a given matrix, in blocks of rows."""

    matrix: Tensor
    rows: int
    log_decay: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return tuple(self.matrix.shape)  # type: ignore[return-value]

    @property
    def value_dim(self) -> int:
        return 1

    def row_blocks(self, text: int) -> Iterator[tuple[slice, slice, Tensor]]:
        num_heads, num_tokens = self.matrix.shape[1:3]
        for head in range(num_heads):
            for start in range(0, num_tokens, self.rows):
                stop = min(start + self.rows, num_tokens)
                block = self.matrix[text, head : head + 1, start:stop, :stop]
                yield slice(head, head + 1), slice(start, stop), block


def naive(matrix: Tensor) -> dict[str, float]:
    """The statistics of one head, in loops."""
    rows = [(i, row[: i + 1].double().tolist()) for i, row in enumerate(matrix) if row.any()]
    shares = [(i, [abs(w) / sum(map(abs, row)) for w in row]) for i, row in rows]
    before = [row[i - 1] for i, row in shares if i]

    def mean(numbers: list[float]) -> float:
        return sum(numbers) / len(numbers) if numbers else float("nan")

    received = [mean([row[j] if j < len(row) else 0.0 for _, row in shares]) for j in range(len(matrix))]
    return {
        "first_share": mean([row[0] for _, row in shares]),
        "previous_share": mean(before),
        "current_share": mean([row[i] for i, row in shares]),
        "local_share": mean([sum(row[max(0, i - 7) :]) for i, row in shares]),
        "distance": mean([sum((i - j) * w for j, w in enumerate(row)) for i, row in shares]),
        "one_key_share": max(received),
        "one_key": received.index(max(received)),
        "negative_share": mean([-sum(w for w in row if w < 0) / sum(map(abs, row)) for _, row in rows]),
        "row_sum": mean([sum(row) for _, row in rows]),
        "row_size": mean([sum(map(abs, row)) for _, row in rows]),
    }


@pytest.mark.parametrize(("num_tokens", "rows"), in_turn([1, 2, 7, 23, 61], [1, 5, 64]))
def test_statistics_match_loops(num_tokens: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens * 100 + rows)
    matrix = torch.randn(2, 3, num_tokens, num_tokens, generator=generator).tril()
    matrix[1, 2, num_tokens // 2] = 0  # a row without a weight
    decay = -torch.rand(2, num_tokens, 3, generator=generator)
    layer = GivenMatrix(matrix, rows, decay)
    statistics = signed_statistics(layer)
    for text in range(2):
        for head in range(3):
            expected = naive(matrix[text, head]) if matrix[text, head].any() else {}
            expected["half_life"] = log(2) / -float(decay[text, :, head].double().mean())
            for name, number in expected.items():
                value = float(getattr(statistics, name)[text, head])
                assert value == pytest.approx(number, rel=1e-5, abs=1e-6, nan_ok=True), name


def test_only_missing_statistics_are_nan() -> None:
    matrix = torch.tensor([[[[2.0]]]])
    statistics = signed_statistics(GivenMatrix(matrix, 1, None))
    unknown = {each.name for each in fields(statistics) if isnan(getattr(statistics, each.name).item())}
    assert unknown == {"previous_share", "half_life"}
    assert (statistics.current_share, statistics.row_sum, statistics.distance) == (1, 2, 0)
