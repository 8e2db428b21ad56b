"""Every head statistic from a dense matrix in float64, by loops over rows and keys: slow and plain."""

import math
from collections.abc import Sequence

from torch import Tensor

NAMES = ("previous_token", "next_token", "current_token", "duplicate_token", "induction")


def pattern(ids: list[int], name: str) -> list[list[int]]:
    n = len(ids)
    matrix = [[0] * n for _ in range(n)]
    for i in range(n):
        if name == "next_token":
            if i + 1 < n:
                matrix[i][i + 1] = 1
            continue
        for j in range(i + 1):
            if name == "previous_token":
                matrix[i][j] = int(j == i - 1)
            elif name == "current_token":
                matrix[i][j] = int(j == i)
            elif name == "duplicate_token":
                matrix[i][j] = int(j < i and ids[j] == ids[i])
            else:
                matrix[i][j] = int(j >= 1 and ids[j - 1] == ids[i])
    return matrix


def skipped(weights: Tensor, count: int) -> Tensor:
    kept = weights.double().clone()
    if count:
        kept[..., :count] = 0
        kept = kept / kept.sum(-1, keepdim=True)
    return kept.nan_to_num(0.0)


def naive_figures(
    weights: Tensor,
    ids: list[int] | None,
    skip: int = 0,
    *,
    special: Sequence[int] = (),
    sought: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> dict[str, list[float]]:
    """The figures of each head of (head, query, key), the first keys skipped already.

    A query sees a key where some head gives it weight. `special` are positions of keys, `sought` of queries
    and keys.
    """
    figures: dict[str, list[float]] = {}
    visible = (weights > 0).any(dim=0).sum(dim=-1).tolist()
    seen = (weights > 0).any(dim=0).tolist()
    for head in weights.double():
        rows = [(i, row) for i, row in enumerate(head.tolist()) if sum(row) > 0]
        entropies = [-sum(p * math.log(p) for p in row if p > 0) for _, row in rows]
        several = [
            (entropy, visible[i]) for entropy, (i, _) in zip(entropies, rows, strict=True) if visible[i] > 1
        ]
        values = {
            "entropy": _mean(entropies),
            "normalized_entropy": _mean([entropy / math.log(count) for entropy, count in several]),
            "max_weight": _mean([max(row) for _, row in rows]),
            "participation": _mean([1 / sum(p * p for p in row) for _, row in rows]),
            "sink_mass": _mean([row[0] for _, row in rows]),
            "sink_mass_4": _mean([sum(row[:4]) for _, row in rows]),
        }
        counted = [j for j in special if j >= skip]
        masses = [sum(row[j] for j in counted) for _, row in rows]
        values["special_mass"] = _mean(masses) if counted else math.nan
        values["special_mass_mul"] = sum(masses) / sum(sum(row) for _, row in rows)
        queries, keys = sought[0], [j for j in sought[1] if j >= skip]
        chosen = [sum(row[j] for j in keys) for i, row in rows if i in queries]
        values["from_to_weight"] = _mean(chosen) if keys else math.nan
        others = [
            sum(row[j] for j in keys) for i, row in rows if i not in queries and any(seen[i][j] for j in keys)
        ]
        if 0 < len(queries) < len(rows):
            values["others_to_weight"] = _mean(others) if others and keys else math.nan
        means = [_mean([row[j] for _, row in rows]) for j in range(1, head.shape[1]) if j not in special]
        values["one_key_mass"] = max(means, default=math.nan)
        if ids is not None:
            values["distance"] = _mean([sum(p * abs(i - j) for j, p in enumerate(row)) for i, row in rows])
            for name in NAMES:
                wanted = pattern(ids, name)
                for row in wanted:
                    row[:skip] = [0] * skip
                masses = [sum(d * p for d, p in zip(wanted[i], row, strict=True)) for i, row in rows]
                values[name] = _mean([m for (i, _), m in zip(rows, masses, strict=True) if any(wanted[i])])
                values[f"{name}_mul"] = sum(masses) / sum(sum(row) for _, row in rows)
        for name, value in values.items():
            figures.setdefault(name, []).append(value)
    return figures


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def naive_mul_score(weights: Tensor, wanted: Tensor) -> float:
    """TransformerLens' head_detector with error_measure="mul"."""
    return float((weights * wanted).sum() / weights.sum())
