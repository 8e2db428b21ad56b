"""Attention weights that somebody else computed, as a report: what is asked of them is what they tell."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attncli import __version__
from attncli.experiments.attention_report import weight_statistics
from attncli.experiments.row_summaries import with_summaries
from attncli.report import NamedTensor, Report

# How far a row's sum may be from one: bfloat16 weights round by 2^-9 of themselves.
TOLERANCE = 5e-3
TOP_K = 3


def weights_report(
    weights: NamedTensor, source: Mapping[str, Any], tokens: Sequence[str], context_tokens: Sequence[str]
) -> Report:
    """The report of weights by query and key, for each head and layer where there are such axes.

    Statistics of rows where every row is a distribution; a key counts as visible to a query where some head
    of the layer gives it weight.
    """
    sizes = ", ".join(f"{axis} {size}" for axis, size in zip(weights.axes, weights.values.shape, strict=True))
    notes = [f"Weights that were computed elsewhere: {sizes}."]
    why_not = _no_distribution(weights.values)
    if why_not:
        notes.append(f"{why_not}: no statistics of rows.")
    statistics = {} if why_not else _statistics(weights.values, weights.axes)
    return Report(
        "show",
        source,
        {"attncli": __version__, "torch": torch.__version__},
        tuple(tokens),
        tuple(context_tokens),
        tensors={"weights": weights},
        statistics=with_summaries(statistics, weights.values.shape[-2]),
        notes=tuple(notes),
    )


def _no_distribution(array: np.ndarray) -> str:
    """Why some row is no distribution; nothing where all are."""
    no_number = int((~np.isfinite(array)).sum())
    if no_number:
        return "1 entry is no number" if no_number == 1 else f"{no_number} entries are no number"
    if (array < 0).any():
        return "Some weights are negative"
    with np.errstate(over="ignore"):
        sums = array.sum(axis=-1, dtype=np.float64)
    if (np.abs(sums - 1) > TOLERANCE).any():
        ends = dict.fromkeys((f"{sums.min():.4g}", f"{sums.max():.4g}"))
        return f"Rows sum to {' to '.join(ends)}, not to one"
    return ""


def _statistics(array: np.ndarray, axes: tuple[str, ...]) -> dict[str, Any]:
    if array.ndim == 4:
        layers = [_statistics(layer, axes[1:]) for layer in array]
        return {
            group: {name: _stacked([layer[group][name] for layer in layers]) for name in members}
            for group, members in layers[0].items()
        }
    weights = torch.from_numpy(array).double()
    visible = (weights.reshape(-1, *weights.shape[-2:]) > 0).any(dim=0)
    return weight_statistics(weights, visible, top_k=TOP_K, axes=axes[:-2])


def _stacked(layers: list[NamedTensor]) -> NamedTensor:
    return NamedTensor(("layer", *layers[0].axes), np.stack([layer.values for layer in layers]))
