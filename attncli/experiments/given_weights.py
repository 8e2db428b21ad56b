"""Attention weights from another tool as a report, with the statistics that weights alone allow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attncli.attention.engines import attend
from attncli.attention.engines.tile import GivenWeights
from attncli.attention.results import Wanted
from attncli.experiments.attention_report import LeadingAxes, row_tensors, versions, with_summaries
from attncli.report import NamedTensor, Report, Statistic, Tensors
from attncli.row_statistics import ROW_STATISTICS

# How far a row's sum may be from one: bfloat16 weights round by 2^-9 of themselves.
TOLERANCE = 5e-3
TOP_K = 3


def weights_report(
    weights: NamedTensor, source: Mapping[str, Any], tokens: Sequence[str], context_tokens: Sequence[str]
) -> Report:
    """The report of weights with axes query and key, and maybe layer and head.

    It has row statistics if every row is a distribution. A key counts as visible to a query if some head of
    the layer gives it weight.
    """
    sizes = ", ".join(f"{axis} {size}" for axis, size in zip(weights.axes, weights.values.shape, strict=True))
    notes = [f"Weights that were computed elsewhere: {sizes}."]
    why_not = _no_distribution(weights.values)
    if why_not:
        notes.append(f"{why_not}: no statistics of rows.")
    of_one_text = not context_tokens
    rows = tuple(name for name, known in ROW_STATISTICS.items() if of_one_text or not known.positional)
    statistics = {} if why_not else _statistics(weights.values, weights.axes, rows)
    return Report(
        "show",
        source,
        versions(),
        tuple(tokens),
        tuple(context_tokens),
        tensors={"weights": weights},
        statistics=with_summaries(statistics, weights.values.shape[-2]),
        notes=tuple(notes),
    )


def _no_distribution(array: np.ndarray) -> str:
    """Why some row is not a distribution; empty where all are."""
    no_number = int((~np.isfinite(array)).sum())
    if no_number:
        return "1 entry is not a number" if no_number == 1 else f"{no_number} entries are not numbers"
    if (array < 0).any():
        return "Some weights are negative"
    with np.errstate(over="ignore"):
        sums = array.sum(axis=-1, dtype=np.float64)
    if (np.abs(sums - 1) > TOLERANCE).any():
        ends = dict.fromkeys((f"{sums.min():.4g}", f"{sums.max():.4g}"))
        return f"Rows sum to {' to '.join(ends)}, not to one"
    return ""


def _statistics(array: np.ndarray, axes: tuple[str, ...], rows: tuple[str, ...]) -> dict[str, Statistic]:
    """Statistics of a layer's heads; several layers run together, as texts do."""
    weights = torch.from_numpy(array)
    lead = LeadingAxes(has_batch=array.ndim == 4, has_head=array.ndim >= 3)
    layered = lead.layered(weights)
    wanted = Wanted(rows=rows, top_k=min(TOP_K, array.shape[-1]), received_mass=True)
    found = attend(GivenWeights(layered.double(), (layered > 0).any(dim=1)), wanted)
    return {
        group: Tensors(
            (name, NamedTensor((*axes[:-2], *tensor.axes[array.ndim - 2 :]), tensor.values))
            for name, tensor in members.items()
        )
        for group, members in row_tensors(found, lead, None).items()
    }
