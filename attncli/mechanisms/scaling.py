"""The factor on the scores. Vaswani et al. 2017 (1706.03762), section 3.2.1."""


def scale_factors(scale: str | float, head_dim: int) -> tuple[float, float]:
    """The factor on query and key each, and the factor on their product.

    sqrt: 1/sqrt(head_dim) on the product; fourth-root: head_dim^-1/4 on each, the same value with smaller
    intermediates; none; or a number on the product.
    """
    if isinstance(scale, str):
        return {
            "sqrt": (1.0, head_dim**-0.5),
            "fourth-root": (head_dim**-0.25, 1.0),
            "none": (1.0, 1.0),
        }[scale]
    return 1.0, scale
