"""Reports as tables for people: matrices with position and token on both sides, statistics beside them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

import numpy as np
from rich.console import Console
from rich.text import Text

from attncli.report import PLACES, NamedTensor, Numbers, Report, Row, Table, Tensors
from attncli.views import Display
from attncli.views.columns import Column, column_groups, shortened
from attncli.views.grid import grid
from attncli.views.heading import heading
from attncli.views.heatmap_figure import draw
from attncli.views.matrices import Matrix, matrices, titled, tokens_of
from attncli.views.numbers import NO_NUMBER, fixed, scalar
from attncli.views.plain_text import plain_text
from attncli.views.steps import IN_STEPS, StepsWriter
from attncli.views.token_index import index_lines

LAYOUT_WIDTH = 1_000_000
ROW_LABEL_WIDTH = 20
COLUMN_LABEL_WIDTH = 9
MAX_GROUPS = 8
MAX_CELLS = 50_000
MAX_VECTOR_ROWS = 24
# Columns of tables of rows that hold a position, and the axis that it is on.
POSITIONS = {"query": "query", "gained_key": "key", "lost_key": "key"}
MAX_VECTOR_COLUMNS = 64
MAX_EXAMPLE_ROWS = 6
MAX_TEXT = 58


class PipeConsole(Console):
    """A console that leaves a closed pipe to its caller, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Raise what rich caught."""
        raise


class TableWriter:
    """Writes the sections of one report to a console."""

    def __init__(self, report: Report, console: Console, display: Display) -> None:
        self.report = report
        self.console = console
        self.display = display
        self.drawn: set[str] = set()
        self.told: dict[tuple[str, int], str] = {}
        # A narrow screen leaves less room for words, none less for numbers.
        width = display.width or LAYOUT_WIDTH
        self.row_label_width = max(6, min(ROW_LABEL_WIDTH, width // 4))
        self.column_label_width = max(4, min(COLUMN_LABEL_WIDTH, width // 8))

    def write(self) -> None:
        """Heading, tensors with the statistics of their rows, the other statistics, notes."""
        self._text(heading(self.report), "bold")
        if self.report.steps:
            StepsWriter(self.console, self.display, self.row_label_width).write(self.report.steps)
        # Thousands of rows come with their quantiles, which are shown instead.
        rows = self.report.tensors_of("rows") if "quantiles" not in self.report.statistics else Tensors()
        stated = "difference" if self.report.experiment == "diff" else "weights"
        for matrix in matrices(self.report):
            if self._is_shown_elsewhere(matrix.name):
                continue
            is_stated = matrix.name == stated
            beside = self._statistic_columns(rows, matrix.index) if is_stated else []
            index = matrix.index if is_stated else None
            self._matrix(matrix, beside, index)
        if rows and stated not in self.report.tensors:
            self._rows_alone(rows)
        self._statistics()
        self._vectors()
        self._closing()

    def _text(self, text: str, style: str = "") -> None:
        self.console.print(
            Text(text, style=style), width=self.display.width, soft_wrap=self.display.width is None
        )

    def _labels(self, axis: str, count: int, most: int) -> list[tuple[str, str]]:
        """Position and token of each row or column of an axis; the token empty where the axis has none."""
        width = len(str(count - 1))
        tokens = tokens_of(self.report, axis)
        limit = most if self.display.width is not None else None
        names = [shortened(plain_text(token), limit) for token in tokens] if tokens else [""] * count
        return [(f"{i:>{width}}", name) for i, name in enumerate(names)]

    def _label_column(self, axis: str, count: int) -> Column:
        labels = self._labels(axis, count, self.row_label_width)
        return Column(("", axis), [f"{i} {name}".rstrip() for i, name in labels], left=True)

    def _matrix(self, of: Matrix, beside: list[Column], index: tuple[int, ...] | None) -> None:
        """One matrix, in groups of columns where it is wider than the screen; drawn where it is far wider."""
        title, axes, matrix = of.title, of.axes, of.values
        if axes[1] in ("dim", "embed"):
            self._vectors_of(title, axes, matrix)
            return
        num_rows = len(matrix)
        rows = self._label_column(axes[0], num_rows)
        received = self.report.tensors_of("keys").get("received_mass") if index is not None else None
        footer = list(received.values[index]) if received is not None else []
        label = Column(rows.header, [*rows.cells, *(["received mass"] if footer else [])], left=True)
        columns = self._matrix_columns(axes[1], matrix, footer) if matrix.size <= MAX_CELLS else []
        groups = column_groups(label, columns, self.display.width)
        is_one_of_a_model = any(axis == "layer" for axis, _ in of.place)
        is_map = len(groups) > 1 and (axes[1] == "key_block" or is_one_of_a_model)
        if not columns or len(groups) > MAX_GROUPS or is_map:
            self._draw(of.name)
        elif len(column_groups(label, [*columns, *beside], self.display.width)) == 1:
            blank = [""] * (len(label.cells) - num_rows)
            self._groups(title, label, [*columns, *(replace(c, cells=[*c.cells, *blank]) for c in beside)])
            return
        else:
            self._groups(title, label, columns)
        if beside:
            self._groups(f"{title}: statistics of each row", rows, beside)

    def _matrix_columns(self, axis: str, matrix: np.ndarray, footer: Sequence[float] = ()) -> list[Column]:
        """A column a key, the largest of each row emphasised, with a number of the footer below."""
        largest = np.nanargmax(np.where(np.isfinite(matrix), matrix, -np.inf), axis=1)
        columns = []
        for j, (position, name) in enumerate(self._labels(axis, matrix.shape[1], self.column_label_width)):
            numbers = [*matrix[:, j], *footer[j : j + 1]]
            header = (position.strip(), name) if name else ("", position.strip())
            bold = frozenset(np.flatnonzero(largest == j).tolist())
            cells = [fixed(n, self.display.precision) for n in numbers]
            columns.append(Column(header, cells, emphasis=bold))
        return columns

    def _is_shown_elsewhere(self, name: str) -> bool:
        """Whether the steps have shown a tensor, or it stands beside another one."""
        if self.report.steps and IN_STEPS.fullmatch(name):
            return True
        return self._pair(name, self.report.tensors[name])

    def _pair(self, name: str, tensor: NamedTensor) -> bool:
        """Whether a tensor was shown with its pair: wrong_x beside right_x, where both fit the width."""
        pair, tensors = name.partition("_"), self.report.tensors
        other = {"wrong": "right", "right": "wrong"}.get(pair[0])
        if f"{other}_{pair[2]}" not in tensors or tensor.axes[-1] == "dim" or tensor.values.size > MAX_CELLS:
            return False
        sides = [
            self._matrix_columns(tensor.axes[1], tensors[f"{side}_{pair[2]}"].values)
            for side in ("wrong", "right")
        ]
        for side, columns in zip(("wrong", "right"), sides, strict=True):
            columns[0] = replace(columns[0], header=(side, *columns[0].header))
        label = self._label_column(tensor.axes[0], len(tensor.values))
        between = Column(("",), ["│"] * len(tensor.values))
        columns = [*sides[0], between, *sides[1]]
        if len(column_groups(label, columns, self.display.width)) > 1:
            return False
        if pair[0] == "wrong":
            self._groups(f"{pair[2]} ({' × '.join(tensor.axes)}): wrong and right", label, columns)
        return True

    def _vectors_of(self, title: str, axes: tuple[str, ...], matrix: np.ndarray) -> None:
        """Vectors as rows: of many dimensions the first that fit, of many examples the first few."""
        num_rows, num_columns = matrix.shape
        is_whole = self.display.width is None and matrix.size <= MAX_CELLS
        shown_rows = num_rows
        if not is_whole and (axes[0] not in ("token", "query", "key") or num_rows > MAX_VECTOR_ROWS):
            shown_rows = min(num_rows, MAX_EXAMPLE_ROWS)
        whole = self._label_column(axes[0], num_rows)
        label = Column(whole.header, whole.cells[:shown_rows], left=True)
        part = matrix[:shown_rows, : num_columns if is_whole else MAX_VECTOR_COLUMNS]
        columns = [
            Column(("", str(j)), [fixed(n, self.display.precision) for n in part[:, j]])
            for j in range(part.shape[1])
        ]
        groups = column_groups(label, columns, self.display.width)
        shown = [column for group in (groups if len(groups) <= 2 else groups[:1]) for column in group]
        limits = [
            f"{count} of {total} {name}"
            for count, total, name in ((shown_rows, num_rows, "rows"), (len(shown), num_columns, "columns"))
            if count < total
        ]
        part_said = f": the first {' and '.join(limits)}" if limits else ""
        self._groups(f"{title}{part_said}", label, shown)

    def _draw(self, name: str) -> None:
        """A heatmap of all the matrices of a tensor, in place of tables that would be too wide."""
        if name in self.drawn:
            return
        self.drawn.add(name)
        figure = draw(self.report, [m for m in matrices(self.report) if m.name == name], self.display)
        self.told |= figure.mentioned
        self.console.print()
        self._text(f"{name}: too wide for a table, drawn; --format json or csv has every number", "dim")
        self.console.file.writelines(f"{line.text.rstrip(' ')}\n" for line in figure.lines)

    def _groups(self, title: str, label: Column, columns: list[Column]) -> None:
        groups = column_groups(label, columns, self.display.width)
        self.console.print()
        parts = f" (in {len(groups)} groups of columns)" if len(groups) > 1 else ""
        self._text(f"{title}{parts}", "bold")
        for number, group in enumerate(groups):
            if number:
                self.console.print()
            self.console.print(grid([label, *group]))

    def _statistic_columns(self, rows: Mapping[str, NamedTensor], index: tuple[int, ...]) -> list[Column]:
        columns = []
        for name, tensor in rows.items():
            if name in ("top_keys", "top_weights"):
                continue
            cells = [fixed(value, self.display.precision) for value in tensor.values[index]]
            columns.append(Column(_two_lines(name), cells))
        if "top_keys" in rows:
            keys, weights = rows["top_keys"].values[index], rows["top_weights"].values[index]
            labels = self._labels("key", int(keys.max()) + 1, self.column_label_width)
            for rank in range(keys.shape[-1]):
                cells = [
                    self._top_key(labels, k, w) for k, w in zip(keys[:, rank], weights[:, rank], strict=True)
                ]
                columns.append(Column(("", f"top {rank + 1}"), cells, left=True))
        return columns

    def _top_key(self, labels: list[tuple[str, str]], key: int, weight: float) -> str:
        if key < 0:
            return NO_NUMBER
        position, name = labels[key]
        return " ".join(filter(None, (position.strip(), name, fixed(weight, self.display.precision))))

    def _rows_alone(self, rows: Mapping[str, NamedTensor]) -> None:
        tensor = next(iter(rows.values()))
        for index in np.ndindex(tensor.values.shape[:-1]):
            label = self._label_column("query", tensor.values.shape[-1])
            place = tuple(zip(tensor.axes[:-1], index, strict=True))
            self._groups(titled("rows", place), label, self._statistic_columns(rows, index))

    def _vectors(self) -> None:
        """Tensors of one axis, side by side where they share it; long ones thinned, which is said."""
        by_axis: dict[tuple[str, int], list[tuple[str, np.ndarray]]] = {}
        for name, tensor in self.report.tensors.items():
            if tensor.values.ndim == 1 and not (self.report.steps and IN_STEPS.fullmatch(name)):
                by_axis.setdefault((tensor.axes[0], len(tensor.values)), []).append((name, tensor.values))
        for (axis, count), vectors in by_axis.items():
            step = -(-count // MAX_VECTOR_ROWS) if self.display.width is not None else 1
            shown = range(0, count, step)
            whole = self._label_column(axis, count)
            label = Column(whole.header, [whole.cells[i] for i in shown], left=True)
            columns = [
                Column(_two_lines(name), [fixed(v, self.display.precision) for v in values[::step]])
                for name, values in vectors
            ]
            title = ", ".join(name for name, _ in vectors)
            thinned = f": one row in {step} of {count}" if step > 1 else ""
            self._groups(f"{title} ({axis}){thinned}", label, columns)

    def _statistics(self) -> None:
        """Mappings of numbers with the same names share a table; a list of mappings is a table of its own."""
        tables: dict[tuple[str, ...], list[tuple[str, Row]]] = {}
        for name, value in self.report.statistics.items():
            if isinstance(value, Table):
                self._table_of_mappings(name, [(str(number), row) for number, row in enumerate(value)])
            elif isinstance(value, Numbers):
                tables.setdefault(tuple(value), []).append((name, value))
        for labelled in tables.values():
            self._table_of_mappings("statistics", labelled)

    def _table_of_mappings(self, title: str, labelled: Sequence[tuple[str, Row]]) -> None:
        names = list(labelled[0][1])
        if isinstance(labelled[0][1][names[0]], str):
            labelled = [(plain_text(str(row[names[0]])), row) for _, row in labelled]
            del names[0]
        elif set(PLACES) <= set(names):
            labelled = [(" ".join(f"{place} {row[place]}" for place in PLACES), row) for _, row in labelled]
            names = [name for name in names if name not in (*PLACES, "stack")]
        label = Column(("", ""), [name for name, _ in labelled], left=True)
        columns = [column for name in names for column in self._number_columns(name, labelled)]
        self._groups(title, label, columns)

    def _number_columns(self, name: str, labelled: Sequence[tuple[str, Row]]) -> Iterator[Column]:
        values = [row[name] for _, row in labelled]
        header = _two_lines(name)
        if lists := [value for value in values if isinstance(value, list)]:
            for i in range(len(lists[0])):
                yield Column((name, str(i)), [fixed(value[i], self.display.precision) for value in lists])
        elif any(isinstance(value, str) for value in values):
            # A setting may be a word in one row and a number, or nothing, in the next: scale sqrt and 0.5.
            most = MAX_TEXT if self.display.width is not None else None
            texts = [
                value if isinstance(value, str) else scalar(value, self.display.precision) for value in values
            ]
            yield Column(header, [shortened(plain_text(text), most) for text in texts], left=True)
        elif name in POSITIONS and len(places := [v for v in values if isinstance(v, int)]) == len(values):
            yield Column(header, [self._token_label(POSITIONS[name], place) for place in places], left=True)
        else:
            yield Column(header, [scalar(value, self.display.precision) for value in values])

    def _token_label(self, axis: str, position: int) -> str:
        tokens = tokens_of(self.report, axis)
        if not 0 <= position < len(tokens):
            return str(position)
        limit = self.row_label_width if self.display.width is not None else None
        return f"{position} {shortened(plain_text(tokens[position]), limit)}"

    def _closing(self) -> None:
        self.console.print()
        self._long_tokens()
        for note in self.report.notes:
            self._text(plain_text(note), "dim")

    def _long_tokens(self) -> None:
        """What was shortened, in the tables and in the pictures."""
        for line in index_lines(self.told, self.display.width):
            self._text(line, "dim")
        if self.display.width is None:
            return
        for name, tokens in (("token", self.report.tokens), ("context token", self.report.context_tokens)):
            for i, token in enumerate(tokens):
                is_cut = shortened(plain_text(token), self.row_label_width) != plain_text(token)
                if is_cut and (name, i) not in self.told:
                    self._text(f"{name} {i} is {plain_text(token)}", "dim")


def _two_lines(name: str) -> tuple[str, str]:
    first, _, second = name.rpartition("_")
    return first.replace("_", " "), second


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading, a blank line between reports."""
    console = PipeConsole(
        file=stream,
        width=LAYOUT_WIDTH,
        color_system="standard" if display.has_color else None,
        force_terminal=display.has_color,
        no_color=not display.has_color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    for number, report in enumerate(reports):
        if number:
            console.print()
        TableWriter(report, console, display).write()
