"""The steps of a computation for people: a screen each, with title, formula, shapes, prose and numbers."""

import re
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from attncli.plain_text import plain_text
from attncli.report import Cell, Shape, Step, Terms
from attncli.views import Display
from attncli.views.numbers import fixed, scalar
from attncli.views.tables.columns import Column, column_groups, shortened
from attncli.views.tables.grid import grid

RULE_WIDTH = 80
# Tensors that a report has for its steps: beside them the table leaves them out.
IN_STEPS = re.compile(
    r"(query|key|value|raw_scores|scaled_scores)(_\d+)?|second_scaled_scores|projected_.*|.*_projection"
    r"|merged|output_bias|bias|bias_table|(first|second)_weights|lambda_vectors|.*token_ids"
)
GAP_MARK = "⋮"


class StepsWriter:
    """Writes the steps of one report to a console."""

    def __init__(self, console: Console, display: Display, label_width: int) -> None:
        self.console = console
        self.display = display
        self.label_width = label_width if display.width is not None else None

    def write(self, steps: tuple[Step, ...]) -> None:
        """Each step under a rule with its number."""
        for number, step in enumerate(steps, start=1):
            self.console.print()
            self._rule(f"{number} of {len(steps)}: {step.title}")
            self._text(step.formula, "bold")
            self._shapes(step.shapes)
            self.console.print()
            self._prose(step.prose)
            for table in step.tables:
                self._terms(table)
            self._values(step)
        self.console.print()
        self._rule("the report")

    def _text(self, text: str, style: str = "") -> None:
        width = self.display.width
        self.console.print(Text(plain_text(text), style=style), width=width, soft_wrap=width is None)

    def _prose(self, text: str) -> None:
        """Sentences in lines of a screen's width in a pipe, too: a pager would break them within words."""
        self.console.print(Text(plain_text(text)), width=self.display.width or RULE_WIDTH)

    def _rule(self, title: str) -> None:
        line = f"══ {title} "
        width = self.display.width or RULE_WIDTH
        self._text(line + "═" * max(0, width - len(line)), "bold")

    def _shapes(self, shapes: tuple[Shape, ...]) -> None:
        """One line for all; a table where strides matter."""
        if any(shape.strides is not None for shape in shapes):
            columns = [
                Column(("",), [shape.name for shape in shapes], left=True),
                Column(("axes",), [" × ".join(shape.axes) for shape in shapes], left=True),
                Column(("shape",), [_tuple(shape.sizes) for shape in shapes], left=True),
                Column(("strides",), [_tuple(shape.strides or ()) for shape in shapes], left=True),
            ]
            self.console.print()
            self.console.print(grid(columns))
        elif shapes:
            self._text(", ".join(f"{s.name} {' × '.join(map(str, s.sizes))}" for s in shapes), "dim")

    def _terms(self, table: Terms) -> None:
        self.console.print()
        self._text(f"{table.title}{_part(table)}", "bold")
        label, columns = self._label(table), []
        start = 2 if _has_text(table) else 1
        for place in range(start, len(table.columns)):
            column = [self._cell(row[place]) for row in (*table.rows, *table.totals)]
            cells = _with_gaps(table, column)
            is_text = all(isinstance(row[place], str) for row in table.rows)
            columns.append(Column(_header(table.columns[place]), cells, left=is_text))
        groups = column_groups(label, columns, self.display.width) or [()]
        for number, group in enumerate(groups):
            if number:
                self.console.print()
            self.console.print(grid([label, *group]))

    def _label(self, table: Terms) -> Column:
        """What a row is about: its position, and the token at it."""
        width = max((len(str(row[0])) for row in table.rows if isinstance(row[0], int)), default=0)
        labels = []
        for row in table.rows:
            position = f"{row[0]:>{width}}" if isinstance(row[0], int) else plain_text(str(row[0]))
            text = shortened(plain_text(str(row[1])), self.label_width) if _has_text(table) else ""
            labels.append(f"{position} {text}".rstrip())
        labels += [plain_text(str(total[0])) for total in table.totals]
        return Column((table.columns[0],), _with_gaps(table, labels), left=True)

    def _cell(self, value: Cell) -> str:
        if isinstance(value, str):
            return plain_text(value)
        return fixed(value, self.display.precision)

    def _values(self, step: Step) -> None:
        """Single numbers below each other; texts as sentences."""
        numbers = {name: value for name, value in step.values.items() if not isinstance(value, str)}
        if numbers or len(step.values) > len(numbers):
            self.console.print()
        for name, value in step.values.items():
            if isinstance(value, str):
                self._prose(f"{name}: {value}")
        width = max(map(len, numbers), default=0)
        texts = {name: scalar(value, self.display.precision) for name, value in numbers.items()}
        right = max(map(len, texts.values()), default=0)
        for name, text in texts.items():
            self._text(f"{name:<{width}}  {text:>{right}}")


def _part(table: Terms) -> str:
    """What of a long table is shown."""
    if table.count == len(table.rows):
        return ""
    totals = ", totals over all" if table.totals else ""
    return f" ({len(table.rows)} of {table.count} rows{totals})"


def _has_text(table: Terms) -> bool:
    return len(table.columns) > 1 and table.columns[1] == "text"


def _header(name: str) -> tuple[str, str]:
    first, _, second = name.rpartition(" ")
    return first, second


def _tuple(sizes: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _with_gaps(table: Terms, cells: list[str]) -> list[str]:
    """A mark where rows between two shown ones, or after the last, are left out."""
    if table.count == len(table.rows) or not all(isinstance(row[0], int) for row in table.rows):
        return cells
    positions = [int(row[0] or 0) for row in table.rows]
    marked = []
    for cell, (before, after) in zip(cells, pairwise([*positions, table.count]), strict=False):
        marked += [cell, GAP_MARK] if after > before + 1 else [cell]
    return marked + cells[len(positions) :]
