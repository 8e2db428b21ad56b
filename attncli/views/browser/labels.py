"""How the tokens of a side are named: by position and text, or by the positions that a block covers."""

from functools import lru_cache

from attncli.plain_text import plain_text
from attncli.views.browser.atlas import Grid
from attncli.views.matrices import Matrix, tokens_of


@lru_cache(maxsize=8)
def labels(tokens: tuple[str, ...], count: int, num_tokens: int) -> tuple[str, ...]:
    """`3 walks`; `12-15` where there are blocks of tokens; positions alone where nothing else is known."""
    digits = len(str(max(count, num_tokens) - 1))
    if tokens:
        return tuple(f"{i:>{digits}} {plain_text(token)}" for i, token in enumerate(tokens))
    size = -(-num_tokens // count) if num_tokens > count else 1
    if size == 1:
        return tuple(f"{i:>{digits}}" for i in range(count))
    return tuple(
        f"{start:>{digits}}-{min(start + size, num_tokens) - 1}" for start in range(0, size * count, size)
    )


def position_of(label: str) -> str:
    """The position, or the positions of a block, without the token."""
    return label.split()[0]


def side_labels(grid: Grid, matrix: Matrix) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels of the rows (queries) and of the columns (keys)."""
    found = []
    for axis, tokens, count in zip(
        matrix.axes, (matrix.rows, matrix.columns), matrix.values.shape, strict=True
    ):
        known = tokens_of(grid.report, axis.removesuffix("_block"))
        is_pooled = axis.endswith("_block")
        found.append(labels(tokens, count, len(known) if is_pooled else count))
    return found[0], found[1]
