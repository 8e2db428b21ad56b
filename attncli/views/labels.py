"""The labels along the axes of a matrix: positions and tokens, shortened where there is little room."""

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views.matrices import Matrix, first_position, tokens_of

UNPOOLED = {"query_block": "query", "key_block": "key"}
LEAST_TOKEN = 4


def shortened(text: str, most: int | None) -> str:
    """The text in at most that many cells, an ellipsis at the end of what was cut."""
    if most is None or cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1).rstrip() + "…"


def token_texts(tokens: tuple[str, ...], count: int, most: int | None = None) -> list[str]:
    """The tokens as plain text of at most that many cells; empty where there are none."""
    return [shortened(plain_text(token), most) for token in tokens] if tokens else [""] * count


@dataclass(frozen=True)
class LabelledAxis:
    """An axis of a matrix: its name, the number of its places, and their tokens, if it has any.

    `step`: the positions in the text that one place stands for, from the `first` position to the `last`
    (-1: no position at all). `noun`: what its tokens are called.
    """

    name: str
    count: int
    tokens: tuple[str, ...]
    step: int
    first: int
    last: int
    noun: str

    @property
    def digits(self) -> int:
        """Digits of the last position."""
        return len(str(max(self.last, 0)))

    def texts(self, most: int | None) -> list[str]:
        """The tokens as plain text of at most that many cells; empty where there are none."""
        return token_texts(self.tokens, self.count, most)

    def shortened_places(self, most: int | None) -> set[int]:
        """The places whose token is longer than that."""
        texts = map(plain_text, self.tokens)
        return {place for place, text in enumerate(texts) if shortened(text, most) != text}

    def token_room(self, most: int | None, rows_per_line: int) -> int | None:
        """The cells for one token where the labels of so many rows share a line."""
        if rows_per_line == 1 or most is None:
            return most
        return max(LEAST_TOKEN, (most - self.digits - 3) // 2)

    def labels(self, most: int | None = None, block: int = 1, rows_per_line: int = 1) -> list[str]:
        """One label per line: `4 the`; `4 the, 5 cat` for two rows on a line; `8-15` for a block of rows."""
        step = block * rows_per_line
        starts = range(0, self.count, step)
        if block > 1 or not self.tokens:
            return [self._positions(start, step) for start in starts]
        texts = self.texts(self.token_room(most, rows_per_line))
        labels = [f"{i:>{self.digits}} {text}" for i, text in enumerate(texts, self.first)]
        return [", ".join(labels[start : start + step]) for start in starts]

    def _positions(self, place: int, num_places: int) -> str:
        first = self.first + place * self.step
        last = min(first + num_places * self.step - 1, self.last)
        return f"{first:>{self.digits}}" + ("" if first == last else f"-{last}")


def labelled_axes(report: Report, matrix: Matrix) -> tuple[LabelledAxis, LabelledAxis]:
    """Rows and columns with their tokens; an axis of blocks counts the positions in them."""
    (row_axis, column_axis), (num_rows, num_columns) = matrix.axes, matrix.values.shape
    return (
        _labelled_axis(report, row_axis, num_rows, matrix.rows),
        _labelled_axis(report, column_axis, num_columns, matrix.columns),
    )


def _labelled_axis(report: Report, name: str, count: int, tokens: tuple[str, ...]) -> LabelledAxis:
    noun = "context token" if name == "key" and report.context_tokens else "token"
    num_positions = _num_positions(report, UNPOOLED[name]) if name in UNPOOLED else 0
    step = -(-num_positions // count) or 1
    first = first_position(report, name)
    return LabelledAxis(name, count, tokens, step, first, first + (num_positions or count) - 1, noun)


def _num_positions(report: Report, axis: str) -> int:
    """How many queries or keys there were: there is a number, or a token, for each."""
    for tensor in report.tensors_of("rows" if axis == "query" else "keys").values():
        if tensor.axes[-1] == axis:
            return int(tensor.values.shape[-1])
    return len(tokens_of(report, axis))
