"""The labels of a table: position and token of each row and column."""

from attncli.report import Report
from attncli.views import Display
from attncli.views.labels import token_texts
from attncli.views.matrices import first_position, tokens_of
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import Column

ROW_WIDTH, COLUMN_WIDTH = 20, 9


class TableLabels:
    """The labels of one report; a narrow screen leaves less room for words, none less for numbers."""

    def __init__(self, report: Report, display: Display) -> None:
        self.report, self.precision, width = report, display.precision, display.width
        self.row_width = None if width is None else max(6, min(ROW_WIDTH, width // 4))
        self.column_width = None if width is None else max(4, min(COLUMN_WIDTH, width // 8))

    def rows(self, axis: str, count: int) -> Column:
        """The column that names the rows."""
        first, names = first_position(self.report, axis), tokens_of(self.report, axis)
        digits = len(str(first + count - 1))
        texts = token_texts(names, count, self.row_width)
        cells = [f"{i:>{digits}} {name}".rstrip() for i, name in enumerate(texts, first)]
        return Column(("", axis), cells, left=True)

    def columns(self, axis: str, count: int) -> list[tuple[str, str]]:
        """A header of two lines for each column."""
        names = token_texts(tokens_of(self.report, axis), count, self.column_width)
        return [(str(i), name) if name else ("", str(i)) for i, name in enumerate(names)]

    def place(self, axis: str, position: int) -> str:
        """A position and, where there is one, the token at it."""
        tokens = tokens_of(self.report, axis)[position : position + 1] if position >= 0 else ()
        shown = str(position + first_position(self.report, axis))
        return " ".join([shown, *token_texts(tokens, 0, self.row_width)])

    def key(self, key: int, weight: float) -> str:
        """A key that a query looks at, with its weight."""
        if key < 0:
            return NO_NUMBER
        tokens = tokens_of(self.report, "key")[key : key + 1]
        name = token_texts(tokens, 1, self.column_width)[0]
        return " ".join(filter(None, (str(key), name, fixed(weight, self.precision))))
