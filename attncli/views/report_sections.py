"""The sections of a report: its title and notes, tables, tensors and steps."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from attncli.records.report import (
    PLACES,
    RANKED,
    Cell,
    NamedTensor,
    Numbers,
    Report,
    Row,
    Shape,
    Statistic,
    Step,
    Table,
    Tensors,
    Terms,
)
from attncli.settings.text import PATH_KEYS
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.matrices import (
    Matrix,
    axis_tokens,
    first_position,
    head_name,
    in_words,
    matrices,
    place_names,
)
from attncli.views.sections import Column, Drawing, Elastic, Grid, NamedValues, Paragraph, Section
from attncli.views.texts import (
    NO_NUMBER,
    file_name,
    file_text,
    files_of,
    fixed,
    model_setting,
    scalar,
    shortened,
    summarises_runs,
    token_in_line,
    token_texts,
    wrap_cells,
)

ROW_WIDTH, COLUMN_WIDTH = 20, 9


class TableLabels:
    """The labels of one report: positions and tokens; a narrow screen shortens only the tokens."""

    def __init__(self, report: Report, display: Display) -> None:
        self.report, self.precision, width = report, display.precision, display.width
        self.row_width = None if width is None else min(ROW_WIDTH, width // 4)
        self.column_width = None if width is None else min(COLUMN_WIDTH, width // 8)

    def rows(self, axis: str, count: int) -> Column:
        """Return the column that labels the rows."""
        first, names = first_position(self.report, axis), axis_tokens(self.report, axis)
        digits = len(str(first + count - 1))
        texts = token_texts(names, count, self.row_width)
        cells = [f"{i:>{digits}} {name}".rstrip() for i, name in enumerate(texts, first)]
        return Column(("", in_words(axis)), cells, left=True)

    def columns(self, axis: str, count: int) -> list[tuple[str, str]]:
        """Return a two-line header for each column."""
        names = token_texts(axis_tokens(self.report, axis), count, self.column_width)
        return [(str(i), name) if name else ("", str(i)) for i, name in enumerate(names)]

    def place(self, axis: str, position: int) -> str:
        """Return a position, followed by its token if there is one."""
        tokens = axis_tokens(self.report, axis)[position : position + 1] if position >= 0 else ()
        number = str(position + first_position(self.report, axis))
        return " ".join([number, *map(token_in_line, token_texts(tokens, 0, self.row_width))])

    def key(self, key: int, weight: float) -> str:
        """Return a key that a query looks at, and the key's weight."""
        if key < 0:
            return NO_NUMBER
        (name,) = token_texts(axis_tokens(self.report, "key")[key : key + 1], 1, self.column_width)
        return " ".join(filter(None, (str(key), name, fixed(weight, self.precision))))


def split_header(name: str) -> tuple[str, str]:
    """Split a name into the two lines of a header, such as `max` and `weight`."""
    first, _, second = name.rpartition("_")
    return first.replace("_", " "), second


LAST = 9
SENTENCE_END = re.compile(r"\.(?= )")


def notes_in(
    notes: Iterable[str],
    display: Display,
    *,
    usual: int | None = None,
    apart: bool = False,
    least: int = 0,
) -> Elastic:
    """Return the notes that fit or, on a terminal, their first sentences, one row per line; usually all.

    `least` rows are always shown, and a line states how many notes are left out.
    """
    texts, width = [plain_text(note) for note in notes], display.columns

    def fitting(room: int) -> tuple[list[Section], int]:
        lines = room
        paragraphs: list[Section] = []
        for text in texts:
            ends = [len(text)]
            if display.height is not None:
                ends += [match.start() + 1 for match in reversed([*SENTENCE_END.finditer(text)])]
            for part in (text[:end] for end in ends):
                if (taken := len(wrap_cells(part, width))) <= lines:
                    paragraphs.append(Paragraph(part, "note"))
                    lines -= taken
                    break
        return paragraphs, len(texts) - len(paragraphs)

    def of(room: int) -> list[Section]:
        paragraphs, num_left = fitting(room)
        if num_left and least:
            paragraphs, num_left = fitting(max(0, room - 1))
            left = counted(num_left, "more note" if paragraphs else "note")
            paragraphs.append(Paragraph(f"... {left}: --show all", "note"))
        before: list[Section] = [Paragraph("", "dim")] if apart and paragraphs else []
        return [*before, *paragraphs]

    every = sum(len(wrap_cells(text, width)) for text in texts)
    rows = every if usual is None else usual
    return Elastic(of, rows, min(least, every), every, LAST)


def shortenable_names(report: Report) -> Iterator[str]:
    """Return the names that a line may shorten: those of the model or program, and of files."""
    yield str(report.spec.get("model") or report.spec.get("program") or "")
    yield from (file_name(report.spec[key]) for key in PATH_KEYS if isinstance(report.spec.get(key), str))


def titled(report: Report) -> str:
    """Return the experiment and its subject, separated by a single colon."""
    return plain_text(f"{report.experiment}: {report.about.rstrip('.').replace(': ', ', ', 1)}")


def model_name(report: Report) -> str:
    """Return the model's folder or id, which may be the default model's."""
    model = model_setting(report)
    return Path(model).name or model


def requested_top(report: Report) -> int | None:
    """Return the requested number of heads, or None for all or for an invalid number in an edited report."""
    top = report.spec.get("top")
    return top if isinstance(top, int) and top > 0 else None


def text_read(report: Report) -> str:
    """Return what the model read."""
    spec = report.spec
    if spec.get("probe"):
        ships = ". It ships with attn; attn watch RUN shows yours" if spec.get("ships_with_attn") else ""
        return f"probe: {spec.get('num_tokens')} random tokens, twice{ships}"
    if inputs := spec.get("inputs"):
        return f"inputs: {inputs}"
    group = f", group {spec['text_group']}" if spec.get("text_group") else ""
    texts = f"{file_text('texts', spec['texts'])}{group}" if spec.get("texts") else ""
    if report.pictures:
        texts = f"{', '.join(picture.name for picture in report.pictures)} {spec.get('sentence') or ''}"
    elif many := next(files_of(report), None):
        texts = f"{many[0]}s of {many[1]} {spec.get('sentence') or ''}"
    text = texts or spec.get("sentence") or file_text("file", spec.get("file"))
    return str(text)


# The columns that hold a position, and the axis of each.
POSITIONS = {"query": "query", "gained_key": "key", "lost_key": "key"}
MAX_TEXT = 58
HEAD_COLUMNS = ("layer", "head", "stack", "kind", "module", "pattern", "rest_pattern")


def table_title(report: Report, name: str) -> str:
    """Return the title of a table."""
    return report.result.table_titles.get(name, name)


def statistic_tables(
    statistics: Mapping[str, Statistic], display: Display, labels: TableLabels
) -> Iterator[Grid]:
    """Return each table, followed by the numbers; numbers with the same names share one table."""
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    report = labels.report
    for name, value in statistics.items():
        if value and isinstance(value, Table) and not summarises_runs(report) and _has_head_rows(value):
            yield heads_grid(table_title(report, name), value, display.precision)
        elif value and isinstance(value, Table):
            yield _grid(
                table_title(report, name),
                [str(number) for number in range(len(value))],
                value,
                display,
                labels,
            )
        elif value and isinstance(value, Numbers):
            groups.setdefault(tuple(value), {})[name] = value
    for rows in groups.values():
        yield _grid("statistics", list(rows), list(rows.values()), display, labels)


def beside_grids(report: Report) -> Mapping[str, Statistic]:
    """Return the statistics of a report; a store's rows of heads only if they are not shown in grids."""
    if not summarises_runs(report) or not report.tensors:
        return report.statistics
    tables = {name: value for name, value in report.statistics.items() if isinstance(value, Table)}
    beside = {
        name: Table(row for row in table if None in map(row.get, PLACES)) for name, table in tables.items()
    }
    return {**report.statistics, **beside}


def _has_head_rows(table: Table) -> bool:
    """Return True if each row is about a head, unlike the contributions of an MLP or the embedding."""
    return all(row.get(place) is not None for row in table for place in PLACES)


def _grid(
    title: str, names: Sequence[str], rows: Sequence[Row], display: Display, labels: TableLabels
) -> Grid:
    """Return the rows as a table; if the first cell of each row is a string, it names the row."""
    first, *others = rows[0]
    if isinstance(rows[0][first], str):
        names = [plain_text(str(row[first])) for row in rows]
    else:
        others = [first, *others]
    columns = [
        column for name in others for column in _columns(name, [row[name] for row in rows], display, labels)
    ]
    return Grid(title, Column(("", ""), names, left=True), columns)


def _columns(
    name: str, cells: Sequence[Cell | list[Cell] | np.ndarray], display: Display, labels: TableLabels
) -> Iterator[Column]:
    precision, header = display.precision, split_header(name)
    if lists := [cell for cell in cells if isinstance(cell, list)]:
        for i in range(len(lists[0])):
            yield Column((name, str(i)), [fixed(cell[i], precision) for cell in lists])
    elif any(isinstance(cell, str) for cell in cells):
        # A setting may be a word in one row and a number or nothing in the next, such as scale sqrt and 0.5.
        most = MAX_TEXT if display.width is not None else None
        yield Column(header, [shortened(_cell(cell, precision), most) for cell in cells], left=True)
    elif name in POSITIONS and len(places := [cell for cell in cells if isinstance(cell, int)]) == len(cells):
        yield Column(header, [labels.place(POSITIONS[name], place) for place in places], left=True)
    else:
        yield Column(header, [scalar(cell, precision) for cell in cells])


def heads_grid(title: str, rows: Sequence[Row], precision: int) -> Grid:
    """Return each head as LAYER:HEAD, with more columns of its place if these differ, and its statistics."""
    label = Column(("", "head"), [head_name(row) for row in rows])
    return Grid(title, label, [*place_columns(rows), *statistic_columns(rows, rows[0], precision)])


def place_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns for a head's place other than LAYER:HEAD, if they distinguish heads."""
    return [
        Column(("", name), [plain_text(str(row[name])) for row in rows], left=True, repeated=name == "stack")
        for name in _distinguishing_places(rows)
    ]


def statistic_columns(rows: Sequence[Row], names: Iterable[str], precision: int) -> list[Column]:
    """Return the named columns, leaving out places, patterns and lists."""
    return [
        Column(split_header(name), [_cell(row[name], precision) for row in rows])
        for name in names
        if name not in HEAD_COLUMNS and not any(isinstance(row[name], list) for row in rows)
    ]


def _cell(cell: object, precision: int) -> str:
    return plain_text(cell) if isinstance(cell, str) else scalar(cell, precision)


def _distinguishing_places(rows: Sequence[Row]) -> list[str]:
    """Return the columns for a head's place that do not follow from its layer."""
    places = {(row["layer"], row.get("stack")) for row in rows}
    modules = {row.get("module") for row in rows}
    of_modules = {(row["layer"], row.get("stack"), row.get("module")) for row in rows}
    is_shown = {
        "stack": len({row.get("stack") for row in rows}) > 1,
        "kind": False,
        "rest_pattern": False,
        "module": not len(places) == len(modules) == len(of_modules),
    }
    return [name for name in HEAD_COLUMNS if name in rows[0] and is_shown.get(name, name not in PLACES)]


MAX_GROUPS = 8
MAX_CELLS = 50_000
MAX_VECTOR_ROWS = 24
MAX_VECTOR_COLUMNS = 64
MAX_EXAMPLE_ROWS = 6
ROUNDING = 1e-6


def largest_keys(values: np.ndarray) -> np.ndarray:
    """Return the index of each row's largest number; among numbers equal up to rounding, the first."""
    numbers = np.where(np.isfinite(values), values, -np.inf)
    top = numbers.max(axis=1, keepdims=True)
    largest: np.ndarray = (numbers >= top - ROUNDING * np.abs(top)).argmax(axis=1)
    return largest


def number_columns(
    headers: Sequence[tuple[str, str]], values: np.ndarray, precision: int, footer: Sequence[float] = ()
) -> list[Column]:
    """Return a column for each header, with the largest number of each row emphasised and a footer below."""
    largest = largest_keys(values)
    return [
        Column(
            header,
            [fixed(number, precision) for number in (*values[:, j], *footer[j : j + 1])],
            emphasis=frozenset(np.flatnonzero(largest == j).tolist()),
        )
        for j, header in enumerate(headers)
    ]


class TensorTables:
    """The tables of one report's tensors."""

    def __init__(self, report: Report, display: Display, labels: TableLabels) -> None:
        self.report, self.display, self.labels = report, display, labels
        # If there are thousands of rows, quantiles are shown instead.
        self.rows = Tensors() if "quantiles" in report.statistics else report.tensors_of("rows")
        self.with_statistics = self._statistics_tensor()

    def sections(self) -> Iterator[Section]:
        """Return the sections, matrix by matrix; row statistics go beside or below the weights."""
        for name, group in groupby(matrices(self.report), key=lambda matrix: matrix.name):
            if name not in self.report.explained:
                yield from self._matrices(list(group))
        if self.rows and self.with_statistics is None:
            tensor = next(iter(self.rows.values()))
            for index in np.ndindex(tensor.values.shape[:-1]):
                title = ", ".join(["rows", *place_names(zip(tensor.axes[:-1], index, strict=True))])
                label = self.labels.rows("query", tensor.values.shape[-1])
                yield Grid(title, label, self._statistics_of_rows(index))

    def _statistics_tensor(self) -> str | None:
        """Return the tensor that row statistics describe: not a mean over heads with their own rows."""
        name = "difference" if "difference" in self.report.tensors else "weights"
        whole = self.report.tensors.get(name)
        if whole is None or not self.rows:
            return None
        statistic = next(tensor for rank, tensor in self.rows.items() if rank not in RANKED)
        return name if statistic.axes[:-1] == whole.axes[:-2] else None

    def _matrices(self, tensor_matrices: Sequence[Matrix]) -> Iterator[Section]:
        is_drawn = False
        for matrix in tensor_matrices:
            if matrix.axes[1] in ("dim", "embed"):
                yield self._vectors(matrix)
                continue
            has_statistics = matrix.name == self.with_statistics
            beside = self._statistics_of_rows(matrix.index) if self.rows and has_statistics else []
            rows = self.labels.rows(matrix.axes[0], len(matrix.values))
            grid = self._grid(matrix, rows, has_statistics)
            if grid is None:
                if not is_drawn:
                    yield self._drawing(tensor_matrices)
                is_drawn = True
            else:
                blank = [""] * (len(grid.label.cells) - len(rows.cells))
                more = [replace(column, cells=[*column.cells, *blank]) for column in beside]
                whole = replace(grid, columns=[*grid.columns, *more])
                if whole.fits(self.display.width):
                    yield whole
                    continue
                yield grid
            if beside:
                yield Grid(f"{matrix.title}: statistics of each row", rows, beside)

    def _grid(self, matrix: Matrix, rows: Column, has_statistics: bool) -> Grid | None:
        """Return one matrix, with each key's mass below the weights, or None if the table is too wide."""
        if matrix.values.size > MAX_CELLS:
            return None
        received = self.report.tensors_of("keys").get("received_mass") if has_statistics else None
        footer = [] if received is None else list(received.values[matrix.index])
        label = replace(rows, cells=[*rows.cells, *(["received mass"] if footer else [])])
        headers = self.labels.columns(matrix.axes[1], matrix.values.shape[1])
        grid = Grid(
            matrix.title, label, number_columns(headers, matrix.drawn, self.display.precision, footer)
        )
        count = len(grid.groups(self.display.width))
        is_one_of_a_model = any(axis == "layer" for axis, _ in matrix.place)
        is_map = count > 1 and (matrix.axes[1] == "key_block" or is_one_of_a_model)
        return None if count > MAX_GROUPS or is_map else grid

    def _fixed(self, numbers: Sequence[float] | np.ndarray) -> list[str]:
        return [fixed(number, self.display.precision) for number in numbers]

    def _statistics_of_rows(self, index: tuple[int, ...]) -> list[Column]:
        columns = [
            Column(split_header(name), self._fixed(tensor.values[index]))
            for name, tensor in self.rows.items()
            if name not in RANKED
        ]
        if "top_keys" in self.rows:
            keys, weights = (self.rows[name].values[index] for name in RANKED)
            for rank in range(keys.shape[-1]):
                cells = [self.labels.key(*pair) for pair in zip(keys[:, rank], weights[:, rank], strict=True)]
                columns.append(Column(("", f"top {rank + 1}"), cells, left=True))
        return columns

    def _drawing(self, tensor_matrices: Sequence[Matrix]) -> Drawing:
        """Return a heatmap of all matrices of a tensor, which replaces tables that are too wide."""
        from attncli.views.heatmap import draw

        figure = draw(self.report, tensor_matrices, self.display)
        name = tensor_matrices[0].name
        title = f"{name}: too wide for a table, so shown as a picture; --format json has every number"
        return Drawing(title, [line.text.rstrip(" ") for line in figure.lines], figure.mentioned)

    def _vectors(self, matrix: Matrix) -> Grid:
        """Return vectors as rows: the first dimensions that fit and, of many examples, the first few."""
        num_rows, num_columns = matrix.values.shape
        is_whole = self.display.width is None and matrix.values.size <= MAX_CELLS
        is_of_tokens = matrix.axes[0] in ("token", "query", "key") and num_rows <= MAX_VECTOR_ROWS
        shown_rows = num_rows if is_whole or is_of_tokens else min(num_rows, MAX_EXAMPLE_ROWS)
        label = self.labels.rows(matrix.axes[0], num_rows)
        label = replace(label, cells=label.cells[:shown_rows])
        most = self.display.most_dims or (num_columns if is_whole else MAX_VECTOR_COLUMNS)
        part = matrix.values[:shown_rows, :most]
        columns = [Column(("", str(j)), self._fixed(part[:, j])) for j in range(part.shape[1])]
        groups = Grid("", label, columns).groups(self.display.width)
        fitting = columns if len(groups) <= 2 else groups[0]
        limits = [
            f"{count} of {total} {name}"
            for count, total, name in ((shown_rows, num_rows, "rows"), (len(fitting), num_columns, "columns"))
            if count < total
        ]
        title = f"{matrix.title}: the first {' and '.join(limits)}" if limits else matrix.title
        return Grid(title, label, fitting)

    def number_lines(self) -> Iterator[Grid]:
        """Return the tensors of one axis, side by side if they share it; long ones are thinned, with a note.

        A table's columns are not repeated, nor are step numbers if there are other tensors per step.
        """
        has_steps = any("step" in tensor.axes for tensor in self.report.tensors.values())
        by_axis: dict[tuple[str, int], dict[str, NamedTensor]] = {}
        tables = [table for table in self.report.statistics.values() if isinstance(table, Table) and table]
        in_tables = {(name, len(table)) for table in tables for name in table[0]}
        for name, tensor in self.report.tensors.items():
            if tensor.values.ndim == 1 and name not in self.report.explained:
                by_axis.setdefault((tensor.axes[0], len(tensor.values)), {})[name] = tensor
        for (axis, count), tensors in by_axis.items():
            if all((name, count) in in_tables for name in tensors) or ([*tensors] == ["step"] and has_steps):
                continue
            step = -(-count // MAX_VECTOR_ROWS) if self.display.width is not None else 1
            label = self.labels.rows(axis, count)
            columns = [Column(split_header(n), self._fixed(t.values[::step])) for n, t in tensors.items()]
            thinned = f": one row in {step} of {count}" if step > 1 else ""
            title = f"{', '.join(tensors)} ({axis}){thinned}"
            yield Grid(title, replace(label, cells=label.cells[::step]), columns)


GAP_MARK = "⋮"


def step_sections(report: Report, labels: TableLabels, only: int | None = None) -> Iterator[Section]:
    """Return each step under its number, or only the step that was requested."""
    for number, step in enumerate(report.steps, start=1):
        if only not in (None, number):
            continue
        yield Paragraph(plain_text(f"{number} of {len(report.steps)}: {step.title}"), "step")
        yield Paragraph(plain_text(step.formula), "bold")
        yield from _shapes(step.shapes)
        if step.question:
            yield Paragraph(plain_text(step.question), "lead")
        yield Paragraph(plain_text(step.prose), "line" if step.question else "prose")
        for table in step.tables:
            yield _terms_grid(table, labels)
        yield from _values(step, labels.precision)


def _shapes(shapes: tuple[Shape, ...]) -> Iterator[Section]:
    """Return a single line with all shapes, or a table if strides matter."""
    if any(shape.strides is not None for shape in shapes):
        texts = {
            "axes": [plain_text(" × ".join(shape.axes)) for shape in shapes],
            "shape": [_tuple(shape.sizes) for shape in shapes],
            "strides": [_tuple(shape.strides or ()) for shape in shapes],
        }
        label = Column(("",), [plain_text(shape.name) for shape in shapes], left=True)
        yield Grid("", label, [Column((name,), cells, left=True) for name, cells in texts.items()])
    elif shapes:
        sizes = ", ".join(f"{s.name} {' × '.join(map(str, s.sizes))}" for s in shapes)
        yield Paragraph(plain_text(sizes), "dim")


def _tuple(sizes: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _terms_grid(table: Terms, labels: TableLabels) -> Grid:
    """Return the terms; the title counts the rows left out, and a mark shows where they were."""
    has_text = len(table.columns) > 1 and table.columns[1] == "text"
    columns = []
    for place in range(2 if has_text else 1, len(table.columns)):
        cells = [plain_text(fixed(row[place], labels.precision)) for row in (*table.rows, *table.totals)]
        is_text = all(isinstance(row[place], str) for row in table.rows)
        first, _, second = plain_text(table.columns[place]).rpartition(" ")
        columns.append(Column((first, second), _with_gaps(table, cells), left=is_text))
    title = table.title
    if table.count > len(table.rows):
        totals = ", totals over all" if table.totals else ""
        title += f" ({len(table.rows)} of {table.count} rows{totals})"
    names = _with_gaps(table, _names(table, labels.row_width if has_text else 0))
    return Grid(plain_text(title), Column((plain_text(table.columns[0]),), names, left=True), columns)


def _names(table: Terms, text_width: int | None) -> list[str]:
    """Return the position that each row is about and the token there (width 0: no token)."""
    width = max((len(str(row[0])) for row in table.rows if isinstance(row[0], int)), default=0)
    names = []
    for row in table.rows:
        position = f"{row[0]:>{width}}" if isinstance(row[0], int) else plain_text(str(row[0]))
        text = "" if text_width == 0 else shortened(plain_text(str(row[1])), text_width)
        names.append(f"{position} {text}".rstrip())
    return names + [plain_text(str(total[0])) for total in table.totals]


def _with_gaps(table: Terms, cells: list[str]) -> list[str]:
    """Return the cells, with a mark where rows were left out."""
    if table.count == len(table.rows) or not all(isinstance(row[0], int) for row in table.rows):
        return cells
    positions = [int(row[0] or 0) for row in table.rows]
    marked = []
    for cell, (before, after) in zip(cells, pairwise([*positions, table.count]), strict=False):
        marked += [cell, GAP_MARK] if after > before + 1 else [cell]
    return marked + cells[len(positions) :]


def _values(step: Step, precision: int) -> Iterator[NamedValues]:
    if step.values:
        values = {plain_text(name): value for name, value in step.values.items()}
        texts = {name: plain_text(value) for name, value in values.items() if isinstance(value, str)}
        numbers = {name: _number(value, precision) for name, value in values.items() if name not in texts}
        yield NamedValues(texts, numbers)


def _number(value: Cell, precision: int) -> str:
    """Return a number, or zero for a mere rounding error, whose digits differ between processors."""
    if isinstance(value, float) and 0 < abs(value) < ROUNDING:
        return f"below {ROUNDING:.0e}"
    return scalar(value, precision)
