"""A matrix as characters, darker for larger, where it is too wide for numbers and still fits as marks."""

import numpy as np

RAMP = ".:-=+*#%@"


def shaded_lines(matrix: np.ndarray) -> list[str]:
    """A character an entry: from . for the smallest positive number to @ for the largest, blank for zero.

    The marks are even in the logarithm, since weights of a causal row shrink with its length.
    """
    positive = matrix > 0
    logarithms = np.log(matrix, where=positive, out=np.zeros_like(matrix))
    least, most = logarithms[positive].min(initial=0), logarithms[positive].max(initial=-np.inf)
    span = most - least if most > least else 1.0
    places = np.clip(((logarithms - least) / span * len(RAMP)).astype(int), 0, len(RAMP) - 1)
    return [
        "".join(RAMP[p] if seen else " " for p, seen in zip(*row, strict=True))
        for row in zip(places, positive, strict=True)
    ]
