"""The scaled scores of a report that holds the scores alone."""

from collections.abc import Mapping

import numpy as np

from attncli.report import NamedTensor, Report

TOLERANCE = 1e-5


def with_scaled_scores(report: Report, tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    """The tensors, and behind scores what the scale makes of them, where a factor is all that it is."""
    found: dict[str, NamedTensor] = {}
    for name, tensor in tensors.items():
        found[name] = tensor
        scaled = f"{name.removesuffix('scores')}scaled_scores"
        if not name.endswith("scores"):
            continue
        if scaled in tensors:
            found.pop(scaled, None)  # an explanation has them in front
            found[scaled] = tensors[scaled]
        elif (factor := _factor(report, name, scaled)) is not None:
            # In double precision, then rounded as scores are: a saved report gives the same.
            product = (tensor.values.astype(np.float64) * factor).astype(np.float32)
            found[scaled] = NamedTensor(tensor.axes, product)
    return found


def _factor(report: Report, name: str, scaled: str) -> float | None:
    """What the moments of scores were multiplied by, to float32; None where something else happened to them.

    A softcap or a bias changes smallest, mean and largest in different ways.
    """
    before, after = report.numbers(name), report.numbers(scaled)
    numbers = [(before.get(moment), after.get(moment)) for moment in ("min", "mean", "max")]
    if any(one is None or other is None for one, other in numbers):
        return None
    one, other = (np.array(side, dtype=np.float64) for side in zip(*numbers, strict=True))
    largest = np.abs(one).argmax()
    for after_scale in (other, other[::-1]):  # a negative factor makes the largest the smallest
        factor = after_scale[largest] / one[largest] if one[largest] else 0.0
        tolerance = TOLERANCE * np.abs(other).max()
        if factor and np.allclose(after_scale, one * factor, rtol=0, atol=tolerance):
            return float(factor)
    return None
