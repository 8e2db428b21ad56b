"""The two sides of a matrix: their places, the tokens at them, and a label for each."""

from dataclasses import dataclass

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views.labels import shortened, token_texts
from attncli.views.matrices import Matrix, first_position, tokens_of

BLOCK_AXES = {"query_block": "query", "key_block": "key"}


@dataclass(frozen=True)
class Side:
    """An axis with a label for each of its places: its name, how many, and tokens if it has any.

    `step`: positions of the text that one place stands for, the last of `positions` (0: as many as places).
    `noun`: what its tokens are called. `first`: the position of the first place.
    """

    name: str
    count: int
    tokens: tuple[str, ...] = ()
    step: int = 1
    positions: int = 0
    noun: str = "token"
    first: int = 0

    @property
    def digits(self) -> int:
        """Digits of the last position."""
        return len(str(max(self.last, 0)))

    @property
    def last(self) -> int:
        """The last position; -1 where there is none."""
        return self.first + (self.positions or self.count) - 1

    def texts(self, most: int | None) -> list[str]:
        """The tokens as plain text of at most that many cells; empty where there are none."""
        return token_texts(self.tokens, self.count, most)

    def shortened_places(self, most: int | None) -> list[int]:
        """The places whose token is longer than that."""
        texts = map(plain_text, self.tokens)
        return [place for place, text in enumerate(texts) if shortened(text, most) != text]

    def position(self, first: int, last: int) -> str:
        """The position of a place, or the positions from the first of some places to the last."""
        first, last = self.first + first * self.step, min(self.first + (last + 1) * self.step - 1, self.last)
        end = "" if first == last else f"-{last}"
        return f"{first:>{self.digits}}{end}"

    def labels(self, most: int | None = None, block: int = 1, rows_per_line: int = 1) -> list[str]:
        """A label a line: `4 the`; `4 the, 5 cat` where it has two rows; `8-15` where it has blocks."""
        step = block * rows_per_line
        starts = range(0, self.count, step)
        if block > 1 or not self.tokens:
            return [self.position(start, start + step - 1) for start in starts]
        if rows_per_line > 1 and most is not None:
            most = max(4, (most - self.digits - 3) // 2)
        labels = [f"{i:>{self.digits}} {text}" for i, text in enumerate(self.texts(most), self.first)]
        return [", ".join(labels[start : start + step]) for start in starts]


def sides_of(report: Report, matrix: Matrix) -> tuple[Side, Side]:
    """Rows and columns with their tokens; an axis of blocks counts the positions in them."""
    tokens = matrix.rows, matrix.columns
    rows, columns = (
        _side(report, *side) for side in zip(matrix.axes, matrix.values.shape, tokens, strict=True)
    )
    return rows, columns


def _side(report: Report, axis: str, count: int, tokens: tuple[str, ...]) -> Side:
    noun = "context token" if axis == "key" and report.context_tokens else "token"
    num_positions = _num_positions(report, BLOCK_AXES[axis]) if axis in BLOCK_AXES else 0
    step = -(-num_positions // count) or 1
    return Side(axis, count, tokens, step, num_positions, noun, first_position(report, axis))


def _num_positions(report: Report, axis: str) -> int:
    """How many queries or keys there were: there is a number, or a token, for each."""
    for tensor in report.tensors_of("rows" if axis == "query" else "keys").values():
        if tensor.axes[-1] == axis:
            return int(tensor.values.shape[-1])
    return len(tokens_of(report, axis))
