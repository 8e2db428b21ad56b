"""Reports as tables for people: matrices with position and token on both sides, statistics beside them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attncli.report import NamedTensor, Report
from attncli.views import Display
from attncli.views.columns import GAP, Column, column_groups, shortened
from attncli.views.heading import heading
from attncli.views.matrices import matrices, titled, tokens_of
from attncli.views.numbers import NO_NUMBER, fixed, scalar
from attncli.views.plain_text import plain_text
from attncli.views.shades import shaded_lines

LAYOUT_WIDTH = 1_000_000
ROW_LABEL_WIDTH = 20
COLUMN_LABEL_WIDTH = 9
MAX_GROUPS = 8
MAX_CELLS = 50_000
MAX_VECTOR_ROWS = 24
PLACES = ("layer", "head")
MAX_VECTOR_COLUMNS = 64
MAX_EXAMPLE_ROWS = 6


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
        self.left_out: set[str] = set()
        # A narrow screen leaves less room for words, none less for numbers.
        width = display.width or LAYOUT_WIDTH
        self.row_label_width = max(6, min(ROW_LABEL_WIDTH, width // 4))
        self.column_label_width = max(4, min(COLUMN_LABEL_WIDTH, width // 8))

    def write(self) -> None:
        """Heading, tensors with the statistics of their rows, the other statistics, notes."""
        self._text(heading(self.report), "bold")
        # Thousands of rows come with their quantiles, which are shown instead.
        rows = self.report.statistics.get("rows", {}) if "quantiles" not in self.report.statistics else {}
        for matrix in matrices(self.report):
            is_weights = matrix.name == "weights"
            beside = self._statistic_columns(rows, matrix.index) if is_weights else []
            index = matrix.index if is_weights else None
            self._matrix(matrix.title, matrix.axes, matrix.values, beside, index)
        if rows and "weights" not in self.report.tensors:
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

    def _matrix(
        self,
        title: str,
        axes: tuple[str, ...],
        matrix: np.ndarray,
        beside: list[Column],
        index: tuple[int, ...] | None,
    ) -> None:
        """One matrix, in groups of columns where it is wider than the screen; or its name for the closing."""
        if axes[1] in ("dim", "embed"):
            self._vectors_of(title, axes, matrix)
            return
        num_rows, num_columns = matrix.shape
        rows = self._label_column(axes[0], num_rows)
        received = self.report.statistics.get("keys", {}).get("received_mass") if index is not None else None
        footer = list(received.values[index]) if received is not None else []
        label = Column(rows.header, [*rows.cells, *(["received mass"] if footer else [])], left=True)
        columns = []
        if matrix.size <= MAX_CELLS:
            largest = np.nanargmax(np.where(np.isfinite(matrix), matrix, -np.inf), axis=1)
            for j, (position, name) in enumerate(self._labels(axes[1], num_columns, self.column_label_width)):
                numbers = [*matrix[:, j], *footer[j : j + 1]]
                header = (position.strip(), name) if name else ("", position.strip())
                bold = frozenset(np.flatnonzero(largest == j).tolist())
                columns.append(
                    Column(header, [fixed(n, self.display.precision) for n in numbers], emphasis=bold)
                )
        groups = column_groups(label, columns, self.display.width)
        is_map = axes[1] == "key_block" and len(groups) > 1
        if not columns or len(groups) > MAX_GROUPS or is_map:
            self._shade(title, axes, matrix)
        elif len(column_groups(label, [*columns, *beside], self.display.width)) == 1:
            blank = [""] * (len(label.cells) - num_rows)
            self._groups(title, label, [*columns, *(replace(c, cells=[*c.cells, *blank]) for c in beside)])
            return
        else:
            self._groups(title, label, columns)
        if beside:
            self._groups(f"{title}: statistics of each row", rows, beside)

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

    def _shade(self, title: str, axes: tuple[str, ...], matrix: np.ndarray) -> None:
        """Marks in place of numbers where weights fit as marks; else one line that says so."""
        label = self._label_column(axes[0], len(matrix))
        fits = self.display.width is None or label.width + GAP + matrix.shape[1] <= self.display.width
        if not axes[1].startswith("key") or not fits or not (matrix >= 0).all():
            self._leave_out(title, matrix.shape)
            return
        self.console.print()
        least = scalar(float(matrix[matrix > 0].min(initial=np.inf)), self.display.precision)
        most = scalar(float(matrix.max()), self.display.precision)
        self._text(f"{title}: {' × '.join(map(str, matrix.shape))}", "bold")
        self._text(f"blank is 0, . from {least} to @ at {most}, even in the logarithm", "dim")
        self._grid([label, Column(("", axes[1]), shaded_lines(matrix), left=True)])

    def _leave_out(self, title: str, shape: tuple[int, ...]) -> None:
        """One line in place of what is too wide, once for all its batches and heads."""
        name = title.split(" (")[0]
        if name not in self.left_out:
            self.left_out.add(name)
            size = " × ".join(map(str, shape))
            self.console.print()
            self._text(f"{name}: {size}, too wide to show; --format json or csv has every number", "dim")

    def _groups(self, title: str, label: Column, columns: list[Column]) -> None:
        groups = column_groups(label, columns, self.display.width)
        self.console.print()
        parts = f" (in {len(groups)} groups of columns)" if len(groups) > 1 else ""
        self._text(f"{title}{parts}", "bold")
        for number, group in enumerate(groups):
            if number:
                self.console.print()
            self._grid([label, *group])

    def _grid(self, columns: Sequence[Column]) -> None:
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim"
        )
        for column in columns:
            table.add_column(
                Text("\n".join(column.header).lstrip("\n")),
                justify="left" if column.left else "right",
                no_wrap=True,
                vertical="bottom",
            )
        for i in range(len(columns[0].cells)):
            table.add_row(*(self._cell(column, i) for column in columns))
        self.console.print(table)

    def _cell(self, column: Column, row: int) -> Text:
        text = column.cells[row]
        style = "bold" if row in column.emphasis else "dim" if text == NO_NUMBER else ""
        return Text(text, style=style)

    def _statistic_columns(self, rows: Mapping[str, NamedTensor], index: tuple[int, ...]) -> list[Column]:
        columns = []
        for name, tensor in rows.items():
            if name in ("top_keys", "top_weights"):
                continue
            cells = [fixed(value, self.display.precision) for value in tensor.values[index]]
            columns.append(Column(_two_lines(name), cells))
        if "top_keys" in rows:
            keys, weights = rows["top_keys"].values[index], rows["top_weights"].values[index]
            labels = self._labels("key", len(tokens_of(self.report, "key")), self.column_label_width)
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
        return f"{position.strip()} {name} {fixed(weight, self.display.precision)}"

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
            if tensor.values.ndim == 1:
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
        tables: dict[tuple[str, ...], list[tuple[str, Mapping[str, Any]]]] = {}
        for name, value in self.report.statistics.items():
            if name in ("rows", "keys"):
                continue
            if isinstance(value, list):
                numbered = [(str(number), row) for number, row in enumerate(value)]
                self._table_of_mappings(name, numbered)
            else:
                tables.setdefault(tuple(value), []).append((name, value))
        for labelled in tables.values():
            self._table_of_mappings("statistics", labelled)

    def _table_of_mappings(self, title: str, labelled: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        names = list(labelled[0][1])
        if isinstance(labelled[0][1][names[0]], str):
            labelled = [(row[names[0]], row) for _, row in labelled]
            del names[0]
        elif set(PLACES) <= set(names):
            labelled = [(" ".join(f"{place} {row[place]}" for place in PLACES), row) for _, row in labelled]
            names = [name for name in names if name not in PLACES]
        label = Column(("", ""), [name for name, _ in labelled], left=True)
        columns = [column for name in names for column in self._number_columns(name, labelled)]
        self._groups(title, label, columns)

    def _number_columns(
        self, name: str, labelled: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> Iterator[Column]:
        values = [row[name] for _, row in labelled]
        header = _two_lines(name)
        if isinstance(values[0], list):
            for i in range(len(values[0])):
                yield Column((name, str(i)), [fixed(value[i], self.display.precision) for value in values])
        elif isinstance(values[0], str):
            yield Column(header, [plain_text(value) for value in values], left=True)
        elif name == "query" and isinstance(values[0], int):
            yield Column(header, [self._query_label(value) for value in values], left=True)
        else:
            yield Column(header, [scalar(value, self.display.precision) for value in values])

    def _query_label(self, query: int) -> str:
        limit = self.row_label_width if self.display.width is not None else None
        return f"{query} {shortened(plain_text(self.report.tokens[query]), limit)}"

    def _closing(self) -> None:
        self.console.print()
        self._long_tokens()
        for note in self.report.notes:
            self._text(note, "dim")

    def _long_tokens(self) -> None:
        if self.display.width is None:
            return
        for name, tokens in (("token", self.report.tokens), ("context token", self.report.context_tokens)):
            for i, token in enumerate(tokens):
                if shortened(plain_text(token), self.row_label_width) != plain_text(token):
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
